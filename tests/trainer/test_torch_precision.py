"""torch's bf16 is compared with float32 once for a model, a version of torch and a processor."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import RuntimeChoiceWarning
from searchengine.trainer.runtimes import measure
from tests.tiny_model import write_plain, write_sentence_transformer

TEXTS = ["the dog sleeps"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_sentence_transformer(tmp_path / "model")


@pytest.fixture
def count(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the sample texts were encoded so far; float32 and bf16 are twice."""
    calls, real = 0, measure.sample_vectors

    def counting(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments)

    monkeypatch.setattr("searchengine.trainer.runtimes.measure.sample_vectors", counting)
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.cpu_has_native_bf16", lambda: True
    )
    # Equal speeds: measured ones would differ from run to run.
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.speeds", lambda *_: {"fast": 1.0, "exact": 1.0}
    )
    return lambda: calls


def encoded(model: Path) -> tuple[str, np.ndarray]:
    encoder = Encoder.load(model, runtime="torch")
    vectors = encoder.encode(TEXTS)
    return encoder.precision, vectors


def record(cache: Path) -> Path:
    (path,) = (cache / "torch").iterdir()
    return path


def test_a_second_process_measures_nothing(
    model: Path, own_cache: Path, count: Callable[[], int], tmp_path: Path
) -> None:
    first = encoded(model)
    assert (first[0], count()) == ("bf16", 2)
    again = encoded(model)
    assert (again[0], count()) == ("bf16", 2)
    np.testing.assert_array_equal(again[1], first[1])
    # The same weights in another folder are the same model.
    encoded(Path(shutil.copytree(model, tmp_path / "copy")))
    assert count() == 2
    assert record(own_cache).stat().st_mode & 0o077 == 0, "readable by this user alone"


def test_what_was_inaccurate_stays_so_and_is_reported_each_time(
    model: Path, count: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("searchengine.trainer.runtimes.measure.min_cosine", lambda *_: 0.998)
        with pytest.warns(RuntimeChoiceWarning, match=r"torch in bf16 .*0.9980"):
            assert encoded(model)[0] == "fp32"
    with pytest.warns(RuntimeChoiceWarning, match=r"torch in bf16 .*0.9980"):
        assert encoded(model)[0] == "fp32"
    assert count() == 2


def test_measured_again_with_other_weights(model: Path, count: Callable[[], int]) -> None:
    encoded(model)
    write_plain(model, seed=7)
    encoded(model)
    assert count() == 4


@pytest.mark.parametrize(
    "damage", ["", "[]", "{}", '{"gain": 1}', "null", "accuracy", "gain"], ids=repr
)
def test_a_damaged_record_is_measured_again(
    model: Path, own_cache: Path, count: Callable[[], int], damage: str
) -> None:
    encoded(model)
    path = record(own_cache)
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {damage: "x"}) if damage in whole else damage)
    assert encoded(model)[0] == "bf16"
    assert count() == 4
    assert set(json.loads(path.read_text())) == set(whole)


def test_nothing_can_be_stored(model: Path, own_cache: Path, count: Callable[[], int]) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text("a file where the folder should be")
    for calls in (2, 4):
        assert (encoded(model)[0], count()) == ("bf16", calls)
