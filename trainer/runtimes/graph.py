"""Graphs compiled from models, kept on disk: a process that finds one needs no torch.

A folder `<fingerprint>-<layers>` or `…-int8` holds graph.xml and graph.bin (OpenVINO's own
format), tokenizer.json, and graph.json, which says what model it was made of, by which version, and
how near its vectors are to torch's in float32. The record is signed with a key of the user's, who
may not be the only one to write to the folder: one that anybody else wrote or edited is not read.
"""

import atexit
import functools
import hashlib
import hmac
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from trainer.errors import ModelError
from trainer.model.checksums import Checksums, secret, signature, user_cache
from trainer.model.description import Description
from trainer.model.durable import sync_files, write_json
from trainer.model.source import Source
from trainer.model.tokens import TokenIds
from trainer.runtimes import probe
from trainer.runtimes.config import Precision, cpu_has_native_bf16
from trainer.runtimes.openvino_runtime import BUDGETS, OpenVINORuntime, import_openvino
from trainer.runtimes.runtime import PROBE_WIDTH, Vectors, fastest_budget

if TYPE_CHECKING:  # which is torch; a graph that is there does without
    from trainer.model.folder import Model

FORMAT = 3
RECORD, GRAPH, TOKENIZER, LOCK = "graph.json", "graph.xml", "tokenizer.json", "lock"
# The least cosine of a sample text's vector to its float32 vector.
LEAST = {Precision.FP32: 0.999, Precision.BF16: 0.999, Precision.INT8: 0.99}
# The same of a packed graph in float32: it computes the same, or the network is not one to pack.
SAME = 0.99999


@dataclass(frozen=True, slots=True)
class Graph:
    """A compiled model, or the reason why there is none.

    Attributes:
        folder: where it lies.
        openvino: the version that made it.
        files: checksums of the model's files, see Source.files.
        starter, layers: as asked for.
        int8: whether its matrix products are in 8 bits.
        packed: whether it packs the texts of a batch, and computes little padding.
        fingerprints, description: the model's own.
        cosines: by precision, the least over the sample texts.
        token_budget: tokens of a batch that it runs fastest.
        refused: why the model cannot be compiled; "" if it is.
        sha256: of the files beside the record.
        torch: the version that traced it, or could not.
    """

    folder: Path
    openvino: str
    files: Mapping[str, str]
    starter: str | None
    layers: int | None
    int8: bool
    packed: bool
    fingerprints: tuple[str, ...]
    description: Description
    cosines: Mapping[str, float] = field(default_factory=dict)
    token_budget: int = BUDGETS[0]
    refused: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    format: int = FORMAT

    def is_of(self, source: Source, int8: bool, checksums: Checksums) -> bool:
        """Whether it was made of this model as it is now, by the version that is installed."""
        asked = (FORMAT, version("openvino"), source.starter, source.layers, int8)
        made = (self.format, self.openvino, self.starter, self.layers, self.int8)
        outdated = self.refused and self.torch != version("torch")  # which may do it now
        return asked == made and not outdated and source.files(checksums) == self.files

    def is_whole(self, checksums: Checksums) -> bool:
        """Whether its files are as they were written: flipped bits would give other vectors."""
        written = self.sha256.items()
        return all(checksums.of(self.folder / name) == digest for name, digest in written)

    def precision(self, asked: Precision) -> Precision:
        """What to compute in. Raises ModelError where it is not accurate enough."""
        choices = [asked]
        if asked is Precision.AUTO:
            native = [Precision.BF16] if cpu_has_native_bf16() else []
            choices = [*native, Precision.FP32]
        if self.refused:
            raise ModelError(f"openvino cannot take this model ({self.refused}); torch does")
        for choice in choices:
            if self.cosines.get(choice, -1.0) >= LEAST[choice]:
                return choice
        if choices[0] not in self.cosines:
            raise ModelError(
                f"openvino in {choices[0]} was not measured, for the processor that compiled "
                f"{self.folder} has none: choose another precision"
            )
        found = ", ".join(f"{name} {value:.4f}" for name, value in self.cosines.items())
        raise ModelError(
            f"openvino in {choices[0]} is not accurate enough for this model: a cosine of "
            f"{LEAST[choices[0]]} to float32 is wanted, found {found}; choose another precision, "
            "or torch"
        )

    def runtime(self, asked: Precision) -> OpenVINORuntime:
        """What runs it. Raises ModelError."""
        most = self.description.tokens.max_tokens
        return OpenVINORuntime(
            self.folder / GRAPH,
            self.precision(asked),
            most,
            packs=self.packed,
            token_budget=self.token_budget,
            kernels=_kernels(self.folder),
        )


