"""One order of documents for a question, however it is cut into pages.

A search for more documents compares more rows at full width, and finds some that a search for fewer
missed: with one search for each page, documents would come twice, or on no page. So the order
consists of parts. The first has the rows that the shortlist compares anyway, the next ones 100 at
least and four times as many as before: each has what none before it has. What a part holds depends
on the question alone.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from searchengine.backends import limits
from searchengine.backends.contract import Place

MIN_FIRST, MIN_SECOND, GROWTH = 10, 100, 4
"""Minimum rows of the first part and of the second; factor from each part to the next one."""
MAX_DEPTH = 1 << 40
"""More documents than a collection holds; SQLite's integers end at 2⁶³."""
T = TypeVar("T")


class Ranked(NamedTuple):
    """A document in a ranking: its score, its best passage, and the scores that it is made of."""

    score: float
    passage: Place
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranked documents, best first; `exact` as in Hits.

    Attributes:
        last: of a part: no part after it has more documents.
        parts: how many parts it took.
    """

    documents: Sequence[Ranked]
    exact: bool = False
    last: bool = True
    parts: int = 1


Label = Callable[[Iterable[int]], Mapping[int, Hashable]]
"""Document ids → labels; a ranking has one document per label."""
Part = Callable[[Sequence[int], int, int], list[Ranking]]
"""Positions of questions, the number of a part, a depth → this part of each question.

Of a part, the first `depth` documents are enough.
"""


def part_size(first: int, number: int) -> int:
    """The size of a part, if the first one has the size `first`."""
    if number == 0:
        return first
    second = max(MIN_SECOND, GROWTH * first)
    return min(second * int(GROWTH ** (number - 1)), MAX_DEPTH)


def distinct(items: Iterable[T], names: Iterable[Hashable], limit: int) -> list[T]:
    """The first item of every label, at most `limit`. `names`: the label of each item."""
    first: dict[Hashable, T] = {}
    for item, name in zip(items, names, strict=True):
        if len(first) == limit:
            break
        first.setdefault(name, item)
    return list(first.values())


def in_parts(part: Part, questions: int, depth: int, label: Label) -> list[Ranking]:
    """The first `depth` documents in the order of each question, or all that there are."""
    rankings = [Ranking((), last=False)] * questions
    pending: Sequence[int] = range(questions)
    number = 0
    while pending:
        limits.check()
        for i, ranking in zip(pending, part(pending, number, depth), strict=True):
            rankings[i] = _continued(rankings[i], ranking, depth, label) if number else ranking
        pending = [
            i for i in pending if not rankings[i].last and len(rankings[i].documents) < depth
        ]
        number += 1
    return [replace(ranking, documents=ranking.documents[:depth]) for ranking in rankings]


def _continued(before: Ranking, part: Ranking, depth: int, label: Label) -> Ranking:
    """A ranking, then the documents of its next part that have other labels."""
    both = (*before.documents, *part.documents)
    labels = label({ranked.passage.document for ranked in both})
    documents = distinct(both, (labels[ranked.passage.document] for ranked in both), depth)
    return Ranking(documents, before.exact and part.exact, part.last, before.parts + 1)
