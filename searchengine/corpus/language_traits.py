"""Languages of texts, by script where it suffices, else by py3langid; their words and sentences.

    text = "Wale schlafen mit einer Hälfte des Gehirns."
    identify_languages(["고래는 잔다.", text])  # ["ko", "de"]

py3langid (https://github.com/adbar/py3langid) takes 0.4 s to load, so texts in a script of one
language are not shown to it, and a question does not wait for it.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from searchengine.errors import CorpusError

CHINESE_JAPANESE_KOREAN = (  # Hangul letters, kana, Chinese, Hangul, Chinese again
    "\u1100-\u11ff\u3005-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
OTHER_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
UNSPACED_OR_KOREAN = CHINESE_JAPANESE_KOREAN + OTHER_UNSPACED
"""Letters, for a class of `re`, of scripts without spaces, and of Korean, which attaches particles
to words: in these, words are found by their parts."""

EXCERPT, _PIECES = 1000, 5
"""Characters of a text that are looked at, and the pieces from all over it that have them."""

# Patterns, compiled when they are needed: that takes milliseconds, and this is imported early.
# The first script that has a fifth of these letters names the language: Japanese has kana among
# Chinese characters, and Chinese has no others.
SCRIPTS = {
    "ko": "[\u1100-\u11ff\uac00-\ud7af]",
    "ja": "[\u3041-\u30ff]",
    "th": "[\u0e00-\u0e7f]",
    "lo": "[\u0e80-\u0eff]",
    "my": "[\u1000-\u109f]",
    "km": "[\u1780-\u17ff]",
    "zh": "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]",
}
"""Languages in letters of UNSPACED_OR_KOREAN → these, as a pattern."""
_SHARE = 0.2  # of a text's letters: texts in these languages quote names in Latin letters
_PUNCTUATION = r"[][{}();=<>_]"
# Share of code's punctuation: of 3,007 Python functions 92 % have more, of 5,000 abstracts and
# sentences 0.1 %, of manual pages 2–10 %.
_CODE = 0.06
_MARKUP = re.compile(r"(?ms)^(```|~~~)[^\n]*\n.*?^\1|</?\w[^<>]*>|\]\([^()]*\)")
_ENOUGH = 60  # letters to tell a language by: shorter texts are joined
_MIN_LETTERS = 40  # letters, below which no language is named
_SURE = 0.8  # probability of a language that is named
# The most frequent words of grammar and of questions. In a small collection, and in one of
# statements, "how" and "do" are rare, so BM25 takes them for telling words. They are counted less,
# not left out: "to be or not to be" is made of nothing else.
_WORDS = """
en: a an the this that these those some any each of in on at by for from to into with without about
    between during as than and or but if while so what which who when where why how much many is are
    was were be been being am do does did has have had can could will would should may must i you he
    she it we they us me my your its their there no not s t
de: der die das den dem des ein eine einen einem einer in im an am auf aus bei mit nach von zu zum
    zur für und oder als wie was wer wo wann warum welche welcher welches viele ist sind war hat
    wird werden kann nicht sich es
fr: le la les l un une des du de d au aux ce cette en dans sur par pour avec et ou que qu qui quoi
    quel quelle quels quelles où quand comment pourquoi combien est sont a ont il elle on se s ne
es: el la los las un una al del de a en por para con y o que como se su qué quién cuál cuáles
    cuándo cómo dónde cuánto cuántos cuántas es son era fue fueron ser está hay ha tiene no lo
it: il lo la i gli le l un una di d del della dei delle da dal in nel nella su per con a al alla e o
    che chi cosa quale quali quanto quanti quando come dove perché è sono era ha si non
pt: o a os as um uma ao à do da dos das no na de em por para com e ou que quem qual quais quanto
    quantos quando como onde é são era foi foram ser está tem há se seu sua não
nl: de het een in op aan van met voor door bij uit naar te en of dat die deze wat wie waar wanneer
    waarom hoe welk welke hoeveel is zijn was waren wordt werd heeft hebben kan er niet
ru: в во на с к о об от из за по для у и а но или не что как кто кого где когда куда почему сколько
    чем какой какая какое какие каком каким какую каких который это он был была было были является
