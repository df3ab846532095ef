"""Passes: the order of texts does not matter, and gradient caching gives the same gradients."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingError
from searchengine.trainer.model.modules import Batch
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.losses import info_nce, matryoshka
from searchengine.trainer.training.passes import Passes, View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import MaskedLanguageModel, TrainingModel
from tests.reference_losses import backward
from tests.tiny_model import WORDS
from tests.trainer.test_train_loop import config  # noqa: F401  (fixtures)

TEXTS = [" ".join(WORDS[i : i + 1 + 3 * i % 11]) for i in range(12)]
OTHERS = [" ".join(WORDS[i + 1 : i + 3 + 5 * i % 7]) for i in range(12)]


def passes(base: Path, tokens: int = 0, **settings: Any) -> Passes:
    """tokens: of a pass; 0 for the device's."""
    settings = {"precision": "fp32"} | settings
    config = TrainConfig(train=[Path("x")], out=Path("y"), base=str(base), **settings)  # type: ignore[arg-type]  # noqa: F811
    encoder = Encoder.load(base, precision="fp32")
    training_model = TrainingModel(encoder.model, config, None).train()
    found = Passes(training_model, encoder, config, Processes())
    found._budget = tokens or found._budget
    return found


def nested(found: list[Tensor]) -> Tensor:
    """Of the vectors after each layer, the sum."""
    loss = matryoshka(info_nce, [32, 8])
    return torch.stack([loss(*pair) for pair in zip(*found, strict=True)]).sum()


def gradients(model_passes: Passes, layers: Sequence[int] = ()) -> tuple[float, dict[str, Tensor]]:
    views = [View(TEXTS, "query"), View(OTHERS, "document")]
    model_passes.training_model.zero_grad()
    value = backward(model_passes, views, layers, nested)
    named = model_passes.training_model.named_parameters()
    return value, {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize(
    ("tokens", "layers", "precision", "tolerance"),
    [
        (0, (), "fp32", 1e-5),
        (24, (), "fp32", 1e-5),
        (24, (1, 2), "fp32", 1e-5),
        # Weights cast to bfloat16 for the vectors must not be those of the passes with gradients.
        (0, (), "bf16", 1e-3),
    ],
)
def test_cached_gradients_equal_plain_ones_under_dropout(
    base: Path, tokens: int, layers: Sequence[int], precision: str, tolerance: float
) -> None:
    value, plain = gradients(passes(base, tokens=tokens, precision=precision), layers=layers)
    caching = passes(base, tokens=tokens, gradient_cache=True, precision=precision)
    again, cached = gradients(caching, layers=layers)
    assert again == pytest.approx(value, rel=tolerance) and set(cached) == set(plain)
    for name in plain:
        torch.testing.assert_close(cached[name], plain[name], atol=tolerance / 10, rtol=tolerance)


def test_passes_change_nothing_without_dropout(base: Path) -> None:
    found = []
    for tokens in (0, 24):
        model_passes = passes(base, tokens=tokens)
        model_passes.training_model.eval()
        found.append(gradients(model_passes))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for name, plain in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], plain, atol=1e-5, rtol=1e-4)


def test_a_run_without_memory_stops_and_resumes_with_gradient_cache(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, done = Passes._run, 0

    def limited(self: Passes, *arguments: Any) -> Tensor:
        nonlocal done
        done += 1
        if done > 2 and not self.config.gradient_cache:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, *arguments)

    monkeypatch.setattr(Passes, "_run", limited)
    short = replace(config, max_steps=4)
    with pytest.raises(TrainingError, match="memory ran out in update 3: set gradient_cache"):
        train(short)
    losses = train(replace(short, gradient_cache=True), resume=True).model.history["losses"]
    assert len(losses) == 4


# --- the masked-language-model loss ---------------------------------------------------------------


def model_and_batch(base: Path, probability: float = 0.15) -> tuple[MaskedLanguageModel, Batch]:
    model = Encoder.load(base, precision="fp32").model
    network = model.module.transformer
    language = MaskedLanguageModel(network, model.tokenizer, seed=1)
    language._collator.mlm_probability = probability
    ids = TokenIds(Tokenization.of(model.tokenizer, 24))
    texts = [" ".join(WORDS[i : i + 8]) for i in range(24)] * 8
    return language, Batch.of(ids(texts), ids.pad_id, torch.device("cpu"))


def loss(language: MaskedLanguageModel, batch: Batch) -> torch.Tensor:
    found: torch.Tensor = language(batch.mask, *language.mask(batch, 0))
    return found


def test_the_loss_is_the_cross_entropy_of_the_masked_tokens(base: Path) -> None:
    language, batch = model_and_batch(base)
    language.eval()
    ids, labels = language.mask(batch, 0)
    logits = language.whole(input_ids=ids, attention_mask=batch.mask).logits
    chosen = labels >= 0
    expected = -logits.log_softmax(-1)[chosen].gather(1, labels[chosen].unsqueeze(1)).sum()
    assert language(batch.mask, ids, labels).item() == pytest.approx(expected.item(), rel=1e-5)
    # Never a special token or padding; 15 % of the rest, of those 80 % masked and 10 % kept.
    special = torch.isin(batch.ids, torch.tensor(language.specials))
    assert not (chosen & (special | (batch.mask == 0))).any()
    real_tokens = int((~special & (batch.mask == 1)).sum())
    assert 0.12 < chosen.sum().item() / real_tokens < 0.18
    masked = (ids == 4) & chosen  # [MASK] is the fifth word
    kept = (ids == batch.ids) & chosen
    assert 0.7 < masked.sum().item() / chosen.sum().item() < 0.9
    assert 0.04 < kept.sum().item() / chosen.sum().item() < 0.17


def test_the_loss_does_not_depend_on_the_passes(base: Path) -> None:
    """Texts of different lengths, so that a mean of the passes' means would be another number."""
    texts = [" ".join(WORDS[i : i + 1 + 7 * i % 12]) for i in range(24)]
    found = []
    for tokens in (0, 40, 12):
        model_and_batch = passes(base, mlm_weight=0.5, tokens=tokens)
        model_and_batch.training_model.eval()
        view = View(texts, "document")
        value = model_and_batch.language_backward(view, 7)
        grad = model_and_batch.training_model.sentence.transformer.encoder.layer[
            0
        ].output.dense.weight.grad  # type: ignore
        found.append((value, grad))
    assert found[0][0] > 0
    for value, grad in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(grad, found[0][1], atol=1e-6, rtol=1e-4)
