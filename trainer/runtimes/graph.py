"""A graph compiled from a model: its record, whether it may still be used, and where it is stored.

A folder `<fingerprint>-<layers>` or `…-int8` holds graph.xml and graph.bin (OpenVINO's own
format), tokenizer.json, and graph.json: the model it was compiled from, the version that compiled
it, the measured similarity of its outputs to torch's in float32, and its measured speed. The record
is signed with the user's key, as others may write to the folder too: a record that anybody
else wrote or edited is not read. A process that finds a graph needs no torch.
"""

import atexit
import hashlib
import hmac
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.disk import (
    Checksums,
    signature,
    signing_key,
    sync_files,
    user_cache,
    write_json,
)
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import Description
from searchengine.trainer.runtimes.openvino_runtime import BUDGETS, OpenVINORuntime
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeKind, cpu_has_native_bf16

FORMAT = 5
RECORD, GRAPH, TOKENIZER = "graph.json", "graph.xml", "tokenizer.json"
# The least cosine of a sample text's vector to its float32 vector that is accurate enough.
MIN_COSINE = {Precision.FP32: 0.999, Precision.BF16: 0.999, Precision.INT8: 0.99}
# The least share of the nearest sample texts that must remain the nearest. Where all vectors of a
# model are similar, a cosine that is near enough can still rank differently.
MIN_AGREEMENT = {Precision.INT8: 0.9}
# The same for scores of pairs: the greatest difference to float32's, and the least share of any two
# that must be in the same order.
MAX_DIFFERENCE, MIN_ORDER = 0.02, 0.95
# How many times as fast as bf16 float32 must be to be chosen: less is chance.
FP32_GAIN = 1.05
# How many times as fast torch must be to be chosen: it takes seconds to start.
TORCH_GAIN = 1.25
LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Agreement of a precision's outputs with float32's on the samples; None: not measured.

    Attributes:
        cosine: the least of a sample text's two vectors.
        difference: the greatest of a sample pair's two scores; see measure.max_difference.
        agreement: see measure.agreement for texts, and measure.order for pairs.
    """

    cosine: float | None = None
    difference: float | None = None
    agreement: float | None = None

    def shortfall(self, precision: str) -> str:
        """The measures that miss their bounds, in words; "" if none does."""
        name, shortfalls = Precision(precision), []
        minimum = MIN_AGREEMENT.get(name, 0.0)
        among = "of the nearest sample texts must be those of float32"
        if self.difference is not None:
            minimum, among = MIN_ORDER, "of any two sample pairs must be in the order of float32"
            if self.difference > MAX_DIFFERENCE:
                shortfalls.append(
                    f"its scores must differ from float32's by at most {MAX_DIFFERENCE}, got "
                    f"{precision} {self.difference:.4f}"
                )
        if self.cosine is not None and self.cosine < MIN_COSINE[name]:
            shortfalls.append(
                f"its cosine to float32 must be at least {MIN_COSINE[name]}, got "
                f"{precision} {self.cosine:.4f}"
            )
        if self.agreement is not None and self.agreement < minimum:
            shortfalls.append(f"at least {minimum} {among}, got {self.agreement:.4f}")
        return ", and ".join(shortfalls)


@dataclass(frozen=True, slots=True)
class Graph:
    """A compiled model, or the reason why it cannot be compiled.

    Attributes:
        folder: where it is stored.
        openvino: the version that compiled it.
        files: checksums of the model's files, see Source.files.
        starter, layers: of the source.
        int8: whether its matrix products are in 8 bits.
        packed: whether it packs the texts of a batch, and computes little padding.
        fingerprint, description: of the model.
        accuracies: by precision, as far as measured.
        token_budget: tokens of the batch that it runs fastest.
        speeds: tokens per second by precision, and of torch as "torch fp32".
        processor: the one that it was measured on, see runtime_config.processor.
        refused: why the model cannot be compiled; "" if it is.
        sha256: of the files beside the record.
        torch: the version that traced it, or failed to.
    """

    folder: Path
    openvino: str
    files: Mapping[str, str]
    starter: str | None
    layers: int | None
    int8: bool
    packed: bool
    fingerprint: str
    description: Description
    accuracies: Mapping[str, Accuracy] = field(default_factory=dict)
    token_budget: int = BUDGETS[0]
    speeds: Mapping[str, float] = field(default_factory=dict)
    processor: str = ""
    refused: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    route: str | None = None
    format: int = FORMAT

    @property
    def pairs(self) -> bool:
        """Whether it scores pairs, and encodes no single texts."""
        return self.description.tokens.pairs

    def matches(self, source: Source, int8: bool, checksums: Checksums) -> bool:
        """Whether it was compiled from this model as it is now, by the installed version."""
        model = (source.starter, source.layers, source.route, source.pairs, int8)
        compiled = (self.starter, self.layers, self.route, self.pairs, self.int8)
        current = (self.format, self.openvino) == (FORMAT, version("openvino"))
        outdated = self.refused and self.torch != version("torch")  # another version may trace it
        same = current and model == compiled and not outdated
        return same and source.files(checksums) == self.files

    def is_accurate(self, precision: Precision) -> bool:
        """Whether its outputs in a precision were measured, and are near enough to float32's."""
        accuracy = self.accuracies.get(precision)
        return accuracy is not None and not accuracy.shortfall(precision)

    def choose_precision(self, precision: Precision) -> Precision:
        """The precision to compute in. Raises ModelError where it is not accurate enough."""
        choices = [precision]
        if precision is Precision.AUTO:
            fp32, bf16 = (self.speeds.get(name, 0.0) for name in (Precision.FP32, Precision.BF16))
            native = [Precision.BF16] if cpu_has_native_bf16() else []
            if fp32 > FP32_GAIN * bf16:
                choices = [Precision.FP32, *native]
            else:
                choices = [*native, Precision.FP32]
        if self.refused:
            raise ModelError(f"openvino cannot run this model ({self.refused}); torch can")
        for choice in choices:
            if self.is_accurate(choice):
                return choice
        accuracy = self.accuracies.get(choices[0])
        if accuracy is None:
            raise ModelError(
                f"openvino in {choices[0]} was not measured, because this processor does not have "
                "it; choose another precision"
            )
        raise ModelError(
            f"openvino in {choices[0]} is not accurate enough for this model: "
            f"{accuracy.shortfall(choices[0])}; choose another precision, or torch"
        )

    @property
    def torch_is_faster(self) -> bool:
        """Whether torch was measured to be so much faster that its start, of seconds, pays off."""
        openvino = [self.speeds.get(name, 0.0) for name in MIN_COSINE if self.is_accurate(name)]
        torch = [rate for name, rate in self.speeds.items() if name.startswith(RuntimeKind.TORCH)]
        return max(torch, default=0.0) >= TORCH_GAIN * max(openvino, default=0.0) > 0.0

    @property
    def speeds_in_words(self) -> str:
        """What was timed, the fastest first, and where."""
        ordered = sorted(self.speeds.items(), key=lambda item: -item[1])
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in ordered)
        return f"{rates} tokens/s on {self.processor or 'another processor'}"

    def start(self, precision: Precision) -> OpenVINORuntime:
        """The runtime of the graph. Raises ModelError."""
        max_tokens = self.description.tokens.max_tokens
        return OpenVINORuntime(
            self.folder / GRAPH,
            self.choose_precision(precision),
            max_tokens,
            packs=self.packed,
            pairs=self.pairs,
            token_budget=self.token_budget,
            kernels=kernels_folder(self.folder),
        )


