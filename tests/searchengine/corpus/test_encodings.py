"""Files that are not UTF-8 are read as what they are."""

from pathlib import Path

import pytest

from searchengine.corpus.contents import detected
from searchengine.corpus.files import read_corpus

pytest.importorskip("chardet", reason="needs the extra formats")

TEXTS = {
    "pt": (
        "Prezado João, escrevo para informar que a reunião de amanhã será às três horas. Não "
        "se esqueça de trazer os relatórios e as previsões para o próximo mês. Depois podemos"
        " almoçar juntos na praça e falar sobre as férias da família no litoral. O avô já "
        "comprou pães e maçãs."
    ),
    "fr": (
        "L'été dernier, nous avons déjeuné près de la forêt où les élèves préparaient leur "
        "théâtre. Ma sœur a reçu une lettre très étrange qui disait que le château était à "
        "vendre. Où êtes-vous allés après la fête du village ? Ça coûte cher, mais c'est une "
        "idée géniale."
    ),
    "it": (
        "La città è più bella quando cade la neve, perché il rumore si spegne. Però domani "
        "sarà già lunedì e tornerò in ufficio. Così è la vita, diceva mio nonno, e nessuno "
        "può cambiarla. Chissà se verrà anche lui a prendere un caffè."
    ),
    "pl": (
        "Wczoraj wieczorem poszliśmy nad rzekę, żeby zobaczyć łódź, którą kupił nasz wujek. "
        "Było już późno i wszędzie panowała cisza. Książka leżała na stole, ale nikt nie "
        "chciał jej czytać, bo wszyscy myśleli o jutrzejszej podróży."
    ),
    "tr": (
        "Dün akşam amcamızın aldığı kayığı görmek için nehre gittik. Artık geç olmuştu ve her"
        " yerde sessizlik vardı. Kitap masanın üzerinde duruyordu ama kimse okumak "
        "istemiyordu, çünkü herkes yarınki yolculuğu düşünüyordu. Işıklar söndü."
    ),
    "ru": (
        "Вчера вечером мы пошли к реке, чтобы посмотреть на лодку, которую купил наш дядя. "
        "Было уже поздно, и повсюду царила тишина. Книга лежала на столе, но никто не хотел "
        "её читать, потому что все думали о завтрашнем путешествии."
    ),
    "ja": (
        "昨日の夜、私たちは叔父が買った舟を見るために川へ行きました。もう遅い時間で、どこ"
        "も静かでした。本は机の上に置いてありましたが、誰も読みたがりませんでした。みんな"
        "明日の旅のことを考えていたからです。"
    ),
    "zh": (
        "昨天晚上我们去河边看叔叔买的船。天已经很晚了，到处都很安静。书放在桌子上，但是没"
        "有人想读，因为大家都在想明天的旅行。早上我们还要准备行李，然后坐火车去北方。"
    ),
    "ko": (
        "어제 저녁 우리는 삼촌이 산 배를 보러 강으로 갔습니다. 이미 늦은 "
        "시간이었고 어디나 조용했습니다. 책은 책상 위에 놓여 있었지만 아무도 "
        "읽으려 하지 않았습니다. 모두가 내일의 여행을 생각하고 있었기 "
        "때문입니다."
    ),
}
LATIN = [
    ("pt", "cp1252"), ("fr", "cp1252"), ("it", "cp1252"), ("pl", "cp1250"), ("pl", "iso8859_2"),
    ("tr", "cp1254"),
]  # fmt: skip
OTHERS = [
    ("ru", "cp1251"), ("ru", "koi8_r"), ("ja", "cp932"), ("ja", "euc_jp"), ("zh", "gb18030"),
    ("ko", "cp949"),
]  # fmt: skip


def windows(language: str, length: int) -> list[str]:
    """Parts of the text of a language that begin at words and have other letters than ASCII."""
    text = TEXTS[language]
    if length > len(text):
        return [" ".join([text] * (1 + length // len(text)))[:length]]
    begins = [0, *(i + 1 for i, letter in enumerate(text) if letter == " ")]
    parts = [text[begin : begin + length] for begin in begins if begin + length <= len(text)]
    return [part for part in parts if not part.isascii()]


def read_as(text: str, encoding: str) -> str:
    """What a text in an encoding is read as; "" where it is refused."""
    data = text.encode(encoding)
    return data.decode(name) if (name := detected(data)) else ""


@pytest.mark.parametrize(("length", "share"), [(20, 0.84), (80, 0.97), (200, 1.0), (2000, 1.0)])
def test_latin_letters_are_read_in_their_encoding(length: int, share: float) -> None:
    texts = [(text, code) for language, code in LATIN for text in windows(language, length)]
    assert sum(read_as(text, code) == text for text, code in texts) >= share * len(texts)


@pytest.mark.parametrize(("language", "encoding"), OTHERS)
def test_other_scripts_are_read_in_their_encoding(language: str, encoding: str) -> None:
    for length in (20, 40, 80, 200, 2000):
        for text in windows(language, length):
            assert read_as(text, encoding) == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("language", ["cs", "ru", "en"])
def test_unicode_is_read_with_and_without_its_mark(
    language: str, encoding: str, tmp_path: Path
) -> None:
    text = TEXTS.get(language, "Whales sleep with one half of their brain at a time.\r\n")
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (document,) = read_corpus(tmp_path)
    assert document.text == text


SHORT = [
    *(
        (text, "cp1252")
        for text in (
            "Zürich", "“quoted” – text", "Price: 5 € or 3 £", "25°", "Temp 20 °C ± 2",
            "5 ± 1\n6 ± 1\n7 ± 1\n8 ± 1", "£5", "5 µm", "½ cup of sugar", "à",
        )
    ),
    *((text, "iso8859_15") for text in ("cœur à cœur", "L'œuvre est belle")),
    ("①㈱の会社です。", "cp932"), ("①㈱", "cp932"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "encoding"), SHORT)
def test_short_texts_are_read_in_their_encoding(text: str, encoding: str) -> None:
    assert read_as(text, encoding) == text
