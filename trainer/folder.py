"""Model folders, read: the sentence-transformers layout, safetensors only.

What a model is stands in its folder: modules.json lists the modules, each module's config says how
it works. The kind of a module is the class name at the end of its dotted `type`, because the dotted
path in front of it changed between versions (`sentence_transformers.models.Pooling`,
`sentence_transformers.sentence_transformer.modules.pooling.Pooling`).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers.normalizers import Lowercase, Sequence

from trainer.errors import ModelError
from trainer.modules import (
    POOLING_SWITCHES,
    Dense,
    HeadLayer,
    LayerNorm,
    Normalize,
    Pooling,
    PoolingMode,
    SentenceModule,
)

WEIGHTS = "model.safetensors"
MODEL_CONFIG = "config_sentence_transformers.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"

# Encoder halves of encoder-decoder networks, which AutoModel would load whole.
ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
# Families whose position numbers begin behind the padding id, so that many fewer tokens fit.
OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl"})
FALLBACK_MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory: everything a folder says.

    matryoshka_dims: trained prefix lengths, descending, starting with the full width. prompts: by
    name. recipe: how the model was made, free-form JSON.
    """

    module: SentenceModule
    tokenizer: Any
    max_tokens: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    matryoshka_dims: tuple[int, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dim = self.module.dim
        dims = self.matryoshka_dims or (dim,)
        if dims[0] != dim or list(dims) != sorted(set(dims), reverse=True) or dims[-1] < 1:
            raise ModelError(
                f"matryoshka_dims is {list(dims)}: expected descending, distinct lengths that "
                f"start with the model's width {dim}"
            )
        object.__setattr__(self, "matryoshka_dims", tuple(dims))
        if self.max_tokens < 3:
            raise ModelError(f"max_tokens is {self.max_tokens}: expected 3 or more")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise ModelError(
                f"the default prompt {self.default_prompt!r} is none of the model's prompts "
                f"({', '.join(self.prompts) or 'it has none'})"
            )


def read_json(path: Path) -> Any:
    """A JSON file of a model folder; ModelError names the file if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: the model folder is incomplete") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error


def read_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object; {} for an optional file that is not there."""
    if optional and not path.is_file():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}: expected an object")
    return value


def read_model(folder: Path) -> Model:
    """The model in `folder`: a sentence-transformers folder or a plain transformers one.

    A plain folder gets mean pooling and unit rows, as sentence-transformers gives it.
    """
    if not folder.is_dir():
        raise ModelError(
            f"no model at {folder}: expected a folder with modules.json or config.json"
        )
    if (folder / "modules.json").is_file():
        stages = _stages(folder)
        place, settings = stages[0][1], _transformer_settings(stages[0][1])
    elif (folder / "config.json").is_file():
        stages, place, settings = [], folder, {}
    else:
        raise ModelError(
            f"{folder} is not a model: it has neither modules.json (sentence-transformers) nor "
            "config.json (transformers)"
        )
    transformer, tokenizer = _read_transformer(place, settings)
    width = int(transformer.config.hidden_size)
    if stages:
        pooling = _read_pooling(stages[1][1], width)
        head = _read_head(stages[2:], pooling.out_width)
    else:
        pooling, head = Pooling(width, (PoolingMode.MEAN,)), [Normalize()]
    module = SentenceModule(transformer, pooling, head).eval()
    config = read_object(folder / MODEL_CONFIG, optional=True)
    prompts = config.get("prompts") or {}
    dims = config.get("matryoshka_dims") or []
    if not _is_str_map(prompts) or not all(type(d) is int for d in dims):
        raise ModelError(
            f"{folder / MODEL_CONFIG}: expected prompts as an object of strings and "
            "matryoshka_dims as a list of integers"
        )
    return Model(
        module,
        tokenizer,
        max_tokens=_max_tokens(settings, tokenizer, transformer.config),
        prompts=prompts,
        default_prompt=config.get("default_prompt_name"),
        matryoshka_dims=tuple(dims),
        recipe=config.get("recipe") or {},
    )


