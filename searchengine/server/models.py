"""Requests as JSON, with examples; the options of a search are those of Query."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from searchengine import server as most
from searchengine.query.request import Query


def _whole(value: Any) -> Any:
    """5.0 as 5: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)
Question = Annotated[
    str, Field(min_length=1, max_length=10_000, pattern=r"\S", description="A question.")
]
Vector = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=8192)
]
FieldName = Annotated[str, Field(max_length=100)]
StoredKey = Annotated[str, Field(max_length=most.MAX_KEY)]
Name = Annotated[str, Field(max_length=64)]


def _examples(*examples: Any, **config: Any) -> Any:
    return {"json_schema_extra": {"examples": list(examples)}, **config}


class Strict(BaseModel):
    """A request: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


_BOUNDS = {
    "k": Field(le=1000, ge=1),
    "offset": Field(le=most.MAX_OFFSET, ge=0),
    "shortlist": Field(le=100_000, ge=1),
    "where": Field(max_length=10_000, examples=["year >= 2015 and lang in ('en', 'ko')"]),
    "group_by": Field(max_length=100),
    "facets": Field(max_length=most.MAX_FACETS),
    "min_score": Field(allow_inf_nan=False),
    "timeout": Field(allow_inf_nan=False, gt=0),
}
"""What a server allows of the options of a search."""


def _in_json(kind: Any) -> Any:
    """A type of Query as JSON has it: of an enumeration its values, a sequence as a list."""
    for part in get_args(kind):
        if isinstance(part, type) and issubclass(part, StrEnum):
            return Literal[tuple(each.value for each in part)]
    return list[FieldName] if get_origin(kind) is Sequence else kind


def _options() -> dict[str, Any]:
    """The fields of Query as those of a model, with their sentences and defaults."""
    options: dict[str, Any] = {}
    for name, hint in get_type_hints(Query, include_extras=True).items():
        if get_origin(hint) is not Annotated:  # JSON has no functions to rerank by
            continue
        kind, sentence = get_args(hint)
        default = getattr(Query(), name)
        default = list(default) if isinstance(default, tuple) else default
        bounds = [_BOUNDS[name]] if name in _BOUNDS else []
        typed = Annotated[(_in_json(kind), *bounds, _WHOLE)]  # type: ignore[valid-type]
        options[name] = (typed, Field(default, description=sentence))
    return options


OPTIONS = _options()
_Options: Any = create_model("_Options", __base__=Strict, **OPTIONS)


class SearchOptions(_Options):  # type: ignore[misc]
    """What a search may ask for, besides its questions.

    Attributes:
        either: two fields, of which a request has one.
    """

    either: ClassVar[tuple[str, str]]
    collection: Name | None = Field(None, description="Needed if the server has several.")
    texts: bool = Field(True, description="Whether hits come with the text of their document.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        name, other = self.either
        if (getattr(self, name) is None) == (getattr(self, other) is None):
            raise ValueError(f"give either {name} or {other}")
        return self


class SearchRequest(SearchOptions):
    """A question, as text or as a vector."""

    model_config = _examples(
        {"query": "how do whales sleep", "k": 5},
        {"query": "whales", "mode": "hybrid", "where": "year >= 2015", "facets": ["lang"]},
    )
    either = ("query", "vector")
    query: Question | None = None
    vector: Vector | None = Field(None, description="In place of `query`.")


_SEVERAL = Field(min_length=1, max_length=256)


class BatchRequest(SearchOptions):
    """Several questions with the same options."""

    model_config = _examples({"queries": ["how do whales sleep", "when do owls hunt"], "k": 3})
    either = ("queries", "vectors")
    queries: Annotated[list[Question], _SEVERAL] | None = None
    vectors: Annotated[list[Vector], _SEVERAL] | None = Field(
        None, description="In place of `queries`."
    )


class SimilarRequest(SearchOptions):
    """A stored document, or several, in place of a question."""

    model_config = _examples({"key": "whales", "k": 5}, {"keys": ["whales", "owls"], "k": 5})
    either = ("key", "keys")
    key: StoredKey | None = None
    keys: Annotated[list[StoredKey], Field(min_length=1, max_length=100)] | None = Field(
        None, description="In place of `key`."
    )


_Text = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"\S")]


def _as_list(value: Any) -> Any:
    """A text as a list of one. Raises ValueError for tokens."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise ValueError(
            "send texts, not tokens; LangChain's OpenAIEmbeddings sends texts with "
            "check_embedding_ctx_length=False"
        )
    return [value] if isinstance(value, str) else value


class EmbeddingsRequest(Strict):
    """Texts to encode, in the shape of OpenAI's API."""

    model_config = _examples(
        {"model": "papers", "input": ["how do whales sleep"], "dimensions": 64}
    )
    model: Name | None = Field(None, description="The collection whose encoder is used.")
    input: Annotated[
        list[_Text],
        Field(min_length=1, max_length=2048, description="A text or several."),
        BeforeValidator(_as_list, json_schema_input_type=_Text | list[_Text]),
    ]
    dimensions: Annotated[int, Field(ge=1, le=8192), _WHOLE] | None = Field(
        None, description="Prefix to keep, scaled to length 1."
    )
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "document"] = Field(
        "document", description="Role of the texts, for encoders that tell them apart."
    )
    user: str | None = Field(None, description="Ignored.", max_length=1000)


class MapRequest(Strict):
    """What to place on a map besides a sample of the documents."""

    model_config = _examples({"query": "how do whales sleep", "keys": ["whales"]})
    query: Question | None = None
    keys: list[StoredKey] = Field([], max_length=100)
    version: str | None = Field(None, max_length=64, description="The one of the last response.")


class FacetsRequest(Strict):
    """Fields whose values are counted."""

    model_config = _examples({"fields": ["lang"], "where": "year >= 2015"})
    fields: Annotated[list[FieldName], Field(max_length=most.MAX_FACETS)] = []
    where: Annotated[str, _BOUNDS["where"]] | None = None
