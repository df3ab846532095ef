"""`searchengine index --vectors` and `--passages-from`."""

from pathlib import Path
from typing import Any

import click

from searchengine.errors import QueryError


def holds_vectors(corpus: str) -> bool:
    """Whether a corpus is a file of vectors, without documents."""
    return Path(corpus).suffix == ".npy"


def supplied(
    corpus: str, vectors: Path | None, passages: Path | None
) -> tuple[Any, Any, Path | None]:
    """Return an array of vectors, their passages, and a folder of vectors; None without."""
    from searchengine.corpus.arrays import read_vectors
    from searchengine.corpus.lines import read_jsonl

    if holds_vectors(corpus):
        if vectors is not None:
            raise click.UsageError(
                f"{corpus} holds vectors; leave --vectors out, or name the documents instead"
            )
        vectors = Path(corpus)
    encoded = vectors is not None and vectors.is_dir() and vectors.suffix != ".npy"
    if passages is not None and (vectors is None or encoded or holds_vectors(corpus)):
        raise click.UsageError("--passages-from needs documents and --vectors FILE.npy")
    if encoded:
        return None, None, vectors
    if vectors is None:
        return None, None, None
    lines = None if passages is None else (line for _, line in read_jsonl(passages))
    return read_vectors(vectors, may_be_empty=passages is not None), lines, None


def encoder_of(
    encoded: Path | None, collection: Path | str, encoder: str | None, settings: dict[str, Any]
) -> str | None:
    """Return the encoder to open or create a collection with.

    If it is new, and its vectors are in a folder, the folder names the encoder, and completes
    `settings`. Options that differ are refused when the vectors are read.
    """
    from searchengine.backends.opening import exists
    from searchengine.encoders.loading import title
    from searchengine.ingest.encoded_folder import EncodedFolder
    from searchengine.ingest.passages import PassageConfig

    if encoded is None or exists(collection):
        return encoder
    folder = EncodedFolder(encoded)
    if settings["passages"] is None:
        cut = folder.passages
        settings["passages"] = False if cut is None else PassageConfig.from_dict(cut)
    if settings["layers"] is None:
        settings["layers"] = folder.encoder.get("layers")
    source = encoder or folder.encoder["source"]
    if source is None:
        raise QueryError(
            f"{encoded} was encoded by {title(folder.encoder)}, which only Python has: "
            "SearchEngine.add(documents, vectors=…)"
        )
    return str(source)
