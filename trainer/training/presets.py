"""Settings of `TrainConfig` by name: a paper's, or what a kind of data needs.

What a preset does not name has the default; whatever is given beside it wins. Those of papers start
from the papers' base models, on the model hub; "starter" needs no network.
"""

from typing import Any, NamedTuple

from searchengine.trainer.errors import ConfigError


class Preset(NamedTuple):
    """summary: its data, with its paper. harm: what it costs an encoder that is tuned already."""

    summary: str
    settings: dict[str, Any]
    harm: str = ""


# Spearman's correlation, of the base as it is shipped and of the result.
_HARM = "harms a tuned encoder: all-MiniLM-L6-v2 falls from .867 to {} on STS-B dev"
# Table A.1 of the paper and the training script beside it.
_SIMCSE = dict(base="bert-base-uncased", max_tokens=32, warmup_ratio=0.0, eval_every=125)
# As sentence-transformers' documentation trains the model whose figures it publishes (98.37 % of
# the full width kept at 64), with a scale of 20.
_NLI = dict(base="microsoft/mpnet-base", batch_size=128, epochs=1)
PRESETS = {
    "simcse-unsup": Preset(
        "Sentences alone, from a plain BERT (SimCSE, arXiv 2104.08821)",
        # One million sentences of Wikipedia, CLS with an MLP in training only.
        _SIMCSE | dict(pooling="cls-before-pooler", batch_size=64, epochs=1, learning_rate=3e-5),
        harm=_HARM.format(".844") + ", by .04 on test",
    ),
    "simcse-sup": Preset(
        "Pairs or triplets of NLI, from a plain BERT (SimCSE, arXiv 2104.08821)",
        _SIMCSE | dict(pooling="cls", batch_size=512),
        harm=_HARM.format(".809"),
    ),
    "matryoshka": Preset(
        "Pairs or triplets, over prefixes, from a plain network (Matryoshka, arXiv 2205.13147)",
        _NLI,
    ),
    "matryoshka-2d": Preset(
        "The same over numbers of layers too (2D Matryoshka, arXiv 2402.14776)",
        _NLI | dict(layers_per_step=1),
    ),
    "labels": Preset(
        "Few labelled texts of each class (supervised contrastive, arXiv 2011.01403)",
        # Large batches hold other texts of each class, as the pairs of SetFit (arXiv 2209.11055).
        # Chosen on questions of TREC's training set.
        dict(objective="classification", label_temperature=0.1, batch_size=64),
    ),
    "pairs": Preset(
        "Questions and documents of your domain, from a tuned encoder (arXiv 1705.00652)",
        # A tuned encoder has little to learn: a low rate, and a judgement often.
        dict(base="starter", batch_size=64, max_tokens=256, learning_rate=2e-5, eval_every=50),
    ),
    "scored-pairs": Preset(
        "Pairs with scores, whose order is learnt (CoSENT, doi 10.1109/TASLP.2024.3402087)",
        # As sentence-transformers' example trains it on STS-B; the rate of arXiv 1908.10084.
        dict(base="bert-base-uncased", objective="similarity")
        | dict(batch_size=16, epochs=4, learning_rate=2e-5),
    ),
    "longlora": Preset(
        "Pairs of long documents: a window of 2,048 tokens (LongLoRA, arXiv 2309.12307)",
        # Section 4.1: groups of a quarter, adapters of rank 8. Its rate is for networks of 7
        # billion weights and its batch for 8 GPUs; these are for the starter. Dropout would keep
        # torch from its fast attention.
        dict(base="sentence-transformers/all-MiniLM-L6-v2", prefixes=[384], dropout=0.0)
        | dict(window=2048, max_tokens=2048, attention_group=512, adapter_rank=8)
        | dict(batch_size=16, epochs=1, learning_rate=2e-4),
    ),
}


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset. Raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}: expected one of {', '.join(PRESETS)}")
    return dict(PRESETS[name].settings)
