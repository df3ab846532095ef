"""The JSON files of a model folder, checked; read without torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.files import read_json, read_object
from searchengine.trainer.sources.source import VOCABULARIES, published_prompts

WEIGHTS = "model.safetensors"
MODULES = "modules.json"
MODEL_CONFIG = "config_sentence_transformers.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
TOKENIZER, ADAPTER = "tokenizer.json", "adapter_config.json"
LIBRARY = "sentence_transformers."
PLAIN = Path()  # in place of the folder of a module that a plain folder does not have
# Of unit rows all three put the same documents first; of others only the cosine is ours.
UNIT_SIMILARITIES = ("cosine", "dot", "euclidean")
# The switches of poolings written before sentence-transformers 6, in their order of concatenation.
POOLING_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLING_MODES = ("cls", "max", "mean", "lasttoken")
# Families whose positions begin behind the padding id, so that fewer tokens fit.
OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl"})
FALLBACK_MAX_TOKENS = 512
# What reading damaged or contradictory files raises.
DAMAGE = (
    ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError
)  # fmt: skip


@contextmanager
def as_damage(folder: Path) -> Iterator[None]:
    """Turn errors from damaged or contradictory files into ModelError."""
    try:
        yield
    except ModelError:
        raise
    except DAMAGE as error:
        raise ModelError(
            f"{folder} cannot be read, its files are damaged or belong to several models: "
            f"{type(error).__name__}, {first_line(error)}"
        ) from error


def require_safetensors(place: Path) -> None:
    """ModelError unless the weights in a folder are safetensors, all of their files."""
    index = place / f"{WEIGHTS}.index.json"
    names = [WEIGHTS]
    if not (place / WEIGHTS).is_file() and index.is_file():
        names = sorted({*read_object(index)["weight_map"].values()})
    missing = next((name for name in names if not (place / name).is_file()), None)
    if missing:
        raise ModelError(
            f"{place} has no {missing}: the model folder is incomplete, or has only pickles, which "
            "can run code when opened: convert it with save_pretrained of sentence-transformers"
        )


def listed_modules(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module in modules.json, in order.

    The kind is the class name: the path before it differs between sentence-transformers' versions.
    """
    modules = []
    for module in read_json(folder / MODULES):
        name, place = str(module["type"]), folder / str(module["path"])
        if not name.startswith(LIBRARY):
            raise ModelError(
                f"{folder / MODULES} names the module {name}, which is not one of "
                "sentence-transformers and may compute something else: use a model without it"
            )
        if not place.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{folder / MODULES} points outside its folder: {place}")
        modules.append((name.rsplit(".", 1)[-1], place))
    return modules


def _require_complete(place: Path) -> None:
    """Raise ModelError unless a network is whole: transformers would invent a tokenizer."""
    if (place / ADAPTER).is_file():  # even beside a whole network, which it would change
        raise ModelError(f"{place} is an adapter (PEFT): merge it into its base model first")
    read_object(place / "config.json")
    require_safetensors(place)
    vocabularies = (path for name in VOCABULARIES for path in place.glob(name))
    if not any(vocabularies):
        raise ModelError(
            f"{place} has no tokenizer ({', '.join(VOCABULARIES)}): the model folder is incomplete"
        )