tr: ne neyi nedir neden hangi hangisi kim kimdir kaç nasıl nerede zaman bir bu şu o ve veya ile için
    gibi olarak olan de da ki en daha mi mı in ın nin nın oldu vardır tarafından
sv: en ett den det de i på av för med till från om och eller att som är var har blev kan vad vem
    vilken vilket vilka när hur varför många mycket finns inte sig
pl: w we na z ze do od o za dla przez i oraz a że jak czy co kto kogo czym czego jest są był była
    były być ma się który która które jaki jaka jakie jakim kiedy gdzie dlaczego ile to nie
ar: في من إلى على عن مع بين منذ بعد قبل و أو أن ما ماذا متى أين كيف كم لماذا هل أي هو هي الذي التي
    هذا هذه كان كانت تم لم لا به
vi: là của và với cho các những một cái này đó được bị đã đang sẽ có thể ở trong từ đến vào do bởi
    theo như gì nào ai sao đâu bao nhiêu khi thế mà tại không nó
da: en et den det de i på af for med til fra om og eller at som er var har blev kan hvad hvem
    hvilken hvilket hvilke hvor hvornår hvordan hvorfor mange meget findes ikke sig
"""
_FUNCTION_WORDS = {
    code: frozenset(words.split())
    for code, words in re.findall(r"^(\w+): ([^:]+)$", _WORDS, re.MULTILINE)
}
"""Language, by its code of ISO 639 → word forms in lower case."""


def identify_languages(texts: Sequence[str]) -> list[str | None]:
    """The language of each text, such as a piece of `prose`; None where it is not clear, and of
    code.

    Short texts are judged together with the next ones, so titles in one language are recognised.
    """
    result = [*map(_by_script, texts)]
    unclear = [position for position, found in enumerate(result) if found is None]
    pending: list[int] = []  # positions of texts that py3langid is shown together
    for position in unclear:
        pending.append(position)
        joined = "".join(f"{texts[i]}\n" for i in pending)
        enough = _MIN_LETTERS if position == unclear[-1] else _ENOUGH
        if _letters(joined) >= enough:
            language, probability = _identifier().classify(joined)
            if probability >= _SURE and language != "zxx":  # zxx: no language
                for i in pending:
                    result[i] = language
            pending = []
    return result


def prose(text: str) -> list[str]:
    """Pieces from all over a text, EXCERPT characters, without code, commands and markup."""
    text = "\n".join(_pieces(text, 20 * EXCERPT))  # a long one is not read whole
    lines = filter(_is_prose, _MARKUP.sub("", text).splitlines())
    return [piece.strip() for piece in _pieces("\n".join(lines).strip(), EXCERPT)]


def _pieces(text: str, length: int) -> list[str]:
    """A text; or pieces from all over it, `length` characters in all."""
    if len(text) <= length:
        return [text]
    size = length // _PIECES
    starts = (i * (len(text) - size) // (_PIECES - 1) for i in range(_PIECES))
    return [text[start : start + size] for start in starts]


def _is_prose(line: str) -> bool:
    signs = len(re.findall(_PUNCTUATION, line))
    return not line.startswith(("    ", "\t", "$ ")) and signs <= _CODE * len("".join(line.split()))


@cache
def function_words(languages: tuple[str, ...]) -> frozenset[str]:
    """The most frequent function words of languages, in lower case; of none, the English ones."""
    listed = (_FUNCTION_WORDS.get(language, ()) for language in languages or ("en",))
    return frozenset().union(*listed)


def _by_script(text: str) -> str | None:
    """The language, if the characters tell."""
    parts = len(re.findall(f"[{UNSPACED_OR_KOREAN}]", text))
    if parts and parts >= _SHARE * _letters(text):
        scripts = ((name, len(re.findall(script, text))) for name, script in SCRIPTS.items())
        return next((name for name, count in scripts if count >= _SHARE * parts), None)
    return None


def _letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    try:  # it is unpacked into a temporary file of 65 MB
        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    except OSError as error:
        raise CorpusError(
            f"the language of the documents cannot be identified: {error.strerror or error}; make "
            "room for 65 MB of temporary files, or set TMPDIR to a folder that has it"
        ) from error


# ------------------------------------------------------------------------------- ends of sentences
#
# Only for choosing good places to cut: a missed end makes a passage a little longer, a wrong one
# cuts a sentence in two.

UNSPACED = ((0x3041, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Code points, first to last, of scripts without spaces: kana and Chinese characters."""

