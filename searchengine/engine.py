"""The engine: questions in, documents out. The only place that knows encoder and collection.

engine = SearchEngine.create("papers.index")
engine.add([{"_id": "1", "text": "Whales sleep with half a brain."}])
engine.search("how do whales sleep", k=5)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from indexer.segment import SegmentConfig
from searchengine.collection import AddSummary, Collection
from searchengine.corpus import Document
from searchengine.errors import CollectionError, EncoderMismatch, QueryError, SearchEngineError
from trainer.errors import TrainerError

Vectors = npt.NDArray[np.float32]
Role = Literal["query", "document"]

_SHOWN = 160  # characters of a text in a printed hit


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


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found; `score` is the full-width cosine, between −1 and 1."""

    score: float
    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
        return f"{self.score:.3f}  {self.key}  {self.title}\n       {shown}"


@dataclass(frozen=True, slots=True)
class Stats:
    """What a collection holds. `bytes` counts every file below its folder."""

    path: str
    documents: int
    segments: int
    dim: int
    prefix: int
    structure: str
    code: str
    rotation: str
    shortlist: int
    encoder: str | None
    fingerprint: str
    bytes: int


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
        if config.prefix > loaded.dim:
            raise CollectionError(
                f"the prefix of {config.prefix} is wider than the encoder's {loaded.dim} numbers; "
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

        Raises CollectionError when an existing collection was made with another config.
        """
        if not (Path(path) / "documents.db").exists():
            loaded = _load(encoder or "starter")
            fields = {"prefix": min(64, loaded.dim), **config}
            return cls.create(path, loaded, SegmentConfig(**fields))
        engine = cls.open(path, encoder)
        made = engine.collection.settings["index"]
        for name, value in config.items():
            if made[name] != value:
                engine.close()
                raise CollectionError(
                    f"{path} was made with {name} {made[name]}, got {value}; "
                    f"leave it out, or index into a new folder"
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
    ) -> AddSummary:
        """Encode and commit documents (Document, or a mapping with `_id` and `text`), all or none.

        Documents with neither text nor title are left out and named in the summary; with
        `skip_bad`, so are malformed ones and keys that occur twice, which otherwise raise.
        `progress` is called with the number of documents just encoded.
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
            stream(), self._encode_documents, skip_bad=skip_bad, progress=progress
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
        self, query: str, k: int = 10, *, shortlist: int | None = None, where: str | None = None
    ) -> list[Hit]:
        """The k documents nearest to a question, best first; fewer only if fewer match.

        `shortlist`: how many candidates of each segment are scored at full width (default: the
        segment's own). `where`: a filter on metadata, see searchengine.filters.
        Raises QueryError and FilterError.
        """
        return self.search_batch([query], k, shortlist=shortlist, where=where)[0]

    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        shortlist: int | None = None,
        where: str | None = None,
    ) -> list[list[Hit]]:
        """The hits of many questions, in their order; faster than one by one."""
        if isinstance(queries, str):
            raise QueryError("search_batch takes a list of questions, got one text; use search")
        for position, query in enumerate(queries, start=1):
            if not isinstance(query, str):
                raise QueryError(f"question {position} is a {type(query).__name__}, not a text")
            if not query.strip():
                raise QueryError(f"question {position} is blank; ask for something")
        for name, value in (("k", k), ("shortlist", 1 if shortlist is None else shortlist)):
            if type(value) is not int or value < 1:
                raise QueryError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not queries or not self.collection.segments:
            return [[] for _ in queries]
        vectors = self.encoder.encode(queries, role="query")
        result = self.collection.search(vectors, k, shortlist=shortlist, where=where)
        found = result.rows >= 0
        documents = iter(self.collection.store.documents(result.rows[found]))
        return [
            [
                Hit(float(score), d.key, d.title, d.text, d.metadata)
                # The scores first: zip must not take a document that belongs to the next question.
                for score, d in zip(scores[there], documents, strict=False)
            ]
            for scores, there in zip(result.scores, found, strict=True)
        ]

    def stats(self) -> Stats:
        """What the collection holds and how it searches."""
        settings = self.collection.settings
        index = settings["index"]
        files = (file for file in self.collection.path.rglob("*") if file.is_file())
        return Stats(
            path=str(self.collection.path),
            documents=sum(row.rows for row in self.collection.segments),
            segments=len(self.collection.segments),
            dim=settings["encoder"]["dim"],
            prefix=index["prefix"],
            structure=index["structure"],
            code=index["code"],
            rotation=index["rotation"],
            shortlist=index["shortlist"],
            encoder=settings["encoder"]["source"],
            fingerprint=settings["encoder"]["fingerprint"],
            bytes=sum(file.stat().st_size for file in files),
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


def _load(source: str | Path) -> TextEncoder:
    """The trainer's encoder. Imported here: torch takes seconds, and not every call encodes."""
    from trainer.encoder import Encoder

    return Encoder.load(source)
