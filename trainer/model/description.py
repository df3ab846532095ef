"""A model without its weights: its widths, tokens and prompts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from trainer.model.tokens import Tokenization


@dataclass(frozen=True, slots=True)
class Description:
    """A model without its weights.

    Attributes:
        dim: width of a vector.
        layers: number of layers of the network.
        matryoshka_dims: trained prefix lengths, descending; the first is `dim`.
        tokens: how texts become token ids.
        prompts, default_prompt: put in front of texts, by name.
        include_prompt: whether the prompt's tokens are pooled.
        recipe: how the model was trained.
    """

    dim: int
    layers: int
    matryoshka_dims: tuple[int, ...]
    tokens: Tokenization
    prompts: Mapping[str, str]
    default_prompt: str | None
    include_prompt: bool
    recipe: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        values = asdict(self)
        return values | {"prompts": dict(self.prompts), "recipe": dict(self.recipe)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`. Raises TypeError or KeyError for anything else."""
        tokens = dict(values["tokens"])
        tokens["special_ids"] = tuple(tokens["special_ids"])
        dims = tuple(values["matryoshka_dims"])
        rest = dict(values) | {"tokens": Tokenization(**tokens), "matryoshka_dims": dims}
        return cls(**rest)
