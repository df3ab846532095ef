"""A graph compiled from a model: its record, and whether it may still be used.

A folder `<fingerprint>-<layers>` or `…-int8` holds graph.xml and graph.bin (OpenVINO's own
format), tokenizer.json, and graph.json, which says what model it was made of, by which version, and
how near its vectors are to torch's in float32. The record is signed with a key of the user's, who
may not be the only one to write to the folder: one that anybody else wrote or edited is not read.
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
# The least cosine of a sample text's vector to its float32 vector.
LEAST = {Precision.FP32: 0.999, Precision.BF16: 0.999, Precision.INT8: 0.99}


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
            kernels=kernels_folder(self.folder),
        )


def read_graph(path: Path, key: bytes | None = None) -> Graph | None:
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


def graph_files(folder: Path) -> list[Path]:
    """What there is beside the record."""
    names = (GRAPH, Path(GRAPH).with_suffix(".bin").name, TOKENIZER)
    return [folder / name for name in names if (folder / name).exists()]


def kernels_folder(folder: Path) -> Path | None:
    """Where openvino keeps the kernels of a graph, of which nobody else can make others."""
    cache = user_cache()
    return None if cache is None else cache / "kernels" / folder.name