def find(source: Source, int8: bool = False) -> Graph | None:
    """The graph that this user compiled from this model, if there is one, undamaged."""
    records = [path for cache in source.caches() for path in cache.glob(f"*/{RECORD}")]
    key = secret() if records else None
    if key is None:
        return None
    with Checksums(source.user_cache) as checksums:
        for path in records:
            graph = _read(path, key)
            if graph is None or not graph.is_of(source, int8, checksums):
                continue
            if graph.is_whole(checksums):
                return graph
    return None


def files(source: Source) -> dict[str, str]:
    """See Source.files."""
    with Checksums(source.user_cache) as checksums:
        return source.files(checksums)


def compiled(source: Source, model: "Model", files: Mapping[str, str]) -> Graph:
    """Make and keep the graph of a model, with torch; or the reason why it cannot be made.

    files: as they were before the model was read: it may have been replaced since.
    Raises ModelError where it cannot be made for now: no memory, no room on any disk.
    """
    from trainer.model.fingerprint import fingerprints
    from trainer.model.loading import describe
    from trainer.runtimes.torch_runtime import TorchRuntime
    from trainer.runtimes.tracing import traced

    made = Graph(
        folder=Path(),
        openvino=version("openvino"),
        files=files,
        starter=source.starter,
        layers=source.layers,
        int8=False,
        packed=False,
        fingerprints=fingerprints(model),
        description=describe(model),
        torch=version("torch"),
    )

    @functools.cache
    def exact() -> Vectors:
        runtime = TorchRuntime(model.module, Precision.FP32, "cpu")
        try:
            return probe.vectors(runtime, TokenIds(made.description.tokens))
        except (MemoryError, RuntimeError) as error:  # torch says so where there is no memory
            raise _not_now(error) from error

    def make() -> Iterator[Made]:
        for packed in (True, False):
            try:
                graph = traced(model.module, packed=packed)
            except (MemoryError, OSError, ImportError) as error:  # of this moment or machine
                raise _not_now(error) from error
            except Exception as error:  # whatever a network does that a graph cannot say
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                yield replace(made, refused=reason), None, exact
            else:
                yield replace(made, packed=packed), graph, exact

    return _kept(source, made, make)


def quantized(source: Source, exact: Graph) -> Graph:
    """Make and keep the int8 graph of a compiled model. Raises ModelError."""
    from trainer.runtimes import quantization

    tokens = TokenIds(exact.description.tokens)

    @functools.cache
    def found() -> Vectors:
        return probe.vectors(exact.runtime(Precision.FP32), tokens)

    def make() -> Iterator[Made]:
        graph = quantization.quantized(exact.folder / GRAPH, probe.samples(tokens), exact.packed)
        yield replace(exact, int8=True), graph, found

    return _kept(source, replace(exact, int8=True), make)


# A graph, what openvino holds of it, None where it is refused, and the vectors of the sample texts
# that it should give.
Made = tuple[Graph, Any, Callable[[], Vectors]]
Make = Callable[[], Iterator[Made]]


