"""The encoder: text to unit vectors. Inference only; `trainer.loop` trains.

encoder = Encoder.load("starter")
vectors = encoder.encode(["how do whales sleep"], role="query")    # (1, 384) float32, unit rows
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import huggingface_hub
import numpy as np
from numpy.typing import NDArray

from trainer.errors import ModelError
from trainer.folder import Model, read_model
from trainer.modules import SentenceModule
from trainer.network import truncated
from trainer.runtime import TorchRuntime, token_budget_batches
from trainer.saving import write_model
from trainer.starter import Starter, read_starter
from trainer.tokens import Ids, TokenIds, normalised

Role = Literal["query", "document"]
# The prompt names that serve a role, in order; what sentence-transformers tries as well.
ROLE_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
# Texts tokenised and sorted at a time: bounds memory, and long enough that batches are even.
CHUNK = 4096
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]


class Encoder:
    """A sentence encoder, made by `Encoder.load`.

    Its weights are those of `module` when it is made; after training them, make a new Encoder.
    """

    def __init__(
        self,
        model: Model,
        source: str,
        *,
        precision: str = "auto",
        device: str | None = None,
    ):
        self._model = model
        self._source = source
        self._runtime = TorchRuntime(model.module, precision, device)
        self._tokens = TokenIds(model.tokenizer, model.max_tokens)
        self._fingerprint: str | None = None

    @classmethod
    def load(
        cls,
        source: str | Path = Starter.PUBLISHED,
        *,
        precision: Literal["auto", "fp32", "bf16"] = "auto",
        device: str | None = None,
    ) -> "Encoder":
        """The encoder in a folder, on the model hub, or packaged as "starter" or "starter-768".

        precision: of the transformer; "auto" is bf16 where the processor computes it natively.
        device: a torch device name; by default the fastest there is. Raises ModelError.
        """
        if isinstance(source, str) and source in list(Starter):
            name = Starter(source)
            return cls(read_starter(name), name.value, precision=precision, device=device)
        folder = Path(source)
        if folder.is_dir():
            name_again = str(folder.resolve())
        elif isinstance(source, str) and _may_be_hub_name(source):
            folder, name_again = _from_hub(source), source
        else:
            raise ModelError(
                f"no model at {source}: expected a model folder, a name on the model hub, or "
                f"one of {', '.join(Starter)}"
            )
        return cls(read_model(folder), name_again, precision=precision, device=device)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self._model.module.dim

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The prefix lengths this model is meant for, descending; the first is `dim`."""
        return self._model.matryoshka_dims

    @property
    def max_tokens(self) -> int:
        """Tokens read of a text, special tokens included; the rest is cut off."""
        return self._model.max_tokens

    @property
    def prompts(self) -> Mapping[str, str]:
        """What the model wants in front of a text, by name; read-only."""
        return MappingProxyType(dict(self._model.prompts))

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How the model was made, where its folder says so."""
        return MappingProxyType(dict(self._model.recipe))

    @property
    def source(self) -> str:
        """What to give `load` to get this encoder again; absolute for folders."""
        return self._source

    @property
    def precision(self) -> str:
        """The arithmetic in use: "fp32" or "bf16"."""
        return self._runtime.precision.value

    @property
    def model(self) -> Model:
        """All parts, for training and saving."""
        return self._model

    @property
    def module(self) -> SentenceModule:
        """The torch module with float32 weights."""
        return self._model.module

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of everything that decides what vector a text gets.

        Weights as float32 bytes in the order of their names, tokenizer, pooling and head, length
        limit, prompts. The same before a save and after a load, on any device, in any precision.
        """
        if self._fingerprint is None:
            self._fingerprint = _fingerprint(self._model)
        return self._fingerprint

    def __repr__(self) -> str:
        return f"Encoder({self.source!r}, dim={self.dim}, precision={self.precision!r})"

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Unit rows (n, dim) float32, in the order of `texts`.

        role: puts the model's prompt for queries or documents in front, where it has one. on_batch:
        called after each batch with the number of texts it finished; the numbers add up to n.
        Raises ModelError for anything that is not a sequence of str.
        """
        _check_texts(texts)
        prompt = self.prompt(role)
        prompt_tokens = 0
        if prompt and not self.module.pooling.include_prompt:
            prompt_tokens = self._tokens.prompt_tokens(prompt)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for start in range(0, len(texts), CHUNK):
            # Equal texts get equal vectors: encode them once. places: text -> its rows.
            places: dict[str, list[int]] = {}
            for row, text in enumerate(texts[start : start + CHUNK], start):
                places.setdefault(text, []).append(row)
            ids = self._tokens([prompt + text for text in places] if prompt else list(places))
            rows = list(places.values())
            self._encode_ids(ids, rows, vectors, prompt_tokens, on_batch)
        return vectors

    def _encode_ids(
        self,
        ids: list[Ids],
        rows: list[list[int]],
        vectors: NDArray[np.float32],
        prompt_tokens: int,
        on_batch: Callable[[int], None] | None,
    ) -> None:
        """Fill vectors[rows[i]] from ids[i]."""
        for batch in token_budget_batches([len(row) for row in ids], self._runtime.token_budget):
            found = self._runtime.run(self._tokens.pad([ids[i] for i in batch], prompt_tokens))
            for i, vector in zip(batch, found, strict=True):
                vectors[rows[i]] = vector
            if on_batch is not None:
                on_batch(sum(len(rows[i]) for i in batch))

    def prompt(self, role: Role | None) -> str:
        """What `encode` puts in front of a text of this role; "" for nothing."""
        if role is None:
            default = self._model.default_prompt
            return "" if default is None else self._model.prompts[default]
        if role not in ROLE_PROMPTS:
            raise ModelError(
                f"role is {role!r}: expected one of {', '.join(ROLE_PROMPTS)}, or none"
            )
        for name in ROLE_PROMPTS[role]:
            if name in self._model.prompts:
                return self._model.prompts[name]
        return ""

    def token_spans(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Where the tokens of each text lie: (n, 2) character offsets [start, end), in order.

        The text's own tokens, however many there are: no prompt, no special tokens, no truncation.
        Neighbours may share characters. Raises ModelError as `encode` does.
        """
        _check_texts(texts)
        return self._tokens.spans(texts)

    def room(self, role: Role | None = None) -> int:
        """How many tokens of a text are read: `max_tokens` less the prompt and special tokens.

        A text of more is truncated by `encode`. Raises ModelError for an unknown role.
        """
        return self._tokens.room(self.prompt(role))

    def truncate(self, *, layers: int) -> "Encoder":
        """A shallower encoder: the first `layers` layers of the network, all else as it is.

        Faster, and still good where the model was trained for it (2-D Matryoshka, Li et al.,
        arXiv 2402.14776). It shares nothing with this one. Raises ModelError for a number of
        layers that the network does not have.
        """
        module = self.module
        if not 1 <= layers <= module.layers:
            raise ModelError(f"layers is {layers}: expected 1 to {module.layers}, what it has")
        if module.mix is not None:
            raise ModelError("this model averages several layers: it cannot do with the first ones")
        network = truncated(module.transformer, layers)
        head: Any = list(copy.deepcopy(module.head))
        shallow = SentenceModule(network, module.pooling, head).eval()
        model = replace(self.model, module=shallow)
        source = f"{self.source}, cut to {layers} layers"
        precision, device = self.precision, str(self._runtime.device)
        return Encoder(model, source, precision=precision, device=device)

    def save(self, path: str | Path) -> None:
        """Write a sentence-transformers folder: safetensors weights, prompts, dims and recipe.

        The folder appears at once or not at all; an older model there is replaced, anything else
        refused with a ModelError.
        """
        write_model(self._model, Path(path))


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        raise ModelError(
            f"texts is a {type(texts).__name__}: expected a list of str, such as [{'text'!r}]"
        )
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ModelError(f"texts[{i}] is a {type(text).__name__}: expected str")


