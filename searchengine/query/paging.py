"""One order of documents for a question, however it is cut into pages.

A search for more documents looks at more candidates, which may change the order: approximate
structures find other rows, and words that most documents have count if rarer ones are too few. So
the order consists of parts. The first 10 documents are those of a search for 10. The next ones, up
to the 100th, are those of a search for 100 that are not among them, and so on to 400 and 1,600.
What a part holds does not depend on the page: no document comes twice, none is left out between
pages, and a first page takes no longer.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from searchengine.storage.documents.tables import Passage

FIRST = 10
"""Documents of the first part."""
SECOND = 100
"""Where the second part ends. A search for 100 takes hardly longer than one for 20."""
GROWTH = 4
"""How many times as deep the search for each further part is."""


class Ranked(NamedTuple):
    """A document in a ranking: its score, its best passage, and the scores that it is made of."""

    score: float
    passage: Passage
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranked documents, best first; `exact` and `read` as in Hits."""

    documents: Sequence[Ranked]
    exact: bool = False
    read: float | None = None


Label = Callable[[Iterable[int]], Mapping[int, Hashable]]
"""Document ids → labels; a ranking has one document per label."""
Search = Callable[[Sequence[int], int], list[Ranking]]
"""Positions of questions, and a depth → the ranking of each up to this depth."""


def in_parts(search: Search, questions: int, depth: int, label: Label) -> list[Ranking]:
    """At least the first `depth` documents in the order of each question, or all that there are."""
    pending: Sequence[int] = range(questions)
    size = FIRST
    rankings = search(pending, size)
    while size < depth:
        pending = [i for i in pending if len(rankings[i].documents) == size]
        if not pending:
            break
        size = max(SECOND, GROWTH * size)
        for i, deeper in zip(pending, search(pending, size), strict=True):
            rankings[i] = _continued(rankings[i], deeper, size, label)
    return rankings


def _continued(before: Ranking, deeper: Ranking, size: int, label: Label) -> Ranking:
    """A ranking, then the documents of a deeper one with other labels, `size` in all."""
    both = (*before.documents, *deeper.documents)
    labels = label({ranked.passage.document for ranked in both})
    first: dict[Hashable, Ranked] = {}
    for ranked in both:
        first.setdefault(labels[ranked.passage.document], ranked)
    return Ranking([*first.values()][:size], before.exact and deeper.exact, deeper.read)
