"""Requests and responses as JSON, with examples; the options of a search are those of Query."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

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
Dimensions = Annotated[int, Field(ge=1, le=most.MAX_DIMENSIONS), _WHOLE]
Question = Annotated[
    str,
    Field(min_length=1, max_length=most.MAX_QUERY, pattern=r"\S", description="A question."),
]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=most.MAX_DIMENSIONS)]
Filter = Annotated[str, Field(max_length=most.MAX_FILTER)]
UrlFilter = Annotated[str, Field(max_length=most.MAX_URL_FILTER)]
FieldName = Annotated[str, Field(max_length=most.MAX_FIELD)]
StoredKey = Annotated[str, Field(max_length=most.MAX_KEY)]
Name = Annotated[str, Field(max_length=64)]
_SEVERAL = Field(min_length=1, max_length=most.MAX_BATCH)


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
    """What a search may ask for, besides its questions."""

    collection: Name | None = Field(None, description="Needed if the server has several.")
    texts: bool = Field(True, description="Whether hits come with the text of their document.")

    def options(self) -> dict[str, Any]:
        """The keywords of SearchEngine.search that differ from their defaults."""
        options = set(_OPTIONS) - {"k", "timeout"}
        chosen: dict[str, Any] = self.model_dump(include=options, exclude_defaults=True)
        return chosen

    def one_of(self, name: str, other: str) -> "SearchOptions":
        """This request. Raises ValueError unless it has exactly one of two fields."""
        if (getattr(self, name) is None) == (getattr(self, other) is None):
            raise ValueError(f"give either {name} or {other}")
        return self


class SearchRequest(SearchOptions):
    """A question, as text or as a vector."""

    model_config = _examples(
        {"query": "how do whales sleep", "k": 5},
        {"query": "whales", "mode": "hybrid", "where": "year >= 2015", "facets": ["lang"]},
    )
    query: Question | None = None
    vector: Vector | None = Field(None, description="In place of `query`.")

    @model_validator(mode="after")
    def _one(self) -> "SearchOptions":
        return self.one_of("query", "vector")


class BatchRequest(SearchOptions):
    """Several questions with the same options."""

    model_config = _examples({"queries": ["how do whales sleep", "when do owls hunt"], "k": 3})
    queries: Annotated[list[Question], _SEVERAL] | None = None
    vectors: Annotated[list[Vector], _SEVERAL] | None = Field(
        None, description="In place of `queries`."
    )

    @model_validator(mode="after")
    def _one(self) -> "SearchOptions":
        return self.one_of("queries", "vectors")


class SimilarRequest(SearchOptions):
    """A stored document, or several, in place of a question."""

    model_config = _examples({"key": "whales", "k": 5}, {"keys": ["whales", "owls"], "k": 5})
    key: StoredKey | None = None
    keys: Annotated[list[StoredKey], Field(min_length=1, max_length=most.MAX_EXAMPLES)] | None = (
        Field(None, description="In place of `key`.")
    )

    @model_validator(mode="after")
    def _one(self) -> "SearchOptions":
        return self.one_of("key", "keys")


class HitModel(BaseModel):
    """A document found; `start` and `end` are the offsets of its best passage in the text."""

    score: float
    key: str
    title: str
    text: str | None = None
    metadata: dict[str, Any]
    start: int
    end: int
    snippet: str
    heading: str = ""
    highlights: list[str] = Field([], description="Words of title and snippet to mark.")
    scores: dict[str, float] = Field({}, description="Parts of the score, and earlier scores.")


class FacetValue(BaseModel):
    """A value of a field, and the number of documents that have it."""

    value: Any
    count: int


class SearchResponse(BaseModel):
    """The hits of one question, best first."""

    collection: str
    hits: list[HitModel]
    facets: dict[str, list[FacetValue]]
    exact: bool = Field(description="Whether these are certainly the true nearest documents.")
    timing: dict[str, float] | None = Field(
        description="Milliseconds: `wait` until the call began, its stages, `total` as the server "
        "saw it; `questions` were answered together and share them."
    )
    notes: list[str] = Field(description="Why there are no hits: fields that no document has.")
    replaced: dict[str, str] = Field(
        description="Unknown words of the question, and the words searched for instead."
    )


class BatchResponse(BaseModel):
    """The hits of many questions, in their order."""

    collection: str
    results: list[SearchResponse]


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
    dimensions: Dimensions | None = Field(None, description="Prefix to keep, scaled to length 1.")
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Role = Field(
        "document", description="Role of the texts, for encoders that tell them apart."
    )
    user: str | None = Field(None, description="Ignored.", max_length=1000)


class EmbeddingsResponse(BaseModel):
    """Vectors of length 1, in the order of the texts."""

    object: Literal["list"] = "list"
    model: str
    data: list[dict[str, Any]] = Field(
        description="`embedding`: numbers, or float32 in little-endian order as base64."
    )
    usage: dict[str, int] = Field(description="Tokens read; 0 without a tokenizer.")
    truncated: list[int] = Field(description="Positions of the inputs that were not read whole.")
    max_tokens: int | None = Field(description="Tokens read of an input; null: any number.")


# ---------------------------------------------------------------------------------------- documents


class DocumentModel(BaseModel):
    """A stored document: its fields and, next to them, its metadata."""

    model_config = _examples(
        {"_id": "whales", "title": "Sleep", "text": "A whale rests …", "year": 2016}, extra="allow"
    )
    key: str = Field(alias="_id")
    title: str
    text: str


class DocumentList(BaseModel):
    """Documents in the order in which they were first added."""

    documents: list[DocumentModel]
    total: int | None = Field(description="Documents that match the filter; null with `after`.")
    next: int | None = Field(description="`after` of the next page; null: there is none.")


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
    where: Filter | None = None
    fields: Annotated[dict[FieldName, Filter | None], Field(max_length=most.MAX_FACETS)] = Field(
        {}, description="Fields whose values are counted, each with a filter of its own."
    )


# ------------------------------------------------------------------------------------------- server
