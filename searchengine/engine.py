"""The engine: questions in, documents out. The only place that knows encoder and collection.

engine = SearchEngine.create("papers.index")
engine.add([{"_id": "1", "text": "Whales sleep with half a brain."}])
engine.search("how do whales sleep", k=5)
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from indexer.build import Progress
from indexer.config import RotationKind, SegmentConfig
from indexer.footprint import footprint
from indexer.tune import FEWEST, Goal, Tuning, tune
from searchengine.collection import AddSummary, Collection
from searchengine.corpus import Document
from searchengine.errors import CollectionError, EncoderMismatch, QueryError, SearchEngineError
from searchengine.results import Hit, Hits, Stats
from searchengine.tuning import questions_of
from trainer.errors import TrainerError

__all__ = ["Hit", "Hits", "SearchEngine", "Stats", "TextEncoder"]

Vectors = npt.NDArray[np.float32]
Role = Literal["query", "document"]


class TextEncoder(Protocol):
    """What the engine asks of an encoder; trainer.encoder.Encoder is one."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that give equal vectors, different for others."""

    def encode(self, texts: Sequence[str], *, role: Role | None = None) -> Vectors:
        """Float32 (n, dim) rows of length 1, in the order given."""


class SearchEngine:
    """A collection and the encoder that built it. Safe to search from several threads."""

    def __init__(self, collection: Collection, encoder: TextEncoder | None = None) -> None:
        """Use `create` or `open`; without an encoder, the one named in the collection is loaded."""
        self.collection = collection
        self._encoder: TextEncoder | None = None
        if encoder is not None:
            self._adopt(encoder)

    @classmethod
    def create(
        cls,
        path: str | Path,
        encoder: TextEncoder | str | Path = "starter",
        config: SegmentConfig | None = None,
    ) -> "SearchEngine":
        """Make an empty collection.

        `encoder`: a model folder, a hub name, "starter", or an object with dim, fingerprint and
        encode. `config` says how vectors are indexed; by default a flat shortlist over the rotated
        first 64 numbers. Raises CollectionError when the folder is in use.
        """
        loaded = _load(encoder) if isinstance(encoder, str | Path) else encoder
        config = config or SegmentConfig(prefix=min(64, loaded.dim))
        widths = ("prefix", config.prefix), *(("stage", width) for width, _ in config.stages)
        for name, width in widths:
            if width > loaded.dim:
                raise CollectionError(
                    f"the {name} of {width} is wider than the encoder's {loaded.dim} numbers; "
                    f"choose at most {loaded.dim}"
                )
        settings = {
            "encoder": {
                "source": getattr(loaded, "source", None),
                "fingerprint": loaded.fingerprint,
                "dim": loaded.dim,
            },
            "index": config.as_dict(),
        }
        return cls(Collection.create(Path(path), settings), loaded)

    @classmethod
    def open(
        cls, path: str | Path, encoder: TextEncoder | str | Path | None = None
    ) -> "SearchEngine":
        """Open a collection. Its own encoder is loaded on first use unless another source is given.

        Raises CollectionError (none there, or damaged) and EncoderMismatch.
        """
        collection = Collection(Path(path))
        try:
            if isinstance(encoder, str | Path):
                encoder = _load(encoder)
            return cls(collection, encoder)
        except BaseException:
            collection.close()
            raise

    @classmethod
    def open_or_create(
        cls, path: str | Path, encoder: str | Path | None, config: Mapping[str, Any]
    ) -> "SearchEngine":
        """Open a collection to add to, or make it. `config` holds fields of SegmentConfig.

        The blocks of the rotation "blocks" are by default the lengths that the encoder was
        trained for. Raises CollectionError when an existing collection was made with another
        config.
        """
        if not (Path(path) / "documents.db").exists():
            loaded = _load(encoder or "starter")
            fields = {"prefix": min(64, loaded.dim), **config}
            if fields.get("rotation") == RotationKind.BLOCKS and not fields.get("blocks"):
                fields["blocks"] = _trained_blocks(loaded)
            return cls.create(path, loaded, SegmentConfig(**fields))
        engine = cls.open(path, encoder)
        made = SegmentConfig.from_dict(engine.collection.settings["index"]).as_dict()
        for name, value in config.items():
            asked = json.loads(json.dumps(value))  # as `made` has it: lists, and enums by value
            if made[name] != asked:
                engine.close()
                raise CollectionError(
                    f"{path} has {name} {made[name]}, got {asked}; "
                    "leave it out, or index into a new folder"
                )
        return engine

    @property
    def encoder(self) -> TextEncoder:
        """The encoder, loaded when first needed. Raises EncoderMismatch if it has changed."""
        if self._encoder is None:
            source = self.collection.settings["encoder"]["source"]
            if source is None:
                raise CollectionError(
                    f"{self.collection.path} was built by an encoder made in Python; "
                    "pass it again: SearchEngine.open(path, encoder=…)"
                )
            try:
                loaded = _load(source)
            except TrainerError as error:
                raise CollectionError(
                    f"{self.collection.path} was built by the encoder {source}, which cannot be "
                    f"loaded ({error}); if it has moved, say where: --encoder PATH, or encoder=…"
                ) from error
            self._adopt(loaded)
        assert self._encoder is not None
        return self._encoder

    def _adopt(self, encoder: TextEncoder) -> None:
        built = self.collection.settings["encoder"]
        if (encoder.dim, encoder.fingerprint) != (built["dim"], built["fingerprint"]):
            raise EncoderMismatch(
                f"{self.collection.path} was built by the encoder {built['source'] or 'in memory'} "
                f"({built['dim']} wide, fingerprint {built['fingerprint'][:12]}), got one of "
                f"{encoder.dim} with fingerprint {encoder.fingerprint[:12]}; open it with the "
                "encoder that built it, or index the corpus anew"
            )
        self._encoder = encoder

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]],
        *,
        skip_bad: bool = False,
        progress: Callable[[int], None] | None = None,
        building: Progress | None = None,
    ) -> AddSummary:
        """Encode and commit documents (Document, or a mapping with `_id` and `text`), all or none.

        Documents with neither text nor title are left out and named in the summary; with
        `skip_bad`, so are malformed ones and keys that occur twice, which otherwise raise.
        `progress` is called with the number of documents just encoded, `building` with what is
        done to their vectors then: its name, rows just done and rows in all.
        """
        if isinstance(documents, str | Mapping):
            raise QueryError("add takes an iterable of documents; put one document into a list")
        _ = self.encoder  # loaded before the write lock is taken: it can take seconds
        malformed: list[str] = []

        def stream() -> Iterable[Document]:
            for position, document in enumerate(documents, start=1):
                if isinstance(document, Document):
                    yield document
                    continue
                try:
                    yield Document.from_mapping(document, origin=f"document {position}")
                except SearchEngineError as error:
                    if not skip_bad:
                        raise
                    malformed.append(str(error))

        summary = self.collection.add(
            stream(),
            self._encode_documents,
            skip_bad=skip_bad,
            progress=progress,
            building=building,
        )
        return AddSummary(summary.added, summary.without_text, (*malformed, *summary.bad))

    def _encode_documents(self, documents: list[Document]) -> Vectors:
        vectors = self.encoder.encode([d.full_text for d in documents], role="document")
        if vectors.shape != (len(documents), self.encoder.dim):
            raise CollectionError(
                f"the encoder gave an array of {vectors.shape} for {len(documents)} documents; "
                f"expected ({len(documents)}, {self.encoder.dim})"
            )
        unusable = ~(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))
        if unusable.any():
            document = documents[int(unusable.argmax())]
            raise CollectionError(
                f"{document.origin or 'add'}: the encoder gave NaN, infinity or zero for the "
                f"document {document.key!r}; leave it out or mend the encoder"
            )
        return vectors

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        exact: bool = False,
    ) -> Hits:
        """The k documents nearest to a question, best first; fewer only if fewer match.

        `shortlist`: how many candidates of each segment are scored at full width (default: the
        segment's own). `where`: a filter on metadata, see searchengine.filters. `exact`: prove
        that there is nothing nearer; takes no shortlist. Raises QueryError and FilterError.
        """
        return self.search_batch([query], k, shortlist=shortlist, where=where, exact=exact)[0]

    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        exact: bool = False,
    ) -> list[Hits]:
        """The hits of many questions, in their order; faster than one by one."""
        if isinstance(queries, str):
            raise QueryError("search_batch takes a list of questions, got one text; use search")
        _check_questions(queries)
        for name, value in (("k", k), ("shortlist", 1 if shortlist is None else shortlist)):
            if type(value) is not int or value < 1:
                raise QueryError(f"{name} must be a whole number of at least 1, got {value!r}")
        if exact and shortlist is not None:
            raise QueryError(
                f"exact search takes no shortlist, got {shortlist}; leave one of the two out"
            )
        if not queries or not self.collection.segments:
            return [Hits(proven=True) for _ in queries]
        vectors = self.encoder.encode(queries, role="query")
        result = self.collection.search(vectors, k, shortlist=shortlist, where=where, exact=exact)
        found = result.rows >= 0
        documents = iter(self.collection.store.documents(result.rows[found]))
        rows = sum(row.rows for row in self.collection.segments)
        return [
            Hits(
                (
                    Hit(float(score), d.key, d.title, d.text, d.metadata)
                    # Scores first: zip must not take a document that belongs to the next question.
                    for score, d in zip(scores[there], documents, strict=False)
                ),
                proven=result.proven,
                read=None if result.read is None else float(result.read[i] / rows),
            )
            for i, (scores, there) in enumerate(zip(result.scores, found, strict=True))
        ]

    def tune(
        self,
        queries: Sequence[str] | None = None,
        goal: Goal | None = None,
        *,
        on_step: Callable[[str], None] | None = None,
        building: Progress | None = None,
    ) -> Tuning:
        """Find the cheapest recipe that holds a recall target, and search by it from now on.

        All segments are replaced in one commit, and what is added later is built alike. Readers
        go on as they were until they refresh.

        Args:
            queries: questions like those that will be asked, drawn at random; at least 100. None
                takes documents for questions.
            goal: what to hold, and what to make cheap; indexer.tune says how it is shown.
            on_step: told what is being done.
            building: as for `add`, while the segments are built anew.

        Raises:
            QueryError: too few documents, or a blank question.
            TuneError: too few questions, or a target that cannot be shown to hold.
            CollectionError: changed by another meanwhile. CollectionBusy: being written to.
        """
        if isinstance(queries, str):
            raise QueryError("tune takes a list of questions, got one text")
        self.refresh()
        measured = self.collection.segments
        rows = sum(row.rows for row in measured)
        if rows < FEWEST:
            raise QueryError(
                f"{self.collection.path} holds {rows} documents, and tuning needs {FEWEST}; "
                "so few are scored one and all"
            )
        if queries is None and rows < 4 * FEWEST:
            raise QueryError(
                f"{self.collection.path} holds {rows} documents, of which {FEWEST} would be "
                f"taken for questions: give questions, or index {4 * FEWEST}"
            )
        segments = list(measured.values())
        own = None
        if queries is None:
            vectors, own = questions_of(segments)
        else:
            _check_questions(queries)
            vectors = self.encoder.encode(queries, role="query")
        tuning = tune(segments, vectors, goal, own=own, on_step=on_step)
        self.collection.rebuild(measured, tuning.config, tuning.as_dict(), building)
        return tuning

    def stats(self) -> Stats:
        """What the collection holds and how it is searched."""
        settings, segments = self.collection.settings, self.collection.segments.values()
        recipe = SegmentConfig.from_dict(settings["index"])
        rows = sum(segment.rows for segment in segments)
        sizes = [footprint(segment.config, segment.rows, segment.dim) for segment in segments]
        tunings = (segment.manifest.tuning for segment in segments)
        files = (file.stat() for file in self.collection.path.rglob("*") if file.is_file())
        return Stats(
            path=str(self.collection.path),
            documents=rows,
            segments=len(segments),
            dim=settings["encoder"]["dim"],
            recipe=recipe.as_dict(),
            scanned=sum(recipe.fitting(each.rows, each.dim) != recipe for each in segments),
            hot_row=sum(size.rows * size.hot_row for size in sizes) / rows if rows else None,
            cold_row=sum(size.cold for size in sizes) / rows if rows else None,
            tuning=next((tuning for tuning in tunings if tuning is not None), None),
            encoder=settings["encoder"]["source"],
            fingerprint=settings["encoder"]["fingerprint"],
            bytes=sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values()),
        )

    def refresh(self) -> None:
        """See what others have committed since this engine was opened."""
        self.collection.refresh()

    def verify(self) -> None:
        """Check every file against its checksum. Raises CollectionError on the first fault."""
        self.collection.verify()

    def close(self) -> None:
        """Let go of the files."""
        self.collection.close()

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_questions(queries: Sequence[str]) -> None:
    """Raise QueryError for what is no text, or a blank one."""
    for position, query in enumerate(queries, start=1):
        if not isinstance(query, str):
            raise QueryError(f"question {position} is a {type(query).__name__}, not a text")
        if not query.strip():
            raise QueryError(f"question {position} is blank; ask for something")


def _trained_blocks(encoder: TextEncoder) -> tuple[int, ...]:
    """The shorter lengths that an encoder was trained for, rising."""
    trained: tuple[int, ...] = getattr(encoder, "matryoshka_dims", ())
    blocks = tuple(sorted(width for width in trained if width < encoder.dim))
    if not blocks:
        raise CollectionError(
            f"the encoder was trained for its full {encoder.dim} numbers alone, so there are no "
            "blocks to turn within; choose the rotation pca"
        )
    return blocks


def _load(source: str | Path) -> TextEncoder:
    """The trainer's encoder. Imported here: torch takes seconds, and not every call encodes."""
    from trainer.encoder import Encoder

    return Encoder.load(source)