def _is_str_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _stages(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module, in order: one Transformer, one Pooling, then head layers."""
    listed = read_json(folder / "modules.json")
    try:
        found = [(str(m["type"]).rsplit(".", 1)[-1], folder / m["path"]) for m in listed]
    except (TypeError, KeyError) as error:
        raise ModelError(
            f"{folder / 'modules.json'}: expected a list of objects with `type` and `path`"
        ) from error
    inside = folder.resolve()
    for _, place in found:
        if not place.resolve().is_relative_to(inside):
            raise ModelError(f"{folder / 'modules.json'} points outside its folder: {place}")
    kinds = [kind for kind, _ in found]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(_HEAD_READERS):
        raise ModelError(
            f"{folder} has the modules {', '.join(kinds) or 'none'}: expected Transformer, "
            f"Pooling, then any of {', '.join(_HEAD_READERS)}"
        )
    return found


def _transformer_settings(place: Path) -> dict[str, Any]:
    """sentence_bert_config.json, or one of its older names (sentence_roberta_config.json, …)."""
    named = place / TRANSFORMER_CONFIG
    older = sorted(place.glob("sentence_*_config.json"))
    settings = read_object(named if named.is_file() or not older else older[0], optional=True)
    task = settings.get("transformer_task", "feature-extraction")
    if task != "feature-extraction" or settings.get("query_expansion"):
        raise ModelError(f"{place} is a {task} model: expected one that gives a vector per text")
    return settings


def _require_safetensors(place: Path) -> None:
    if (place / WEIGHTS).is_file() or (place / f"{WEIGHTS}.index.json").is_file():
        return
    pickled = next(iter(sorted([*place.glob("*.bin"), *place.glob("*.pt")])), None)
    if pickled is None:
        raise ModelError(f"{place} has no {WEIGHTS}: the model folder is incomplete")
    raise ModelError(
        f"{place} has only {pickled.name}, a pickle, which can run code when opened: use one with "
        f"{WEIGHTS}, or convert it with save_pretrained of sentence-transformers"
    )


def _read_transformer(place: Path, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The network with float32 weights and its tokenizer."""
    _require_safetensors(place)
    if (place / "adapter_config.json").is_file():
        raise ModelError(f"{place} is an adapter (PEFT): merge it into its base model first")
    try:
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
        loader = transformers.AutoModel
        if getattr(config, "is_encoder_decoder", False):
            if config.model_type not in ENCODER_CLASSES:
                raise ModelError(f"{place} is a {config.model_type}: expected an encoder")
            loader = getattr(transformers, ENCODER_CLASSES[config.model_type])
        with quiet():
            network, report = loader.from_pretrained(
                place,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
    except ModelError:
        raise
    except Exception as error:  # transformers raises many kinds; the reader needs one sentence
        raise ModelError(
            f"{place} cannot be loaded by transformers: {_first_line(error)}"
        ) from error
    missing = set(report["missing_keys"])
    if random := {name for name in missing if name.startswith("pooler.")}:
        # transformers filled it with random numbers; no vector of ours passes through it.
        network.pooler = None
        missing -= random
    if missing:
        raise ModelError(
            f"{place} lacks {len(missing)} of the network's weights, such as {min(missing)}: the "
            "folder is incomplete or its config.json belongs to another model"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"{place} has no fast tokenizer: expected a tokenizer.json")
    if settings.get("do_lower_case"):
        _lower_case(tokenizer.backend_tokenizer)
    return network, tokenizer


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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _lower_case(tokenizer: Any) -> None:
    state = json.loads(tokenizer.to_str())["normalizer"] or {}
    if any(
        n["type"] == "Lowercase" or n.get("lowercase")
        for n in state.get("normalizers", [state])
        if n
    ):
        return
    present = tokenizer.normalizer
    tokenizer.normalizer = Sequence([Lowercase()] + ([] if present is None else [present]))


def _max_tokens(settings: Mapping[str, Any], tokenizer: Any, config: Any) -> int:
    """What the folder says, never more than the network has positions for."""
    limit = tokenizer.model_max_length
    positions = getattr(config, "max_position_embeddings", None)
    wanted = settings.get("max_seq_length")
    if not wanted:
        wanted = limit if limit < 10**9 else positions or FALLBACK_MAX_TOKENS
    if positions is not None and positions > 0:
        if config.model_type in OFFSET_POSITIONS:
            positions -= (config.pad_token_id or 0) + 1
        wanted = min(wanted, positions)
    return int(wanted)


def _read_pooling(place: Path, width: int) -> Pooling:
    path = place / "config.json"
    config = read_object(path)
    try:
        if "pooling_mode" in config:
            named = config["pooling_mode"]
            modes = tuple(PoolingMode(m) for m in ([named] if isinstance(named, str) else named))
        else:
            modes = tuple(mode for key, mode in POOLING_SWITCHES.items() if config.get(key))
    except (TypeError, ValueError):
        raise ModelError(
            f"{path} has pooling_mode {config['pooling_mode']!r}: expected any of "
            f"{', '.join(PoolingMode)}"
        ) from None
    if not modes:
        raise ModelError(
            f"{path} names no pooling mode: expected pooling_mode or a pooling_mode_… switch"
        )
    stated = config.get("embedding_dimension", config.get("word_embedding_dimension", width))
    if stated != width:
        raise ModelError(f"{path} says the network is {stated} wide, but it is {width}")
    return Pooling(width, modes, bool(config.get("include_prompt", True)))


def _read_head(stages: list[tuple[str, Path]], width: int) -> list[HeadLayer]:
    """The layers behind the pooling, checked to fit one another. width: what pooling gives."""
    head: list[HeadLayer] = []
    for kind, place in stages:
        layer = _HEAD_READERS[kind](place)
        wanted = layer.linear.in_features if isinstance(layer, Dense) else width
        wanted = layer.out_width if isinstance(layer, LayerNorm) else wanted
        if wanted != width:
            raise ModelError(f"{place} takes vectors {wanted} wide, but gets them {width} wide")
        width = width if isinstance(layer, Normalize) else layer.out_width
        head.append(layer)
    return head


def _read_dense(place: Path) -> HeadLayer:
    config = read_object(place / "config.json")
    inputs = (config.get("module_input_name"), config.get("module_output_name"))
    if config.get("use_residual") or not set(inputs) <= {None, "sentence_embedding"}:
        raise ModelError(f"{place} is a Dense of an unknown kind: expected a plain linear layer")
    try:
        activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
        sizes = int(config["in_features"]), int(config["out_features"])
        layer = Dense(*sizes, bool(config.get("bias", True)), activation)
    except (KeyError, TypeError) as error:
        raise ModelError(f"{place / 'config.json'} lacks a size of the layer: {error}") from error
    return _filled(layer, place)


def _read_layer_norm(place: Path) -> HeadLayer:
    return _filled(LayerNorm(int(read_object(place / "config.json")["dimension"])), place)


def _read_normalize(place: Path) -> HeadLayer:
    return Normalize()


_HEAD_READERS = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
}


def _filled(layer: Dense | LayerNorm, place: Path) -> HeadLayer:
    _require_safetensors(place)
    try:
        layer.load_state_dict(load_file(place / WEIGHTS))
    except Exception as error:
        raise ModelError(
            f"{place / WEIGHTS} does not fit its config: {_first_line(error)}"
        ) from error
    return layer.float()
