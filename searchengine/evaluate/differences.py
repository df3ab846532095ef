"""Where a setting loses: the questions it answers worse than another, and what slipped away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from searchengine.engine import SearchEngine
from searchengine.evaluate.metrics import MAIN, Setting
from searchengine.evaluate.retrieval import Task

_FIRST = 10  # ranks that nDCG@10 sees


@dataclass(frozen=True, slots=True)
class Slipped:
    """A relevant document that was among the first ten, and came lower or not at all.

    Attributes:
        key, title: the document; the beginning of its text where it has no title.
        grade: how relevant it was judged.
        before, after: its ranks, from 1; None: not among those kept.
    """

    key: str
    title: str
    grade: int
    before: int
    after: int | None


@dataclass(frozen=True, slots=True)
class Worse:
    """A question that lost.

    Attributes:
        key, question: what was asked.
        before, after: nDCG@10 of the baseline and of the setting.
        documents: what slipped, in the order it had before.
    """

    key: str
    question: str
    before: float
    after: float
    documents: tuple[Slipped, ...]


def worst(
    engine: SearchEngine, task: Task, setting: Setting, baseline: Setting, count: int
) -> list[Worse]:
    """The questions, at most `count`, that lost most nDCG@10 against the baseline, worst first.

    Of equal losses the first one asked comes first. Questions that did not lose are not there.
    """
    before, after = baseline.scores[MAIN], setting.scores[MAIN]
    order = np.argsort(after - before, kind="stable")
    chosen = [int(i) for i in order[:count] if after[i] < before[i]]
    keys = task.keys
    slipped = {keys[i]: _slipped(setting, baseline, keys[i], task.qrels[keys[i]]) for i in chosen}
    titles = _titles(engine, [each.key for found in slipped.values() for each in found])
    return [
        Worse(
            keys[i],
            task.queries[keys[i]],
            float(before[i]),
            float(after[i]),
            tuple(replace(each, title=titles[each.key]) for each in slipped[keys[i]]),
        )
        for i in chosen
    ]


def _slipped(
    setting: Setting, baseline: Setting, question: str, grades: Mapping[str, int]
) -> list[Slipped]:
    """The relevant documents that came lower, their titles still to be read."""
    before, after = _ranks(baseline, question), _ranks(setting, question)
    return [
        Slipped(key, "", grades[key], rank, after.get(key))
        for key, rank in before.items()
        if rank <= _FIRST and grades.get(key, 0) > 0 and after.get(key, rank + 1) > rank
    ]


def _ranks(setting: Setting, question: str) -> dict[str, int]:
    return {key: rank for rank, key in enumerate(setting.run.get(question, ()), start=1)}


def _titles(engine: SearchEngine, keys: Sequence[str]) -> dict[str, str]:
    """The titles of documents, all of them in the collection."""
    with engine.collection.reading() as snapshot:
        documents = snapshot.store.documents(snapshot.store.ids_of(keys).values())
    return {each.key: each.title or " ".join(each.text[:200].split()) for each in documents}
