"""The engine: questions in, documents out. The only place that knows encoder and collection.

engine = SearchEngine.create("papers.index")
engine.add([{"_id": "1", "text": "Whales sleep with half a brain."}])
engine.search("how do whales sleep", k=5)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Unpack
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from indexer.building.build import Progress
from indexer.config import SegmentConfig
from indexer.tuning.tune import Goal, Tuning
from searchengine.corpus.files import Document, LeftOut
from searchengine.errors import CollectionError, QueryError
from searchengine.ingest.adding import AddOptions, AddSummary, add
from searchengine.ingest.encoding import (
    PassageReader,
    TextEncoder,
    as_array,
    check_built_by,
    check_questions,
    checked_key,
    load,
    load_built_by,
    renamed,
)
from searchengine.ingest.passages import PassageConfig
from searchengine.ingest.records import DataFrame, as_documents, checked_patches, explaining
from searchengine.ingest.settings import Blueprint
from searchengine.maintenance import upkeep as care
from searchengine.maintenance.repair import repair
from searchengine.maintenance.stats import Stats
from searchengine.maintenance.tuning import tune_collection
from searchengine.query.request import Coalescer, Options, Query, QuestionEncoder, Questions, split
from searchengine.query.search import Hit, Hits, hits, nearest_to, rank
from searchengine.storage.collection import Collection
from searchengine.storage.documents import forks
from searchengine.storage.documents.lexical import Tokenizer
from trainer.errors import TrainerError
from trainer.runtimes.config import RuntimeConfig

__all__ = ["Hit", "Hits", "SearchEngine", "Stats", "TextEncoder"]


class SearchEngine:
    """A collection and the encoder that built it. Safe to use from several threads.

    A forked child's engine opens the collection again by itself, and an engine that is sent to
    another process (pickled) is opened there; see docs/processes.md.
    """

    def __init__(
        self,
        collection: Collection,
        encoder: TextEncoder | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        """Use `create` or `open`; without an encoder, the one named in the collection is loaded."""
        self.collection = collection
        self._given, self._runtime = encoder, runtime
        self._lock, self._loading = Lock(), Lock()
        self._together: WeakValueDictionary[Query, Coalescer[str, Hits]] = WeakValueDictionary()
        self._encoder: TextEncoder | None = None
        if encoder is not None:
            self._adopt(encoder)
        collection.accepts = self._check
        forks.inherit(self)

    def after_fork(self) -> None:
        """In a forked child: locks of its own, for the parent's may be held for ever."""
        self._lock, self._loading = Lock(), Lock()
        self._together = WeakValueDictionary()
        if self._encoder is not None:
            self._questions = QuestionEncoder(self._encoder)

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes how to open it there."""
        given = getattr(self._given, "source", None) or self._given
        opened = partial(SearchEngine.open, wait=self.collection.wait, runtime=self._runtime)
        return opened, (self.collection.path, given)

    @classmethod
    def create(
        cls,
        path: str | Path,
        encoder: TextEncoder | str | Path = "starter",
        config: SegmentConfig | Mapping[str, Any] | None = None,
        *,
        passages: PassageConfig | bool = True,
        tokenizer: Tokenizer | str = Tokenizer.PORTER,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
    ) -> "SearchEngine":
        """Make an empty collection.

        `encoder`: a model folder, a hub name, "starter" (`runtime` runs it), or an object with dim,
        fingerprint and encode. `wait`: as for `open`. The others: see searchengine.ingest.settings.
        Raises CollectionError when the folder is in use.
        """
        loaded = load(encoder, runtime) if isinstance(encoder, str | Path) else encoder
        built = Blueprint.for_encoder(loaded, config, passages, tokenizer)
        made = Collection.create(Path(path), built.settings(loaded), built.tokenizer, wait)
        return cls(made, loaded)

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: TextEncoder | str | Path | None = None,
        *,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
    ) -> "SearchEngine":
        """Open a collection. Its own encoder is loaded on first use unless another source is given.

        Where another is writing, writing raises CollectionBusy at once, or after `wait` seconds.
        `runtime`: what runs the encoder. Raises CollectionError (none there, or damaged) and
        EncoderMismatch.
        """
        collection = Collection(Path(path), wait)
        try:
            if isinstance(encoder, str | Path):
                encoder = load(encoder, runtime, collection.settings["encoder"].get("layers"))
            return cls(collection, encoder, runtime)
        except BaseException:
            collection.close()
            raise

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        encoder: str | Path | None,
        config: Mapping[str, Any],
        *,
        passages: PassageConfig | bool | None = None,
        tokenizer: Tokenizer | str | None = None,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
        layers: int | None = None,
    ) -> "SearchEngine":
        """Open a collection to add to, or create it. `config` holds fields of SegmentConfig.

        If several processes create it at once, one does, and the others open it. `wait`: as for
        `open`. Raises CollectionError when a collection there was built with other settings.
        """
        database = Path(path) / "documents.db"
        if not database.exists():
            loaded = load(encoder or "starter", runtime, layers)
            cut = True if passages is None else passages
            words = tokenizer or Tokenizer.PORTER
            try:
                return cls.create(path, loaded, config, passages=cut, tokenizer=words, wait=wait)
            except CollectionError:
                if not database.exists():  # else another process has made it just now
                    raise
        engine = cls.open(path, encoder, wait=wait, runtime=runtime)
        try:
            engine._blueprint().check_asked(path, config, passages, tokenizer, layers)
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def encoder(self) -> TextEncoder:
        """The encoder, loaded when first needed. Raises EncoderMismatch if it has changed."""
        with self._loading:
            if self._encoder is None:
                built = self.collection.settings["encoder"]
                self._adopt(load_built_by(built, self.collection.path, self._runtime))
            assert self._encoder is not None
            return self._encoder

    def runs_on(self) -> str:
        """What runs the encoder, or why nothing does."""
        try:
            return str(getattr(self.encoder, "runs_on", "made in Python"))
        except (CollectionError, TrainerError) as error:
            return str(error)

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raise EncoderMismatch for a state of the collection that another encoder built."""
        if self._encoder is not None:
            check_built_by(self._encoder, settings["encoder"], self.collection.path)

    def _adopt(self, encoder: TextEncoder) -> None:
        check_built_by(encoder, self.collection.settings["encoder"], self.collection.path)
        self.collection.renamed = renamed(encoder)
        self._encoder, self._questions = encoder, QuestionEncoder(encoder)

    def _blueprint(self) -> Blueprint:
        return Blueprint.from_settings(self.collection.settings)

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]] | DataFrame,
        *,
        skip_bad: bool = False,
        commit_every: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        building: Progress | None = None,
    ) -> AddSummary:
        """Encode and commit documents: Document, mappings with `_id` and `text`, or a DataFrame.

        A document replaces the one stored under its key; where only its metadata has changed, or
        nothing, it is not encoded again. What is added can be found when this returns.

        Args:
            documents: taken as a stream. Those with neither text nor title are left out.
            skip_bad: leave out malformed documents and keys that occur twice.
            commit_every: None commits all or none; a number commits after so many new documents,
                and after an interruption the same call goes on after the last commit.
            progress: called with the documents just read and the tokens just encoded.
            building: called with what is done to vectors then: its name, rows just done and in all.

        Raises CorpusError, DuplicateKey, EmptyCorpus (bad documents), CollectionBusy (another
        process is writing); then nothing has changed since the last commit.
        """
        if isinstance(documents, str | Mapping):
            raise QueryError("add takes an iterable of documents; put one document into a list")
        self.collection.follow()  # by whose settings documents are read
        reading = PassageReader(self.encoder, self._blueprint().passages)
        options = AddOptions(skip_bad, commit_every, progress, building)
        malformed = LeftOut()
        given = as_documents(documents, malformed if skip_bad else None)
        with explaining(malformed):
            summary = add(self.collection, given, reading, options)
        summary.bad.extend(malformed)
        return summary

    def delete(self, keys: Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Delete documents by key, or all that match a filter; how many there were."""
        if isinstance(keys, str):
            raise QueryError("delete takes a list of keys; put one key into a list")
        if (keys is None) == (where is None):
            raise QueryError("delete takes either keys or a filter")
        if keys is None:
            return self.collection.delete(None, where)
        return self.collection.delete([checked_key(key) for key in keys], where)

    def update(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents, by key; nothing is encoded.

        As in a JSON merge patch (RFC 7396), None removes. It stays when the same document is added
        again, until the source changes that field. All or none: raises QueryError on an unknown key
        and on `_id`, `title` and `text`, CorpusError on what JSON cannot hold.
        """
        self.collection.update(checked_patches(metadata))

    def index_fields(self, *names: str) -> None:
        """Index metadata fields (`year`, `author.name`), which makes filters on them fast."""
        self.collection.index_fields(names)

    def optimize(self, *, retune: bool = False, progress: Progress | None = None) -> None:
        """Write all segments as one: without what was deleted, the rotation fitted anew.

        With `retune` the operating point is found again, for the goal it was found for, or the
        default one. Readers go on meanwhile. `progress` as `building` of `add`.
        """
        self.collection.optimize(progress)
        if retune:
            tunings = (segment.manifest.tuning for segment in self.collection.segments.values())
            stored = next((tuning for tuning in tunings if tuning is not None), None)
            goal = None if stored is None else Goal(**stored["goal"])
            self.tune(goal=goal, building=progress)

    def search(self, query: str | npt.ArrayLike, k: int = 10, **options: Unpack[Options]) -> Hits:
        """The k documents nearest to a question or a vector (D,), best first.

        What several threads ask at once is answered together. `options`: see query.request.
        Raises QueryError and FilterError.
        """
        if not isinstance(query, str):
            return self.search_batch(as_array(query)[None], k, **options)[0]
        asked = Query.of(k, options)
        check_questions([query])
        mine = Coalescer(partial(self._answered, asked))
        with self._lock:
            together = self._together.setdefault(asked, mine)
        return together(query)

    def search_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[Options]
    ) -> list[Hits]:
        """The hits of many questions, or vectors (q, D), in their order; faster than one by one."""
        return self._answered(Query.of(k, options), queries)

    def _answered(self, asked: Query, queries: Questions) -> list[Hits]:
        dim = self.collection.settings["encoder"]["dim"]
        questions, vectors = split(queries, asked, dim)
        if questions and not asked.by_words:
            _ = self.encoder  # which loads it
            vectors = self._questions.at(asked.layers).encode(questions)
        with self.collection.reading() as snapshot:
            count = len(vectors if questions is None else questions)  # type: ignore[arg-type]
            if not count or not snapshot.rows:
                return [Hits(proven=True) for _ in range(count)]
            rankings = rank(snapshot, asked, questions, vectors)
            return hits(snapshot, rankings, questions, by_words=asked.by_words)

    def similar(self, key: str, k: int = 10, **options: Unpack[Options]) -> Hits:
        """The k documents nearest to a stored one, itself left out; by the mean of its passages.

        Raises QueryError on an unknown key; `options` as for `search`, by vectors alone.
        """
        asked = Query.of(k, options)
        with self.collection.reading() as snapshot:
            rankings = nearest_to(snapshot, asked, checked_key(key))
            return hits(snapshot, rankings, None)[0]

    def tune(
        self,
        queries: Sequence[str] | None = None,
        goal: Goal | None = None,
        *,
        on_step: Callable[[str], None] | None = None,
        building: Progress | None = None,
    ) -> Tuning:
        """Find the cheapest recipe that holds a recall target, and search by it from now on.

        All segments are replaced in one commit, or nothing changes; later ones are built alike.

        Args:
            queries: questions like those that will be asked, drawn at random; at least
                indexer.tuning.tune.queries_needed. None takes documents for questions.
            goal: what to hold, and what to make cheap; indexer.tuning.tune says how it is shown.
            on_step: told what is being done.
            building: as for `add`, while the segments are built anew.

        Raises QueryError (too few documents, an empty question), TuneError (too few questions, or a
        target that cannot be shown to hold), CollectionError (changed by another meanwhile).
        """
        if isinstance(queries, str):
            raise QueryError("tune takes a list of questions, got one text")
        self.refresh()

        def encode(questions: Sequence[str]) -> npt.NDArray[np.float32]:
            return self.encoder.encode(questions, role="query")

        return tune_collection(self.collection, encode, queries, goal, on_step, building)

    def stats(self) -> Stats:
        """What the collection holds and how it is searched."""
        with self.collection.reading() as snapshot:
            return care.stats(snapshot)

    def warm(self) -> int:
        """Load the encoder and read all files, so that no search waits. Their bytes."""
        self.encoder.encode(["warm"], role="query")
        with self.collection.reading() as snapshot:
            return care.warm(snapshot)

    def refresh(self) -> None:
        """See what others have committed, or the collection that has taken the place of this one.

        Raises EncoderMismatch if another encoder built that, CollectionError if there is none; then
        the state shown stays.
        """
        self.collection.refresh()

    def verify(self) -> None:
        """Check files, checksums and tables. Raises CollectionError on the first fault."""
        care.verify(self.collection)

    repair = staticmethod(repair)

    def backup(self, path: str | Path) -> None:
        """Copy the last commit to a new folder, while others read and write."""
        care.backup(self.collection, Path(path))

    def export(self, path: str | Path) -> int:
        """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder (docs/format.md).

        Returns the number of documents. Raises CollectionError when the folder is there.
        """
        with self.collection.reading() as snapshot:
            return care.export(snapshot, Path(path))

    def close(self) -> None:
        """Let go of the files."""
        self.collection.close()

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
