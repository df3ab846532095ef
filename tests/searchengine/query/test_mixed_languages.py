"""Several languages in one collection: what is shown of each document follows its own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.query.snippets import matched_words

TEXTS = {
    "en": "The sea is deep. Whales were sleeping in it. Birds fly in the sky.",
    "de": "Das Meer ist tief. Die Wale schlafen in ihm. Die Vögel fliegen am Himmel.",
    "fr": "La mer est profonde. Les baleines dorment dans l'eau. Les oiseaux volent dans le ciel.",
    "ru": "Море глубокое. Киты спят в нём на боку. Птицы летают в небе и над морем.",
    "ko": "바다는 깊다. 고래는 물속에서 잠을 잔다. 새들은 하늘에서 난다.",
    "zh": "大海很深。鲸鱼在水中睡觉。鸟在天上飞。",
    "ja": "海は深いです。クジラは水の中で眠ります。鳥は空を飛びます。",
    "th": "ทะเลลึกมาก วาฬนอนหลับอยู่ใต้น้ำ นกบินอยู่บนท้องฟ้า",
}


def test_words_of_a_hit_are_matched_in_its_own_language(tmp_path: Path) -> None:
    """In scripts without spaces, if the analyzer does not name it."""
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer="stem:en,de,fr,ru") as engine:
        engine.add({"_id": key, "text": text} for key, text in TEXTS.items())

        def highlights(question: str, key: str) -> list[str]:
            hits = engine.search(question, k=len(TEXTS), mode="vector")
            return next(hit.highlights for hit in hits if hit.key == key)

        assert highlights("how does a whale sleep", "en") == ["sleeping", "whales"]
        assert highlights("wo fliegt ein Vogel", "de") == ["vögel"]
        assert highlights("schlafende Wal", "de") == ["wale"]
        assert highlights("où dort la baleine", "fr") == ["baleines"]
        assert highlights("птица в море", "ru") == ["море", "морем", "птицы"]
        assert highlights("고래가 어디에서 자나요", "ko") == ["고래", "에서"]
        assert highlights("鲸鱼怎样睡觉", "zh") == ["睡觉", "鲸鱼"]
        assert highlights("クジラはどこで眠りますか", "ja") == ["クジ", "ジラ", "ラは", "眠り"]
        assert highlights("วาฬนอนอย่างไร", "th") == ["นอน", "นอย", "วาฬ", "ฬนอ", "าฬน"]


def test_words_without_meaning_are_matched_only_alone() -> None:
    text = "To be or not to be, that is the question of a prince."
    assert matched_words(text, "the question") == ["question"]
    assert matched_words(text, "to be or not to be") == ["be", "not", "or", "to"]
    assert matched_words(f"The prince\n{text}", "princes") == ["prince"]
    assert matched_words(text, "") == []


def words_only(path: Path, texts: Mapping[str, str], tokenizer: str) -> SearchEngine:
    engine = SearchEngine.create(path, None, dim=2, tokenizer=tokenizer)
    documents = [{"_id": key, "text": text} for key, text in texts.items()]
    engine.add(documents, np.ones((len(documents), 2), np.float32))
    return engine


def test_words_are_found_by_the_stems_of_each_document(tmp_path: Path) -> None:
    """By a short question, and by a phrase."""
    with words_only(tmp_path / "c", TEXTS, "stem:en,de,fr,ru") as engine:
        for question, key in (
            ("Vogel", "de"),
            ("schlafende Wal", "de"),
            ("oiseau", "fr"),
            ("whale", "en"),
            ("birds", "en"),
            ("птица", "ru"),
            ('+"die Wal"', "de"),
            ('+"Vogel fliegen"', "de"),
            ('+"whale were sleeping"', "en"),
        ):
            assert [hit.key for hit in engine.search(question, mode="text")] == [key], question
        engine.verify()


def test_a_word_has_one_frequency_whatever_its_stems_are(tmp_path: Path) -> None:
    """Else a word that another language stems otherwise would be rare there, and weigh more."""
    texts = {f"en{i}": f"The fuzzy rules of the game are here in part {i}" for i in range(12)}
    texts |= {f"pt{i}": f"O mar e os barcos não são de uma casa com o dia {i}" for i in range(12)}
    texts["pt"] = "O livro fuzzy não é de uma casa com os barcos e o mar"
    with words_only(tmp_path / "c", texts, "stem:en,pt") as engine:
        hits = engine.search("fuzzy rules", k=13, mode="text")
        assert {hit.key for hit in hits[:12]} == {f"en{i}" for i in range(12)}
