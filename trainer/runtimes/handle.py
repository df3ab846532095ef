"""The model behind an encoder or a cross-encoder: what it is, what runs it, and its torch module.

Each part is loaded when it is first needed: torch takes seconds, and a compiled graph answers
without it.
"""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from threading import Lock, RLock, Thread
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

from searchengine.trainer.errors import ModelError, RuntimeChoiceWarning
from searchengine.trainer.model.multilingual import MULTILINGUAL
from searchengine.trainer.model.numpy_models import (
    Described,
    Network,
    find_described,
    keep_described,
    static_place,
)
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import TokenIds
from searchengine.trainer.native.library import WIDE, adds_bytes, digit_bits, is_fast
from searchengine.trainer.native.wordpiece import FastTokenIds
from searchengine.trainer.runtimes import compile
from searchengine.trainer.runtimes.graph import FP32_GAIN, Graph, find_graph
from searchengine.trainer.runtimes.measure import is_measured, known_here, measured_here
from searchengine.trainer.runtimes.numpy_runtime import NumpyRuntime, StaticHandle
from searchengine.trainer.runtimes.runtime import Runtime
from searchengine.trainer.runtimes.runtime_config import (
    Precision,
    RuntimeConfig,
    RuntimeKind,
    cpu_has_amx,
)

if TYPE_CHECKING:
    from searchengine.trainer.model.model_folder import Model
    from searchengine.trainer.model.pairs import PairModel
    from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

_log = logging.getLogger(__name__)
# Tokens that numpy encodes before the fastest runtime is started: a few seconds, about as long as
# that takes. Each call counts as CALL_TOKENS at least, so that a process with many questions is
# answered fast from the hundredth or so on.
FIRST_TOKENS, CALL_TOKENS = 8192, 64


