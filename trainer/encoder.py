"""The encoder, text to unit vectors, and its handle, which opens the model; training.loop trains.

encoder = Encoder.load("starter")
vectors = encoder.encode(["how do whales sleep"], role="query")    # (1, 384) float32, unit rows
"""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer import fingerprint
from searchengine.trainer.errors import ConfigError, ModelError, require
from searchengine.trainer.model.bert import Bert, OtherModelError, read_bert
from searchengine.trainer.model.layout import as_damage
from searchengine.trainer.model.tokens import (
    UNLIMITED,
    Ids,
    TokenIds,
    check_texts,
    token_budget_batches,
)
from searchengine.trainer.native.library import kernel
from searchengine.trainer.runtimes import native_runtime
from searchengine.trainer.runtimes.runtime_config import (
    Choice,
    Precision,
    RuntimeConfig,
    RuntimeKind,
    choose,
)
from searchengine.trainer.runtimes.static_runtime import StaticHandle, static_stages
from searchengine.trainer.sources.source import Source, Starter

if TYPE_CHECKING:  # torch, which takes seconds and which the native runtime does without
    from searchengine.trainer.model.model_folder import Model
    from searchengine.trainer.model.modules import SentenceModule
    from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

    Runtime = native_runtime.NativeRuntime | TorchRuntime

Role = Literal["query", "document"]
Item = TypeVar("Item")
END = object()
# The prompt names that serve a role, in order; what sentence-transformers tries as well.
ROLE_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
# Texts tokenised and sorted at a time: bounds memory, and long enough that batches are even.
CHUNK = 2048


