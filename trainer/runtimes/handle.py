"""The model behind an encoder: what it is, what runs it, and its torch module where that is asked
for. Each is made when it is first needed, for torch takes seconds and a compiled graph answers
without it."""

import os
import warnings
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING

from trainer.errors import EngineWarning, ModelError
from trainer.model.description import Description
from trainer.model.source import Source
from trainer.model.tokens import TokenIds
from trainer.runtimes import compile, measure, store
from trainer.runtimes.config import Engine, Precision, RuntimeConfig
from trainer.runtimes.graph import LEAST, Graph
from trainer.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from trainer.model.folder import Model
    from trainer.runtimes.torch_runtime import TorchRuntime


class Backing:
    """A model in memory, which torch runs, or one of a source, run as `config` says."""

    def __init__(self, config: RuntimeConfig, model: "Model | None", source: Source | None):
        """Of `model` and `source` one is None. Raises ModelError."""
        self.config = config
        self._precision = Precision(config.precision)
        self.source = source
        self._model = model
        self._files: dict[str, str] = {}
        self._lock = RLock()
        self._graph: Graph | None = None
        self._runtime: Runtime | None = None
        self._torch: TorchRuntime | None = None
        self._process = os.getpid()  # in which torch or the runtime were started
        self._compiles = source is not None and self._takes_openvino(source)
        if source is not None and self._compiles:
            self._graph = store.find(source, self._precision is Precision.INT8)
        else:
            self._torch = self._by_torch()
        self.description = self._described()

    def _takes_openvino(self, source: Source) -> bool:
        """Whether OpenVINO is to be tried: not for code that a graph could not be told by."""
        if not self.config.openvino:
            return False
        if not source.runs_remote_code:
            return True
        if self.config.engine is Engine.OPENVINO or self._precision is Precision.INT8:
            raise ModelError(
                f"{source.name} runs Python code that came with it, which only torch does: leave "
                "out the engine and int8"
            )
        return False

    @property
    def model(self) -> "Model":
        """All parts, as torch holds them."""
        with self._lock:
            if self._model is None:
                from trainer.model.loading import read

                assert self.source is not None
                if self._compiles:
                    self._files = store.files(self.source)
                self._model = read(self.source)
            return self._model

    @cached_property
    def fingerprints(self) -> tuple[str, ...]:
        """See trainer.model.fingerprint."""
        if self._graph is not None:
            return self._graph.fingerprints
        from trainer.model.fingerprint import fingerprints

        return fingerprints(self.model)

    @property
    def runtime(self) -> Runtime:
        """What runs the network. Raises ModelError, in a forked child too: threads stay behind."""
        if self._process != os.getpid():
            if self._runtime is not None or self._torch is not None:
                raise ModelError(
                    "the encoder was loaded before this process was forked, and its threads "
                    "belong to the parent; load it in the worker itself, or start workers by "
                    "multiprocessing's spawn"
                )
            self._lock, self._process = RLock(), os.getpid()
        with self._lock:
            if self._runtime is None:
                self._runtime = self._openvino() if self._torch is None else self._checked()
            return self._runtime

    @property
    def ready(self) -> bool:
        """Whether it can run at once; else it is compiled first."""
        return any((self._runtime, self._torch, self._graph))

    @property
    def choice(self) -> str:
        """Engine and precision, in words."""
        running = self._runtime or self._torch
        if running is not None:
            return f"{running.engine} {running.precision}"
        if self._graph is None:
            return f"{Engine.OPENVINO}, which compiles it when it is first used"
        try:
            return f"{Engine.OPENVINO} {self._graph.precision(self._precision)}"
        except ModelError as error:
            return f"{Engine.TORCH}: {error}"

    def _described(self) -> Description:
        if self._graph is not None:
            return self._graph.description
        from trainer.model.loading import describe

        return describe(self.model)

    def _openvino(self) -> Runtime:
        """OpenVINO; torch, with a word, where the choice is free and OpenVINO does not do."""
        asked = self._precision
        try:
            return self._compiled(asked is Precision.INT8).runtime(asked)
        except ModelError as error:
            if self.config.engine is Engine.OPENVINO or asked is Precision.INT8:
                raise
            warnings.warn(f"{error}", EngineWarning, stacklevel=4)
        self._torch = self._by_torch()
        return self._checked()

    def _compiled(self, int8: bool) -> Graph:
        assert self.source is not None
        if self._graph is None:
            exact = store.find(self.source) if int8 else None  # else it was looked for already
            if exact is None:
                model = self.model  # which notes the files
                exact = compile.compiled(self.source, model, self._files)
            self._graph = compile.quantized(self.source, exact) if int8 else exact
        return self._graph

    def _by_torch(self, precision: Precision | None = None) -> "TorchRuntime":
        from trainer.runtimes.torch_runtime import TorchRuntime

        model, device = self.model, self.config.device
        return TorchRuntime(model.module, precision or self._precision, device, model.max_tokens)

    def _checked(self) -> Runtime:
        """torch; where the precision of a source's model is free, in what is accurate enough."""
        fast = self._torch
        assert fast is not None
        free = self._precision is Precision.AUTO and self.source is not None
        if not free or fast.precision is Precision.FP32:
            return fast
        exact = self._by_torch(Precision.FP32)
        tokens = TokenIds(self.description.tokens)
        found = measure.least_cosine(*(measure.vectors(one, tokens) for one in (fast, exact)))
        if found >= LEAST[fast.precision]:
            return fast
        warnings.warn(
            f"torch in {fast.precision} is not accurate enough for this model (a cosine of "
            f"{found:.4f} to float32, {LEAST[fast.precision]} is wanted): float32 runs it",
            EngineWarning,
            stacklevel=4,
        )
        return exact
