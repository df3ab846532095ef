"""The masked-language-model loss: tied to the network, masks in BERT's shares, and it is learnt."""

from pathlib import Path

import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.modules import Batch
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.training_model import MaskedLanguageModel
from tests.tiny_model import WORDS, write_sentence_transformer
from tests.trainer.test_passes import passes


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("base") / "model")


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


def test_it_trains_the_encoders_own_weights_and_the_word_table(base: Path) -> None:
    language, batch = model_and_batch(base)
    network = language.whole.bert
    table = network.get_input_embeddings().weight
    assert language.whole.get_output_embeddings().weight is table
    loss(language, batch).backward()
    assert table.grad is not None and (table.grad != 0).any()
    grad = network.encoder.layer[0].output.dense.weight.grad
    assert grad is not None and (grad != 0).any()


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


def test_nothing_masked_is_no_loss(base: Path) -> None:
    language, batch = model_and_batch(base, probability=0.0)
    assert loss(language, batch).item() == 0.0


def test_the_loss_does_not_depend_on_the_passes(base: Path) -> None:
    """Texts of different lengths, so that a mean of the passes' means would be another number."""
    texts = [" ".join(WORDS[i : i + 1 + 7 * i % 12]) for i in range(24)]
    found = []
    for tokens in (0, 40, 12):
        model_and_batch = passes(base, mlm_weight=0.5, tokens=tokens)
        model_and_batch.training_model.eval()
        view = View(texts, "document")
        value = model_and_batch.language_backward(view, 7, 0.5)
        grad = model_and_batch.training_model.sentence.transformer.encoder.layer[
            0
        ].output.dense.weight.grad  # type: ignore
        found.append((value, grad))
    assert found[0][0] > 0
    for value, grad in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(grad, found[0][1], atol=1e-6, rtol=1e-4)