class Encoder:
    """A sentence encoder: `Encoder.load` gives one; or of a model in memory, which torch runs.

    It uses the weights of `module` as they are now; after training them, create a new Encoder.
    Safe to use from several threads.
    """

    def __init__(
        self,
        model: "Model | Handle",
        source: str,
        *,
        precision: Precision | str = Precision.AUTO,
        device: str | None = None,
    ):
        """source: the name by which `load` finds it again."""
        if not isinstance(model, Handle):
            config = RuntimeConfig(RuntimeKind.TORCH, precision, device)
            model = ModelHandle(config, model, None)
        self._handle, self._source = model, source
        self._description, self._tokens = model.description, model.tokens

    @classmethod
    def load(
        cls,
        source: str | Path = Starter.PUBLISHED,
        *,
        runtime: RuntimeKind | str = RuntimeKind.AUTO,
        precision: Precision | str = Precision.AUTO,
        device: str | None = None,
        layers: int | None = None,
        shared: bool = False,
    ) -> "Encoder":
        """The encoder in a folder, on the model hub, or packaged.

        A model of BERT's kind is run by the native kernel on a processor, which rounds its weights
        to 8 bits once, in some seconds. A static model (Model2Vec, StaticEmbedding) is averaged by
        numpy. Both need no torch; all else does.

        Args:
            source: a folder, a hub name, or "starter", "starter-768" or "multilingual".
            runtime: what runs the network; see RuntimeConfig, also for precision and device.
            precision: of the transformer; pooling and head are always float32.
            device: a torch device name; by default a GPU if torch sees one.
            layers: number of layers of the network to keep, from the first. Faster, and still good
                where the model was trained for it (2-D Matryoshka, Li et al., arXiv 2402.14776).
            shared: use the model that this process has loaded with the same arguments, if it still
                does and the files are the same; then nobody may train its `module`.

        Raises:
            ModelError: there is no such model, or it cannot be run this way.
        """
        config = RuntimeConfig(runtime, precision, device)
        place = Source.find(source, layers)
        return cls((_share if shared else open_handle)(config, place), place.name)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self._description.dim

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The trained prefix lengths, descending; the first is `dim`."""
        return self._description.matryoshka_dims

    @property
    def max_tokens(self) -> int:
        """Most tokens of a text that are read, special tokens included; the rest is cut off."""
        return self._description.tokens.max_tokens

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts that the model puts in front of texts, by name; read-only."""
        return MappingProxyType(dict(self._description.prompts))

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How the model was trained, where its folder says so."""
        return MappingProxyType(dict(self._description.recipe))

    @property
    def source(self) -> str:
        """The name by which `load` finds this encoder again; absolute for folders."""
        return self._source

    @property
    def layers(self) -> int:
        """Number of layers of the network; 0 for a static model."""
        return self._description.layers

    @property
    def runs_on(self) -> str:
        """Runtime, precision and why they were chosen; known without starting them."""
        return self._handle.runs_on

    @property
    def runtime(self) -> str:
        """The runtime: "native" or "torch"; "numpy" for a static model."""
        return str(self._handle.runtime.kind)

    @property
    def precision(self) -> str:
        """The arithmetic in use: "fp32", "bf16", "fp16" or "int8"."""
        return str(self._handle.runtime.precision)

    @property
    def model(self) -> "Model":
        """All parts, for training and saving. Loads torch. Raises ModelError for a static model."""
        return self._handle.model

    @property
    def module(self) -> "SentenceModule":
        """The torch module with float32 weights."""
        return self.model.module

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of everything that decides what vector a text gets.

        The same before a save and after a load, on any device, in any precision.
        """
        return self._handle.fingerprint

    def __repr__(self) -> str:
        return f"Encoder({self.source!r}, dim={self.dim}, layers={self.layers})"

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Unit rows (n, dim) float32, in the order of `texts`.

        role: puts the model's prompt for queries or documents in front, where it has one. on_batch:
        called after each batch with the number of texts it finished; the numbers add up to n.
        Raises ModelError for anything that is not a sequence of str.
        """
        check_texts(texts)
        # Equal texts get equal vectors: encode them once.
        distinct: dict[str, int] = {}
        rows = np.array([distinct.setdefault(text, len(distinct)) for text in texts], np.int64)
        counts = np.bincount(rows, minlength=len(distinct))
        vectors = np.empty((len(distinct), self.dim), dtype=np.float32)
        prompt = self.prompt(role)
        for start, ids in self._tokenised(list(distinct), prompt):
            runtime, lengths = self._handle.runtime, [len(row) for row in ids]
            for batch in token_budget_batches(lengths, runtime.token_budget, runtime.min_ratio):
                positions = start + np.array(batch)
                vectors[positions] = runtime.run([ids[i] for i in batch])
                if on_batch is not None:
                    on_batch(int(counts[positions].sum()))
        return vectors if len(distinct) == len(texts) else vectors[rows]

    def classify(
        self,
        texts: Sequence[str],
        dims: Sequence[int] = (),
        *,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[list[str]]:
        """The likeliest label of each text, for each prefix length; by default for the full width.

        on_batch: as for `encode`. Raises ConfigError for a model that was trained without labels,
        or not on a length.
        """
        if (classifier := self.model.classifier) is None:
            raise ConfigError(
                f"{self.source} knows no labels: train it with objective classification first"
            )
        vectors = self.encode(texts, role="document", on_batch=on_batch)  # as it was trained
        return [classifier.predict(vectors, dim) for dim in dims or (self.dim,)]

    def _tokenised(self, texts: list[str], prompt: str) -> Iterator[tuple[int, list[Ids]]]:
        """The start of each chunk of texts and its token ids; the next is tokenised meanwhile."""

        def chunk(start: int) -> tuple[int, list[Ids]]:
            batch = texts[start : start + CHUNK]
            return start, self._tokens([prompt + text for text in batch] if prompt else batch)

        starts = range(0, len(texts), CHUNK)
        # A single question should not pay for a thread.
        return map(chunk, starts) if len(starts) < 2 else _prefetched(map(chunk, starts))

    def prompt(self, role: Role | None) -> str:
        """The text that `encode` puts in front of a text of this role; "" for none."""
        if role is None:
            default = self._description.default_prompt
            return "" if default is None else self._description.prompts[default]
        if role not in ROLE_PROMPTS:
            raise ModelError(
                f"role is {role!r}: expected one of {', '.join(ROLE_PROMPTS)}, or none"
            )
        for name in ROLE_PROMPTS[role]:
            if name in self._description.prompts:
                return self._description.prompts[name]
        return ""

    def token_spans(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The tokens of each text, without prompt, special tokens and truncation.

        (n, 2) character offsets [start, end), in order. Raises ModelError as `encode` does.
        """
        check_texts(texts)
        return self._tokens.spans(texts)

    def room(self, role: Role | None = None) -> int | None:
        """`max_tokens` less the prompt and special tokens; None: a text may have any number.

        Raises ModelError for an unknown role.
        """
        prompt = self.prompt(role)
        return self._tokens.room(prompt) if self.max_tokens < UNLIMITED else None

    def save(self, path: str | Path) -> None:
        """Write a sentence-transformers folder, whole or not at all.

        An older model there is replaced, anything else refused with a ModelError.
        """
        model = self.model  # says what to install where torch is missing
        from searchengine.trainer.card import model_card
        from searchengine.trainer.model.model_folder import write_model

        write_model(model, Path(path), model_card(model))


