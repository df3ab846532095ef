"""A question with words that no document has replaced by the nearest that documents have."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from searchengine.backends.contract import Snapshot
from searchengine.backends.mode import Mode
from searchengine.query.hits import Hits
from searchengine.query.request import Query

Replacements = Mapping[str, str]
"""A word of a question → what is searched for instead."""


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
        found = snapshot.replacements(question)
        wrong = {word: new for word, new in found.items() if not knows(word)} if found else found
        results.append(Searched(replaced(question, wrong) if wrong else question, wrong))
    return results


def tell(answers: Iterable[Hits], read: Sequence[Searched]) -> None:
    """Note in the hits of each question what was replaced in it; none are `read` for vectors."""
    for hits, searched in zip(answers, read, strict=False):
        hits.replaced = searched.replacements


def replaced(question: str, replacements: Replacements) -> str:
    """A question with words replaced, but not as parts of addresses, paths and names with _."""
    words = "|".join(map(re.escape, replacements))
    alone = rf"(?<![\w/.@\\#])(?:{words})(?![\w/@\\])(?![.:]\w)"
    return re.sub(alone, lambda match: replacements[match.group()], question)
