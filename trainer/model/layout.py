"""The JSON files of a model folder, checked; read without torch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from searchengine.errors import FORBIDDEN
from searchengine.trainer.errors import ModelError

WEIGHTS = "model.safetensors"
MODULES = "modules.json"
MODEL_CONFIG = "config_sentence_transformers.json"
LIBRARY = "sentence_transformers."
# A module that sends questions and documents through modules of their own.
ROUTER, ROUTER_CONFIG = "Router", "router_config.json"
Route = Literal["query", "document"]
ROUTES: tuple[Route, ...] = ("query", "document")
# Of unit rows all three put the same documents first; of others only the cosine is ours.
UNIT_SIMILARITIES = ("cosine", "dot", "euclidean")

# What models were trained with, by their cards, while their folders name no prompts. Patterns of
# their names in small letters, without the owner.
_PASSAGES = "Represent this sentence for searching relevant passages: "
_WEB = "Given a web search query, retrieve relevant passages that answer the query"
PUBLISHED: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?",
        {"query": "query: ", "document": "passage: "},
    ),
    (
        r"multilingual-e5-large-instruct|e5-mistral-7b-instruct",
        {"query": f"Instruct: {_WEB}\nQuery: "},
    ),
    (r"qwen3-embedding-(0\.6|4|8)b", {"query": f"Instruct: {_WEB}\nQuery:"}),
    (r"bge-(small|base|large)-en(-v1\.5)?", {"query": _PASSAGES}),
    (r"bge-(small|base|large)-zh(-v1\.5)?", {"query": "为这个句子生成表示以用于检索相关文章："}),
    (r"mxbai-embed-large-v1|uae-large-v1", {"query": _PASSAGES}),
    (r"snowflake-arctic-embed-(xs|s|m|l|m-long|m-v1\.5)|mdbr-leaf-ir", {"query": _PASSAGES}),
    (r"snowflake-arctic-embed-[ml]-v2\.0", {"query": "query: "}),
    (
        r"nomic-embed-text-(v1|v1\.5|v2-moe)|modernbert-embed-base",
        {"query": "search_query: ", "document": "search_document: "},
    ),
)


def read_json(path: Path) -> Any:
    """A JSON file of a model folder; ModelError names the file if it is not one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: the model folder is incomplete") from None
    except PermissionError as error:
        raise ModelError(f"{path}: {FORBIDDEN}") from error
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


def require_safetensors(place: Path) -> None:
    """ModelError unless the weights in a folder are whole files of safetensors."""
    index = place / f"{WEIGHTS}.index.json"
    paths = [place / WEIGHTS]
    if not paths[0].is_file() and index.is_file():
        shards = read_object(index).get("weight_map") or {WEIGHTS: WEIGHTS}
        paths = [place / name for name in sorted(set(shards.values()))]
    for path in paths:
        try:
            with safe_open(path, "numpy"):
                pass
        except FileNotFoundError:
            pickled = next(iter(sorted([*place.glob("*.bin"), *place.glob("*.pt")])), None)
            if pickled is None:
                raise ModelError(
                    f"{place} has no {path.name}: the model folder is incomplete, or the model is "
                    "published with other weights only"
                ) from None
            raise ModelError(
                f"{place} has only {pickled.name}, a pickle, which can run code when opened: use "
                f"one with {WEIGHTS}, or convert it with save_pretrained of sentence-transformers"
            ) from None
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{path} cannot be read, damaged or half downloaded: {error}"
            ) from error


def listed_modules(folder: Path, route: Route | None = None) -> list[tuple[str, Path]]:
    """(kind, folder) of each module in modules.json, in order.

    The kind is the class name at the end of the dotted `type`, because the dotted path in front of
    it changed between versions of sentence-transformers. route: of a Router, which is replaced by
    its modules for these texts.
    """
    listed = read_json(folder / MODULES)
    try:
        named = [(str(module["type"]), str(module["path"])) for module in listed]
    except (TypeError, KeyError) as error:
        raise ModelError(
            f"{folder / MODULES}: expected a list of objects with `type` and `path`"
        ) from error
    if route is not None:
        named = [*_routed(folder, route), *named[1:]]
    types = [name for name, _ in named]
    modules = [(name.rsplit(".", 1)[-1], folder / path) for name, path in named]
    if foreign := [name for name in types if not name.startswith(LIBRARY)]:
        raise ModelError(
            f"{folder / MODULES} names the module {foreign[0]}, which is not one of "
            "sentence-transformers and may compute something else: use a model without it"
        )
    inside = folder.resolve()
    for _, place in modules:
        if not place.resolve().is_relative_to(inside):
            raise ModelError(f"{folder / MODULES} points outside its folder: {place}")
    return modules


