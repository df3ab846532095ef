"""The fastest configurations of sentence-transformers, and fastembed: sides of encoding.py.

They run in an environment of their own, because their exporters pin older libraries:

    python -m venv peers && peers/bin/pip install "sentence-transformers[onnx,openvino]" fastembed \
        "datasets<4.5" "huggingface-hub<1"
    python benchmarks/encoding.py --peers peers/bin/python

- sentence-transformers in torch, OpenVINO and ONNX Runtime, as its guide to faster inference says:
  ONNX as exported, optimized by its level O3, and quantized for AVX-512 VNNI (weights and, as they
  come, activations); OpenVINO as exported, and quantized by its static quantization, calibrated on
  the sample texts of this project.
- fastembed on the same ONNX file, limited to as many tokens as the others.

The models are exported once, into a folder of the comparison.
"""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sides import run

SAMPLES = Path(__file__).resolve().parents[1] / "trainer" / "runtimes" / "sample_texts.txt"
WARM = ["warm"] * 4
Seconds = list[float]
"""What a turn took: by the clock, and by processor time."""
# How sentence-transformers loads each side: the backend, and a file of an exported folder.
BACKENDS: dict[str, tuple[str, str]] = {
    "openvino": ("openvino", "openvino_model.xml"),
    "openvino int8": ("openvino-int8", "openvino_model.xml"),
    "onnx": ("onnx", "onnx/model.onnx"),
    "onnx O3": ("onnx", "onnx/model_O3.onnx"),
    "onnx int8": ("onnx", "onnx/model_qint8_avx512_vnni.onnx"),
}
SIDES = ("torch", *BACKENDS, "fastembed")


def be(
    tool: str, model: str, exported: str = "", device: str = "cpu"
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that answers a side's requests, and a description of the side."""
    folder = Path(exported)
    if tool == "export":
        return lambda: export(Path(model), folder), {}
    encode = fastembed(folder) if tool == "fastembed" else theirs(tool, model, folder, device)
    encode(WARM)
    return answering(lambda texts, role: encode(texts)), {"engine": tool}


def answering(encode: Callable[[list[str], str], Any]) -> Callable[..., Seconds]:
    """Encodes the texts of a file, keeps their vectors, and tells wall and processor seconds."""

    def answer(texts: str, keep: str, role: str = "document") -> Seconds:
        listed = json.loads(Path(texts).read_text())
        start, busy = time.perf_counter(), time.process_time()
        vectors = encode(listed, role)
        seconds = [time.perf_counter() - start, time.process_time() - busy]
        np.save(keep, np.asarray(vectors, np.float32))
        return seconds

    return answer


def theirs(tool: str, model: str, exported: Path, device: str) -> Callable[[list[str]], Any]:
    """sentence-transformers, with its defaults but for the backend."""
    from sentence_transformers import SentenceTransformer

    if tool == "torch":
        return SentenceTransformer(model, device=device).encode
    name, file = BACKENDS[tool]
    loaded = SentenceTransformer(
        str(exported / name),
        backend=name.split("-")[0],
        device="cpu",
        model_kwargs={"file_name": file},
    )
    return loaded.encode


def fastembed(exported: Path) -> Callable[[list[str]], Any]:
    """fastembed, on the exported ONNX file."""
    from fastembed import TextEmbedding

    model = TextEmbedding(
        "sentence-transformers/all-MiniLM-L6-v2", specific_model_path=str(exported / "fastembed")
    )
    return lambda texts: np.stack([*model.embed(texts)])


def export(model: Path, folder: Path) -> None:
    """Every file that a side loads."""
    import datasets
    from optimum.intel.openvino import OVConfig, OVQuantizationConfig, OVQuantizer
    from sentence_transformers import (
        SentenceTransformer,
        export_dynamic_quantized_onnx_model,
        export_optimized_onnx_model,
    )

    onnx = folder / "onnx"
    loaded = SentenceTransformer(str(model), backend="onnx", device="cpu")
    tokens = loaded.max_seq_length
    loaded.save_pretrained(str(onnx))
    plain = {"file_name": BACKENDS["onnx"][1]}
    loaded = SentenceTransformer(str(onnx), backend="onnx", device="cpu", model_kwargs=plain)
    export_optimized_onnx_model(loaded, "O3", str(onnx))
    export_dynamic_quantized_onnx_model(loaded, "avx512_vnni", str(onnx))

    loaded = SentenceTransformer(str(model), backend="openvino", device="cpu")
    loaded.save_pretrained(str(folder / "openvino"))
    int8 = folder / "openvino-int8"
    loaded.save_pretrained(str(int8))
    texts = SAMPLES.read_text(encoding="utf-8").splitlines()
    samples = [dict(loaded.tokenizer(text, truncation=True, max_length=tokens)) for text in texts]
    OVQuantizer.from_pretrained(loaded.transformers_model).quantize(
        datasets.Dataset.from_list(samples),
        save_directory=str(int8),
        ov_config=OVConfig(quantization_config=OVQuantizationConfig(num_samples=len(texts))),
    )

    plain_copy = folder / "fastembed"
    shutil.copytree(model, plain_copy, ignore=shutil.ignore_patterns("*.safetensors", "compiled"))
    shutil.copy(onnx / plain["file_name"], plain_copy / "model.onnx")
    settings = plain_copy / "tokenizer_config.json"
    limited = json.loads(settings.read_text()) | {"model_max_length": tokens}
    settings.write_text(json.dumps(limited))


if __name__ == "__main__":
    run(lambda: print(__doc__), be)
