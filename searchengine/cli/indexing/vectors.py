"""`searchengine index --vectors` and `--passages-from`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.corpus.text_files import bad, read_jsonl, unreadable
from searchengine.errors import QueryError

if TYPE_CHECKING:
    import numpy.typing as npt

_VECTORS = "numbers of shape (n, D), one row per document"


def holds_vectors(corpus: str) -> bool:
    """Whether a corpus is a file of vectors, without documents."""
    return Path(corpus).suffix == ".npy"


def supplied(
    corpus: str, vectors: Path | None, passages: Path | None
) -> tuple[Any, Any, Path | None]:
    """Return an array of vectors, their passages, and a folder of vectors; None without."""
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
    return _read_vectors(vectors, may_be_empty=passages is not None), lines, None


def encoder_of(
    encoded: Path | None, collection: Path | str, encoder: str | None, settings: dict[str, Any]
) -> str | None:
    """Return the encoder to open or create a collection with.

    If it is new, and its vectors are in a folder, the folder names the encoder, and completes
    `settings`. Options that differ are refused when the vectors are read.
    """
    from searchengine.backends.opening import exists
    from searchengine.encoders.loading import title
    from searchengine.ingest.encoding.folder import EncodedFolder
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


def _read_vectors(path: Path, *, may_be_empty: bool = False) -> "npt.NDArray[Any]":
    """The array (n, D) of a .npy file, mapped: its rows are read when they are used.

    `may_be_empty`: n may be 0, as in the export of a collection without vectors.

    Raises CorpusError for a missing, malformed or empty file, and for anything but numbers.
    """
    import numpy as np  # not at the top: the command line's help does not wait for it

    if path.is_dir():
        raise bad(path, "is a folder, expected a .npy file of vectors")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        raise bad(
            path, f"cannot be read as a .npy file ({error}); write it by numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise bad(path, f"expected {_VECTORS}, got several arrays (.npz); save one by numpy.save")
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise bad(path, f"expected {_VECTORS}, got {array.dtype} of shape {array.shape}")
    rows, dim = array.shape
    if not dim or not (rows or may_be_empty):
        raise bad(path, f"holds no vectors (shape {array.shape})")
    return array
