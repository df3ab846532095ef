"""Precision, device and batching."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.tokens import Padded
from searchengine.trainer.runtimes.runtime import token_budget_batches
from searchengine.trainer.runtimes.runtime_config import (
    Precision,
    RuntimeConfig,
    RuntimeKind,
    cpu_has_native_bf16,
)
from searchengine.trainer.runtimes.torch_runtime import pick_device, pick_precision


def test_batches_by_hand() -> None:
    # Longest first: 9 alone (9·2 > 12), then 4, 4, 3 fill 12, then the rest.
    batches = list(token_budget_batches([3, 9, 4, 1, 4], budget=12))
    assert batches == [[1], [2, 4, 0], [3]]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200))
def test_batches_partition_and_keep_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(token_budget_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        widest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or widest * len(batch) <= budget
    widths = [max(lengths[i] for i in batch) for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_packing_by_hand() -> None:
    """Texts of 110, 100, 20 and 0 tokens, in 112 · 3 or in 128 · 2: the third behind the second."""
    mask = np.arange(120) < np.array([[110], [100], [20], [0]])
    slots, places = Padded(np.zeros((4, 120), np.int64), mask.astype(np.int64)).packing()
    assert slots.shape == (2, 128)
    none = [480]
    assert slots[0].tolist() == [*range(110), 360, *none * 17]
    assert slots[1].tolist() == [*range(120, 220), *range(240, 260), *none * 8]
    assert places[2].tolist() == [*range(228, 248), *[0] * 100]
    slots, places = Padded(np.zeros((1, 16), np.int64), np.ones((1, 16), np.int64)).packing()
    assert slots.tolist() == places.tolist() == [list(range(16))], "one text is as it is"


@given(
    st.lists(st.integers(0, 150), min_size=1, max_size=40),
    st.integers(0, 9),
)
def test_packed_texts_are_whole_and_apart(lengths: list[int], more: int) -> None:
    width = max(1, *lengths) + more
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.arange(len(lengths) * width).reshape(-1, width)
    slots, places = Padded(ids, mask).packing()
    assert len(slots) <= len(lengths) and slots.shape[1] <= max(128, width + 15)
    flat = np.append(ids.ravel(), -1)[slots]
    np.testing.assert_array_equal(flat.ravel()[places][mask == 1], ids[mask == 1])
    taken = flat[flat >= 0]
    assert len({*taken.tolist()}) == len(taken) == np.maximum(mask.sum(axis=1), 1).sum()
    for row, length in enumerate(lengths):  # in one packed row, token by token
        mine = places[row, :length]
        assert (np.diff(mine) == 1).all() and len({*(mine // slots.shape[1]).tolist()}) <= 1


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bf16_only_where_native(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.cpu_has_native_bf16", lambda: native
    )
    cpu = torch.device("cpu")
    expected = Precision.BF16 if native else Precision.FP32
    assert pick_precision(Precision.AUTO, cpu) is expected
    assert pick_precision(Precision.FP32, cpu) is Precision.FP32
    assert pick_precision(Precision.BF16, cpu) is Precision.BF16
    with pytest.raises(ModelError, match="fp16 is slow on a processor"):
        pick_precision(Precision.FP16, cpu)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512_bf16 vnni", True), ("fpu avx512f", False), ("asimd bf16 i8mm", True)],
)
def test_the_processor_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, expected: bool
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert cpu_has_native_bf16(tmp_path / "cpuinfo") is expected


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ModelError, match="the device 'abacus' cannot be used"):
        pick_device("abacus")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "precision is 'fp8': expected one of auto, fp32, bf16, fp16, int8"),
        ({"runtime": "steam"}, "runtime is 'steam': expected one of auto, torch, openvino"),
        ({"runtime": "openvino", "device": "cuda"}, "computes on the processor, not on 'cuda'"),
        ({"runtime": "openvino", "precision": "fp16"}, "openvino has no fp16"),
        (
            {"runtime": "torch", "precision": "int8"},
            "int8 is computed by openvino",
        ),
        (
            {"device": "cuda", "precision": "int8"},
            "int8 is computed by openvino",
        ),
    ],
)
def test_what_no_engine_does_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        RuntimeConfig(**options)  # type: ignore[arg-type]


def test_the_variable_is_asked_where_the_choice_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCHENGINE_RUNTIME", "openvino")
    assert RuntimeConfig().runtime is RuntimeKind.OPENVINO and RuntimeConfig().tries_openvino
    assert (
        RuntimeConfig("torch").runtime is RuntimeKind.TORCH
        and not RuntimeConfig("torch").tries_openvino
    )
    assert RuntimeConfig(device="cuda").runtime is RuntimeKind.AUTO, "what is said here wins"
    monkeypatch.setenv("SEARCHENGINE_RUNTIME", "steam")
    with pytest.raises(ModelError, match="SEARCHENGINE_RUNTIME is 'steam'"):
        RuntimeConfig()


@pytest.mark.parametrize("gpu", [True, False])
def test_auto_takes_openvino_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: gpu)
    assert RuntimeConfig().tries_openvino is not gpu
    assert RuntimeConfig(device="cpu").tries_openvino
    assert not RuntimeConfig(device="cuda").tries_openvino
    assert RuntimeConfig(precision="int8").tries_openvino


def test_without_openvino_torch_runs_and_a_wish_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not RuntimeConfig().tries_openvino
    with pytest.raises(ModelError, match=r"openvino is not installed.*searchengine\[fast\]"):
        assert RuntimeConfig(runtime="openvino").tries_openvino
    with pytest.raises(ModelError, match=r"needs openvino and nncf: .*searchengine\[int8\]"):
        assert RuntimeConfig(precision="int8").tries_openvino
