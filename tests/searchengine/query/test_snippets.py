"""Snippets: what is shown, exactly, in many languages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.corpus.analyzer import Analyzer
from searchengine.query.snippets import matched_words, snippet

WHALES = (
    "Whales are mammals of the open sea. Dolphins and porpoises belong to them. "
    "They sleep with half of the brain. One eye stays open, so that they can breathe."
)


@pytest.mark.parametrize(
    "question, shown",
    [
        # from the beginning of a sentence, to the end of a word
        ("how do they sleep", "…They sleep with half of the brain. One eye stays…"),
        ("BRAINS half sleeping", "…They sleep with half of the brain. One eye stays…"),
        ("porpoise", "…Dolphins and porpoises belong to them. They sleep…"),
        ("what are whales", "Whales are mammals of the open sea. Dolphins and…"),
        ("breathing", "…One eye stays open, so that they can breathe."),
        # of two that are far apart the longer and rarer counts
        ("mammals breathe", "Whales are mammals of the open sea. Dolphins and…"),
        # none of the words, and no words
        ("volcano", "Whales are mammals of the open sea. Dolphins and…"),
        ("?!", "Whales are mammals of the open sea. Dolphins and…"),
        ("", "Whales are mammals of the open sea. Dolphins and…"),
    ],
)
def test_the_passage_with_most_words_of_the_question_is_shown(question: str, shown: str) -> None:
    assert snippet(WHALES, question, 0, len(WHALES), 52) == shown


def test_only_the_passage_is_shown_with_single_spaces() -> None:
    text = "Nothing here. A  bee\n\n sings\tin the tree. Nor there."
    assert snippet(text, "nothing", 14, 41) == "A bee sings in the tree."
    assert snippet(text, "nothing", 14, 14) == ""


CODE = '''
class Whale:
    """A whale, which sleeps."""

    def sleep(self, hours):
        for side in ("left", "right"):
            self.rest(side, hours / 2)
        self.breathe()

        return self.dreams

    def breathe(self):
        self.surface()
        self.blowhole.open(seconds=2)
'''


def test_code_keeps_its_lines() -> None:
    """Without empty ones and the common indentation; from the beginning of a line to an end."""
    begin, end = CODE.index("for side"), CODE.index("    def breathe")
    whole = (
        'for side in ("left", "right"):\n    self.rest(side, hours / 2)\nself.breathe()\n'
        "return self.dreams"
    )
    assert snippet(CODE, "rest", begin, end) == whole
    tabs = CODE.replace("    ", "\t").replace(":\n", ":  \n")
    begin, end = tabs.index("for side"), tabs.index("\tdef breathe")
    assert snippet(tabs, "rest", begin, end) == whole
    assert snippet(CODE, "blowhole open", 0, len(CODE), 90) == (
        "…def breathe(self):\n    self.surface()\n    self.blowhole.open(seconds=2)"
    )
    assert snippet(CODE, "whale", 0, len(CODE), 90) == (
        'class Whale:\n    """A whale, which sleeps."""\n    def sleep(self, hours):…'
    )
    assert snippet(CODE, "hours", 0, len(CODE), 20) == "…self, hours):…"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("const a = 1;\nfunction sleep(x) {\n  return x;\n}", 4),
        ("#include <whale.h>\nint main() {\n\n  return 0;\n}", 4),
        ('{\n  "name": "whale",\n  "sleeps": true\n}', 4),
        ('def sleep():\n    """How whales rest.\n\n    By halves.\n    """', 4),
        ("How whales sleep:\n  with one half\n  of the brain,\n  at a time", 1),  # indented prose
        ("SELECT name\nFROM whales\nWHERE asleep;", 1),  # too little like code
        ("x = 1\ny = 2", 1),  # two lines may be anything
        ("A whale\nsleeps in the\nsea, which is (or was) deep.", 1),
        ("* whales, which sleep;\n* dolphins:\n  they do too,\n* and seals.\n", 1),
        ("| whale | sleeps |\n|---|---|\n| a | b |", 1),
        ("\n".join(WHALES.split(". ")), 1),
    ],
)
def test_what_is_code(text: str, lines: int) -> None:
    shown = snippet(text, "whale", 0, len(text), 200)
    assert len(shown.splitlines()) == lines
    assert shown.split() == text.split()


def test_korean_chinese_and_japanese_are_found_by_two_letters() -> None:
    korean = "바다는 넓고 깊다. 배가 지나간다. 고래는 물속에서 잠을 잔다. 새들은 하늘을 난다."
    assert (
        snippet(korean, "고래가 잠자나", 0, len(korean), 20)
        == "…고래는 물속에서 잠을 잔다. 새들은…"
    )
    chinese = "大海很宽也很深。船从这里经过。鲸鱼在水中睡觉。鸟在天上飞。"
    assert snippet(chinese, "鲸鱼怎样睡觉", 0, len(chinese), 10) == "…鲸鱼在水中睡觉。…"
    unmarked = chinese.replace("。", "")  # every two letters of a run count in their order
    assert snippet(unmarked, "鲸鱼在水中睡觉", 0, len(unmarked), 7) == "…鲸鱼在水中睡觉…"
    japanese = "海は広くて深い。船が通る。鯨は水の中で眠る。鳥は空を飛ぶ。"
    assert snippet(japanese, "鯨", 0, len(japanese), 10) == "…鯨は水の中で眠る。…"


GERMAN = (
    "Das Meer ist weit und tief. Ein Schiff fährt vorbei. Die Wale schlafen unter dem Wasser. "
    "Die Vögel fliegen am Himmel."
)
FRENCH = (
    "La mer est vaste et profonde. Un bateau passe au loin. Les baleines dorment sous l'eau. "
    "Les oiseaux volent dans le ciel."
)
RUSSIAN = (
    "Море широкое и глубокое. Мимо плывёт корабль. Киты спят под водой на боку. "
    "Птицы летают в небе и над морем."
)
TURKISH = (
    "Deniz geniş ve derindir. Bir gemi geçiyor ve gidiyor. Balinalar suyun altında uyur. "
    "Kuşlar gökyüzünde uçar."
)
ARABIC = (
    "البحر واسع وعميق في كل مكان. تمر سفينة من هنا. تنام الحيتان تحت الماء. الطيور تطير في السماء."
)
HINDI = "समुद्र चौड़ा और गहरा है। एक जहाज़ गुज़रता है। व्हेल पानी के नीचे सोती है। पक्षी आकाश में उड़ते हैं।"
THAI = "ทะเลกว้างและลึกมาก เรือแล่นผ่านไปช้าๆ วาฬนอนหลับอยู่ใต้น้ำ นกบินอยู่บนท้องฟ้า"


@pytest.mark.parametrize(
    ("text", "question", "width", "shown"),
    [
        # Inflected forms and umlauts; "ein" is a function word.
        (GERMAN, "wie schläft ein Wal", 40, "…Die Wale schlafen unter dem Wasser. Die…"),
        (GERMAN, "Vogel", 40, "…Die Vögel fliegen am Himmel."),
        (GERMAN, "SCHIFFEN", 40, "…Ein Schiff fährt vorbei. Die Wale…"),
        (FRENCH, "comment dort la baleine", 40, "…Les baleines dorment sous l'eau. Les…"),
        (FRENCH, "bateaux", 40, "…Un bateau passe au loin. Les baleines…"),
        (RUSSIAN, "как спит кит", 40, "…Киты спят под водой на боку. Птицы…"),
        (RUSSIAN, "птица", 40, "…Птицы летают в небе и над морем."),
        (RUSSIAN, "о кораблях", 40, "…Мимо плывёт корабль. Киты спят под…"),
        (TURKISH, "balina nasıl uyur", 40, "…Balinalar suyun altında uyur. Kuşlar…"),
        (TURKISH, "GEMİ", 40, "…Bir gemi geçiyor ve gidiyor. Balinalar…"),
        (ARABIC, "الحوت", 34, "البحر واسع وعميق في كل مكان. تمر…"),  # a broken plural: no stem
        (ARABIC, "كيف تنام الحيتان", 34, "…تنام الحيتان تحت الماء. الطيور…"),
        (HINDI, "व्हेल", 34, "…व्हेल पानी के नीचे सोती है। पक्षी…"),
        (HINDI, "पक्षी", 34, "…पक्षी आकाश में उड़ते हैं।"),
        # Clauses of Thai; no mark is separated from its letter.
        (THAI, "วาฬนอนอย่างไร", 24, "…วาฬนอนหลับอยู่ใต้น้ำ…"),
        (THAI, "นก", 24, "…นกบินอยู่บนท้องฟ้า"),
        (THAI.replace(" ", ""), "นก", 19, "…นกบินอยู่บนท้องฟ้า"),
    ],
)
def test_words_are_found_in_the_language_of_the_text(
    text: str, question: str, width: int, shown: str
) -> None:
    analyzer = Analyzer.parse("stem:en,de,fr,ru,tr,ar")
    assert snippet(text, question, 0, len(text), width, analyzer) == shown


WORDS = st.sampled_from(
    ["whale ", "sleeps. ", "sea\n", "고래는 ", "鯨", "。", "a", "x" * 30, "!? "]
)


@given(st.lists(WORDS).map("".join), st.lists(WORDS).map("".join), st.integers(1, 60))
def test_a_snippet_is_a_part_of_the_passage(text: str, question: str, width: int) -> None:
    shown = snippet(text, question, 0, len(text), width)
    bare = shown.removeprefix("…").removesuffix("…")
    whole = " ".join(text.split())
    assert bare in whole and len(bare) <= width
    assert whole.startswith(bare) or shown.startswith("…")
    assert whole.endswith(bare) or shown.endswith("…")


LONG = "The tide turns, and gulls cry at the shore. " * 1000  # 44,000 characters


def test_of_a_long_text_only_the_part_around_the_words_is_looked_at() -> None:
    text = f"{LONG}Whales sleep with half of the brain. {LONG}"
    assert snippet(text, "how do whales sleep", 0, len(text), 52) == (
        "…Whales sleep with half of the brain. The tide turns…"
    )
    assert snippet(text, "volcano", 0, len(text), 20) == "The tide turns, and…"
    text = f"{LONG}İsviçre'de ışık. {LONG}"  # found as the index has them, without accents
    turkish = Analyzer.parse("stem:tr")
    assert snippet(text, "isviçre ışığı", 0, len(text), 30, turkish).startswith("…İsviçre'de ışık.")
    code = "def sleep(hours):\n    return hours / 2\n" * 1000
    shown = snippet(code + "class Whale:\n    pass\n" + code, "Whale", 0, 2 * len(code), 90)
    assert shown.startswith("…class Whale:\n    pass\ndef sleep(hours):") and shown.endswith("…")


@pytest.mark.parametrize("before", ["", "ﬁ", "ẞ"])
def test_characters_whose_casefold_is_longer_shift_no_snippet(before: str) -> None:
    text = f"{before}{LONG}whales sleep {LONG}"
    question = "how do whales sleep"
    assert snippet(text, question, 0, len(text), 30) == "…shore. whales sleep The tide…"


@pytest.mark.parametrize(
    ("text", "question", "words"),
    [
        ("A naïve approach.", "naive approaches", ["approach", "naïve"]),
        ("A naive approach.", "naïve", ["naive"]),
        ("Ｆｕｌｌ　ｗｉｄｔｈ forms", "full width", ["ｆｕｌｌ", "ｗｉｄｔｈ"]),
        ("Cafe\u0301 de Flore", "café", ["cafe\u0301"]),
        ("كِتَابٌ جديد", "كتاب", ["كِتَابٌ"]),
        ("Der Wal\u00adfisch schläft nicht.", "walfisch", ["wal\u00adfisch"]),
        # A name as a whole, by its parts too where the name asked for does not occur.
        ("def parseHTTPResponse(raw):", "parse a response", ["parsehttpresponse"]),
        ("snake_case, kebab-case", "snake kebab", ["kebab-case", "snake_case"]),
        ("Since 3.11.4, not 3.11 or 3", "python 3.11.4", ["3.11.4"]),
        ("Since 3.11, not 2.11", "python 3.11.4", ["2.11", "3.11"]),
        ("Wi-Fi at home", "wifi", ["wi-fi"]),
        ("self._file_name = path", "filename", ["self._file_name"]),
        ("a file_name", "self.file_name", ["file_name"]),
        ("the filename.txt of it", "file name of whales", ["filename.txt"]),
    ],
)
def test_words_are_those_of_the_analyzer(text: str, question: str, words: list[str]) -> None:
    assert matched_words(text, question, Analyzer.parse("stem:en,ar")) == words