class ModelHandle:
    """A model in memory, which torch runs; or the model of a source, run as `config` says."""

    def __init__(
        self, config: RuntimeConfig, model: "Model | PairModel | None", source: Source | None
    ):
        """Either `model` or `source` is None. Raises ModelError."""
        self.config = config
        self.source = source
        self._precision = Precision(config.precision)
        self._int8 = self._precision is Precision.INT8
        self._lock = RLock()
        self._process = os.getpid()
        self._model = model
        self._files: dict[str, str] = {}  # checksums from before the model was read
        self._graph: Graph | None = None
        self._torch: TorchRuntime | None = None
        self._runtime: Runtime | None = None
        self._described: Described | None = None
        self._asked_numpy = False
        self._tries_openvino = source is not None and _tries_openvino(config, source)
        self._tries_native = source is not None and _tries_native(config, source)
        self._requires_native = config.runtime is RuntimeKind.NATIVE
        if source is not None:
            self._find_known(source)
        self._first: FirstTexts | None = None
        if self._runtime is None and not self._requires_native:
            if self._described is not None and self._graph is None:
                self._first = FirstTexts(self._described)
            elif not self._tries_openvino and not self._tries_native:
                self._torch = self._torch_runtime(self._precision)
        if (known := self._known) is not None:
            self.description = known.description
        else:
            from searchengine.trainer.model.torch_model import describe

            self.description = describe(self.model)
        self.tokens: TokenIds = FastTokenIds(self.description.tokens)

    def _find_known(self, source: Source) -> None:
        """Find what earlier processes made of the model: native weights, or a graph."""
        if self._tries_native:
            self._described = find_described(source)
        if self._described is not None and not self._requires_native:
            from searchengine.trainer.runtimes.native_runtime import find_native

            try:
                self._runtime = find_native(self._described, source)
            except ModelError:
                self._tries_native = False
        if self._tries_openvino and (self._described is None or not self._tries_native):
            self._graph = self._find_graph(source)
            if self._graph is not None:  # it needs no torch, and to describe the network does
                self._tries_native = False
        looked = self._tries_native or self._described is not None
        if self._graph is None and not looked and self.config.takes_numpy:
            self._described = find_described(source)

    @property
    def model(self) -> "Model | PairModel":
        """All parts, as torch modules."""
        with self._lock:
            if self._model is None:
                assert self.source is not None
                if self._tries_openvino or self._numpy_learns:
                    self._files = self.source.file_checksums()
                if self.source.pairs:
                    from searchengine.trainer.model.pairs import read_pairs

                    self._model = read_pairs(self.source)
                else:
                    from searchengine.trainer.model.torch_model import read

                    self._model = read(self.source)
            return self._model

    @cached_property
    def fingerprint(self) -> str:
        """See searchengine.trainer.model.torch_model."""
        if (known := self._known) is not None:
            return known.fingerprint
        from searchengine.trainer.model.torch_model import fingerprint

        return fingerprint(self.model)

    @property
    def runtime(self) -> Runtime:
        """The runtime, compiled or started if need be.

        Raises ModelError; also in a forked child, which does not have its parent's threads.
        """
        self._check_process()
        with self._lock:
            if self._runtime is None:
                self._runtime = self._fastest()
            return self._runtime

    def runtime_for(self, tokens: int) -> Runtime:
        """The runtime for a call of `tokens` tokens: numpy for the first texts, where it may run.

        Raises ModelError, as `runtime`.
        """
        self._check_process()
        if self._runtime is None and self._first is not None:
            by_numpy = self._first.runtime_for(tokens, self._try_to_start)
            if by_numpy is not None:
                return by_numpy
        return self.runtime

    def _try_to_start(self) -> None:
        with suppress(ModelError):  # which the next call raises
            _ = self.runtime

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ModelError(
                "the model was loaded before this process was forked, and its threads "
                "belong to the parent; load it in the worker itself, or start workers by "
                "multiprocessing's spawn"
            )

    @property
    def _known(self) -> "Graph | Described | None":
        """Graph or described network: a description of the model that needs no torch."""
        return self._described if self._graph is None else self._graph

    @property
    def runs_on(self) -> str:
        """Runtime and precision as text, with the measured speeds if they were chosen by speed."""
        running = self._runtime or self._torch
        if self._graph is None:
            if running is not None:
                return f"{running.kind} {running.precision}"
            words = f"{RuntimeKind.OPENVINO}, which compiles it when it is first used"
            if not self._tries_openvino:
                words = f"{RuntimeKind.TORCH}"
            if self._tries_native:
                known = self._requires_native or self._described is not None
                others = "" if known else f", or else {words}"
                words = f"{RuntimeKind.NATIVE} {Precision.INT8}{others}"
            return words if self._first is None else f"numpy for the first texts, then {words}"
        try:
            if running is not None:
                words = f"{running.kind} {running.precision}"
            elif self._prefers_torch:
                words = RuntimeKind.TORCH
            else:
                words = f"{RuntimeKind.OPENVINO} {self._graph.choose_precision(self._precision)}"
        except ModelError as error:
            return f"{RuntimeKind.TORCH}: {error}"
        chosen = self._choice_is_free and self._graph.speeds
        return f"{words} (measured: {self._graph.speeds_in_words})" if chosen else words

    def _fastest(self) -> Runtime:
        """The native kernel, OpenVINO or torch: see RuntimeConfig and docs/encoding.md."""
        if self._tries_native:
            try:
                return self._native()
            except ModelError as error:
                if self._requires_native:
                    raise ModelError(f"{error}; choose another runtime") from error
                _log.info("%s: another runtime is taken", error)
                self._tries_native = False
        runtime: Runtime | None = None
        if self._tries_openvino and self._torch is None:
            try:
                graph = self._measured_graph()
                if not self._prefers_torch:
                    runtime = graph.start(self._precision)
            except ModelError as error:
                if self.config.requires_openvino:
                    raise
                warnings.warn(f"{error}", RuntimeChoiceWarning, stacklevel=3)
        if runtime is None:
            self._torch = self._torch or self._torch_runtime(self._precision)
            runtime = self._accurate_torch()
        if self._model is not None and self._numpy_learns:
            self._describe_for_numpy()
        return runtime

    def _native(self) -> Runtime:
        from searchengine.trainer.runtimes.native_runtime import native_runtime

        if self._described is None and self._numpy_learns:
            self._describe_for_numpy()
        if self._described is None or self.source is None:
            raise ModelError(
                "the native runtime runs encoders of BERT's kind alone (BERT, MiniLM, RoBERTa, "
                "XLM-R with mean or CLS pooling)"
            )
        return native_runtime(self._described, self.source)

    @property
    def _numpy_learns(self) -> bool:
        """Whether numpy or the native kernel may run it in later processes, without torch."""
        if self._asked_numpy or self._described is not None:
            return False
        if self.source is None or self.source.pairs or self.source.runs_remote_code:
            return False
        return self.config.takes_numpy or self._requires_native or self._tries_openvino

    def _describe_for_numpy(self) -> None:
        """Remember the model if numpy gives its vectors."""
        self._asked_numpy = True
        from searchengine.trainer.runtimes.numpy_check import described

        assert self.source is not None
        model = described(cast("Model", self.model), self.source, self.fingerprint, self.tokens)
        if model is not None:
            keep_described(self.source, model, self._files)
            self._described = model

    @property
    def _choice_is_free(self) -> bool:
        return self.config.runtime is RuntimeKind.AUTO and self._precision is Precision.AUTO

    @property
    def _prefers_torch(self) -> bool:
        """Whether the choice is free, and torch was measured to be the fastest."""
        graph = self._graph
        return self._choice_is_free and graph is not None and graph.torch_is_faster

    def _find_graph(self, source: Source) -> Graph | None:
        graph = find_graph(source, self._int8)
        return None if graph is None else known_here(graph)

    def _compiled_graph(self) -> Graph:
        assert self.source is not None
        if self._graph is None:
            self._graph = self._find_graph(self.source)
        if self._graph is None:
            network = "cross-encoder" if self.source.pairs else "encoder"
            _log.info("Compiling the %s, once…", network)
            exact = find_graph(self.source) if self._int8 else None  # else known to be missing
            if exact is None:
                model = self.model  # sets self._files
                exact = compile.compile_model(self.source, model, self._files)
            self._graph = compile.quantize_graph(self.source, exact) if self._int8 else exact
        return self._graph

    def _measured_graph(self) -> Graph:
        """The compiled graph; measured again on another processor, unless float32 is asked for."""
        graph = self._compiled_graph()
        if self._precision is Precision.FP32 or is_measured(graph):
            return graph
        assert self.source is not None
        exact = find_graph(self.source) if self._int8 else graph
        if exact is not None:
            rivals = compile.rivals(lambda: self.model)
            self._graph = graph = measured_here(graph, exact, rivals)
        return graph

    def _torch_runtime(self, precision: Precision) -> "TorchRuntime":
        from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

        model = self.model
        return TorchRuntime(model.module, precision, self.config.device, model.max_tokens)

    def _accurate_torch(self) -> Runtime:
        """torch; in float32 where the precision was left open and bf16 is inaccurate or slow."""
        fast = self._torch
        assert fast is not None
        is_open = self._precision is Precision.AUTO and self.source is not None
        if not is_open or fast.precision is Precision.FP32:
            return fast
        from searchengine.trainer.runtimes.torch_runtime import compare, compare_once

        exact = self._torch_runtime(Precision.FP32)
        if fast.device.type == "cpu":
            comparison = compare_once(fast, exact, self.tokens, self.fingerprint)
        else:  # a GPU compares them in less time than hashing the weights takes
            comparison = compare(fast, exact, self.tokens)
        shortfall = comparison.accuracy.shortfall(fast.precision)
        if not shortfall and comparison.gain <= FP32_GAIN:
            exact.leave()
            return fast
        if shortfall:
            warnings.warn(
                f"torch in {fast.precision} is not accurate enough for this model: {shortfall}; "
                "torch runs it in float32",
                RuntimeChoiceWarning,
                stacklevel=4,
            )
        self._torch = exact
        return exact