_CLOSING = "\"'”’»)\\]」』】》〉）"
_THAI = "\u0e01-\u0e4e\u0e81-\u0ece"  # letters and marks of Thai and Lao
_END = re.compile(
    # 。 ends a sentence everywhere, with repeated marks and closing quotes; so do the marks of
    # Arabic, Hindi, Ethiopic, Burmese, Khmer and Armenian, and, but before digits, of Urdu.
    f"[。！？｡؟।॥።፧။។៕։܀]++[{_CLOSING}]*+"
    f"|[۔．](?!\\d)[{_CLOSING}]*+"
    # A period needs a space after it, or 3.14 and example.org would be two sentences each. The
    # quotes of some languages close by a mark that opens those of others, or after a space.
    f"|(?<![.!?…])(?P<stop>[.!?…]++)[{_CLOSING}“‘«]*+(?:[ \u00a0\u202f]»(?=\\s|\\Z))?+(?=\\s|\\Z)"
    # The question mark of Greek.
    "|(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e](?=\\s|\\Z)"
    # Thai and Lao have no mark but the space between clauses.
    f"|(?<=[{_THAI}])(?= ++[{_THAI}])"
    # Before blank lines, a heading, or another item of a list.
    r"|\n(?:[ \t]*+\r?\n)++"
    r"|\n(?=[ \t]*+(?:#++ |[-*+•·▪] |\d{1,3}[.)] ))"
)
_NEXT = re.compile(r"\s*(\S?)")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘„«/]*\Z")
_ITEM = re.compile(r"(?:\A|\n)[ \t]*\d{1,3}\Z")
_INITIALS = re.compile(r"(?:.*[.-])?([^\W\d_])")  # J. Smith, U.S., e.g., Ph.D., А. С., J.-C.
_BACK = 16  # characters before a period that are looked at: more than any abbreviation has
# Those at which no sentence ends as a rule, and that are no word of another language.
_ABBREVIATIONS = frozenset(
    "al approx assoc ave blvd capt cf dept dr gen gov jr lt messrs mr mrs ms mt mts prof rep rev "
    "sen sgt sr st univ viz vs bspw bzw evtl ggf hrsg insb mio mrd vgl zzgl boul mgr mlle mme tél "
    "av avda dra sra srta dott sig sigg bijv dhr mevr np ul bkz örn bl.a dvs t.ex акад им млн млрд "
    "проф руб тыс ул د डॉ".split()
)
_SHORT = 4  # letters, at most, of one that a number follows: Fig. 3, No. 5, Abb. 2, рис. 1


def sentence_ends(text: str) -> list[int]:
    """Offsets, rising, where a sentence, a paragraph or an item of a list has just ended.

    Closing quotes and brackets belong to the sentence; the space after it does not.
    """
    ends = []
    for match in _END.finditer(text):
        if match["stop"] is None or _is_end(text, match):
            ends.append(match.start() if match.group().startswith("\n") else match.end())
    return ends


def _is_end(text: str, match: re.Match[str]) -> bool:
    """Whether . ! ? or … with a space behind it ends a sentence."""
    after = _NEXT.match(text, match.end())
    following = after.group(1) if after else ""
    if match["stop"] != ".":
        return not following.islower()
    before = text[max(0, match.start() - _BACK) : match.start()]
    match_before = _LAST_WORD.search(before)
    word = match_before.group().casefold() if match_before else ""
    initial = _INITIALS.fullmatch(word)
    return not (
        following.islower()
        or word in _ABBREVIATIONS
        or (following.isdecimal() and word.isalpha() and len(word) <= _SHORT)
        or (initial and initial[1] != initial[1].upper())  # letters without case are words
        or _ITEM.search(before)
    )
