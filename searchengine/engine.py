"""SearchEngine: queries in, documents out. The composition root: encoder and collection meet here.

engine = SearchEngine.create("papers.index")
engine.add([{"_id": "1", "text": "Whales sleep with half a brain."}])
engine.search("how do whales sleep", k=5)

What is imported under its own name (`Hit as Hit`) is for the rooms above, which import it here.
"""

import asyncio
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NoReturn, get_args, overload

import numpy.typing as npt

from searchengine.backends import contract, entries, limits
from searchengine.backends.filters.parser import field_name as field_name
from searchengine.backends.folder.database import after_fork
from searchengine.backends.mode import Mode
from searchengine.backends.opening import create_backend, exists, in_folder, is_url, open_backend
from searchengine.backends.opening import name_of as name_of
from searchengine.corpus.analyzer import Tokenizer, normalized
from searchengine.corpus.documents import DataFrame, Key, Patches, checked_key, checked_keys
from searchengine.corpus.documents import Document as Document
from searchengine.corpus.files import Unread
from searchengine.encoders.loading import CollectionEncoder, EncoderArgument, encoded, load_new
from searchengine.encoders.loading import load_given as load_given
from searchengine.encoders.protocol import Role, TextEncoder
from searchengine.errors import CollectionError, FieldWarning, QueryError, UnknownKey
from searchengine.indexer.arrays import Floats, integer
from searchengine.indexer.building import Progress
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.tuning.tune import Goal, Tuning
from searchengine.ingest import folder_sync
from searchengine.ingest.folder_sync import MirrorOptions, Pass
from searchengine.ingest.ingestion import AddOptions, AddSummary, add, passage_reader
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.settings import CollectionSettings, check_compatible
from searchengine.query.duplicates import Duplicates, duplicates, mean_of
from searchengine.query.hits import Explanation, Rerank, explain, hits, reranked
from searchengine.query.hits import Hit as Hit
from searchengine.query.hits import Hits as Hits
from searchengine.query.ranking import rank
from searchengine.query.ranking import rank_by_weights as rank_by_weights
from searchengine.query.ranking import rank_keys as rank_keys
from searchengine.query.request import (
    CANDIDATES,
    Phrases,
    Query,
    Question,
    Questions,
    as_vector,
    check_count,
    check_questions,
    corrected,
    split,
)
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.trainer.sources.source import MULTILINGUAL, default_encoder
from searchengine.upkeep import copies, reindex, repair, stats, tuning, verify
from searchengine.upkeep.stats import Stats as Stats

_MIRRORED = (
    "keep a collection in a folder in step with the files, and copy it after each change: "
    "searchengine copy FOLDER URL --prune"
)