Handle = ModelHandle | StaticHandle


def open_handle(config: RuntimeConfig, source: Source) -> Handle:
    """The model of a source. Raises ModelError.

    config: does not concern the table of a route, because it is meant for the network beside it.
    """
    table = None if source.pairs else static_place(source.folder, source.route)
    if table is None:
        if source.name == MULTILINGUAL and config.takes_numpy and is_fast():
            config = replace(config, runtime=RuntimeKind.NATIVE)  # numpy would hold 1.2 GB
        return ModelHandle(config, None, source)
    return StaticHandle(config if source.route is None else RuntimeConfig(), source, table)


_shared: WeakValueDictionary[Hashable, Handle] = WeakValueDictionary()
_sharing = Lock()  # held while a model is opened, so that two callers never read it twice


def share_handle(config: RuntimeConfig, source: Source) -> Handle:
    """As `open_handle`, but one handle serves all callers in this process, until none holds it.

    A model whose files have changed since is opened anew. Nobody may train its module.
    """
    key = (config, source, source.state())
    with _sharing:
        handle = _shared.get(key)
        if handle is None:
            handle = _shared[key] = open_handle(config, source)
        return handle


def _share_no_longer() -> None:
    """In a forked child: the threads of the runtimes and the lock are the parent's."""
    global _sharing
    _sharing = Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_share_no_longer)


