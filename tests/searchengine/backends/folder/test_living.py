"""A collection that is changed, against a plain dictionary with brute-force search."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from searchengine import Document, SearchEngine

Model = dict[str, Document]
ENCODER = WordLengths()
NEAR = 2e-3  # float16 rows

keys = st.integers(0, 30).map(lambda n: f"k{n}")
texts = st.lists(st.integers(1, 16).map(lambda n: "a" * n), min_size=1, max_size=5).map(" ".join)
metadata = st.fixed_dictionaries({}, optional={"n": st.integers(0, 3), "s": st.sampled_from("xy")})
documents = st.builds(
    Document, key=keys, text=texts, title=st.sampled_from(["", "bee"]), metadata=metadata
)
batches = st.lists(documents, min_size=1, max_size=8, unique_by=lambda document: document.key)


def merged(
    base: Mapping[str, Any], mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, Any]:
    """Metadata after `add`: where the source's own value changed, it wins; else ours stays.

    `base`: what the source said before; `mine`: what is shown; `theirs`: what the source says now.
    """
    kept = {n: v for n, v in mine.items() if theirs.get(n) == base.get(n)}
    return {n: v for n, v in theirs.items() if v != base.get(n) or n not in base} | kept


def brute_force(model: Model, question: str) -> dict[str, float]:
    """Key → cosine."""
    if not model:
        return {}
    vectors = ENCODER.encode([document.full_text for document in model.values()])
    scores = vectors @ ENCODER.encode([question])[0]
    return dict(zip(model, scores.tolist(), strict=True))


def check_search(engine: SearchEngine, model: Model, question: str, k: int, **options: Any) -> None:
    """The hits are the k best of the model, with their scores, and as the model has them."""
    expected = brute_force(model, question)
    hits = engine.search(question, k, mode="vector", **options)
    assert len(hits) == min(k, len(model))
    assert len({hit.key for hit in hits}) == len(hits)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    for hit in hits:
        document = model[hit.key]
        assert abs(hit.score - expected[hit.key]) < NEAR
        assert (hit.title, hit.text) == (document.title, document.text)
        assert hit.metadata == document.metadata
    left_out = [score for key, score in expected.items() if key not in {hit.key for hit in hits}]
    if left_out and scores:
        assert scores[-1] > max(left_out) - NEAR


class Living(RuleBasedStateMachine):
    """Every operation of the engine, with a reader beside that keeps to its own commit."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "x.index"
        self.engine = SearchEngine.create(self.path, ENCODER, {"prefix": 4})
        self.model: Model = {}
        self.sources: dict[str, Mapping[str, Any]] = {}
        self.reader = SearchEngine.open(self.path, ENCODER)
        self.seen: Model = {}

    @rule(batch=batches)
    def add(self, batch: list[Document]) -> None:
        before = dict(self.model)
        ENCODER.calls.clear()
        summary = self.engine.add(batch)
        known = [d for d in batch if d.key in before]
        same = [d for d in known if before[d.key].digest == d.digest]
        unchanged = [d for d in same if self.sources[d.key] == d.metadata]
        assert summary.added == len(batch) - len(known)
        assert summary.changed == len(known) - len(same)
        assert summary.unchanged + summary.metadata_updated == len(same)
        assert summary.unchanged <= len(unchanged)  # 1 and true, or another order, count as new
        assert sum(map(len, ENCODER.calls)) == summary.added + summary.changed
        self.added(batch)

    @rule(batch=st.lists(documents, min_size=5, max_size=20, unique_by=lambda d: d.key))
    def add_one_by_one(self, batch: list[Document]) -> None:
        self.engine.add(batch, commit_every=1)
        self.added(batch)

    def added(self, batch: list[Document]) -> None:
        """What the batch leaves: metadata set by `update` stay where the source is as before."""
        for document in batch:
            metadata = document.metadata
            if document.key in self.model:
                before = self.model[document.key].metadata
                metadata = merged(self.sources[document.key], before, metadata)
            self.model[document.key] = Document(
                document.key, document.text, document.title, metadata
            )
            self.sources[document.key] = document.metadata

    @rule(gone=st.lists(keys, max_size=4))
    def delete(self, gone: list[str]) -> None:
        assert self.engine.delete(gone) == len(set(gone) & self.model.keys())
        for key in gone:
            self.model.pop(key, None)

    @rule(n=st.integers(0, 3))
    def delete_where(self, n: int) -> None:
        gone = [key for key, document in self.model.items() if document.metadata.get("n") == n]
        assert self.engine.delete(where=f"n = {n}") == len(gone)
        for key in gone:
            del self.model[key]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), n=st.integers(0, 3) | st.none())
    def update(self, data: st.DataObject, n: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        ENCODER.calls.clear()
        self.engine.update({key: {"n": n, "new": True}})
        assert ENCODER.calls == []
        document = self.model[key]
        patched = {**document.metadata, "n": n, "new": True}
        if n is None:
            del patched["n"]
        self.model[key] = Document(key, document.text, document.title, patched)

    @rule()
    def optimize(self) -> None:
        self.engine.optimize()
        assert self.engine.stats().segments == (1 if self.model else 0)
        assert self.engine.stats().tombstones == 0

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = SearchEngine.open(self.path, ENCODER)

    @rule()
    def refresh_the_reader(self) -> None:
        self.reader.refresh()
        self.seen = dict(self.model)

    @rule()
    def verify(self) -> None:
        self.engine.verify()

    @rule()
    def back_up(self) -> None:
        copy = self.folder / "copy.index"
        self.engine.backup(copy)
        with SearchEngine.open(copy, ENCODER) as restored:
            restored.verify()
            check_search(restored, self.model, "aaa aa", 40)
        shutil.rmtree(copy)

    @rule(question=texts, k=st.integers(1, 40), exact=st.booleans())
    def search(self, question: str, k: int, exact: bool) -> None:
        check_search(self.engine, self.model, question, k, exact=exact)
        check_search(self.reader, self.seen, question, k, exact=exact)

    @rule(question=texts, k=st.integers(1, 40), n=st.integers(0, 3))
    def search_filtered(self, question: str, k: int, n: int) -> None:
        for engine, model in ((self.engine, self.model), (self.reader, self.seen)):
            kept = {key: d for key, d in model.items() if d.metadata.get("n", -1) >= n}
            check_search(engine, kept, question, k, where=f"n >= {n}")

    @precondition(lambda self: self.model)
    @rule(data=st.data(), k=st.integers(1, 40))
    def similar(self, data: st.DataObject, k: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        others = {other: d for other, d in self.model.items() if other != key}
        hits = self.engine.similar(key, k)
        expected = brute_force(others, self.model[key].full_text)
        assert len(hits) == min(k, len(others))
        for hit in hits:
            assert abs(hit.score - expected[hit.key]) < 2 * NEAR

    @rule(word=st.integers(1, 16).map(lambda n: "a" * n))
    def search_words(self, word: str) -> None:
        for engine, model in ((self.engine, self.model), (self.reader, self.seen)):
            having = {key for key, d in model.items() if word in d.full_text.split()}
            hits = engine.search(word, 40, mode="text", typo_tolerance=False)
            assert {hit.key for hit in hits} == having

    @invariant()
    def counts(self) -> None:
        assert self.engine.stats().documents == len(self.model)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            stored = {document.key: document for document in self.engine.documents()}
            assert stored == self.model
            vectors = {key: ENCODER.encode([d.full_text])[0] for key, d in self.model.items()}
            with self.engine.collection.reading() as snapshot:
                passages = snapshot.store.passages_of(range(10_000))
                names = snapshot.store.keys_of(passages.documents)
                if names:
                    found = snapshot.vectors(passages.ids)
                    for name, vector in zip(names, found, strict=True):
                        assert np.abs(vector - vectors[name]).max() < NEAR
            self.engine.close()
            self.reader.close()
            shutil.rmtree(self.folder)


TestLiving = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")(Living.TestCase)
TestLiving.settings = settings(
    stateful_step_count=16,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
