"""A graph compiled from a model: its record, and whether it may still be used.

A folder `<fingerprint>-<layers>` or `…-int8` holds graph.xml and graph.bin (OpenVINO's own
format), tokenizer.json, and graph.json: the model it was compiled from, the version that compiled
it, and the cosines of its vectors to torch's in float32. The record is signed with the user's key,
as others may write to the folder too: a record that anybody else wrote or edited is not read.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from trainer.errors import ModelError
from trainer.model.checksums import Checksums, signature, user_cache
from trainer.model.description import Description
from trainer.model.source import Source
from trainer.runtimes.config import Precision, cpu_has_native_bf16
from trainer.runtimes.openvino_runtime import BUDGETS, OpenVINORuntime

FORMAT = 3
RECORD, GRAPH, TOKENIZER = "graph.json", "graph.xml", "tokenizer.json"
# The least cosine of a sample text's vector to its float32 vector that is accurate enough.
MIN_COSINE = {Precision.FP32: 0.999, Precision.BF16: 0.999, Precision.INT8: 0.99}


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
        fingerprints, description: of the model.
        cosines: to float32 vectors, by precision; the least over the sample texts.
        token_budget: tokens of the batch that it runs fastest.
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
    fingerprints: tuple[str, ...]
    description: Description
    cosines: Mapping[str, float] = field(default_factory=dict)
    token_budget: int = BUDGETS[0]
    refused: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    format: int = FORMAT

    def matches(self, source: Source, int8: bool, checksums: Checksums) -> bool:
        """Whether it was compiled from this model as it is now, by the installed version."""
        wanted = (FORMAT, version("openvino"), source.starter, source.layers, int8)
        present = (self.format, self.openvino, self.starter, self.layers, self.int8)
        outdated = self.refused and self.torch != version("torch")  # another version may trace it
        return wanted == present and not outdated and source.files(checksums) == self.files

    def is_undamaged(self, checksums: Checksums) -> bool:
        """Whether its files have their checksums: flipped bits would give other vectors."""
        written = self.sha256.items()
        return all(checksums.of(self.folder / name) == digest for name, digest in written)

    def choose_precision(self, precision: Precision) -> Precision:
        """The precision to compute in. Raises ModelError where it is not accurate enough."""
        choices = [precision]
        if precision is Precision.AUTO:
            native = [Precision.BF16] if cpu_has_native_bf16() else []
            choices = [*native, Precision.FP32]
        if self.refused:
            raise ModelError(f"openvino cannot run this model ({self.refused}); torch can")
        for choice in choices:
            if self.cosines.get(choice, -1.0) >= MIN_COSINE[choice]:
                return choice
        if choices[0] not in self.cosines:
            raise ModelError(
                f"openvino in {choices[0]} was not measured: the processor that compiled "
                f"{self.folder} does not have it; choose another precision"
            )
        measured = ", ".join(f"{name} {value:.4f}" for name, value in self.cosines.items())
        raise ModelError(
            f"openvino in {choices[0]} is not accurate enough for this model: its cosine to "
            f"float32 must be at least {MIN_COSINE[choices[0]]}, got {measured}; choose another "
            "precision, or torch"
        )

    def start(self, precision: Precision) -> OpenVINORuntime:
        """The runtime of the graph. Raises ModelError."""
        max_tokens = self.description.tokens.max_tokens
        return OpenVINORuntime(
            self.folder / GRAPH,
            self.choose_precision(precision),
            max_tokens,
            packs=self.packed,
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
        record["fingerprints"] = tuple(record["fingerprints"])
        record["description"] = Description.from_dict(record["description"])
        return Graph(folder=path.parent, **record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def graph_files(folder: Path) -> list[Path]:
    """The files beside the record."""
    names = (GRAPH, Path(GRAPH).with_suffix(".bin").name, TOKENIZER)
    return [folder / name for name in names if (folder / name).exists()]


def kernels_folder(folder: Path) -> Path | None:
    """The folder in which OpenVINO stores the kernels of a graph, in this user's cache."""
    cache = user_cache()
    return None if cache is None else cache / "kernels" / folder.name
