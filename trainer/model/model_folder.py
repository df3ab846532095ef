"""Model folders, read and written: the sentence-transformers layout, safetensors only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.files import new_folder, read_object, write_json
from searchengine.trainer.model.head import read_head
from searchengine.trainer.model.layout import (
    MODEL_CONFIG,
    MODULES,
    POOLING_SWITCHES,
    TRANSFORMER_CONFIG,
    WEIGHTS,
    max_tokens,
    model_stages,
    transformer_settings,
)
from searchengine.trainer.model.modules import Classifier, Dense, Normalize, Pooling, SentenceModule
from searchengine.trainer.model.network import keep_first_layers, quiet, read_transformer
from searchengine.trainer.model.tokens import Description, Tokenization
from searchengine.trainer.sources.source import CHECKPOINT, RUNS, Source

CLASSIFIER = "classifier"  # a folder
HISTORY = "training.json"  # of training; sentence-transformers does not read it
# The dotted names every version of sentence-transformers since 2.0 resolves.
MODULE_TYPE = "sentence_transformers.models.{}"


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory: all that a folder holds.

    matryoshka_dims: trained prefix lengths, descending, starting with the full width. prompts: by
    name. recipe: how the model was trained, free-form JSON.
    """

    module: SentenceModule
    tokenizer: Any
    max_tokens: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    matryoshka_dims: tuple[int, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        dims = self.matryoshka_dims or (self.module.dim,)
        object.__setattr__(self, "matryoshka_dims", tuple(dims))

    @property
    def words(self) -> int:
        """Number of tokens that the network has vectors for."""
        network: Any = self.module.transformer
        return int(network.get_input_embeddings().num_embeddings)


def read(source: Source) -> Model:
    """The model with float32 weights, on the processor. Raises ModelError."""
    (_, place), *behind = model_stages(source.folder)
    settings = transformer_settings(place)
    network, tokenizer = read_transformer(place)
    modes, head, stated = read_head(source, behind, int(network.config.hidden_size))
    del stated["dim"]  # that of the module
    if source.layers is not None:
        keep_first_layers(network, source.layers)
    pooling = Pooling(int(network.config.hidden_size), modes)
    layers = [Normalize() if layer is None else Dense.of(layer) for layer in head]
    return Model(
        SentenceModule(network, pooling, layers).eval(),
        tokenizer,
        max_tokens=max_tokens(settings, tokenizer.model_max_length, network.config.to_dict()),
        history=read_object(source.folder / HISTORY, optional=True),
        classifier=read_classifier(source.folder),
        **stated,
    )


def describe(model: Model) -> Description:
    """The description of a model, without its weights."""
    module = model.module
    return Description(
        dim=module.dim,
        layers=module.layers,
        matryoshka_dims=model.matryoshka_dims,
        tokens=Tokenization.of(model.tokenizer, model.max_tokens),
        prompts=dict(model.prompts),
        default_prompt=model.default_prompt,
        recipe=dict(model.recipe),
    )


def write_model(model: Model, path: Path, readme: str) -> None:
    """Write `model` and its README to the folder `path`, replacing a model that is there.

    An interrupted save leaves the old model or none. Raises ModelError as `check_replaceable`.
    """
    check_replaceable(path)
    with new_folder(path, keep=(CHECKPOINT, RUNS)) as new:
        _write_files(model, new)
        (new / "README.md").write_text(readme, encoding="utf-8")


def check_replaceable(path: Path) -> None:
    """ModelError unless `path` is free, a model, empty, or holds only a checkpoint or logs."""
    if not path.exists():
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {""}
    if MODULES not in names and not names <= {CHECKPOINT, RUNS}:
        raise ModelError(f"{path} exists and is not a model: name a new folder, or empty this one")


def _write_files(model: Model, folder: Path) -> None:
    network: Any = model.module.transformer
    with quiet():
        network.save_pretrained(folder, safe_serialization=True)
        model.tokenizer.save_pretrained(folder)
    write_json(folder / TRANSFORMER_CONFIG, {"max_seq_length": model.max_tokens})
    stages = [("Transformer", "")]
    for i, layer in enumerate((model.module.pooling, *model.module.head), 1):
        kind = type(layer).__name__
        stages.append((kind, f"{i}_{kind}"))
        place = folder / stages[i][1]
        place.mkdir()
        write_json(place / "config.json", _layer_config(layer))
        if weights := layer.state_dict():
            save_file({k: v.contiguous() for k, v in weights.items()}, place / WEIGHTS)
    listed = [
        {"idx": i, "name": str(i), "path": place, "type": MODULE_TYPE.format(kind)}
        for i, (kind, place) in enumerate(stages)
    ]
    write_json(folder / MODULES, listed)
    config = {
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt,
        "similarity_fn_name": "cosine",
        "matryoshka_dims": list(model.matryoshka_dims),
        "recipe": dict(model.recipe),
    }
    write_json(folder / MODEL_CONFIG, config)
    if model.history:
        write_json(folder / HISTORY, dict(model.history))
    if model.classifier is not None:
        write_classifier(model.classifier, folder)


def _layer_config(layer: Any) -> dict[str, Any]:
    if isinstance(layer, Dense):
        return {
            "in_features": layer.linear.in_features,
            "out_features": layer.linear.out_features,
            "bias": layer.linear.bias is not None,
            "activation_function": layer.activation_name,
        }
    if not isinstance(layer, Pooling):
        return {}
    # Spelled with the switches that all readers know; where the order differs, as in version 6.
    modes = [*layer.modes]
    if [mode for mode in POOLING_SWITCHES.values() if mode in modes] != modes:
        return {"embedding_dimension": layer.width, "pooling_mode": modes, "include_prompt": True}
    switches = {key: mode in modes for key, mode in POOLING_SWITCHES.items()}
    return {"word_embedding_dimension": layer.width, **switches, "include_prompt": True}


def read_classifier(folder: Path) -> Classifier | None:
    """The classifier in the folder of a model; None if it has none. Raises ModelError."""
    path = folder / CLASSIFIER / "config.json"
    if not path.is_file():
        return None
    config = read_object(path)
    try:
        classifier = Classifier(config["dims"], config["labels"])
        classifier.load_state_dict(load_file(folder / CLASSIFIER / WEIGHTS))
    except Exception as error:
        raise ModelError(f"{path.parent} does not fit its config: {first_line(error)}") from error
    return classifier.eval()


def write_classifier(classifier: Classifier, folder: Path) -> None:
    """Write the classifier to the folder of a model."""
    (folder / CLASSIFIER).mkdir()
    config = {"labels": list(classifier.labels), "dims": list(classifier.dims)}
    write_json(folder / CLASSIFIER / "config.json", config)
    save_file(classifier.state_dict(), folder / CLASSIFIER / WEIGHTS)