def read_graph(path: Path, key: bytes | None = None) -> Graph | None:
    """The graph of a record; None for a record that this version cannot read.

    key: gives None for a record that was not signed with this key, too.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        signed = record.pop("signature", "")
        if key is not None and not hmac.compare_digest(signed, signature(key, record)):
            return None
        state = path.with_name(TOKENIZER).read_text(encoding="utf-8")
        record["description"]["tokens"]["state"] = state
        record["description"] = Description.from_dict(record["description"])
        record["accuracies"] = read_accuracies(record)
        return Graph(folder=path.parent, **record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_accuracies(record: dict[str, Any]) -> dict[str, Accuracy]:
    """The accuracies of a record, by precision. Raises KeyError, TypeError, AttributeError."""
    return {name: Accuracy(**values) for name, values in record["accuracies"].items()}


def graph_files(folder: Path) -> list[Path]:
    """The files beside the record."""
    names = (GRAPH, Path(GRAPH).with_suffix(".bin").name, TOKENIZER)
    return [folder / name for name in names if (folder / name).exists()]


def kernels_folder(folder: Path) -> Path | None:
    """The folder in which OpenVINO stores the kernels of a graph, in this user's cache."""
    cache = user_cache()
    return None if cache is None else cache / "kernels" / folder.name


