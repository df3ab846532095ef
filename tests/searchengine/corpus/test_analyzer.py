"""Texts to terms: stems by language, parts of words in scripts without spaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.corpus.analyzer import TERMS, Analyzer


def terms_of(analyzer: Analyzer, text: str) -> list[str]:
    """All terms of a text, names as a whole behind their parts."""
    cuts = analyzer.cuts(text, analyzer.order_of(text))
    return [term for cut in cuts for term in (*cut.parts, cut.whole, *cut.inner) if term]


@pytest.mark.parametrize(
    ("analyzer", "text", "terms"),
    [
        ("stem:de", "Häuser, HAUSES; Straße strasse", "haus haus strass strass"),
        ("stem:de", "ein_Wort 3,5 x²", "ein wort einwort 3 5 x 2 x2"),
        ("stem:en", "self.file_name a3f5c9e1", "self file name self.filename filenam a3f5c9e1"),
        ("stem:ru", "Большие дома, доме", "больш дом дом"),
        ("stem:de,ru", "Häuser домами houses", "haus дом hous"),
        ("stem:en,de", "houses Häuser", "hous hauser"),  # the first language of a script counts
        ("stem:fr", "Écoles ecole", "ecol ecol"),  # accents are dropped behind the stemmer
        ("stem:vi", "Trường Hà Nội", "trường hà nội"),  # but in Vietnamese, which they tell apart
        ("stem:tr", "ISPARTA İstanbul", "ispar istanbul"),  # a dotless and a dotted i
        ("stem:en,tr", "INFORMATION CITIES", "inform citi"),  # Turkish comes behind
        ("stem:hi", "नमस्ते, दुनिया", "नमस्ते दुनिया"),
        ("stem", "Häuser", "hauser"),
        ("stem", "東京都の高 海", "東京 京都 都の の高 高 海"),
        ("stem", "ﾃｽﾄ ＡＢＣ", "テス スト ト abc"),  # narrow and wide letters
        ("stem", "「高い」・人", "高い い 人"),
        ("stem", "고래는 잔다", "고래 래는 는 잔다 다"),
        ("stem", "นอน", "นอน อน น"),
        ("stem", "GPU가 α", "gpu 가 α"),
        ("stem:de,tr", "Insel IBM insel ibm", "insel ibm insel ibm"),
        ("stem:de", "iPhone™ 84㎡", "i phon iphon tm 84 m 2 m2"),
        ("stem", "?!_ \0 \ud800", ""),
        ("stem", "e\u0301te\u0301", "ete"),
    ],
)
def test_terms(analyzer: str, text: str, terms: str) -> None:
    assert terms_of(Analyzer.parse(analyzer), text) == terms.split()


@given(st.text(), st.sampled_from(["stem", "stem:de,ru", "stem:vi", "stem:tr,ar"]))
def test_every_term_can_be_found(text: str, name: str) -> None:
    """No text fails, no term is empty or has a space, and terms have the same terms."""
    analyzer = Analyzer.parse(name)
    terms = terms_of(analyzer, text)
    assert all(term and not any(map(str.isspace, term)) for term in terms)
    for cut in analyzer.cuts(text):
        assert len(cut.asked) == (
            max(1, len(cut.parts) - cut.size + 1) if cut.size else len(cut.parts)
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("porter", "not a valid Tokenizer"),
        ("unicode:de", "only the tokenizer stem takes languages, got unicode:de"),
        ("stem:de,xx", "no language has the code xx"),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Analyzer.chosen(text)


def test_the_name_is_the_analyzer() -> None:
    for name in ("unicode", "stem", "stem:de,ru", "none"):
        assert str(Analyzer.parse(name)) == name
        assert Analyzer.parse(Analyzer.parse(name)) == Analyzer.parse(name)
    assert Analyzer.parse("stem:vi,ja").label.startswith("stem:vi,ja (terms ")
    assert "Snowball" not in Analyzer.parse("stem:vi,ja").label  # nothing of it is used
    assert ", Snowball 3" in Analyzer.parse("stem:de").label
    assert Analyzer.parse("unicode").label.startswith("unicode (terms ")
    assert Analyzer.parse("none").label == "none"


def test_of_several_languages_in_a_script_that_of_the_text_counts() -> None:
    """A text whose language is unclear or not listed is stemmed by the first language."""
    analyzer = Analyzer.parse("stem:en,de,ru")
    german = "Die Wale und die Vögel schlafen nicht in den Häusern, wie es heißt."
    assert terms_of(analyzer, german) == terms_of(Analyzer.parse("stem:de"), german)
    assert terms_of(analyzer, "sleeping Vögel") == terms_of(
        Analyzer.parse("stem:en"), "sleeping Vögel"
    )
    russian = "Киты спят в море."
    assert terms_of(analyzer, russian) == terms_of(Analyzer.parse("stem:ru"), russian)
    french = "Les baleines dorment dans la mer et les oiseaux volent dans le ciel."
    assert terms_of(analyzer, french) == terms_of(Analyzer.parse("stem:en"), french)
    assert analyzer.orders == (("en", "de", "ru"), ("de", "en", "ru"), ("ru", "en", "de"))
    assert Analyzer.parse("stem:ru,de").orders == (("ru", "de"),)
    assert analyzer.label.startswith(f"stem:en,de,ru (terms {TERMS}, ")
