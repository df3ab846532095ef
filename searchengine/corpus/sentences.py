"""Ends of sentences, by a few rules: the marks of each script, the abbreviations of each language.

Only for choosing good places to cut: a missed end makes a passage a little longer, a wrong one cuts
a sentence in two. Nothing is looked up but short lists of abbreviations, of the language that the
beginning of the text is in.
"""

import re

from searchengine.corpus.language_traits import language_of

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
_ORDINAL = re.compile(r"\d{1,2}")
_BACK = 16  # characters before a period that are looked at: more than any abbreviation has
_ABBREVIATIONS = frozenset(
    "al approx capt cf dr gen gov jr lt messrs mr mrs ms prof rep rev sen sgt sr st viz vs "
    "डॉ".split()
)
# Those at which no sentence ends as a rule: not "usw." and "etc.".
_BY_LANGUAGE = {
    language: frozenset(words.split())
    for language, words in {
        "ar": "أ أ.د د م",
        "da": "bl.a ca dvs f.eks hhv inkl jf nr pga",
        "de": "abb abs allg bd bspw bzw ca dipl ebd ehem engl evtl fa frl geb gem ggf hl hr hrsg "
        "inkl ing insb jh kap lat mind mio mrd nr rd sog tel univ urspr verh verl vgl zit zzgl",
        "en": "assoc ave blvd dept mt mts univ",
        "es": "aprox arq av avda cap cía dña dra dres ee ej fdo gral ing lic núm pág págs profa "
        "sra sres srta tel ud uds",
        "fr": "apr av boul chap env éd éds ex fig ill mgr mlle mme mmes réf sté tél",
        "it": "art avv cap dott es fig geom ing pag pagg sec sig sigg tel",
        "nl": "afb art bijv blz bv ca dhr drs evt excl geb incl ir jl mevr mw nl nr resp tel",
        "pl": "al dyr godz hab inż im lek mgr mld mln np nr os pl płk por ps red str św tab tel tj "
        "tys tzn tzw ul woj zob",
        "pt": "art av cap dra eng ex exa exma exmo fig núm pág págs profa séc sra sras srs tel",
        "ru": "акад гг гл гр доц ед им исп кв кн корп млн млрд напр нач обл оз пл пос пр преп прим "
        "проф рис руб св см соч ср ст стр табл тел тов тыс ул",
        "sv": "bl.a ca dvs fr.o.m inkl jfr kap nr resp sid t.ex t.o.m tfn",
        "tr": "av bkz böl cad doç ing krş mah müh öğr ör örn sn sok yrd yy",
        "vi": "bs gs ks pgs tp ts tt tx ths vd",
    }.items()
}
_ORDINALS = frozenset({"da", "de", "tr"})
"""Languages that write a day or a century as "3." before a capital letter."""
_BEFORE_NUMBERS = frozenset(
    "art ch eq eqs fig figs no nos nr p pp ref refs sec tab vol "
    "abb bd blz cap chap kap núm pag pagg pág págs str гл рис ст стр табл "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)


def sentence_ends(text: str, language: str | None = None) -> list[int]:
    """Offsets, rising, where a sentence, a paragraph or an item of a list has just ended.

    Closing quotes and brackets belong to the sentence; the space after it does not.
    """
    ends = []
    language = language or language_of(text)
    for match in _END.finditer(text):
        if match["stop"] is None or _is_end(text, match, language):
            ends.append(match.start() if match.group().startswith("\n") else match.end())
    return ends


def _is_end(text: str, match: re.Match[str], language: str | None) -> bool:
    """Whether . ! ? or … with a space behind it ends a sentence, in this language."""
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
        or word in _BY_LANGUAGE.get(language or "", ())
        or (word in _BEFORE_NUMBERS and following.isdecimal())
        or (initial and initial[1] != initial[1].upper())  # letters without case are words
        or (language in _ORDINALS and following and _ORDINAL.fullmatch(word))
        or _ITEM.search(before)
    )
