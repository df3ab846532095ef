"""A question with words that no document has replaced by the nearest that documents have."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from searchengine.backends.contract import Snapshot
from searchengine.backends.mode import Mode
from searchengine.query.hits import Hits
from searchengine.query.request import Query

Replacements = Mapping[str, str]
"""A word of a question, or two → what is searched for instead."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search reads in place of a question.

    Attributes:
        question: the question with its words replaced.
        to_encode: the same for the encoder, which may know some of the words.
        replacements: what was replaced in `question`; empty if nothing was.
    """

    question: str
    to_encode: str
    replacements: Replacements = field(default_factory=dict)


def searched(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str],
    knows: Callable[[str], bool] = lambda word: False,
) -> list[Searched]:
    """What to search for, for each question. By vectors alone, questions stay as they are.

    `knows`: whether the encoder knows a word, so that it is no error there; not asked by words.
    """
    results = []
    for question in questions:
        replacements: Replacements = {}
        if query.typo_tolerance and query.mode != Mode.VECTOR:
            replacements = snapshot.replacements(question)
        wrong = {
            word: new for word, new in replacements.items() if query.by_words or not knows(word)
        }
        results.append(
            Searched(replaced(question, replacements), replaced(question, wrong), replacements)
        )
    return results


def tell(answers: Iterable[Hits], read: Sequence[Searched]) -> None:
    """Note in the hits of each question what was replaced in it; none are `read` for vectors."""
    for hits, searched in zip(answers, read, strict=False):
        hits.replaced = searched.replacements


def replaced(question: str, replacements: Replacements) -> str:
    """A question with words replaced, but not as parts of addresses, paths and names with _."""
    if not replacements:
        return question
    longest_first = sorted(replacements, key=len, reverse=True)
    words = "|".join(r"\s+".join(map(re.escape, key.split())) for key in longest_first)
    return re.sub(
        rf"(?<![\w/.@\\#])(?:{words})(?![\w/@\\])(?![.:]\w)",
        lambda match: replacements[" ".join(match.group().split())],
        question,
    )
