"""Whether numpy gives the vectors of a model that torch has read: then it need not be read again.

Networks of BERT's kind with absolute positions, as most sentence encoders are: all-MiniLM, E5, BGE.
"""

from typing import Any

import numpy as np
from safetensors import safe_open

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.layout import MODULES, WEIGHTS, listed_modules
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.modules import Dense, Normalize, PoolingMode
from searchengine.trainer.model.network import position_offset
from searchengine.trainer.model.numpy_models import Described, Network
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import TokenIds
from searchengine.trainer.model.torch_model import describe
from searchengine.trainer.runtimes.measure import sample_texts
from searchengine.trainer.runtimes.numpy_runtime import ACTIVATIONS, NumpyRuntime
from searchengine.trainer.runtimes.runtime_config import Precision
from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert")
POOLING = (PoolingMode.MEAN, PoolingMode.CLS)
MAX_DIFFERENCE = 1e-4  # of a dimension of a unit vector; bf16 differs by some 2e-3
EVERY, LONGEST = 12, 128  # every 12th sample text, and all of them cut to so many tokens


def described(model: Model, source: Source, fingerprint: str, tokens: TokenIds) -> Described | None:
    """The model without its weights; None if numpy gives other vectors, or runs no such network."""
    try:
        network = _network(model, source)
        if network is None:
            return None
        found = Described(source.folder, network, fingerprint, describe(model))
        texts = [*sample_texts()[::EVERY], ""]
        ids = [*tokens(texts), tokens([" ".join(texts)])[0][:LONGEST]]
        batch = tokens.pad(ids)
        exact = TorchRuntime(model.module, Precision.FP32, "cpu").run(batch)
        vectors = NumpyRuntime(found).run(batch)
    except (ModelError, KeyError, IndexError, ValueError, AttributeError):  # not laid out as BERT
        return None
    same = vectors.shape == exact.shape and np.abs(vectors - exact).max() <= MAX_DIFFERENCE
    return found if same else None


def _network(model: Model, source: Source) -> Network | None:
    module = model.module
    network: Any = module.transformer
    config: Any = getattr(network, "config", None)
    kind = getattr(config, "model_type", "")
    if kind not in FAMILIES or config.hidden_act != "gelu" or config.is_decoder:
        return None
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        return None
    pooling = module.pooling
    if not pooling.include_prompt or not set(pooling.modes) <= {*POOLING}:
        return None
    folder, places = source.folder, [source.folder]
    if (folder / MODULES).is_file():
        places = [place for _, place in listed_modules(folder, source.route)]
    head = []
    for i, layer in enumerate(module.head):
        if isinstance(layer, Normalize):
            head.append(("", "", False))
        elif isinstance(layer, Dense) and layer.activation_name in ACTIVATIONS:
            if i + 2 >= len(places):  # it cuts vectors, and is no module of the folder
                return None
            biased = layer.linear.bias is not None
            head.append((layer.activation_name, str(places[i + 2].relative_to(folder)), biased))
        else:
            return None
    place = str(places[0].relative_to(folder))
    with safe_open(folder / place / WEIGHTS, "numpy") as file:
        bare = "embeddings.word_embeddings.weight" in file.keys()
    prefix = "" if bare else f"{network.base_model_prefix}."
    return Network(
        place=place,
        prefix=prefix,
        layers=module.layers,
        heads=config.num_attention_heads,
        width=config.hidden_size,
        epsilon=config.layer_norm_eps,
        first_position=position_offset(config),
        pooling=tuple(map(str, pooling.modes)),
        scales=(1.0,) * len(pooling.modes),
        head=tuple(head),
    )