def _kept(source: Source, wanted: Graph, make: Make) -> Graph:
    """Made and written to the first cache that takes it, or for as long as the process runs.

    make: gives what could be taken, the best first.
    One process at a time makes it; who waited takes what is there then. Raises ModelError.
    """
    key = secret(create=True)
    for cache in source.caches():
        if key is None:  # it would not be found again
            break
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / LOCK):
                there = find(source, wanted.int8)
                if there is not None and there.fingerprints == wanted.fingerprints:
                    return there
                _clear(cache, wanted.files)
                with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as scratch:
                    new = _written(Path(scratch) / "graph", make(), key)
                    final = _named(cache, new, key)
                    if final.exists():
                        final.rename(Path(scratch) / "old")
                    new.folder.rename(final)
                return replace(new, folder=final)
        except OSError:  # read-only, or full
            continue
    try:
        temporary = tempfile.mkdtemp(prefix="searchengine-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return _written(Path(temporary) / "graph", make(), None)
    except OSError as error:
        raise ModelError(f"there is no room for the graph that openvino runs ({error})") from error


def _written(folder: Path, choices: Iterator[Made], key: bytes | None) -> Graph:
    """Files of the first graph that does, synced, with what was measured of it. Raises OSError.

    key: signs the record, by which the graph is found again.
    """
    for choice, graph, exact in choices:
        _empty(folder)
        made = replace(choice, folder=folder)
        if graph is None:
            continue
        try:
            import_openvino().save_model(graph, str(folder / GRAPH), compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        made = _measured(made, exact())
        if not made.refused and made.cosines.get(Precision.FP32, 1.0) >= SAME:
            break
    if made.refused:
        _empty(folder)
    tokens = made.description.tokens
    (folder / TOKENIZER).write_text(tokens.state, encoding="utf-8")
    checksums = Checksums(None)
    made = replace(made, sha256={path.name: checksums.of(path) for path in _files(folder)})
    record = asdict(made) | {"description": made.description.as_dict()}
    del record["folder"], record["description"]["tokens"]["state"]
    if key is not None:
        record["signature"] = signature(key, record)
    write_json(folder / RECORD, record)
    sync_files(folder)
    return made


def _empty(folder: Path) -> None:
    """Make a folder, anew if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _not_now(error: Exception) -> ModelError:
    return ModelError(f"openvino cannot take this model now ({error}); torch does")


def _measured(graph: Graph, exact: Vectors) -> Graph:
    """How near it is to exact vectors of the sample texts, and the size of batch that suits it."""
    tokens = TokenIds(graph.description.tokens)
    precisions = [Precision.INT8] if graph.int8 else [Precision.FP32]
    if cpu_has_native_bf16() and not graph.int8:
        precisions.append(Precision.BF16)
    cosines = {}
    try:
        for precision in precisions:
            runtime = OpenVINORuntime(
                graph.folder / GRAPH, precision, tokens.max_tokens, packs=graph.packed
            )
            cosines[precision.value] = probe.least_cosine(probe.vectors(runtime, tokens), exact)
        budget = fastest_budget(runtime, BUDGETS, min(PROBE_WIDTH, tokens.max_tokens))
    except ModelError as error:  # a graph that holds for the traced example alone
        return replace(graph, refused=str(error))
    return replace(graph, cosines=cosines, token_budget=budget)


def _named(cache: Path, graph: Graph, key: bytes) -> Path:
    """Users of one model folder each have graphs of their own there."""
    user = hashlib.sha256(key).hexdigest()[:8]
    layers = "" if graph.layers is None else f"-{graph.layers}-layers"
    int8 = "-int8" if graph.int8 else ""
    return cache / f"{graph.fingerprints[0][:16]}{layers}{int8}-{graph.openvino}-{user}"


def _kernels(folder: Path) -> Path | None:
    """Where openvino keeps the kernels of a graph, of which nobody else can make others."""
    cache = user_cache()
    return None if cache is None else cache / "kernels" / folder.name


def _files(folder: Path) -> list[Path]:
    """What there is beside the record."""
    names = (GRAPH, Path(GRAPH).with_suffix(".bin").name, TOKENIZER)
    return [folder / name for name in names if (folder / name).exists()]


def _read(path: Path, key: bytes | None = None) -> Graph | None:
    """The graph that a record tells of; None for a record that this version does not know.

    key: None too for a record that was not signed with this key.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        signed = record.pop("signature", "")
        if key is not None and not hmac.compare_digest(signed, signature(key, record)):
            return None
        state = path.with_name(TOKENIZER).read_text(encoding="utf-8")
        record["description"]["tokens"]["state"] = state
        record["fingerprints"] = tuple(record["fingerprints"])
        record["description"] = Description.from_dict(record["description"])
        return Graph(folder=path.parent, **record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _clear(cache: Path, files: Mapping[str, str]) -> None:
    """Remove graphs of what the model was before, and what was left half made. Under the lock."""
    for path in cache.iterdir():
        graph = _read(path / RECORD)
        if path.is_dir() and (graph is None or graph.files != files):
            shutil.rmtree(path, ignore_errors=True)
            if (kernels := _kernels(path)) is not None:
                shutil.rmtree(kernels, ignore_errors=True)