def model_stages(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module: Transformer, Pooling, then Dense and Normalize.

    A plain folder of transformers gets mean pooling and unit rows, as sentence-transformers gives
    it. Raises ModelError for a folder that is no model, or has other modules.
    """
    if (folder / MODULES).is_file():
        stages = listed_modules(folder)
        kinds = [kind for kind, _ in stages]
        if kinds[:2] != ["Transformer", "Pooling"] or not {*kinds[2:]} <= {"Dense", "Normalize"}:
            raise ModelError(
                f"{folder} has the modules {', '.join(kinds) or 'none'}: expected Transformer, "
                "Pooling, then any of Dense and Normalize"
            )
    elif any((folder / name).is_file() for name in ("config.json", ADAPTER)):
        stages = [("Transformer", folder), ("Pooling", PLAIN), ("Normalize", PLAIN)]
    elif (folder / "checkpoint").is_dir():
        raise ModelError(
            f"{folder} holds an unfinished training run: finish it with `train … --resume`"
        )
    else:
        raise ModelError(
            f"{folder} is not a model: it has neither modules.json (sentence-transformers) nor "
            "config.json (transformers)"
        )
    _require_complete(stages[0][1])
    return stages


def check_layers(layers: int, most: int) -> None:
    """Raise ModelError for a number of layers that a network of `most` layers lacks."""
    if not 1 <= layers <= most:
        raise ModelError(f"layers is {layers}: expected 1 to {most}, the layers of the network")


def read_settings(folder: Path, width: int, *, unit: bool) -> dict[str, Any]:
    """The fields of a Description that a folder states, such as `dim`: how much of `width` is kept.

    unit: whether the model gives unit rows. The prompts are those of the folder, or of the
    published model of its name. Empty prompts count as none: sentence-transformers 5 writes two
    with every model. A model that was trained here has those that its folder names, if any.
    Raises ModelError.
    """
    config = read_object(folder / MODEL_CONFIG, optional=True)
    limit = config.get("truncate_dim")
    dim = width if limit is None else min(limit, width)
    similarity = config.get("similarity_fn_name") or "cosine"
    same_order = unit and dim == width and similarity in UNIT_SIMILARITIES
    if similarity != "cosine" and not same_order:
        raise ModelError(
            f"{folder / MODEL_CONFIG} has similarity_fn_name {similarity!r}, but vectors are "
            'compared by cosine here: use another model, or write "cosine" there if that suits it'
        )
    dims = config.get("matryoshka_dims") or [dim]
    if limit is not None:
        dims = [dim, *(each for each in dims if each < dim)]
    prompts: Mapping[str, str] = config.get("prompts") or {}
    if not config.get("recipe") and not any(prompts.values()):
        prompts = published_prompts(folder) or prompts
    return {
        "dim": dim,
        "matryoshka_dims": tuple(dims),
        "prompts": prompts,
        "default_prompt": config.get("default_prompt_name"),
        "recipe": config.get("recipe") or {},
    }


def transformer_settings(place: Path) -> dict[str, Any]:
    """sentence_bert_config.json, or one of its older names (sentence_roberta_config.json, …)."""
    named = place / TRANSFORMER_CONFIG
    older = sorted(place.glob("sentence_*_config.json"))
    settings = read_object(named if named.is_file() or not older else older[0], optional=True)
    if settings.get("do_lower_case") and (place / TOKENIZER).is_file():
        state = read_object(place / TOKENIZER).get("normalizer") or {}
        steps = state.get("normalizers", [state])
        if not any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps):
            raise ModelError(
                f"{place} has do_lower_case in {TRANSFORMER_CONFIG}, but a tokenizer that keeps "
                f"capitals: write a Lowercase normalizer into {TOKENIZER}"
            )
    return settings


def max_tokens(settings: Mapping[str, Any], limit: Any, config: Mapping[str, Any]) -> int:
    """The limit in `settings`, or that of the tokenizer, at most the positions of the network."""
    positions = config.get("max_position_embeddings")
    length = settings.get("max_seq_length")
    if not length:
        length = positions or FALLBACK_MAX_TOKENS if limit is None or limit >= 10**9 else limit
    if positions is not None and positions > 0:
        length = min(length, positions - position_offset(config))
    return int(length)


def position_offset(config: Mapping[str, Any]) -> int:
    """Number of positions in front of the first token's, which belong to no token."""
    padding = config.get("pad_token_id")
    offset = config.get("model_type") in OFFSET_POSITIONS
    return (0 if padding is None else padding) + 1 if offset else 0


def pooling_modes(place: Path, width: int) -> tuple[str, ...]:
    """The modes of a Pooling module, side by side. width: of the network."""
    if place == PLAIN:
        return ("mean",)
    path = place / "config.json"
    config = read_object(path)
    switched_on = [mode for key, mode in POOLING_SWITCHES.items() if config.get(key)]
    named = config.get("pooling_mode", switched_on)
    modes = (named,) if isinstance(named, str) else tuple(named)
    if not modes or not {*modes} <= {*POOLING_MODES}:
        raise ModelError(
            f"{path} has the pooling mode {named!r}: expected any of {', '.join(POOLING_MODES)}"
        )
    stated = config.get("embedding_dimension", config.get("word_embedding_dimension", width))
    if stated != width:
        raise ModelError(f"{path} says the network is {stated} wide, but it is {width}")
    if not config.get("include_prompt", True):
        raise ModelError(f"{path} leaves the tokens of prompts out, which is not supported")
    return modes