class SearchEngine:
    """A collection and the encoder that built it. Safe to use from several threads.

    A process forked from the one that opened it cannot use it, see docs/operating.md.

    Attributes:
        collection: where the documents are kept.
        encoder: loads and holds the encoder that built it.
    """

    def __init__(
        self,
        collection: contract.Backend,
        encoder: TextEncoder | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        """Use `create` or `open`; without an encoder, the one named in the collection is loaded."""
        if isinstance(collection, str | Path):
            raise CollectionError(
                f"SearchEngine(…) takes an open collection; use SearchEngine.open({collection!r}), "
                "or open_or_create"
            )
        self.collection = collection
        self.encoder = CollectionEncoder(collection, encoder, runtime)
        self._is_undecided = False  # whether the first documents may change the encoder
        after_fork[self] = SearchEngine._leave_to_parent

    def _leave_to_parent(self) -> None:
        """In a forked child: locks, threads and sockets are the parent's, so nothing is used."""
        parents: Any = OfParent(self.collection.path, dict(vars(self)))
        self.collection = self.encoder = parents

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

        `encoder`: a model folder, a name such as "starter", a hub name (`runtime` runs them), the
        URL of an endpoint with its model ("http://localhost:11434/v1#nomic-embed-text", see
        HttpEncoder), a function from texts to vectors, or an object whose class extends
        TextEncoder. None: documents come with vectors of `dim` numbers, and
        questions are vectors or words. `wait`: as for `open`. The others are described in
        searchengine.ingest.settings. Raises CollectionError when the folder is in use."""
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
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
        device: str = "cpu",
    ) -> "SearchEngine":
        """Open the collection in a folder, or on a server (postgresql://USER@HOST/DATABASE#NAME).

        Loads its encoder on first use, from `encoder` if that is not None.

        Where the vectors came with the documents, `encoder` encodes questions as it encoded them.
        While another process writes, writing raises CollectionBusy now or after `wait` seconds.
        `runtime`: runs the encoder. `device`: "gpu" scans vectors there. Raises CollectionError
        (missing, damaged), EncoderMismatch and SegmentError (no GPU)."""
        collection = open_backend(path, wait, device)
        try:
            loaded = None if encoder is None else load_given(encoder, runtime)
            return cls(collection, loaded, runtime)
        except BaseException:
            collection.close()
            raise

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        encoder: EncoderArgument | None = None,
        config: SegmentConfig | Mapping[str, Any] | None = None,
        *,
        passages: PassageConfig | bool | None = None,
        tokenizer: Tokenizer | str | None = None,
        wait: float = 0,
        runtime: RuntimeConfig | None = None,
        dim: int | None = None,
    ) -> "SearchEngine":
        """Open a collection to add to, or create it. `config`: of a mapping only the fields count.

        `encoder`: None is the one that built it. For a new one it is "starter", or "leaf" of the
        model hub if that is not installed; or "multilingual" if that is installed and the other
        does not read most of the first documents that are added; a LanguageWarning says so. `dim`:
        if `encoder` is None, create it without an encoder, for vectors of this width. Of several
        processes at the same time, one creates it and the others open it. `wait`: as for `open`.
        Raises CollectionError if the collection there has other settings."""
        if not exists(path):
            is_default = encoder is None and dim is None
            encoder = default_encoder() if is_default else encoder
            try:
                created = cls.create(
                    path,
                    encoder,
                    config,
                    dim=dim,
                    passages=True if passages is None else passages,
                    tokenizer=tokenizer,
                    wait=wait,
                    runtime=runtime,
                )
            except CollectionError:
                if not exists(path):  # else another process has created it just now
                    raise
            else:
                created._is_undecided = is_default and not is_url(path)
                return created
        engine = cls.open(path, encoder, wait=wait, runtime=runtime)
        try:
            check_compatible(engine.collection, config or {}, dim, passages, tokenizer)
        except BaseException:
            engine.close()
            raise
        return engine

    def encode(self, texts: Sequence[str], role: Role = "query") -> npt.NDArray[Any]:
        """Float32 (n, D), as a search encodes questions or an `add` the texts of documents.

        The last questions come from a cache. Raises QueryError for an empty text, or none."""
        check_questions(texts)
        if not len(texts):
            raise QueryError("there are no texts to encode, got an empty list")
        if role not in (roles := get_args(Role)):
            raise QueryError(f"role must be one of {', '.join(roles)}, got {role!r}")
        normal = [*map(normalized, texts)]
        if role == "document":
            return encoded(self.encoder.load(), normal, role)
        return self.encoder.encode(normal, self.collection.settings)

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]] | DataFrame,
        vectors: npt.ArrayLike | None = None,
        *,
        passages: Iterable[Mapping[str, Any]] | None = None,
        skip_bad: bool = False,
        progress: Callable[[int, int], None] | None = None,
        building: Progress | None = None,
    ) -> AddSummary:
        """Commit documents: Document, mappings with `_id` and `text`, or a table of them.

        They are encoded, unless they come with `vectors`. A document replaces the one stored under
        its key. If only its metadata has changed, or nothing, it is not encoded again. All
        documents can be found when this returns. They are committed each half minute, or 20,000
        passages (1,048,576 that come with vectors); after an interruption the same call continues
        after the last commit.

        Args:
            documents: read as a stream. Those with neither text nor title are left out, unless they
                have a vector.
            vectors: an array (n, D), row i for document i, of any length but 0; may be mapped from
                a file.
            passages: key, start and end of the passage of each row, where documents have several
                vectors; the lines of passages.jsonl of an export.
            skip_bad: leave out malformed documents and keys that occur twice; not with `vectors`.
            progress: progress callback: documents just read, tokens just encoded.
            building: progress callback of the index: step, rows just done, rows in all.

        Raises CorpusError, DuplicateKey, EmptyCorpus (bad documents), CollectionBusy (another
        process is writing); then nothing has changed since the last commit."""
        options = AddOptions(skip_bad, progress, building)
        return add(self.collection, documents, options, self._reader, vectors, passages)

    def delete(self, keys: Iterable[Key] | None = None, *, where: str | None = None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""
        if (keys is None) == (where is None):
            raise QueryError("delete takes either keys or a filter")
        Query(where=where)  # checks it
        checked = None if keys is None else checked_keys(keys, "delete")
        return self.collection.delete(checked, where)

    def update(self, metadata: Patches) -> None:
        """Merge into the metadata of documents, by key; nothing is encoded.

        As in a JSON merge patch (RFC 7396), None removes. The change is kept when the same document
        is added again, until the source changes that field. All or none: raises QueryError on an
        unknown key and on `_id`, `title` and `text`, CorpusError on what JSON cannot hold."""
        entries.update(self.collection, metadata)

    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        where: str | None = None,
        mode: Mode | str = Mode.AUTO,
        offset: int = 0,
        min_score: float | None = None,
        group_by: str | None = None,
        facets: Sequence[str] = (),
        phrases: Phrases | str = Phrases.SCORED,
        typo_tolerance: bool = True,
        exact: bool = False,
        shortlist: int | None = None,
        rerank: Rerank | None = None,
        candidates: int = CANDIDATES,
        timeout: float | None = None,
    ) -> Hits:
        """The k documents nearest to a question or a vector (D,), best first.

        Args:
            k: number of documents, at least 1; fewer are returned only if fewer match.
            where: a filter on metadata: "year >= 2015 and lang = 'en'", see docs/searching.md. If
                nothing matches and no document has a field of it, warns (FieldWarning).
            mode: rank by meaning ("vector"), by words ("text", BM25), by both ("hybrid"), or as the
                collection stores ("auto").
            offset: hits to skip, for the next page. The order does not depend on the pages.
            min_score: leave out hits with a lower score, on the scale of the mode: before `rerank`.
            group_by: a metadata field; return only the best document for each of its values, and
                all documents without the field.
            facets: metadata fields; count the values of each over all documents that match the
                filter, whatever the question (`Hits.facets`).
            phrases: what phrases in quotation marks do: "scored" reads them as words, "required"
                finds only documents with them. One with a plus sign, +"…", is required.
            typo_tolerance: replace words of the question that no document has by the nearest that
                documents have; `Hits.replaced` says which. Not by vectors alone, in quotation
                marks, and of names with digits or several capitals.
            exact: return the true nearest documents. Only by vectors, and without a shortlist.
            shortlist: candidates of each segment that are scored at full width; None: the number
                that the segment is configured with.
            rerank: a function that takes the question ("" for a vector) and the best `candidates`
                as hits, and returns a number for each: a cross-encoder, recency, see
                docs/searching.md. These hits are ordered by the number, those with the same number
                by key; the other hits follow in their former order. The number becomes `Hit.score`,
                and `Hit.scores` keeps the former score under the mode.
            candidates: documents that `rerank` scores, on whatever page they come.
            timeout: seconds that the search may take; None: any. It is checked between its steps:
                one step of an encoder is not interrupted.

        Raises QueryError, FilterError and SearchTimeout."""
        options = {name: value for name, value in locals().items() if name not in ("self", "query")}
        queries: Questions = [query] if isinstance(query, str) else [as_vector(query)]
        return self._search(Query(**options), queries)[0]

    def search_batch(self, queries: Questions, k: int = 10, **options: Any) -> list[Hits]:
        """The hits of many questions, or vectors (q, D), in their order; faster than one by one.

        `options` as for `search`."""
        return self._search(Query.from_options(k, options), queries)

    async def asearch(self, query: str | npt.ArrayLike, k: int = 10, **options: Any) -> Hits:
        """As `search`, in a thread, for asyncio: the event loop goes on meanwhile."""
        return await asyncio.to_thread(self.search, query, k, **options)

    def similar(self, keys: Key | Iterable[Key], k: int = 10, **options: Any) -> Hits:
        """The k documents nearest to a stored one or to several, which are left out.

        A document counts as the mean of its passages, several as the mean of the documents.
        `options` as for `search`, by vectors alone. Raises QueryError on an unknown key.
        """
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            keys = [checked_key(keys)]
        return self._search(Query.from_options(k, options), (), checked_keys(keys, "similar"))[0]

    def duplicates(
        self,
        above: float = 0.95,
        *,
        where: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Duplicates]:
        """Groups of documents that are nearly the same, of all or of those that match a filter.

        Documents are compared by the cosine of the means of their passages, all with all, exactly.
        A document belongs to the earliest one that is first of a group and has at least the cosine
        `above` to it: the first ones of all groups and the documents in none differ. Memory for a
        float32 vector of each document. `progress`: progress callback: documents just compared,
        and in all. Raises QueryError and FilterError.
        """
        Query(where=where)  # checks it
        with self.collection.reading() as snapshot:
            return duplicates(snapshot, above, where, progress)

    def explain(
        self, query: str | npt.ArrayLike, key: Key, k: int = 10, **options: Any
    ) -> Explanation:
        """Why a search finds a document or not: its ranks.

        print(engine.explain("how do whales sleep", "whales.txt"))

        Its ranks by vectors, words and prefix among all that match, and in the search with the same
        query, k and `options`. Raises as `search`, and QueryError for an unknown key.
        """
        requested, key = Query.from_options(k, options), checked_key(key)
        queries: Questions = [query] if isinstance(query, str) else [as_vector(query)]
        with (
            limits.limited(limits.Deadline.after(requested.timeout)),
            self._reading(requested, queries) as (snapshot, request, questions, _),
        ):
            return explain(snapshot, request, key, questions[0])

    def _search(
        self, requested: Query, queries: Questions, like: Sequence[str] | None = None
    ) -> list[Hits]:
        """The hits of questions, or near documents; warns in the name of the caller's caller."""
        with limits.limited(limits.Deadline.after(requested.timeout)):
            with self._reading(requested, queries, like) as (snapshot, request, questions, ids):
                if not questions:
                    return []
                rankings = rank(snapshot, request.before_rerank, questions, without=ids)
                answers, where = hits(snapshot, request, questions, rankings), request.where
                notes = () if any(answers) else tuple(entries.unknown_fields(snapshot, where))
            for i, (answer, question) in enumerate(zip(answers, questions, strict=True)):
                answer.notes, answer.replaced = notes, question.replaced
                answers[i] = reranked(answer, question.text, request)
        for note in notes:
            warnings.warn(note, FieldWarning, stacklevel=3)
        return answers

    @contextmanager
    def _reading(
        self, requested: Query, queries: Questions, like: Sequence[str] | None = None
    ) -> Iterator[tuple[contract.Snapshot, Query, list[Question], Set[int]]]:
        """The commit shown, and questions as a search of it reads them, with their vectors.

        The request has the mode to use. At last the ids of the documents `like`, whose mean is the
        question then.
        """
        ids: Set[int] = frozenset()
        while True:
            limits.check()
            with self.collection.reading() as snapshot:
                settings = snapshot.settings
                if like is not None:
                    ids, queries = mean_of(snapshot, like, self.collection.path)
                encodes = self.encoder.encodes(settings)
                request, questions = split(queries, requested, settings, encodes)
                if questions and questions[0].vector is None:
                    questions = [corrected(snapshot, request, q, self._knows) for q in questions]
                    if not request.by_words:
                        texts = request.to_encode([each.text for each in questions])
                        try:
                            vectors = self.encoder.encode(texts, settings)
                        except CollectionError:
                            if settings["encoder"] == self.collection.settings["encoder"]:
                                raise
                            continue  # reindexed meanwhile
                        pairs = zip(questions, vectors, strict=True)
                        questions = [each._replace(vector=vector) for each, vector in pairs]
                yield snapshot, request, questions, ids
                return

    def _knows(self, word: str) -> bool:
        """Whether the encoder knows a word as a whole; not if it cannot be loaded."""
        try:
            return len(self.encoder.load().token_spans([normalized(word)])[0]) == 1
        except CollectionError:  # by words, none is needed
            return False

    @overload
    def get(self, keys: Key) -> Document | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, keys: Iterable[Key]) -> list[Document | None]: ...
    def get(self, keys: Key | Iterable[Key]) -> Document | list[Document | None] | None:
        """The document of a key, or the documents of several keys, in their order.

        None for an unknown key; `engine[key]` raises UnknownKey. Raises QueryError for a key that
        is neither a text nor a whole number.
        """
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            return self.get([checked_key(keys)])[0]
        order = [checked_key(key) for key in keys]
        with self.collection.reading() as snapshot:
            rows = snapshot.documents(entries.ids_of(snapshot, order).values())
        stored = {row.key: Document.stored(*row) for row in rows}
        return [stored.get(key) for key in order]

    def __getitem__(self, key: Key) -> Document:
        """The document of a key. Raises UnknownKey, which is a KeyError, and QueryError."""
        if (document := self.get(key)) is None:
            raise UnknownKey(
                f"{self.collection.path} has no document {key!r}; "
                "engine.get(key) returns None instead of raising"
            )
        return document

    def vectors(self, keys: Iterable[Key]) -> list[Floats | None]:
        """The stored vectors of documents, in the order of the keys; None for an unknown key.

        For each document float32 (n, D), a unit row for each passage in their order, or (0, D) if
        it has no vector. They are as the encoder gave them, rounded as they are stored: by
        default to half precision. Raises QueryError.
        """
        order = checked_keys(keys, "vectors")
        with self.collection.reading() as snapshot:
            stored = {e.document.key: e.vectors for e in entries.entries_of(snapshot, order)}
        return [stored.get(key) for key in order]

    def keys(self, where: str | None = None) -> Iterator[str]:
        """The keys of all documents, or of those that match a filter. Raises FilterError."""
        Query(where=where)  # checks it
        return self._stream(entries.keys, where)

    def documents(
        self, where: str | None = None, *, offset: int = 0, limit: int | None = None
    ) -> Iterator[Document]:
        """All documents, or those that match a filter, without the first `offset`, up to `limit`.

        Memory stays bounded. Raises FilterError and QueryError.
        """
        Query(where=where)  # checks it
        for name, value in (("offset", offset), ("limit", limit or 0)):
            check_count(name, value)
        return self._stream(entries.documents, where, offset, limit)

    def _stream(self, read: Callable[..., Iterator[Any]], *options: object) -> Iterator[Any]:
        with self.collection.reading() as snapshot:
            yield from read(snapshot, *options)

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    def __contains__(self, key: object) -> bool:
        with self.collection.reading() as snapshot:
            is_key = isinstance(key, str) or integer(key) is not None
            return is_key and bool(snapshot.known([checked_key(key)]))

    def count(self, where: str | None = None) -> int:
        """Number of documents, or of those that match a filter. Raises FilterError."""
        Query(where=where)  # checks it
        with self.collection.reading() as snapshot:
            return snapshot.count(where)

    def facets(self, *fields: str, where: str | None = None) -> dict[str, entries.Counts]:
        """Field → value → number of documents that match a filter and have it, most frequent first.

        Of a list each element counts. Reads the metadata of all documents, but for fields that
        are indexed. Raises FilterError.
        """
        Query(facets=fields, where=where)
        with self.collection.reading() as snapshot:
            return {field: entries.facet(snapshot, field, where) for field in fields}

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """True, although an empty collection has the length 0: an engine is more than a list."""
        return True

    def mirror(
        self,
        folder: str | Path,
        options: MirrorOptions | None = None,
        unread: Unread | None = None,
    ) -> AddSummary:
        """Add the files of a folder, and remove the documents of those that are gone.

        Afterwards its documents are those of a new collection of the folder. Documents of other
        folders, and those without a folder, are not touched. A file that cannot be read has no
        documents.

        Args:
            folder: files, as `searchengine index` reads them.
            options: see MirrorOptions.
            unread: takes what is not read.

        Raises EmptyCorpus (nothing would be left), CorpusError (missing folder), and as `add`.
        """
        unread, target = unread or Unread(), in_folder(self.collection, _MIRRORED)
        return folder_sync.mirror(target, self._reader, folder, options or MirrorOptions(), unread)

    def watch(
        self, folder: str | Path, options: MirrorOptions | None = None, *, stop: Event | None = None
    ) -> Iterator[Pass]:
        """As `mirror`, again after each change of the folder, until `stop` is set.

        The folder is looked at about twice a second, which shows the newest commit too.

        Yields the first pass, and then each one that has changed something, left out a file or
        record, or failed. A pass that fails is tried again until it succeeds, whether the folder
        or the collection is away, empty, busy, damaged, full or not writable, or the encoder's
        endpoint fails. Malformed records are left out.

        Raises EncoderMismatch and EncoderMissing, which waiting cannot mend, and CollectionError
        for a collection that is closed or on a server.
        """
        target = in_folder(self.collection, _MIRRORED)
        return folder_sync.watch(target, self._reader, folder, options or MirrorOptions(), stop)

    def _reader(self) -> PassageReader:
        reader = passage_reader(self.collection, self.encoder)
        if self._is_undecided:
            reader.instead = self._reader_of_many_languages
        return reader

    def _reader_of_many_languages(self) -> PassageReader:
        """Change the encoder, which the user has not chosen, of a collection without documents."""
        self.reindex(MULTILINGUAL, runtime=self.encoder.runtime)
        self._is_undecided = False
        return self._reader()

    def index_fields(self, *names: str) -> None:
        """Index metadata fields (`year`, `author.name`), which makes filters on them fast."""
        self.collection.configure({}, fields=names)

    def set_default(self, mode: Mode | str | None = None, weight: float | None = None) -> None:
        """Choose how questions are ranked that name no mode.

        Other processes follow at their next refresh. Languages do not change the choice any more;
        a reindex by another encoder keeps the mode and forgets the weight.

        Args:
            mode: "vector", "text" or "hybrid"; None leaves it as it is.
            weight: weight of the cosine in the mode hybrid, 0–1; BM25 has the rest. None leaves it
                as it is.

        Raises QueryError (a bad value; no index of words), CollectionBusy."""
        tuning.set_default(self.collection, mode, weight)

    def set_synonyms(self, groups: Iterable[Iterable[str]]) -> None:
        """Replace the synonyms of the collection: words and short texts that mean the same.

        engine.set_synonyms([["heart attack", "myocardial infarction"], ["car", "automobile"]])

        In the modes text and hybrid, a question with one synonym of a group finds documents with
        the others too. No group removes all. Other processes follow at their next refresh. Raises
        QueryError (a bad group; no index of words), CollectionBusy."""
        tuning.set_synonyms(self.collection, groups)

    def optimize(self, *, progress: Progress | None = None) -> None:
        """Merge all segments into one, without deleted rows.

        Readers go on meanwhile, writers wait. `progress` as `building` of `add`."""
        folder = in_folder(
            self.collection, "the server maintains its tables by itself, so there is nothing to do"
        )
        folder.optimize(progress)

    def tune(
        self,
        queries: Sequence[str] | Floats | None = None,
        goal: Goal | None = None,
        *,
        on_step: Callable[[str], None] | None = None,
        building: Progress | None = None,
    ) -> Tuning:
        """Find the cheapest index config that meets a recall target, and use it from now on.

        All segments are replaced in one commit, or nothing changes; later ones use it too.

        Args:
            queries: a random sample of the queries to expect, texts or vectors (q, D), at least
                searchengine.indexer.tuning.tune.queries_needed; None takes documents as queries.
            goal: the recall target, and what to minimize; see searchengine.indexer.tuning.tune.
            on_step: progress callback: a message for each step.
            building: as for `add`, while the segments are rebuilt.

        Raises QueryError (too few documents, an empty query), TuneError (too few queries, or a
        target that cannot be shown), CollectionError (changed by another process meanwhile)."""
        check_questions(queries if isinstance(queries, Sequence) else ())
        folder = in_folder(self.collection)
        return tuning.tune_collection(folder, self.encoder, queries, goal, on_step, building)

    def apply(
        self, config: SegmentConfig | Mapping[str, Any], *, building: Progress | None = None
    ) -> None:
        """Use this index config and operating point from now on, such as one that bench measured.

        All segments are rebuilt in one commit, without encoding anything again. A guarantee of
        `tune` ends. Storage stays as it is; `building` as for `add`.

        Raises SegmentConfigError (a prefix wider than the vectors), CollectionError (changed by
        another process meanwhile)."""
        if not isinstance(config, SegmentConfig):
            config = SegmentConfig.from_dict(config)
        tuning.apply(in_folder(self.collection), config, building)

    def verify(self) -> None:
        """Check files, checksums and tables. Raises CollectionError on the first error.

        On a server: read all, and check the checksum of every text.
        """
        verify.verify(self.collection)

    repair = staticmethod(repair.repair)
    copy = staticmethod(copies.copy)

    def backup(self, path: str | Path) -> None:
        """Copy the last commit to a new folder, while others read and write."""
        instead = (
            "back the database up by its own tools, such as pg_dump --schema NAME, or write a "
            "folder: searchengine copy URL FOLDER"
        )
        copies.backup(in_folder(self.collection, instead), Path(path))

    def export(self, path: str | Path) -> int:
        """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder (docs/format.md).

        Returns the number of documents. Raises CollectionError if the folder exists."""
        return copies.export(self.collection, Path(path))

    def reindex(
        self,
        encoder: EncoderArgument,
        *,
        passages: PassageConfig | bool | None = None,
        runtime: RuntimeConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Encode all documents by another encoder, and use it from now on.

        Others read and write meanwhile, with the former encoder; what they change is included. All
        changes become visible in one commit. If this is interrupted, the same call goes on where it
        was. The settings follow the new encoder as in a new collection. An index config that was
        tuned keeps its structure and loses its operating point: tune it again.

        Args:
            encoder: as for `create`.
            passages: as for `create`; None: as they are.
            runtime: runs the encoder.
            progress: progress callback: step, documents or rows just done, total.

        Raises:
            CollectionBusy: another process is reindexing, or writing.
            CollectionError: a document has vectors and no text, or another reindex is pending.
        """
        reindex.reindex(self.collection, self.encoder, encoder, passages, runtime, progress)

    def stats(self) -> Stats:
        """Size and settings of the collection."""
        with self.collection.reading() as snapshot:
            return stats.stats(snapshot, self.collection.path)

    def __repr__(self) -> str:
        return f"<SearchEngine {self.collection.path}>"

    def refresh(self) -> None:
        """Show what other processes have committed, or the collection that replaced this one.

        Raises EncoderMismatch (another encoder built it) and CollectionError (missing); then the
        present state stays."""
        self.collection.refresh()

    def close(self) -> None:
        """Close the files, and free the encoder unless other engines use it."""
        self.collection.close()
        self.encoder.close()

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def discard_reindex(engine: SearchEngine) -> bool:
    """Drop the pending reindex and the vectors it has encoded; False if none is pending."""
    return reindex.place_of(engine.collection).discard()


class OfParent:
    """Takes the place of what a forked child must not use. Closing it is harmless.

    What it stands for is kept: to free it could wait for threads that the child does not have.
    """

    def __init__(self, path: Path | str, kept: object) -> None:
        self.path, self.kept = path, kept

    def close(self) -> None:
        """The parent closes what it opened."""

    def __getattr__(self, name: str) -> NoReturn:
        raise CollectionError(
            f"{self.path} was opened before this process was forked; open it in the worker itself, "
            "or start workers by multiprocessing's spawn"
        )