def _fingerprint(model: Model) -> str:
    digest = hashlib.sha256()
    module = model.module
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {list(weight.shape)}\n".encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().data)
    rest = {
        "tokenizer": normalised(model.tokenizer.backend_tokenizer),
        "pooling": [*map(str, module.pooling.modes), module.pooling.include_prompt],
        "head": [
            [type(layer).__name__, getattr(layer, "activation_name", "")] for layer in module.head
        ],
        "max_tokens": model.max_tokens,
        "prompts": dict(model.prompts),
        "default_prompt": model.default_prompt,
    }
    if module.mix is not None:  # said only then: older models keep their fingerprints
        rest["first_mixed_layer"] = module.mix.start
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()


def _may_be_hub_name(source: str) -> bool:
    """`name` or `owner/name`, as opposed to a path that is not there."""
    parts = source.split("/")
    return (
        len(parts) <= 2 and all(parts) and parts[0] not in (".", "..", "~") and "\\" not in source
    )


def _from_hub(name: str) -> Path:
    """The folder of a hub model: downloaded, or from the cache where there is no network."""
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:
        raise ModelError(
            f"no folder {name!r} here, and the model hub did not give a model of that name "
            f"({type(error).__name__}): check the spelling (owner/name) and the network, or name a "
            "model folder or `starter`"
        ) from error