def find_graph(source: Source, int8: bool = False) -> Graph | None:
    """The undamaged graph that this user compiled from this model, or None."""
    records = [path for cache in source.caches() for path in cache.glob(f"*/{RECORD}")]
    key = signing_key() if records else None
    if key is None:
        return None
    with Checksums(source.user_cache) as checksums:
        for path in records:
            graph = read_graph(path, key)
            if graph is None or not graph.matches(source, int8, checksums):
                continue
            written = graph.sha256.items()  # flipped bits would give other vectors
            if all(checksums.of(graph.folder / name) == digest for name, digest in written):
                return graph
    return None


def keep_graph(source: Source, plan: Graph, build: Callable[[Path], Graph]) -> Graph:
    """A graph built in the first cache that can be written to, or else for this process alone.

    plan: what is known of it before it is built. build: writes the files of the graph to a folder
    that it makes, and gives its record; raises OSError where there is no room.
    One process at a time builds; the others wait, and take its graph. Raises ModelError.
    """
    key = signing_key(create=True)
    for cache in source.caches():
        if key is None:  # without a signature it would not be found again
            break
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / LOCK):
                present = find_graph(source, plan.int8)
                if present is not None and present.fingerprint == plan.fingerprint:
                    return present
                _remove_outdated(cache, plan.files)
                with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as scratch:
                    graph = _write_record(build(Path(scratch) / "graph"), key)
                    final = _final_folder(cache, graph, key)
                    if final.exists():
                        final.rename(Path(scratch) / "old")
                    graph.folder.rename(final)
                return replace(graph, folder=final)
        except OSError:  # read-only, or full
            continue
    try:
        temporary = tempfile.mkdtemp(prefix="searchengine-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return _write_record(build(Path(temporary) / "graph"), None)
    except OSError as error:
        raise ModelError(f"there is no room for the graph that openvino runs ({error})") from error


def _write_record(graph: Graph, key: bytes | None) -> Graph:
    """Write the tokenizer and the record beside a graph, and sync all files. Raises OSError.

    key: signs the record; without a signature the graph is not found again.
    """
    folder, tokens = graph.folder, graph.description.tokens
    (folder / TOKENIZER).write_text(tokens.state, encoding="utf-8")
    checksums = Checksums(None)
    graph = replace(graph, sha256={path.name: checksums.of(path) for path in graph_files(folder)})
    record = asdict(graph) | {"description": graph.description.as_dict()}
    del record["folder"], record["description"]["tokens"]["state"]
    if key is not None:
        record["signature"] = signature(key, record)
    write_json(folder / RECORD, record)
    sync_files(folder)
    return graph


def empty_folder(folder: Path) -> None:
    """Make a folder; one that exists is emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _final_folder(cache: Path, graph: Graph, key: bytes) -> Path:
    """The folder of a graph; users who share a cache have separate folders."""
    user = hashlib.sha256(key).hexdigest()[:8]
    layers = "" if graph.layers is None else f"-{graph.layers}-layers"
    int8 = "-int8" if graph.int8 else ""
    return cache / f"{graph.fingerprint[:16]}{layers}{int8}-{graph.openvino}-{user}"


def _remove_outdated(cache: Path, files: Mapping[str, str]) -> None:
    """Remove graphs of earlier versions of the model, and unfinished ones. Under the lock."""
    for path in cache.iterdir():
        graph = read_graph(path / RECORD)
        if path.is_dir() and (graph is None or graph.files != files):
            shutil.rmtree(path, ignore_errors=True)
            if (kernels := kernels_folder(path)) is not None:
                shutil.rmtree(kernels, ignore_errors=True)