class ModelHandle:
    """A model in memory, which torch runs; or the model of a source, run as `choose` says."""

    def __init__(self, config: RuntimeConfig, model: "Model | None", source: Source | None):
        """Either `model` or `source` is None. Raises ModelError."""
        self.config, self.source, self._model = config, source, model
        self._lock, self._process = RLock(), os.getpid()
        self._runtime: Runtime | None = None
        self._bert: Bert | None = None
        self.choice = Choice(RuntimeKind.TORCH, config.precision, "it is in memory")
        if source is not None:
            self._state = source.state()
            self._kept = native_runtime.Kept(source, self._state)
            try:
                self._bert = read_bert(source)
                obstacle = native_runtime.obstacle(self._bert, self._kept)
            except OtherModelError as error:
                obstacle = str(error)
            self.choice = choose(config, obstacle, kernel())
        if self._bert is not None:
            self.description = self._bert.description
        else:
            from searchengine.trainer.model.model_folder import describe  # torch

            self.description = describe(self.model)
        self.tokens = TokenIds(self.description.tokens)
        if source is not None:
            words = self._bert.words if self._bert is not None else self.model.words
            if (size := self.tokens.vocabulary_size) > words:
                raise ModelError(
                    f"{source.folder} has a tokenizer of {size} tokens, but its network has "
                    f"{words}: the tokenizer belongs to another model"
                )
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Raise ModelError where files are others than those that were read first."""
        if self.source is not None and self.source.state() != self._state:
            raise ModelError(f"{self.source.name} was changed after it was loaded: load it again")

    @property
    def model(self) -> "Model":
        """All parts, as torch modules."""
        with self._lock:
            if self._model is None:
                require("train", "the torch module of a model", "torch", "transformers")
                from searchengine.trainer.model.model_folder import read

                assert self.source is not None
                with as_damage(self.source.folder):
                    self._model = read(self.source)
                self._check_unchanged()
            return self._model

    @cached_property
    def fingerprint(self) -> str:
        """See searchengine.trainer.fingerprint."""
        if self._bert is not None:
            known = self._kept.record.get("fingerprint")  # of the same files
            return known or fingerprint.of_folder(self._bert)
        return fingerprint.of_model(self.model, self.description)

    @property
    def runtime(self) -> "Runtime":
        """The runtime, started if need be.

        Raises ModelError; also in a forked child, which does not have its parent's threads.
        """
        if self._process != os.getpid():
            raise ModelError(
                "the model was loaded before this process was forked, and its threads "
                "belong to the parent; load it in the worker itself, or start workers by "
                "multiprocessing's spawn"
            )
        with self._lock:
            if self._runtime is None:
                self._runtime = self._start()
            return self._runtime

    def _start(self) -> "Runtime":
        if self.choice.kind is RuntimeKind.NATIVE:
            assert self._bert is not None and self.source is not None
            try:
                with as_damage(self.source.folder):
                    return native_runtime.start(self._bert, self.tokens, self._kept)
            except native_runtime.InaccurateError as error:
                self.choice = choose(self.config, str(error), kernel())  # or an error
        from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

        precision = Precision(self.config.precision)
        return TorchRuntime(self.model.module, self.tokens, precision, self.config.device)

    @property
    def runs_on(self) -> str:
        """Runtime and precision, and why they were chosen; known without starting them."""
        precision = (self._runtime or self.choice).precision
        return f"{self.choice.kind} {precision} ({self.choice.reason})"


Handle = ModelHandle | StaticHandle


def open_handle(config: RuntimeConfig, source: Source) -> Handle:
    """The model of a source. Raises ModelError."""
    with as_damage(source.folder):
        if stages := static_stages(source.folder):
            return StaticHandle(config, source, stages)
        return ModelHandle(config, None, source)


# Models that several encoders use, while one of them does; and what is held while one is opened, so
# that two callers never read it twice.
_shared: WeakValueDictionary[Hashable, Handle] = WeakValueDictionary()
_sharing = RLock()
os.register_at_fork(
    before=_sharing.acquire, after_in_parent=_sharing.release, after_in_child=_sharing.release
)


def _share(config: RuntimeConfig, source: Source) -> Handle:
    """As `open_handle`, but one handle serves all callers in this process, until none holds it."""
    key = (os.getpid(), config, source, source.state())
    with _sharing:
        handle = _shared.get(key)
        if handle is None:
            handle = _shared[key] = open_handle(config, source)
        return handle


def _prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is computed in a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, END)
        while (item := upcoming.result()) is not END:
            upcoming = thread.submit(next, items, END)
            yield item  # type: ignore[misc]
