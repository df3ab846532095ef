"""Languages of texts: by their script where it suffices, else by py3langid or function words.

    text = "Wale schlafen mit einer Hälfte des Gehirns."
    identify_languages(["고래는 잔다.", text])  # ["ko", "de"]
    language_of(text)  # "de"

py3langid (https://github.com/adbar/py3langid) takes 0.4 s to load, so texts in a script of one
language are not shown to it, and a question does not wait for it: the text of a hit is judged by
its function words.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
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
# Function words that name a language: how many, their share of all words, and times as many as of
# any other language. Of 4,092 paragraphs in eleven languages one is named otherwise than by
# py3langid, and 1 % are not named; of their first 100 characters 0.2 % and 8.5 %.
_FUNCTION_WORDS, _FUNCTION_SHARE, _LEAD = 2, 0.05, 1.2
_LETTERS = re.compile(r"[^\W\d_]+")
# Words of questions and of grammar. In a small collection, and in one of statements, "how" and "do"
# are rare, so BM25 takes them for telling words. They are counted less, not left out: "to be or not
# to be" is made of nothing else.
_WORDS = """
en: a an the this that these those some any each every of in on at by for from to into with
    without about between during than as per and or but if because while so what which who whom
    whose when where why how many much is are was were be been being am do does did done doing
    has have had having can could will would shall should may might must i you he she it we they
    me him us them my your his her its our their there not no s t
de: der die das den dem des ein eine einen einem einer eines dieser diese dieses diesen diesem
    in im an am auf aus bei beim mit nach von vom zu zum zur für über unter durch um gegen ohne
    zwischen vor seit bis und oder aber als wenn weil dass daß ob wie was wer wen wem wessen
    wann wo woher wohin warum wieso weshalb welche welcher welches welchen welchem wieviel
    wieviele viel viele ist sind war waren sein bin bist wird werden wurde wurden hat haben
    hatte hatten kann können konnte soll sollte muss müssen darf ich du er sie es wir ihr man
    sich mich mir uns ihm ihn ihnen mein meine ihre seine seiner ihrer nicht kein keine gibt
fr: le la les l un une des du de d au aux ce cet cette ces c à en dans sur sous par pour avec
    sans chez entre vers depuis pendant et ou mais si car que qu comme lorsque quand qui quoi
    quel quelle quels quelles où comment pourquoi combien lequel laquelle lesquels lesquelles
    dont est sont était étaient être été fut furent sera a ont avait avaient avoir eu peut
    peuvent doit fait je j tu il elle on nous vous ils elles me m te t se s lui leur leurs y son
    sa ses mon ma mes votre vos notre nos ne n pas plus
es: el la los las un una unos unas lo al del este esta estos estas ese esa esos esas esto eso a
    ante con contra de desde durante en entre hacia hasta para por según sin sobre tras y e o u
    pero si porque como que cuando donde qué quién quiénes cuál cuáles cuándo cómo dónde cuánto
    cuánta cuántos cuántas quien quienes cual cuales cuanto cuanta cuantos cuantas es son era
    eran fue fueron ser sido siendo está están estaba estaban estar ha han había habían haber
    hay hubo tiene tienen tenía puede pueden podía yo tú él ella ellos ellas nosotros usted
    ustedes me te se le les nos su sus mi mis tu tus no más
it: il lo la i gli le l un uno una del dello della dei degli delle al allo alla ai agli alle dal
    dallo dalla dai dagli dalle nel nello nella nei negli nelle sul sullo sulla sui sugli sulle
    questo questa questi queste quello quella quelli quelle di d a da in con su per tra fra e ed
    o ma se perché che come quando dove cosa cos chi qual quale quali quanto quanta quanti
    quante è sono era erano essere stato stata stati state fu furono sia ha hanno aveva avevano
    avere ho può possono deve viene io tu lui lei noi voi loro mi ti si ci vi ne suo sua suoi
    sue mio mia non più c
pt: o a os as um uma uns umas ao aos à às do da dos das no na nos nas num numa pelo pela pelos
    pelas este esta estes estas esse essa esses essas isto isso aquele aquela de em por para com
    sem sobre entre até desde e ou mas se porque que como quando onde quem qual quais quanto
    quanta quantos quantas quê porquê é são era eram foi foram ser sido está estão estava estar
    há tem têm tinha ter pode podem havia eu você ele ela nós eles elas me te lhe lhes seu sua
    seus suas meu minha não mais
nl: de het een deze dit die dat van in op aan met voor door bij uit naar over onder tegen tussen
    zonder om tot te sinds en of maar als omdat dan toen terwijl wat wie waar wanneer waarom hoe
    welk welke hoeveel wiens waarvoor waarvan is zijn was waren ben bent wordt worden werd
    werden heeft hebben had hadden kan kunnen kon zal zullen zou moet moeten mag ik je jij u hij
    zij ze we wij jullie mij me hem haar hun zich mijn jouw uw ons onze er niet geen
