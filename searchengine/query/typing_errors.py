"""A question with words that no document has replaced by the nearest that documents have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from searchengine.backends.contract import Snapshot
from searchengine.backends.mode import Mode
from searchengine.query.hits import Hits
from searchengine.query.request import Query

Replacements = Mapping[str, str]
"""A word of a question → the word to search for instead."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search reads in place of a question.

    Attributes:
        question: the question with its words replaced.
        replacements: replaced words → new ones.
    """

    question: str
    replacements: Replacements = field(default_factory=dict)


def searched(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str],
    knows: Callable[[str], bool] = lambda word: False,
) -> list[Searched]:
    """What to search for, for each question. By vectors alone, questions stay as they are.

    `knows`: whether the encoder knows a word, so that it is no error.
    """
    if not query.typo_tolerance or query.mode == Mode.VECTOR:
        return [*map(Searched, questions)]
    results = []
    for question in questions:
        read, words, end = "", dict[str, str](), 0
        for (start, after), new in snapshot.replacements(question).items():
            if not knows(word := question[start:after]):
                words[word], read, end = new, f"{read}{question[end:start]}{new}", after
        results.append(Searched(read + question[end:], words))
    return results


def tell(answers: Iterable[Hits], read: Sequence[Searched]) -> None:
    """Note in the hits of each question what was replaced in it; none are `read` for vectors."""
    for hits, searched in zip(answers, read, strict=False):
        hits.replaced = searched.replacements
