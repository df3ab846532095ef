"""Words of questions and of grammar, by language: each counts little in a question.

In a small collection, and in one of statements, "how" and "do" are rare, so BM25 takes them for
telling words. They are counted less, not left out: "to be or not to be" is made of nothing else.
"""

from collections.abc import Mapping
from functools import cache
from zlib import crc32

_BY_LANGUAGE = {
    "en": """
        a an the this that these those some any each every of in on at by for from to into with
        without about between during than as per and or but if because while so what which who
        whom whose when where why how many much is are was were be been being am do does did
        done doing has have had having can could will would shall should may might must i you he
        she it we they me him us them my your his her its our their there not no s t
    """,
    "de": """
        der die das den dem des ein eine einen einem einer eines dieser diese dieses diesen
        diesem in im an am auf aus bei beim mit nach von vom zu zum zur für über unter durch um
        gegen ohne zwischen vor seit bis und oder aber als wenn weil dass daß ob wie was wer wen
        wem wessen wann wo woher wohin warum wieso weshalb welche welcher welches welchen
        welchem wieviel wieviele viel viele ist sind war waren sein bin bist wird werden wurde
        wurden hat haben hatte hatten kann können konnte soll sollte muss müssen darf ich du er
        sie es wir ihr man sich mich mir uns ihm ihn ihnen mein meine ihre seine seiner ihrer
        nicht kein keine gibt
    """,
    "fr": """
        le la les l un une des du de d au aux ce cet cette ces c à en dans sur sous par pour
        avec sans chez entre vers depuis pendant et ou mais si car que qu comme lorsque quand
        qui quoi quel quelle quels quelles où comment pourquoi combien lequel laquelle lesquels
        lesquelles dont est sont était étaient être été fut furent sera a ont avait
        avaient avoir eu peut peuvent doit fait je j tu il elle on nous vous ils elles me m te t
        se s lui leur leurs y son sa ses mon ma mes votre vos notre nos ne n pas plus
    """,
    "es": """
        el la los las un una unos unas lo al del este esta estos estas ese esa esos esas esto
        eso a ante con contra de desde durante en entre hacia hasta para por según sin sobre
        tras y e o u pero si porque como que cuando donde qué quién quiénes cuál cuáles cuándo
        cómo dónde cuánto cuánta cuántos cuántas quien quienes cual cuales cuanto cuanta cuantos
        cuantas es son era eran fue fueron ser sido siendo está están estaba estaban estar ha
        han había habían haber hay hubo tiene tienen tenía puede pueden podía yo tú él ella
        ellos ellas nosotros usted ustedes me te se le les nos su sus mi mis tu tus no más
    """,
    "it": """
        il lo la i gli le l un uno una del dello della dei degli delle al allo alla ai agli alle
        dal dallo dalla dai dagli dalle nel nello nella nei negli nelle sul sullo sulla sui
        sugli sulle questo questa questi queste quello quella quelli quelle di d a da in con su
        per tra fra e ed o ma se perché che come quando dove cosa cos chi qual quale quali
        quanto quanta quanti quante è sono era erano essere stato stata stati state fu furono
        sia ha hanno aveva avevano avere ho può possono deve viene io tu lui lei noi voi loro mi
        ti si ci vi ne suo sua suoi sue mio mia non più c
    """,
    "pt": """
        o a os as um uma uns umas ao aos à às do da dos das no na nos nas num numa pelo pela
        pelos pelas este esta estes estas esse essa esses essas isto isso aquele aquela de em
        por para com sem sobre entre até desde e ou mas se porque que como quando onde quem qual
        quais quanto quanta quantos quantas quê porquê é são era eram foi foram ser sido está
        estão estava estar há tem têm tinha ter pode podem havia eu você ele ela nós eles elas
        me te lhe lhes seu sua seus suas meu minha não mais
    """,
    "nl": """
        de het een deze dit die dat van in op aan met voor door bij uit naar over onder tegen
        tussen zonder om tot te sinds en of maar als omdat dan toen terwijl wat wie waar wanneer
        waarom hoe welk welke hoeveel wiens waarvoor waarvan is zijn was waren ben bent wordt
        worden werd werden heeft hebben had hadden kan kunnen kon zal zullen zou moet moeten mag
        ik je jij u hij zij ze we wij jullie mij me hem haar hun zich mijn jouw uw ons onze er
        niet geen
    """,
    "ru": """
        в во на с со к ко о об обо от до из изо за по при про у для без над под между через и а
        но или либо что чтобы как если когда где же ли бы то не ни кто кого кому кем ком чего
        чему чем чём какой какая какое какие какого каком каким какую каких какими каков какова
        каково каковы который которая которое которые которого которой которых которым котором
        сколько почему зачем куда откуда чей чья чьё чьи это этот эта эти этого этом этой этих
        тот та те того том я ты он она оно мы вы они его её ее ему ей их им них него неё нее нём
        ней свой своя своё свои был была было были быть есть является являются будет может могут
    """,
    "tr": """
        ne neyi neye neyin neden nedir nedeni neydi nelerdir neler hangi hangisi hangileri kim
        kime kimi kimin kimdir kimdi kimler kaç kaçtır nasıl nasıldır nerede nereye nereden
        neresi niçin niye zaman bir bu şu o bunu bunun buna onun ona onu ve veya ya ile için
        gibi kadar göre olarak olan ise de da ki ama fakat en daha çok mı mi mu mü mıdır midir
        in ın un ün nin nın nun nün den dan te ta daki deki olduğu oldu olmuştur vardır var
        değil tarafından ben sen biz siz onlar
    """,
    "sv": """
        en ett den det de denna detta dessa i på av för med till från om vid under över efter
        mellan genom utan mot hos och eller men att som så än när där vad vem vems vilken vilket
        vilka var varför hur många mycket vart är varit vara blir blev bli har hade ha kan kunde
        ska skall skulle måste får finns jag du han hon vi ni man sig mig dig honom henne dem
        sin sitt sina min mitt mina din hans hennes deras inte ej
    """,
    "pl": """
        w we na z ze do od po o u za dla przez przy pod nad przed bez między i oraz a ale lub
        albo że żeby jeśli jak gdy czy bo niż co kto kogo komu kim czego czemu czym który która
        które którzy którego której których którym którą jaki jaka jakie jakiego jakiej jakim
        jakich kiedy gdzie skąd dokąd dlaczego ile ilu czyj jest są był była było byli były być
        będzie może mogą ma mają ja ty on ona ono my wy oni się jego jej ich go mu im ten ta to
        te tego tej tych tym tę nie
    """,
    "ar": """
        في من إلى الى على عن مع بين عند خلال منذ حتى حول بعد قبل و أو او أم ثم لكن أن ان إن أنه
        إنه لأن إذا كما ما ماذا متى أين اين كيف كم لماذا هل أي اي أية بماذا لمن مما عما فيما هو
        هي هم هما الذي التي الذين اللذان هذا هذه ذلك تلك هؤلاء كان كانت يكون تكون كانوا تم يتم
        قد لا لم لن ليس ليست يمكن به بها له لها لهم فيه فيها عليه عليها منه منها
    """,
    "vi": """
        là của và với cho các những một cái này đó kia được bị đã đang sẽ có thể ở trong ngoài
        trên dưới tại từ đến về để vào ra bằng do bởi theo như gì nào ai sao đâu bao nhiêu mấy
        khi thế thì mà nếu vì hay hoặc cũng lại rằng không nó họ ông bà tôi
    """,
    "da": """
        en et den det de denne dette disse i på af for med til fra om ved under over efter
        mellem gennem uden mod hos og eller men at som så end når der hvad hvem hvis hvilken
        hvilket hvilke hvor hvornår hvorfor hvordan mange meget er var været være bliver blev
        har havde have kan kunne skal skulle må findes jeg du han hun vi man sig mig dig ham
        hende dem sin sit sine min mit hans hendes deres ikke
    """,
}
"""Language, by its code of ISO 639 → word forms in lower case."""
CHECKSUM = f"{crc32(repr(_BY_LANGUAGE).encode()):08x}"
"""Of the words, which tell the language of a text."""


@cache
def function_words(languages: tuple[str, ...]) -> frozenset[str]:
    """The function words of languages, in lower case."""
    return frozenset(
        word for language in languages for word in _BY_LANGUAGE.get(language, "").split()
    )


@cache
def languages_by_word() -> Mapping[str, tuple[str, ...]]:
    """Function word, in lower case → the languages that have it."""
    of = {language: function_words((language,)) for language in _BY_LANGUAGE}
    return {word: tuple(c for c in of if word in of[c]) for word in set().union(*of.values())}
