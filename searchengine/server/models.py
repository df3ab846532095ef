"""Requests as JSON, with examples; the options of a search are those of Query."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    create_model,
    model_validator,
)

from searchengine.query.request import Query
from searchengine.server import server_settings as most


def _whole(value: Any) -> Any:
    """5.0 as 5: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)
Question = Annotated[
    str,
    Field(min_length=1, max_length=most.MAX_QUERY, pattern=r"\S", description="A question."),
]
Vector = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]],
    Field(min_length=1, max_length=most.MAX_DIMENSIONS),
]
UrlFilter = Annotated[str, Field(max_length=most.MAX_URL_FILTER)]
FieldName = Annotated[str, Field(max_length=most.MAX_FIELD)]
StoredKey = Annotated[str, Field(max_length=most.MAX_KEY)]
Name = Annotated[str, Field(max_length=64)]


def _examples(*examples: Any, **config: Any) -> Any:
    return {"json_schema_extra": {"examples": list(examples)}, **config}


class Strict(BaseModel):
    """A request: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


# ------------------------------------------------------------------------------------------- search

_BOUNDS = {
    "k": Field(le=most.MAX_K, ge=1),
    "offset": Field(le=most.MAX_OFFSET, ge=0),
    "shortlist": Field(le=most.MAX_SHORTLIST, ge=1),
    "where": Field(max_length=most.MAX_FILTER, examples=["year >= 2015 and lang in ('en', 'ko')"]),
    "group_by": Field(max_length=most.MAX_FIELD),
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


_OPTIONS = _options()
_Options: Any = create_model("_Options", __base__=Strict, **_OPTIONS)


class SearchOptions(_Options):  # type: ignore[misc]
    """What a search may ask for, besides its questions.

    Attributes:
        either: two fields, of which a request has one.
    """

    either: ClassVar[tuple[str, str]]
    collection: Name | None = Field(None, description="Needed if the server has several.")
    texts: bool = Field(True, description="Whether hits come with the text of their document.")

    def options(self) -> dict[str, Any]:
        """The keywords of SearchEngine.search that differ from their defaults."""
        options = set(_OPTIONS) - {"k", "timeout"}
        chosen: dict[str, Any] = self.model_dump(include=options, exclude_defaults=True)
        return chosen

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


_SEVERAL = Field(min_length=1, max_length=most.MAX_BATCH)


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
    keys: Annotated[list[StoredKey], Field(min_length=1, max_length=most.MAX_EXAMPLES)] | None = (
        Field(None, description="In place of `key`.")
    )


# --------------------------------------------------------------------------------------- embeddings

Role = Literal["query", "document"]
_Text = Annotated[str, Field(min_length=1, max_length=most.MAX_INPUT, pattern=r"\S")]
_Texts = Annotated[list[_Text], Field(min_length=1, max_length=most.MAX_INPUTS)]


def _only_texts(value: Any) -> Any:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise ValueError(
            "send texts, not tokens; LangChain's OpenAIEmbeddings sends texts with "
            "check_embedding_ctx_length=False"
        )
    return value


Input = Annotated[
    Annotated[_Text, Tag("text")] | Annotated[_Texts, Tag("texts")],
    Discriminator(lambda value: "texts" if isinstance(value, list) else "text"),
    BeforeValidator(_only_texts),
]


class EmbeddingsRequest(Strict):
    """Texts to encode, in the shape of OpenAI's API."""

    model_config = _examples(
        {"model": "papers", "input": ["how do whales sleep"], "dimensions": 64}
    )
    model: Name | None = Field(None, description="The collection whose encoder is used.")
    input: Input = Field(description="A text or several.")
    dimensions: Annotated[int, Field(ge=1, le=most.MAX_DIMENSIONS), _WHOLE] | None = Field(
        None, description="Prefix to keep, scaled to length 1."
    )
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Role = Field(
        "document", description="Role of the texts, for encoders that tell them apart."
    )
    user: str | None = Field(None, description="Ignored.", max_length=1000)


# ---------------------------------------------------------------------------------------- documents


class KeysRequest(Strict):
    """Documents by their keys."""

    model_config = _examples({"keys": ["whales", "owls"]})
    keys: Annotated[list[StoredKey], Field(max_length=most.MAX_PAGE)]


class NewDocument(BaseModel):
    """A document to store: `text` or `title`, and any metadata next to them."""

    model_config = _examples(
        {"title": "Sleep", "text": "A whale rests half of its brain.", "year": 2016},
        extra="allow",
        strict=True,
    )
    title: str = ""
    text: str = ""


class Patch(BaseModel):
    """Metadata to merge; null removes a field."""

    model_config = _examples({"checked": True, "year": None}, extra="allow")


# --------------------------------------------------------------------------------------------- page


class MapRequest(Strict):
    """What to place on a map besides a sample of the documents."""

    model_config = _examples({"query": "how do whales sleep", "keys": ["whales"]})
    query: Question | None = None
    keys: list[StoredKey] = Field([], max_length=100)
    version: str | None = Field(None, max_length=64, description="The one of the last response.")


class CountRequest(Strict):
    """What to count."""

    model_config = _examples({"query": "whales", "fields": {"lang": "year >= 2015"}})
    query: Question | None = None
    mode: Literal["auto", "vector", "text", "hybrid"] = "auto"
    typo_tolerance: bool = True
    where: Annotated[str, _BOUNDS["where"]] | None = None
    fields: Annotated[
        dict[FieldName, Annotated[str, _BOUNDS["where"]] | None],
        Field(max_length=most.MAX_FACETS),
    ] = Field({}, description="Fields whose values are counted, each with a filter of its own.")