def _tries_native(config: RuntimeConfig, source: Source) -> bool:
    """Whether to try the native kernel: if it is asked for, or may be chosen and is fast.

    It goes before OpenVINO only with VNNI and without AMX: with AMX OpenVINO is faster, and without
    VNNI it is more accurate than narrow digits.
    """
    if config.runtime is RuntimeKind.NATIVE:
        return True
    if not config.takes_numpy or source.pairs or source.runs_remote_code or not adds_bytes():
        return False
    before_openvino = digit_bits() == WIDE and not cpu_has_amx()
    return before_openvino or not config.tries_openvino


def _tries_openvino(config: RuntimeConfig, source: Source) -> bool:
    """Whether to try OpenVINO; never for a model with Python code, which a graph cannot express."""
    if not config.tries_openvino:
        return False
    if not source.runs_remote_code:
        return True
    if config.requires_openvino:
        raise ModelError(
            f"{source.name} runs Python code that came with it, which only torch does: leave out "
            "the runtime and int8"
        )
    return False


class FirstTexts:
    """Says what numpy runs, and starts the fastest runtime beside it when there is more."""

    def __init__(self, model: Described):
        self.model = model
        # A larger network takes longer: as many tokens as numpy reads in a few seconds.
        self._share = min(1.0, Network().size / model.network.size)
        self._tokens = 0
        self._numpy: NumpyRuntime | None = None
        self._starting: Thread | None = None
        self._lock = Lock()

    def runtime_for(self, tokens: int, start: Callable[[], object]) -> NumpyRuntime | None:
        """The numpy runtime for a call of `tokens` tokens; None: wait for the fastest runtime.

        start: starts the fastest runtime; called at most once, in a thread of its own.

        A long call waits, because numpy would take longer. For short calls numpy goes on until the
        fastest runtime has started. If that fails, the result is None: the caller starts it again,
        which raises the error. Raises ModelError.
        """
        most = FIRST_TOKENS * self._share
        with self._lock:
            self._tokens += max(tokens, CALL_TOKENS)
            if tokens > most:
                return None
            if self._tokens > most:
                if self._starting is None:
                    self._starting = Thread(target=start, name="start")
                    self._starting.start()
                    _end_after(self._starting)
                elif not self._starting.is_alive():
                    return None
            if self._numpy is None:
                self._numpy = NumpyRuntime(self.model)
            return self._numpy


def _end_after(thread: Thread) -> None:
    """Make a process that ends meanwhile wait for a thread, so that its graph is stored.

    threading waits for threads only after the exit functions registered with it. One of them is
    that of concurrent.futures, which loads the weights: no work can be added after it. They are
    called in reverse order, so it is imported first. (torch does not survive as a daemon thread.)
    """
    import_module("concurrent.futures.thread")
    threading._register_atexit(thread.join)  # type: ignore[attr-defined]