def is_router(folder: Path) -> bool:
    """Whether a folder has a network for questions beside the one for documents."""
    return (folder / MODULES).is_file() and [kind for kind, _ in listed_modules(folder)[:1]] == [
        ROUTER
    ]


def _routed(folder: Path, route: Route) -> list[tuple[str, str]]:
    """(type, path) of the modules of a route."""
    config = read_object(folder / ROUTER_CONFIG)
    try:
        structure, types = config["structure"], config["types"]
        mapped = config["parameters"].get("route_mappings")
        if set(structure) != set(ROUTES) or mapped:
            routes = ", ".join([*structure, *(mapped or ())])
            raise ModelError(
                f"{folder / ROUTER_CONFIG} has the routes {routes}: expected {' and '.join(ROUTES)}"
            )
        return [(str(types[name]), str(name)) for name in structure[route]]
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            f"{folder / ROUTER_CONFIG}: expected `types`, `structure` and `parameters`"
        ) from error


def check_similarity(config: Mapping[str, Any], unit: bool, folder: Path) -> None:
    """Refuse a model whose vectors are compared by something else than the cosine.

    unit: whether it gives unit rows.
    """
    named = config.get("similarity_fn_name") or "cosine"
    if named != "cosine" and not (unit and named in UNIT_SIMILARITIES):
        raise ModelError(
            f"{folder / MODEL_CONFIG} has similarity_fn_name {named!r}, but vectors are compared "
            'by cosine here: use another model, or write "cosine" there if that suits this one'
        )


def truncate_dim(config: Mapping[str, Any], width: int, folder: Path) -> int:
    """The number of dimensions to keep of `width`."""
    dim = config.get("truncate_dim")
    if dim is None:
        return width
    if type(dim) is not int or dim < 1:
        raise ModelError(
            f"{folder / MODEL_CONFIG} has truncate_dim {dim!r}: expected a whole number of at "
            "least 1, or null"
        )
    return min(dim, width)


def prompts_of(config: Mapping[str, Any], folder: Path) -> Mapping[str, str]:
    """The prompts by name: those of the folder, or of the published model of its name.

    Empty prompts in the folder switch those of the name off. A model that was trained here has
    those that its folder names, if any.
    """
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(v, str) for v in prompts.values()):
        raise ModelError(f"{folder / MODEL_CONFIG}: expected prompts as an object of strings")
    if config.get("recipe") or (prompts and not _are_default(prompts, config)):
        return prompts
    return published_prompts(hub_name(folder)) or prompts


def _are_default(prompts: Mapping[str, str], config: Mapping[str, Any]) -> bool:
    """Whether sentence-transformers wrote these prompts for a model without any.

    Since version 5 it saves two empty ones with every such model.
    """
    versions = config.get("__version__")
    version = versions.get("sentence_transformers") if isinstance(versions, dict) else None
    major = re.match(r"\d+", str(version))
    is_recent = major is not None and int(major.group()) >= 5
    return is_recent and prompts == {"query": "", "document": ""}


def hub_name(folder: Path) -> str:
    """The name of a model folder, without the owner; in the hub's cache, that of the model."""
    place = folder.resolve()
    if place.parent.name == "snapshots":  # models--OWNER--NAME/snapshots/REVISION
        return place.parent.parent.name.rpartition("--")[2]
    return place.name


def published_prompts(name: str) -> Mapping[str, str]:
    """The prompts that a published model wants, where its folder does not name them; or {}."""
    found = (known for pattern, known in PUBLISHED if re.fullmatch(pattern, name.lower()))
    return next(found, {})


def trained_dims(config: Mapping[str, Any], width: int, folder: Path) -> tuple[int, ...]:
    """The trained prefix lengths; where truncate_dim has cut the vectors, those that are left."""
    dims = config.get("matryoshka_dims") or []
    if not isinstance(dims, list) or not all(type(dim) is int for dim in dims):
        raise ModelError(f"{folder / MODEL_CONFIG}: expected matryoshka_dims as a list of integers")
    if config.get("truncate_dim") is None or not dims:
        return tuple(dims)
    return (width, *(dim for dim in dims if dim < width))
