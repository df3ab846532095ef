"""SearchEngine: queries in, documents out. The composition root: encoder and collection meet here.

engine = SearchEngine.create("papers.index")
engine.add([{"_id": "1", "text": "Whales sleep with half a brain."}])
engine.search("how do whales sleep", k=5)
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

import numpy.typing as npt

from searchengine.backends.contract import Backend
from searchengine.backends.embedded import Embedded
from searchengine.backends.folder.mode import Mode
from searchengine.backends.opening import create_backend, exists, open_backend
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import DataFrame, Document, checked_key, checked_patches
from searchengine.encoders.cross_encoders import CrossEncoders
from searchengine.encoders.loading import EncoderArgument, load_given, load_new, load_questions
from searchengine.encoders.of_collection import CollectionEncoder
from searchengine.encoders.protocol import TextEncoder
from searchengine.encoders.questions import as_array, check_questions
from searchengine.errors import CollectionError, EncoderMismatch, QueryError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import SegmentConfig
from searchengine.ingest.ingestion import add
from searchengine.ingest.mirrors import Mirrors
from searchengine.ingest.passages import PassageConfig
from searchengine.ingest.settings import AddOptions, AddSummary, CollectionSettings
from searchengine.ingest.supplied import VectorsArgument
from searchengine.query.coalescing import Coalescers
from searchengine.query.cross_encoding import reordered
from searchengine.query.documents import Documents
from searchengine.query.hits import Hit, Hits, HitsBatch, timed
from searchengine.query.ranking import hits, nearest_to, rank
from searchengine.query.request import Options, Query, Questions, split
from searchengine.trainer.runtimes.config import RuntimeConfig
from searchengine.upkeep import stats
from searchengine.upkeep.reindex import Reindexes
from searchengine.upkeep.stats import Stats
from searchengine.upkeep.upkeep import Upkeep

__all__ = ["Hit", "Hits", "HitsBatch", "SearchEngine", "Stats", "TextEncoder"]


class SearchEngine(Documents, Mirrors, Reindexes, Upkeep):
    """A collection and the encoder that built it. Safe to use from several threads.

    In a forked child it opens the collection again by itself, and a pickled one is opened in the
    process that unpickles it; see docs/processes.md.

    Attributes:
        collection: where the documents are kept.
        cross_encoders: those that searches have named, loaded; engines may share them.
    """

    def __init__(
        self,
        collection: Backend,
        encoder: TextEncoder | None = None,
        runtime: RuntimeConfig | None = None,
        query_encoder: TextEncoder | None = None,
    ) -> None:
        """Use `create` or `open`; without an encoder, the one named in the collection is loaded."""
        self.collection = collection
        self._encoder = CollectionEncoder(collection, encoder, runtime, query_encoder)
        self.cross_encoders = CrossEncoders(runtime)
        self._calls: Coalescers[tuple[Query, bool], Any, Hits] = Coalescers()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the arguments of `open`."""
        named = (self._encoder.argument, self._encoder.for_questions)
        encoder, questions = (getattr(each, "source", None) or each for each in named)
        collection = self.collection
        options: dict[str, Any] = {"wait": collection.wait, "runtime": self._encoder.runtime}
        options["query_encoder"] = questions
        if isinstance(collection, Embedded):
            options["device"] = collection.device
        return partial(SearchEngine.open, **options), (collection.address, encoder)

    @classmethod
    def create(
        cls,
        path: str | Path,
        encoder: EncoderArgument | None = "starter",
        config: SegmentConfig | Mapping[str, Any] | None = None,
        *,
        dim: int | None = None,
        passages: PassageConfig | bool = True,
        tokenizer: Tokenizer | str | None = None,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
    ) -> "SearchEngine":
        """Create an empty collection.

        `encoder`: a model folder, a hub name, "starter" (`runtime` runs it), the URL of an endpoint
        with its model ("http://localhost:11434/v1#nomic-embed-text", see HttpEncoder), a
        SentenceTransformer, a function from texts to vectors, or an object with dim, fingerprint
        and encode. None: documents come with vectors of `dim` numbers, and questions are vectors or
        words. `wait`: as for `open`. The others: see searchengine.ingest.settings.
        Raises CollectionError when the folder is in use."""
        loaded = load_new(encoder, dim, runtime)
        settings = CollectionSettings.for_encoder(loaded, config, passages, tokenizer)
        stored = settings.as_stored(loaded)
        collection = create_backend(path, stored, settings.analyzer, wait)
        return cls(collection, None if encoder is None else loaded, runtime)

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: EncoderArgument | None = None,
        *,
        query_encoder: str | Path | TextEncoder | None = None,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
        device: str = "cpu",
    ) -> "SearchEngine":
        """Open the collection in a folder, or on a server: postgresql://USER@HOST/DATABASE#NAME
        or qdrant://HOST:6333#NAME.

        Loads its encoder on first use, from `encoder` if that is not None.

        Where the vectors came with the documents, `encoder` encodes questions as it encoded them.
        `query_encoder`: a question encoder that was trained for the encoder of the documents
        (docs/question-encoder.md), a folder or hub name; it encodes all questions.
        While another process writes, writing raises CollectionBusy now or after `wait` seconds.
        `runtime`: runs the encoder. `device`: "gpu" scans vectors there. Raises CollectionError
        (missing, damaged), EncoderMismatch and SegmentError (no GPU)."""
        collection = open_backend(path, wait, device)
        try:
            layers = collection.settings["encoder"].get("layers")
            loaded = None if encoder is None else load_given(encoder, runtime, layers)
            asking = None if query_encoder is None else load_questions(query_encoder, runtime)
            return cls(collection, loaded, runtime, asking)
        except BaseException:
            collection.close()
            raise

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        encoder: EncoderArgument | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        passages: PassageConfig | bool | None = None,
        tokenizer: Tokenizer | str | None = None,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
        layers: int | None = None,
        dim: int | None = None,
    ) -> "SearchEngine":
        """Open a collection to add to, or create it. `config` holds fields of SegmentConfig.

        `encoder`: None is the one that built it, or "starter" for a new one. `dim`: if `encoder` is
        None, create it without an encoder, for vectors of this width. Of several processes at the
        same time, one creates it and the others open it. `wait`: as for `open`. Raises
        CollectionError if the collection there has other settings."""
        if not exists(path):
            encoder = "starter" if encoder is None and dim is None else encoder
            loaded = None if encoder is None else load_given(encoder, runtime, layers)
            cut = True if passages is None else passages
            try:
                return cls.create(
                    path, loaded, config, dim=dim, passages=cut, tokenizer=tokenizer, wait=wait
                )
            except CollectionError:
                if not exists(path):  # else another process has created it just now
                    raise
        engine = cls.open(path, encoder, wait=wait, runtime=runtime)
        try:
            place = engine.collection.path  # a URL without its password
            engine._settings().check_compatible(place, config or {}, passages, tokenizer, layers)
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def encoder(self) -> TextEncoder:
        """The encoder, loaded when first needed. Raises EncoderMismatch if it has changed."""
        return self._encoder.load()

    @property
    def query_encoder(self) -> TextEncoder:
        """The encoder of questions: `query_encoder` of `open`, or else the encoder."""
        return self._encoder.load_for_questions()

    def runs_on(self) -> str:
        """The runtime of the encoder, or the reason why it cannot run."""
        return self._encoder.runs_on()

    def encode_questions(self, questions: Sequence[str]) -> npt.NDArray[Any]:
        """Float32 (q, D), as a search encodes them; the last ones come from a cache."""
        return self._encoder.questions(None).encode(questions)

    def question_vectors(self) -> dict[str, int]:
        """How many vectors of questions came from the cache (`cached`) and how many did not."""
        return self._encoder.counts()

    @property
    def default_mode(self) -> Mode:
        """The mode of a search for a text that names none."""
        settings = self.collection.settings
        return Mode(split((), Query(), settings, self._encoder.encodes(settings))[0].mode)

    def _settings(self) -> CollectionSettings:
        return CollectionSettings.from_stored(self.collection.settings)

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]] | DataFrame | None = None,
        vectors: VectorsArgument | Path | None = None,
        *,
        passages: Iterable[Mapping[str, Any]] | None = None,
        skip_bad: bool = False,
        commit_every: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        building: Progress | None = None,
    ) -> AddSummary:
        """Commit documents: Document, mappings with `_id` and `text`, or a table of them.

        They are encoded, unless they come with `vectors`. A document replaces the one stored under
        its key. If only its metadata has changed, or nothing, it is not encoded again. All
        documents can be found when this returns. On a server, each block of 2,000 documents (or
        `commit_every`) is a commit.

        Args:
            documents: read as a stream. Those with neither text nor title are left out, unless they
                have a vector. None, with vectors: documents without text, whose keys are numbers
                that follow the highest stored one.
            vectors: an array (n, D), row i for document i, of any length but 0; may be mapped from
                a file. In a list, None stands for a document without a vector, which is found by
                its words. A path: the folder that `encode_corpus` or `searchengine encode` wrote.
            passages: key, start and end of the passage of each row, where documents have several
                (or no) vectors; the lines of passages.jsonl of an export.
            skip_bad: leave out malformed documents and keys that occur twice.
            commit_every: new documents per commit; None: all or none. After an interruption the
                same call continues after the last commit, but for vectors without documents.
            progress: progress callback: documents just read, tokens just encoded.
            building: progress callback of the index: step, rows just done, rows in all; also, in
                another thread, of the passages of a document of more than 524,288 characters.

        Raises CorpusError, DuplicateKey, EmptyCorpus (bad documents), CollectionBusy (another
        process is writing); then nothing has changed since the last commit."""
        if documents is None and vectors is None:
            raise QueryError("add takes documents, vectors or both, got neither")
        options = AddOptions(skip_bad, commit_every, progress, building)
        readers = None
        if vectors is None or isinstance(vectors, str | Path):
            if passages is not None:
                raise QueryError("passages describe an array; pass vectors too, or leave them out")
            if documents is None:
                raise QueryError(f"{vectors} holds no documents; pass them too")
            readers, vectors = partial(self._reader, vectors), None
        return add(
            self.collection, documents, options, readers=readers, vectors=vectors, passages=passages
        )

    def delete(self, keys: Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""
        if isinstance(keys, str):
            raise QueryError("delete takes a list of keys; put one key into a list")
        if (keys is None) == (where is None):
            raise QueryError("delete takes either keys or a filter")
        checked = None if keys is None else [checked_key(key) for key in keys]
        return self.collection.delete(checked, where)

    def update(self, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents, by key; nothing is encoded.

        As in a JSON merge patch (RFC 7396), None removes. The change is kept when the same document
        is added again, until the source changes that field. All or none: raises QueryError on an
        unknown key and on `_id`, `title` and `text`, CorpusError on what JSON cannot hold."""
        self.collection.update(checked_patches(metadata))

    def search(self, query: str | npt.ArrayLike, k: int = 10, **options: Unpack[Options]) -> Hits:
        """The k documents nearest to a question or a vector (D,), best first.

        What several threads ask at once is answered together. `options`: see query.request.
        Raises QueryError and FilterError."""
        if not isinstance(query, str):
            return self.search_batch(as_array(query)[None], k, **options)[0]
        check_questions([query])
        request = Query.of(k, options)
        return self._calls.call((request, True), query, partial(self._answer, request))

    def search_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[Options]
    ) -> HitsBatch:
        """The hits of many questions, or vectors (q, D), in their order; faster than one by one."""
        return self._answer(Query.of(k, options), queries)

    async def asearch(
        self, query: str | npt.ArrayLike, k: int = 10, **options: Unpack[Options]
    ) -> Hits:
        """As `search`, for asyncio: the event loop goes on meanwhile.

        What several tasks ask at once is answered together, in a background thread. A task may be
        cancelled at any time, which concerns no other."""
        if isinstance(query, str):
            check_questions([query])
        else:
            query = as_array(query)
        request = Query.of(k, options)
        key = request, isinstance(query, str)
        future = self._calls.submit(key, query, partial(self._answer, request))
        return await asyncio.wrap_future(future)

    async def asearch_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[Options]
    ) -> HitsBatch:
        """As `search_batch`, for asyncio: in a thread, while the event loop goes on."""
        return await asyncio.to_thread(self.search_batch, queries, k, **options)

    def _answer(self, request: Query, queries: Questions) -> HitsBatch:
        asked = request
        while True:
            settings, times = self.collection.settings, [perf_counter()]
            encodes = self._encoder.encodes(settings)
            request, questions, vectors = split(queries, asked, settings, encodes)
            if not questions and vectors is None:
                return HitsBatch()
            scorer = self.cross_encoders.of(request.cross_encoder)
            if questions and not request.by_words:
                try:
                    encoder = self._encoder.questions(request.layers, settings)
                except EncoderMismatch:
                    if not self._encoder.is_past(settings):
                        raise
                    continue  # reindexed meanwhile
                vectors = encoder.encode(request.to_encode(questions))
            times.append(perf_counter())
            found = request if scorer is None else request.before_cross_encoder
            with self.collection.reading() as snapshot:
                if snapshot.settings["encoder"] != settings["encoder"]:
                    continue
                rankings = rank(snapshot, found, questions, vectors)
                times.append(perf_counter())
                answers = hits(snapshot, found, rankings, questions)
            times.append(perf_counter())
            if scorer is not None:
                answers = reordered(answers, questions or (), request, scorer)
                times.append(perf_counter())
            return timed(answers, times)

    def similar(self, key: str, k: int = 10, **options: Unpack[Options]) -> Hits:
        """The k documents nearest to a stored one, itself left out; by the mean of its passages.

        Raises QueryError on an unknown key; `options` as for `search`, by vectors alone.
        """
        request = Query.of(k, options).by(Mode.VECTOR)
        with self.collection.reading() as snapshot:
            rankings = nearest_to(snapshot, request, checked_key(key))
            return hits(snapshot, request, rankings, None)[0]

    def stats(self) -> Stats:
        """Size and settings of the collection."""
        return stats.stats(self.collection)

    def _repr_html_(self) -> str:
        """Shown by notebooks."""
        return self.stats()._repr_html_()

    def refresh(self) -> None:
        """Show what other processes have committed, or the collection that replaced this one.

        Raises EncoderMismatch (another encoder built it) and CollectionError (missing); then the
        present state stays."""
        self.collection.refresh()

    def close(self) -> None:
        """Close the files."""
        self.collection.close()

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
