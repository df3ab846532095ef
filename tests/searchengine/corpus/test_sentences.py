"""Ends of sentences: the marks and abbreviations of many languages; and the language of a text."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

from searchengine.corpus.language_traits import language_of
from searchengine.corpus.sentences import sentence_ends

# The sentences of a text, which is all of them with a space between; "|" in place of none.
SENTENCES = {
    "en": [
        "Mt. Everest and the Univ. of Oslo are what Dr. Smith of the U.S. saw.",
        "It was No. 5.",
    ],
    "de": [
        "Wale schlafen, z. B. Pottwale, wie Prof. Dr. h. c. Weber sagte.",
        "Vgl. Kap. 4 bzw. Abb. 2 im Buch.",
        "Er sagte: „Sie schlafen.“",
        "»Und das ist alles.«",
        "Es war 1990.",
        "Dann nicht mehr.",
    ],
    "fr": [
        "M. Dupont et Mme. Curie ont vu la baleine !",
        "Où dort-elle ?",
        "« Elle dort dans la mer. »",
        "Voir fig. 3 et J.-C. Perrin.",
    ],
    "es": [
        "El Sr. García y la Sra. López la vieron de noche.",
        "¿Duermen las ballenas?",
        "¡Sí!",
        "Véase la pág. 3 de la Dra. Ruiz.",
    ],
    "it": ["Il sig. Rossi e il dott. Bianchi sono alla pag. 3 del libro.", "Non dormono."],
    "nl": [
        "Dhr. Jansen en mevr. Bos zijn bijv. Op zee, zie blz. 3 van het boek.",
        "En dat is het.",
    ],
    "pt": ["O Sr. Silva e a Dra. Lima não são da Av. Central, ver pág. 3.", "É isso."],
    "sv": ["Valar, t.ex. Kaskeloter, sover och är bl.a. Grå, se s. 5 i boken.", "Det är allt."],
    "pl": ["Np. Kaszalot jest na ul. Długiej nr 5, jak mówi Prof. Nowak.", "To nie jest ryba."],
    "tr": ["Bkz. Ankara için örn. Kaya ile olan bu kitap.", "Bu bir balina değil."],
    "ru": [
        "А. С. Пушкин был в 1799 г. Москвичом, см. рис. 3 и т. е. Киты не рыбы.",
        "Они спят!",
        "«Когда же это было?»",
        "Им. Ленина на ул. Мира.",
    ],
    "el": ["Πότε κοιμούνται οι φάλαινες;", "Το λέει ο κ. Παπάς.", "Ναι."],
    "ar": ["لماذا تتنفس الحيتان؟", "قال د. أحمد إن ذلك في البحر.", "نعم!"],
    "ur": ["وہیل سوتی ہے۔", "کیوں؟", "وہ ۳۔۵ میٹر ہے۔"],
    "hi": ["व्हेल आधे दिमाग से सोती है।", "डॉ. शर्मा कहते हैं॥", "क्यों?"],
    "hy": ["Կետերը քնում են։", "Այո։"],
    "am": ["ዓሣ ነባሪ ይተኛል።", "ይተነፍሳል፧", "አዎ።"],
    "my": ["ဝေလငါး အိပ်သည်။", "အသက်ရှူသည်။"],
    "km": ["ត្រីបាឡែនគេង។", "វាដកដង្ហើម៕"],
    "ko": ["고래는 3.14시간을 잔다.", "언제 자나?", '"잔다."', "밤이다!"],
    "th": ["วาฬนอนหลับครึ่งสมอง", "มันหายใจทุก 20 นาที", "นักวิทยาศาสตร์ศึกษา"],
}
UNSPACED = {
    "zh": ["鲸鱼睡觉。", "它们睡多久？", "“真的吗？”", "他问。", "约３．５小时．"],
    "ja": ["鯨は眠る。", "どのくらい？", "「本当？」", "と聞いた！"],
}


@pytest.mark.parametrize("language", [*SENTENCES, *UNSPACED])
def test_sentences_end_as_their_language_ends_them(language: str) -> None:
    between = "" if language in UNSPACED else " "
    sentences = (SENTENCES | UNSPACED)[language]
    text = between.join(sentences)
    ends = [0, *sentence_ends(text), len(text)]
    found = [text[start:end].strip() for start, end in pairwise(ends)]
    assert [sentence for sentence in found if sentence] == sentences


@pytest.mark.parametrize("language", ["es", "ru", "tr", "vi", "ar", "th"])
def test_the_language_of_a_text_is_told_by_its_words(shared_data: Path, language: str) -> None:
    """Of 240 articles each, all of them or none; of their first hundred characters most."""
    with gzip.open(shared_data / "xquad" / language / "corpus.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) == 240
    whole = [language_of(text) for text in texts]
    begun = [language_of(text[:100]) for text in texts]
    assert whole.count(language) + whole.count(None) >= 239
    assert whole.count(language) >= 232
    assert begun.count(language) + begun.count(None) >= 237
    assert begun.count(language) >= 120
