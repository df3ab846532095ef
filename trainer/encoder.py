"""The encoder: text to unit vectors. Inference only; `trainer.training.loop` trains.

encoder = Encoder.load("starter")
vectors = encoder.encode(["how do whales sleep"], role="query")    # (1, 384) float32, unit rows
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ModelError
from trainer.model.source import Source, Starter
from trainer.model.tokens import Ids, TokenIds
from trainer.runtimes.config import Engine, Precision, RuntimeConfig
from trainer.runtimes.handle import Backing
from trainer.runtimes.runtime import Vectors, ahead, token_budget_batches

if TYPE_CHECKING:  # both are torch, which takes seconds and which a compiled graph does without
    from trainer.model.folder import Model
    from trainer.model.modules import SentenceModule

Role = Literal["query", "document"]
# The prompt names that serve a role, in order; what sentence-transformers tries as well.
ROLE_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
# Texts tokenised and sorted at a time: bounds memory, and long enough that batches are even.
CHUNK = 2048
# Half of what a batch computes may be padding at worst, where few texts are of many lengths.
ALIKE = 0.5


class Encoder:
    """A sentence encoder, made by `Encoder.load`; or of a model in memory, which torch runs.

    Its weights are those of `module` when it is made; after training them, make a new Encoder.
    Safe to use from several threads.
    """

    def __init__(
        self,
        model: "Model",
        source: str,
        *,
        precision: Precision | str = Precision.AUTO,
        device: str | None = None,
    ):
        """source: what to give `load` to get it again."""
        self._set(Backing(RuntimeConfig(Engine.TORCH, precision, device), model, None), source)

    def _set(self, backing: Backing, source: str) -> None:
        self._backing = backing
        self._source = source
        self._about = backing.description
        self._tokens = TokenIds(self._about.tokens)

    @classmethod
    def _of(cls, backing: Backing, source: str) -> "Encoder":
        encoder = cls.__new__(cls)
        encoder._set(backing, source)
        return encoder

    @classmethod
    def load(
        cls,
        source: str | Path = Starter.PUBLISHED,
        *,
        engine: Engine | str = Engine.AUTO,
        precision: Precision | str = Precision.AUTO,
        device: str | None = None,
        layers: int | None = None,
        trust_remote_code: bool = False,
    ) -> "Encoder":
        """The encoder in a folder, on the model hub, or packaged as "starter" or "starter-768".

        The first text that OpenVINO encodes by a model compiles the model, which takes torch and
        some seconds; what is compiled is kept beside it, and the next process needs neither.

        Args:
            source: a folder, a hub name, or a packaged model.
            engine: what runs the network; see config.RuntimeConfig, also for the next two.
            precision: of the transformer; pooling and head are always float32.
            device: a torch device name; by default the fastest there is.
            layers: the first so many layers of the network alone, as `truncate` does.
            trust_remote_code: run Python code that comes with the model, which is logged as a
                warning. Without it the code is never run, and a model that needs it is refused.

        Raises:
            ModelError: there is no such model, or it cannot be run as asked.
        """
        config = RuntimeConfig(engine, precision, device, trust_remote_code)
        found = Source.find(source, layers, trust_remote_code=trust_remote_code)
        return cls._of(Backing(config, None, found), found.name)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self._about.dim

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The prefix lengths this model is meant for, descending; the first is `dim`."""
        return self._about.matryoshka_dims

    @property
    def max_tokens(self) -> int:
        """Tokens read of a text, special tokens included; the rest is cut off."""
        return self._about.tokens.max_tokens

    @property
    def prompts(self) -> Mapping[str, str]:
        """What the model wants in front of a text, by name; read-only."""
        return MappingProxyType(dict(self._about.prompts))

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How the model was made, where its folder says so."""
        return MappingProxyType(dict(self._about.recipe))

    @property
    def source(self) -> str:
        """What to give `load` to get this encoder again; absolute for folders."""
        return self._source

    @property
    def layers(self) -> int:
        """How many layers the network has."""
        return self._about.layers

    @property
    def kept_layers(self) -> int | None:
        """The first so many layers of the source's network are used; None: all of them."""
        source = self._backing.source
        return None if source is None else source.layers

    @property
    def runs_on(self) -> str:
        """Engine and precision, as "openvino bf16", told without starting them."""
        return self._backing.choice

    @property
    def ready(self) -> bool:
        """Whether it encodes at once; else it is compiled first, which takes some seconds."""
        return self._backing.ready

    @property
    def engine(self) -> str:
        """What runs the network: "openvino" or "torch"."""
        return self._backing.runtime.engine.value

    @property
    def precision(self) -> str:
        """The arithmetic in use: "fp32", "bf16", "fp16" or "int8"."""
        return self._backing.runtime.precision.value

    @property
    def model(self) -> "Model":
        """All parts, for training and saving."""
        return self._backing.model

    @property
    def module(self) -> "SentenceModule":
        """The torch module with float32 weights."""
        return self._backing.model.module

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of everything that decides what vector a text gets.

        Weights as float32 bytes in the order of their names, the network's configuration as far as
        it changes vectors, tokenizer, truncation, pooling and head, length limit, prompts. The same
        before a save and after a load, on any device, in any precision.
        """
        return self._backing.fingerprints[0]

    @property
    def former_fingerprints(self) -> tuple[str, ...]:
        """Those that older versions gave this encoder, by which their collections know it."""
        return self._backing.fingerprints[1:]

    def __repr__(self) -> str:
        return f"Encoder({self.source!r}, dim={self.dim}, layers={self.layers})"

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
        # Equal texts get equal vectors: encode them once.
        places: dict[str, int] = {}
        rows = np.array([places.setdefault(text, len(places)) for text in texts], np.int64)
        counts = np.bincount(rows, minlength=len(places))
        vectors = np.empty((len(places), self.dim), dtype=np.float32)
        prompt = self.prompt(role)
        # Leading tokens of a prompted text that are not to be pooled.
        skipped = 0 if self._about.include_prompt else self._tokens.prompt_tokens(prompt)
        for start, ids in self._tokenised(list(places), prompt):
            for batch, found in self._run(ids, skipped):
                here = start + np.array(batch)
                vectors[here] = found
                if on_batch is not None:
                    on_batch(int(counts[here].sum()))
        return vectors if len(places) == len(texts) else vectors[rows]

    def _tokenised(self, texts: list[str], prompt: str) -> Iterator[tuple[int, list[Ids]]]:
        """Token ids of a chunk of texts, and where it begins; the next while one is computed."""

        def chunk(start: int) -> tuple[int, list[Ids]]:
            some = texts[start : start + CHUNK]
            return start, self._tokens([prompt + text for text in some] if prompt else some)

        starts = range(0, len(texts), CHUNK)
        # A thread has its price, which a single question should not pay.
        return map(chunk, starts) if len(starts) < 2 else ahead(map(chunk, starts))

    def _run(self, ids: list[Ids], prompt_tokens: int) -> Iterator[tuple[list[int], Vectors]]:
        """Positions in `ids` and their unit rows, a batch at a time."""
        runtime = self._backing.runtime
        # One row is a batch, whatever the budget, which may have to be found first.
        budget = runtime.token_budget if len(ids) > 1 else 1
        alike = 0.0 if runtime.packs else ALIKE
        for batch in token_budget_batches([len(row) for row in ids], budget, alike):
            rows = [ids[i] for i in batch]
            yield batch, runtime.run(self._tokens.pad(rows, prompt_tokens, runtime.multiple))

    def prompt(self, role: Role | None) -> str:
        """What `encode` puts in front of a text of this role; "" for nothing."""
        if role is None:
            default = self._about.default_prompt
            return "" if default is None else self._about.prompts[default]
        if role not in ROLE_PROMPTS:
            raise ModelError(
                f"role is {role!r}: expected one of {', '.join(ROLE_PROMPTS)}, or none"
            )
        for name in ROLE_PROMPTS[role]:
            if name in self._about.prompts:
                return self._about.prompts[name]
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
        arXiv 2402.14776). `load(source, layers=…)` gives the same. Raises ModelError for a number
        of layers that the network does not have.
        """
        config = self._backing.config
        if type(layers) is not int or not 1 <= layers <= self.layers:
            raise ModelError(f"layers is {layers!r}: expected 1 to {self.layers}, what it has")
        if self._backing.source is None:
            from trainer.model.loading import shallower

            return Encoder._of(Backing(config, shallower(self.model, layers), None), self.source)
        source = replace(self._backing.source, layers=layers)
        return Encoder._of(Backing(config, None, source), self.source)

    def save(self, path: str | Path) -> None:
        """Write a sentence-transformers folder: safetensors weights, prompts, dims and recipe.

        The folder appears at once or not at all; an older model there is replaced, anything else
        refused with a ModelError.
        """
        from trainer.model.saving import write_model

        write_model(self.model, Path(path))


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        raise ModelError(
            f"texts is a {type(texts).__name__}: expected a list of str, such as [{'text'!r}]"
        )
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ModelError(f"texts[{i}] is a {type(text).__name__}: expected str")
