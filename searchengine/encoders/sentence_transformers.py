"""A SentenceTransformer object as an encoder. The library itself is never imported here."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.protocol import Role
from searchengine.errors import CollectionError

_SLICE = 128  # texts encoded before another thread may have its turn
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # as encode_document tries them


class SentenceTransformerEncoder(FunctionEncoder):
    """Encodes by encode_query and encode_document where the model has them, else by encode.

    Threads take turns, because the model's tokenizer serves one at a time. Long documents are cut
    into passages of what the model reads.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        """Wrap a model. `name`: by default that of its model card, or of its class.

        Raises CollectionError for an object without encode.
        """
        if not callable(getattr(model, "encode", None)):
            raise CollectionError(f"expected a SentenceTransformer, got {type(model).__name__}")
        card = getattr(model, "model_card_data", None)
        named = getattr(card, "model_id", None) or getattr(card, "base_model", None)
        self.model = model
        self._turn = Lock()
        document = getattr(model, "encode_document", model.encode)
        query = getattr(model, "encode_query", None)
        super().__init__(document, name or named or type(model).__name__, query=query)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=Lock())

    def _call(self, texts: list[str], role: Role | None) -> Any:
        parts = []
        for start in range(0, len(texts), _SLICE):
            with self._turn:
                function = self._query if role == "query" and self._query else self._function
                options = {"show_progress_bar": False, "convert_to_numpy": True}
                parts.append(function(texts[start : start + _SLICE], **options))
        return np.concatenate(parts)

    def token_spans(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """The tokens of each text: (n, 2) character offsets [start, end), in order."""
        encoded = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            padding=False,
            truncation=False,
            verbose=False,
        )
        return [np.array(each, np.int32).reshape(-1, 2) for each in encoded["offset_mapping"]]

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the tokenizer knows."""
        return len(self._tokenizer)

    def unknown_tokens(self, texts: Sequence[str]) -> float:
        """Share of the tokens of these texts that the vocabulary does not have, 0–1."""
        encoded = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
        ids = [i for row in encoded["input_ids"] for i in row]
        return ids.count(self._tokenizer.unk_token_id) / len(ids) if ids else 0.0

    def room(self, role: Role) -> int:
        """Tokens left for a text, beside the prompt and special tokens."""
        most = self.model.max_seq_length or self._tokenizer.model_max_length
        prompts = getattr(self.model, "prompts", None) or {}
        names = ("query",) if role == "query" else _DOCUMENT_PROMPTS
        prompt = next((prompts[name] for name in names if prompts.get(name)), "")
        return int(
            most
            - self._tokenizer.num_special_tokens_to_add()
            - sum(len(spans) for spans in self.token_spans([prompt]))
        )

    @cached_property
    def _tokenizer(self) -> Any:
        """A copy of the model's tokenizer: `encode` changes the settings of its own."""
        tokenizer = self.model.tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise CollectionError(
                f"the tokenizer of {self.name} does not say where its tokens are, by which "
                "documents are cut; keep them whole: passages=False"
            )
        with self._turn:
            return deepcopy(tokenizer)
