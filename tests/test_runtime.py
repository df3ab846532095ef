"""Precision, device and batching."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import ModelError
from trainer.runtime import Precision, pick_device, pick_precision, token_budget_batches


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


def test_no_batch_can_take_the_next_row() -> None:
    lengths = [5] * 10
    assert [len(b) for b in token_budget_batches(lengths, 20)] == [4, 4, 2]


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bf16_only_where_native(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr("trainer.runtime.cpu_has_native_bf16", lambda: native)
    cpu = torch.device("cpu")
    assert pick_precision("auto", cpu) is (Precision.BF16 if native else Precision.FP32)
    assert pick_precision("fp32", cpu) is Precision.FP32
    assert pick_precision("bf16", cpu) is Precision.BF16


def test_unknown_precision_and_device_are_named() -> None:
    with pytest.raises(ModelError, match="precision is 'fp8': expected one of auto, fp32, bf16"):
        pick_precision("fp8", torch.device("cpu"))
    with pytest.raises(ModelError, match="the device 'abacus' cannot be used"):
        pick_device("abacus")
