"""The model behind an encoder: what it is, what runs it, and its torch module.

Each part is loaded when it is first needed: torch takes seconds, and a model of BERT's kind answers
without it.
"""

import os
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING

from searchengine.trainer import fingerprint
from searchengine.trainer.errors import ModelError, require
from searchengine.trainer.model.bert import Bert, OtherModelError, read_bert
from searchengine.trainer.model.layout import as_damage
from searchengine.trainer.model.tokens import TokenIds
from searchengine.trainer.native.library import FastTokenIds, kernel
from searchengine.trainer.runtimes import native_runtime
from searchengine.trainer.runtimes.runtime_config import (
    Choice,
    Precision,
    RuntimeConfig,
    RuntimeKind,
    choose,
)
from searchengine.trainer.runtimes.static_runtime import StaticHandle, static_stages
from searchengine.trainer.sources.source import Source

if TYPE_CHECKING:  # torch
    from searchengine.trainer.model.model_folder import Model
    from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

    Runtime = native_runtime.NativeRuntime | TorchRuntime


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
        self.tokens: TokenIds = FastTokenIds(self.description.tokens)
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
