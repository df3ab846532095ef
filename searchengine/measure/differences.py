"""The losses of a setting: questions it answers worse than another, and documents that fell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from searchengine.engine import SearchEngine
from searchengine.measure.metrics import MAIN, Setting
from searchengine.measure.retrieval import Task

_FIRST = 10  # ranks that nDCG@10 sees


@dataclass(frozen=True, slots=True)
class Slipped:
    """A relevant document that was among the first ten, and fell to a lower rank.

    Attributes:
        key, title: the document; title is the beginning of its text if it has none.
        grade: its judged relevance.
        before, after: its ranks, from 1; None: below the last rank kept.
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
        key, question: the question.
        before, after: nDCG@10 of the baseline and of the setting.
        documents: the documents that fell, in their order before.
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

    Equal losses keep the order of the questions. Questions that did not lose are left out.
    """
    before, after = baseline.scores[MAIN], setting.scores[MAIN]
    order = np.argsort(after - before, kind="stable")
    chosen = [int(i) for i in order[:count] if after[i] < before[i]]
    keys = task.keys
    fallen = {keys[i]: _slipped(setting, baseline, keys[i], task.qrels[keys[i]]) for i in chosen}
    titles = _titles(
        engine, [document.key for documents in fallen.values() for document in documents]
    )
    return [
        Worse(
            keys[i],
            task.queries[keys[i]],
            float(before[i]),
            float(after[i]),
            tuple(replace(fall, title=titles[fall.key]) for fall in fallen[keys[i]]),
        )
        for i in chosen
    ]


def _slipped(
    setting: Setting, baseline: Setting, question: str, grades: Mapping[str, int]
) -> list[Slipped]:
    """The relevant documents that fell, without their titles."""
    before, after = _ranks(baseline, question), _ranks(setting, question)
    return [
        Slipped(key, "", grades[key], rank, after.get(key))
        for key, rank in before.items()
        if rank <= _FIRST and grades.get(key, 0) > 0 and after.get(key, rank + 1) > rank
    ]


def _ranks(setting: Setting, question: str) -> dict[str, int]:
    return {key: rank for rank, key in enumerate(setting.run.get(question, ()), start=1)}


def _titles(engine: SearchEngine, keys: Sequence[str]) -> dict[str, str]:
    """The titles of documents of the collection."""
    with engine.collection.reading() as snapshot:
        documents = snapshot.store.documents(snapshot.store.ids_of(keys).values())
    return {doc.key: doc.title or " ".join(doc.text[:200].split()) for doc in documents}
