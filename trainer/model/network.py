"""The network of a model folder and its tokenizer, loaded by transformers from safetensors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.model.layout import check_layers

# Encoder halves of encoder-decoder networks, which AutoModel would load whole.
ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
# While transformers loads a model, it replaces PreTrainedModel.tie_weights for all threads, and
# then puts back what it found: two at once would leave the replacement in place for ever.
_one_at_a_time = threading.Lock()


def read_transformer(place: Path) -> tuple[Any, Any]:
    """The network with float32 weights and its tokenizer; code in the folder is never run."""
    # transformers asks on the terminal where the second is left open.
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with _loading(place), _one_at_a_time:
        config = transformers.AutoConfig.from_pretrained(place, **local)
        loader: Any = transformers.AutoModel
        if config.model_type in ENCODER_CLASSES:
            loader = getattr(transformers, ENCODER_CLASSES[config.model_type])
        elif getattr(config, "is_encoder_decoder", False):
            raise ModelError(f"{place} is a {config.model_type}: expected an encoder")
        network, report = loader.from_pretrained(
            place,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            **local,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, **local)
    _check_weights(network, set(report["missing_keys"]), place)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"{place} has no fast tokenizer: expected a tokenizer.json")
    return network, tokenizer


@contextmanager
def _loading(place: Path) -> Iterator[None]:
    """What transformers raises for a folder that it cannot read, as ModelError."""
    try:
        with quiet():
            yield
    except ModelError:
        raise
    except Exception as error:  # transformers raises many kinds; the reader needs one sentence
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{place} needs Python code that came with it, which is never run: use another "
                "model, of a type that transformers knows"
            ) from None
        raise ModelError(
            f"{place} cannot be loaded by transformers: {first_line(error)}"
        ) from error


def _check_weights(network: Any, missing: set[str], place: Path) -> None:
    """Refuse a network for which transformers invented weights."""
    if random := {name for name in missing if name.startswith("pooler.")}:
        # Its weights are random, but no vector passes through it.
        network.pooler = None
        missing -= random
    if missing:
        raise ModelError(
            f"{place} lacks {len(missing)} of the network's weights, such as {min(missing)}: the "
            "folder is incomplete or its config.json belongs to another model"
        )
    for name, weight in network.state_dict().items():
        if not weight.isfinite().all():
            raise ModelError(f"{place} holds NaN or infinity in {name}: the weights are damaged")


def keep_first_layers(network: Any, count: int) -> None:
    """Remove all layers but the first; ModelError where they cannot be identified."""
    config = network.config
    lists = (module for module in network.modules() if isinstance(module, nn.ModuleList))
    layers = next((found for found in lists if len(found) == config.num_hidden_layers), None)
    if layers is None:
        raise ModelError(f"the layers of a {type(network).__name__} cannot be identified")
    check_layers(count, len(layers))
    del layers[count:]
    config.num_hidden_layers = count
    if types := getattr(config, "layer_types", None):
        config.layer_types = types[:count]


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar and no report of missing weights from transformers: we judge them below."""
    log = transformers.utils.logging
    level, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bar:
            log.enable_progress_bar()
