"""Why a search found a document or not: Explanation, with the stages that the document passed.

print(engine.explain("how do whales sleep", "whales.txt"))
# Lost in the prefix shortlist: rank 412 by 64 dimensions, the shortlist holds 200; --shortlist
# 412 finds it (then rank 3 by full width).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PLACES = {
    "collection": "not in the collection",
    "filter": "in the filter",
    "phrases": "in the required phrases",
    "words": "in the words",
    "vector": "in the vectors",
    "language": "in the language",
    "prefix": "in the prefix shortlist",
    "walk": "in the walk",
    "funnel": "in the funnel",
    "full_width": "at full width",
    "fusion": "in the fusion",
    "group": "in its group",
    "min_score": "below the minimum score",
    "rerank": "in the order of rerank",
    "page": "on another page",
}
"""The stages in the order of a search, and where a document is lost in each."""
_BY = {
    "words": "by words",
    "full_width": "by full width",
    "fusion": "by both",
    "rerank": "by rerank",
}
_FLAGS = {
    "k": "-k",
    "group_by": "--group-by",
    "where": "--where",
    "exact": "--exact",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage of a search did with a document.

    Attributes:
        name: one of PLACES.
        passed: whether the stage passed it on.
        rank: its rank there, from 1; None: the stage does not rank, or does not have it.
        score: what it is ranked by there: BM25 (words), a cosine (prefix, full_width), and so on.
        limit: how many the stage passes on; of min_score, the minimum.
        note: the same as a part of a sentence.
    """

    name: str
    passed: bool
    rank: int | None = None
    score: float | None = None
    limit: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a search found a document, or in which stage it lost it. As a text: one sentence.

    Attributes:
        key: of the document.
        lost: the first stage that lost it, one of PLACES; None: it is found.
        rank: its rank in the search, or with `settings`, from 1; None: neither finds it.
        settings: the options to change so that the search finds it, each the least that passes its
            stage; None is the option left out. Empty if it is found, or if no options find it.
        stages: what each stage did with it, in their order; those after `lost` with `settings`.
        start, end: the passage that decides, as character offsets into the text; None: the whole
            document.
        replaced: unknown words of the question → the words searched for instead.
    """

    key: str
    stages: tuple[Stage, ...]
    lost: str | None = None
    rank: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    start: int | None = None
    end: int | None = None
    replaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether the search found it."""
        return self.lost is None

    def as_dict(self) -> dict[str, Any]:
        """The fields, and the sentence as `text`, for JSON."""
        return {**asdict(self), "stages": [asdict(each) for each in self.stages], "text": str(self)}

    def __str__(self) -> str:
        instead = ", ".join(f"{new!r} instead of {word!r}" for word, new in self.replaced.items())
        return self._why() + (f" Searched for {instead}." if instead else "")

    def _why(self) -> str:
        ranked = [each for each in self.stages if each.rank is not None and each.name in _BY]
        by = f" {_BY[ranked[-1].name]}" if ranked else ""
        if self.lost is None:
            scores = ", ".join(each.note for each in self.stages if each.note)
            return f"Found at rank {self.rank:,}" + (f": {scores}." if scores else ".")
        stage = next(each for each in self.stages if each.name == self.lost)
        place = PLACES[self.lost]
        lost = f"Lost {place}" if self.lost != "collection" else place.capitalize()
        if not self.settings:
            return f"{lost}: {stage.note}."
        ways = [shown(name, value) for name, value in self.settings.items()]
        ways.sort(key=lambda way: way.startswith("without"))
        finds = "it is found" if ways[0].startswith("without") else "finds it"
        then = "" if ranked and ranked[-1].name == self.lost else f" (then rank {self.rank:,}{by})"
        return f"{lost}: {stage.note}; {' '.join(ways)} {finds}{then}."


def shown(name: str, value: Any) -> str:
    """An option as the command line has it: --shortlist 412, without --where."""
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is None or value is False or value == ():
        return f"without {flag}"
    if value is True:
        return flag
    if name == "phrases":
        return "without --exact-phrases"
    return f"{flag} {value}"