ru: в во на с со к ко о об обо от до из изо за по при про у для без над под между через и а но
    или либо что чтобы как если когда где же ли бы то не ни кто кого кому кем ком чего чему чем
    чём какой какая какое какие какого каком каким какую каких какими каков какова каково каковы
    который которая которое которые которого которой которых которым котором сколько почему
    зачем куда откуда чей чья чьё чьи это этот эта эти этого этом этой этих тот та те того том я
    ты он она оно мы вы они его её ее ему ей их им них него неё нее нём ней свой своя своё свои
    был была было были быть есть является являются будет может могут
tr: ne neyi neye neyin neden nedir nedeni neydi nelerdir neler hangi hangisi hangileri kim kime
    kimi kimin kimdir kimdi kimler kaç kaçtır nasıl nasıldır nerede nereye nereden neresi niçin
    niye zaman bir bu şu o bunu bunun buna onun ona onu ve veya ya ile için gibi kadar göre
    olarak olan ise de da ki ama fakat en daha çok mı mi mu mü mıdır midir in ın un ün nin nın
    nun nün den dan te ta daki deki olduğu oldu olmuştur vardır var değil tarafından ben sen biz
    siz onlar
sv: en ett den det de denna detta dessa i på av för med till från om vid under över efter mellan
    genom utan mot hos och eller men att som så än när där vad vem vems vilken vilket vilka var
    varför hur många mycket vart är varit vara blir blev bli har hade ha kan kunde ska skall
    skulle måste får finns jag du han hon vi ni man sig mig dig honom henne dem sin sitt sina
    min mitt mina din hans hennes deras inte ej
pl: w we na z ze do od po o u za dla przez przy pod nad przed bez między i oraz a ale lub albo
    że żeby jeśli jak gdy czy bo niż co kto kogo komu kim czego czemu czym który która które
    którzy którego której których którym którą jaki jaka jakie jakiego jakiej jakim jakich kiedy
    gdzie skąd dokąd dlaczego ile ilu czyj jest są był była było byli były być będzie może mogą
    ma mają ja ty on ona ono my wy oni się jego jej ich go mu im ten ta to te tego tej tych tym
    tę nie
ar: في من إلى الى على عن مع بين عند خلال منذ حتى حول بعد قبل و أو او أم ثم لكن أن ان إن أنه إنه
    لأن إذا كما ما ماذا متى أين اين كيف كم لماذا هل أي اي أية بماذا لمن مما عما فيما هو هي هم
    هما الذي التي الذين اللذان هذا هذه ذلك تلك هؤلاء كان كانت يكون تكون كانوا تم يتم قد لا لم لن
    ليس ليست يمكن به بها له لها لهم فيه فيها عليه عليها منه منها
vi: là của và với cho các những một cái này đó kia được bị đã đang sẽ có thể ở trong ngoài trên
    dưới tại từ đến về để vào ra bằng do bởi theo như gì nào ai sao đâu bao nhiêu mấy khi thế
    thì mà nếu vì hay hoặc cũng lại rằng không nó họ ông bà tôi
da: en et den det de denne dette disse i på af for med til fra om ved under over efter mellem
    gennem uden mod hos og eller men at som så end når der hvad hvem hvis hvilken hvilket hvilke
    hvor hvornår hvorfor hvordan mange meget er var været være bliver blev har havde have kan
    kunne skal skulle må findes jeg du han hun vi man sig mig dig ham hende dem sin sit sine min
    mit hans hendes deres ikke
"""
_FUNCTION_WORDS_OF = {
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
    """The function words of languages, in lower case."""
    return frozenset().union(*(_FUNCTION_WORDS_OF.get(language, ()) for language in languages))


@cache
def _languages_by_word() -> Mapping[str, tuple[str, ...]]:
    """Function word, in lower case → the languages that have it."""
    words = function_words(tuple(_FUNCTION_WORDS_OF))
    return {w: tuple(c for c, own in _FUNCTION_WORDS_OF.items() if w in own) for w in words}


@lru_cache(8)
def language_of(text: str) -> str | None:
    """The language of a text, by its `prose`; None where it is not clear.

    By script, else by function words, in some 70 µs. The last ones are
    remembered: the snippet of a hit needs it of the same text three times.
    """
    excerpt = "\n".join(prose(text))
    if language := _by_script(excerpt):
        return language
    languages, counts = _languages_by_word(), defaultdict[str, float](float)
    words = _LETTERS.findall(excerpt.lower())
    for word in words:
        named = languages.get(word, ())
        for language in named:
            counts[language] += 1 / len(named)  # a word of several counts in part
    ranked = sorted(((count, language) for language, count in counts.items()), reverse=True)
    (most, first), (second, _) = [*ranked, (0, ""), (0, "")][:2]
    clear = most >= max(_FUNCTION_WORDS, _FUNCTION_SHARE * len(words)) and most > _LEAD * second
    return first if clear else None


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
