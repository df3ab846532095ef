"""Networks on a CUDA device; without one, the calls of torch that they make."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.model_folder import read
from searchengine.trainer.model.modules import Batch, Normalize, Pooling, SentenceModule, lowered
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from searchengine.trainer.runtimes.runtime_config import Precision
from searchengine.trainer.runtimes.torch_runtime import TorchRuntime, pick_device
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import small_decoder, write_sentence_transformer
from tests.trainer.test_train_loop import config, on_processor  # noqa: F401  (fixtures)

TEXTS = ["the dog sleeps", "a", "two big whales near the sea " * 9, "", "red blue"]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("m") / "tiny")


def on_cpu(folder: Path) -> Encoder:
    return Encoder.load(folder, runtime="torch", precision="fp32", device="cpu")


def tokens_of(folder: Path) -> TokenIds:
    model = read(Source.find(folder))
    return TokenIds(Tokenization.of(model.tokenizer, model.max_tokens))


# ------------------------------------------------------------------------ what torch is asked for


def test_too_little_memory_is_one_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(module: SentenceModule, batch: Batch) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(SentenceModule, "output", too_large)
    with pytest.raises(ModelError, match="cpu has too little memory for a batch of 2 texts of 5"):
        on_cpu(tiny).encode(["the dog sleeps", "a cat sings"])


def decoder() -> SentenceModule:
    """A small network with rotary positions, whose frequencies are in no model file."""
    return SentenceModule(small_decoder(), Pooling(32, ("mean",)), [Normalize()])


def test_a_copy_in_bf16_leaves_the_weights_and_keeps_the_frequencies_of_positions() -> None:
    module = decoder()
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    away = lowered(module, torch.bfloat16, torch.device("meta"))
    assert {(w.device.type, w.dtype) for w in away.parameters()} == {("meta", torch.bfloat16)}
    for name, weight in module.state_dict().items():
        assert weight.device.type == "cpu" and torch.equal(weight, before[name]), name
    copy = lowered(module, torch.bfloat16, torch.device("cpu"))
    frequencies = dict(module.transformer.named_buffers())
    assert frequencies
    for name, buffer in copy.transformer.named_buffers():
        assert torch.equal(buffer, frequencies[name]) and buffer.dtype == torch.float32, name
    ids = torch.arange(400).reshape(2, 200) % 60  # far positions
    batch = Batch(ids, torch.ones_like(ids))
    with torch.inference_mode():
        cosines = (copy.output(batch) * module.eval().output(batch)).sum(dim=1)
    assert cosines.min() > 0.9998


# --------------------------------------------------------------------------- on a CUDA device


@needs_cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cuda_gives_what_the_processor_gives(tiny: Path, precision: str) -> None:
    fast = Encoder.load(tiny, device="cuda", precision=precision)
    assert (fast.runtime, fast.precision) == ("torch", precision)
    cosines = (fast.encode(TEXTS) * on_cpu(tiny).encode(TEXTS)).sum(axis=1)
    assert cosines.min() > 0.998


@needs_cuda
def test_bf16_takes_no_float32_weights_to_the_device(tiny: Path) -> None:
    module, device = decoder(), pick_device("cuda")
    big = torch.nn.Embedding(2**20, 32)  # 128 MB
    module.transformer.embed_tokens = big  # type: ignore[union-attr]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    runtime = TorchRuntime(module, tokens_of(tiny), Precision.BF16, str(device))
    runtime.run([*np.arange(48, dtype=np.int32).reshape(2, 24)])
    assert torch.cuda.max_memory_allocated() - before < 100 * 2**20
    assert {weight.device.type for weight in module.parameters()} == {"cpu"}


Trained = tuple[list[float], dict[str, torch.Tensor]]


def trained(config: TrainConfig, name: str, **changes: Any) -> Trained:  # noqa: F811
    """Losses and weights of three updates in float32."""
    out = config.out.with_name(name)
    encoder = train(replace(config, out=out, **({"max_steps": 3} | changes)))
    weights = {key: weight.cpu() for key, weight in encoder.module.state_dict().items()}
    return encoder.model.history["losses"], weights


def assert_equal(found: Trained, expected: Trained, tolerance: float) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found[0], expected[0], **close)
    for name, weight in expected[1].items():
        if name.endswith(
            "key.bias"
        ):  # softmax ignores it: its gradient is rounding, which Adam scales
            continue
        torch.testing.assert_close(found[1][name], weight, **close, msg=name)


@needs_cuda
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_cache": True},
        {"adapter_rank": 2},
        {"attention_group": 4, "window": 64, "max_tokens": 64},
        {"layers_per_step": 1},
        {"queue_size": 16},
        {"mlm_weight": 0.1},
        {"pooling": "cls"},
    ],
    ids=str,
)
def test_a_gpu_trains_as_a_processor_does(
    changes: dict[str, Any],
    config: TrainConfig,  # noqa: F811
    on_processor: Callable[[], None],  # noqa: F811
) -> None:
    known = {"dropout": 0.0} | changes
    on_gpu = trained(config, "gpu", **known)
    on_processor()
    assert_equal(on_gpu, trained(config, "cpu", **known), 1e-3)
