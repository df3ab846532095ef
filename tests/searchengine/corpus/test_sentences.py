"""Ends of sentences: the marks of many languages, and short abbreviations."""

from itertools import pairwise

import pytest

from searchengine.corpus.languages import sentence_ends

# The sentences of a text, which is all of them with a space between; "|" in place of none.
SENTENCES = {
    "en": [
        "Mt. Everest and the univ. of Oslo are what Dr. Smith of the U.S. saw.",
        "It is 65 °C.",
        "It was No. 5.",
    ],
    "de": [
        "Wale schlafen, z. B. Pottwale, wie Dr. h. c. Weber sagte.",
        "Vgl. Kap. 4 und Abb. 2 im Buch.",
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
    "it": ["Il Sig. Rossi è alla pag. 3 del libro.", "Non dormono."],
    "nl": [
        "Dhr. Jansen en Mw. Bos zijn op zee, zie blz. 3 van het boek.",
        "En dat is het.",
    ],
    "pt": ["O Sr. Silva e a Dra. Lima não são da Av. Central, ver pág. 3 do livro.", "É isso."],
    "sv": ["Valar sover och är grå, se s. 5 i boken.", "Det är allt."],
    "pl": ["Np. Kaszalot jest rybą nr 5, jak mówi Dr. Nowak.", "To nie jest ryba."],
    "tr": ["Bkz. Ankara için olan bu kitap.", "Bu bir balina değil."],
    "ru": [
        "А. С. Пушкин был в 1799 г. Москвичом, см. рис. 3 и т. е. Киты не рыбы.",
        "Они спят!",
        "«Когда же это было?»",
        "Им. Ленина, см. рис. 3.",
    ],
    "el": ["Πότε κοιμούνται οι φάλαινες;", "Το λέει ο κ. Παπάς.", "Ναι."],
    "ar": ["لماذا تتنفس الحيتان؟", "قال أحمد إن ذلك في البحر.", "نعم!"],
    "ur": ["وہیل سوتی ہے۔", "کیوں؟", "وہ ۳۔۵ میٹر ہے۔"],
    "hi": ["व्हेल आधे दिमाग से सोती है।", "शर्मा कहते हैं॥", "क्यों?"],
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
