"""The weighted mean of the weights before and after a training (WiSE-FT).

    start = lengthened(Encoder.load("starter").model, 2048)  # what the training began with
    average(Encoder.load("long-model"), start, 0.7).save("averaged")

A training on one kind of text costs quality on others. The weighted mean of the weights before and
after it often keeps most of both: Wortsman et al., arXiv 2109.01903 (WiSE-FT).
"""

import copy
from dataclasses import replace

import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.model_folder import Model

PAPER = "https://arxiv.org/abs/2109.01903"


def average(trained: Encoder, start: Model, share: float) -> Encoder:
    """An encoder with share · the trained weights + (1 − share) · those of the start.

    `trained` is left as it is; prompts, prefix lengths and recipe are its own. Raises ModelError
    unless 0 ≤ share ≤ 1 and both have weights of the same names and shapes: a model with a longer
    window begins with `lengthened` weights.
    """
    if not 0 <= share <= 1:
        raise ModelError(f"share must be between 0 and 1, got {share}")
    weights, first = trained.module.state_dict(), start.module.state_dict()
    unequal = sorted(
        name
        for name in weights.keys() | first.keys()
        if name not in weights or name not in first or weights[name].shape != first[name].shape
    )
    if unequal:
        raise ModelError(
            f"the weights {unequal[0]} differ in shape, or only one of the models has them; "
            "average a model with the one that its training began with"
        )
    module = copy.deepcopy(trained.module)
    module.load_state_dict(
        {
            name: torch.lerp(first[name], value, share) if value.is_floating_point() else value
            for name, value in weights.items()
        }
    )
    # What the training noted of its steps holds for the trained weights only.
    recipe = {k: v for k, v in trained.recipe.items() if k in ("config", "summary", "examples")}
    line = f"Weights: {share:g} × trained + {1 - share:g} × base ([WiSE-FT]({PAPER}))"
    recipe["summary"] = [*recipe.get("summary", []), line]
    return Encoder(replace(trained.model, module=module, recipe=recipe, history={}), "")
