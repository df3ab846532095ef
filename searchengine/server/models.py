"""Requests and responses as JSON, with examples for OpenAPI."""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    model_validator,
)

from searchengine.server import server_settings as limits

_MANY = 1 << 18  # values in a body, whose reading at once would hold up every other request


class _Reader(json.JSONDecoder):
    """Reads JSON in Python's own code, which lets other threads run; ten times as slow."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = json.decoder.JSONObject  # type: ignore[attr-defined]
        self.parse_string = json.decoder.py_scanstring  # type: ignore[attr-defined]
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


class _Request(Request):
    async def json(self) -> Any:
        body = await self.body()
        if body.count(b",") < _MANY:
            return await super().json()
        text = body.decode(json.detect_encoding(body), "surrogatepass")  # as json.loads
        return await asyncio.to_thread(_Reader().decode, text)


class Route(APIRoute):
    """A route whose requests may have millions of values: they are read beside other requests."""

    def get_route_handler(self) -> Callable[..., Any]:
        """The handler of requests, with their bodies read as above."""
        handle = super().get_route_handler()

        async def read_beside(request: Request) -> Any:
            return await handle(_Request(request.scope, request.receive))

        return read_beside


def _whole(value: Any) -> Any:
    """5.0 as 5: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _between(least: int, most: int) -> Any:
    return Field(ge=least, le=most)


_WHOLE = BeforeValidator(_whole)
Shortlist = Annotated[int, _between(1, limits.MAX_SHORTLIST), _WHOLE]
Dimensions = Annotated[int, _between(1, limits.MAX_DIMENSIONS), _WHOLE]
_QUESTION = Field(
    min_length=1, max_length=limits.MAX_QUERY, pattern=r"\S", description="A question."
)
Question = Annotated[str, _QUESTION]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=limits.MAX_DIMENSIONS)]
Filter = Annotated[str, Field(max_length=limits.MAX_FILTER)]
UrlFilter = Annotated[str, Field(max_length=limits.MAX_URL_FILTER)]
FieldName = Annotated[str, Field(max_length=limits.MAX_FIELD)]
StoredKey = Annotated[str, Field(max_length=limits.MAX_KEY)]
Name = Annotated[str, Field(max_length=64)]
_SEVERAL = Field(min_length=1, max_length=limits.MAX_EXAMPLES)


class Strict(BaseModel):
    """A request: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SearchOptions(Strict):
    """What a search may ask for, besides its questions."""

    collection: Name | None = Field(None, description="Needed if the server has several.")
    k: Annotated[int, _between(1, limits.MAX_K), _WHOLE] = Field(10, description="Number of hits.")
    where: Filter | None = Field(
        None, description="Metadata filter.", examples=["year >= 2015 and lang in ('en', 'ko')"]
    )
    mode: Literal["auto", "vector", "text", "hybrid"] = Field(
        "auto", description="Rank by vectors, by words, by both, or as the collection was made for."
    )
    shortlist: Shortlist | None = Field(
        None, description="Candidates of each segment to rerank at full width."
    )
    exact: bool = Field(False, description="Return the true nearest documents.")
    group_by: FieldName | None = Field(None, description="One hit per value of a field.")
    offset: Annotated[int, _between(0, limits.MAX_OFFSET), _WHOLE] = Field(
        0, description="Hits to skip."
    )
    min_score: Number | None = Field(None, description="Minimum score of a hit.")
    facets: list[FieldName] = Field(
        [], max_length=limits.MAX_FACETS, description="Fields whose values are counted."
    )
    phrases: Literal["scored", "required"] = Field(
        "scored", description="Rank documents with phrases in quotation marks higher, or no others."
    )
    typo_tolerance: bool = Field(
        True, description="Replace words that no document has by the nearest that documents have."
    )
    texts: bool = Field(True, description="Whether hits come with the text of their document.")
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Seconds that the search may take; null: as many as the server allows."
    )

    def options(self) -> dict[str, Any]:
        """The keywords of SearchEngine.search that differ from their defaults."""
        left_out = {"collection", "k", "texts", "query", "vector", "queries", "vectors"}
        left_out |= {"key", "keys", "timeout"}
        return self.model_dump(exclude=left_out, exclude_defaults=True)


class SearchRequest(SearchOptions):
    """A question, as text or as a vector."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "how do whales sleep", "k": 5},
                {"query": "whales", "mode": "hybrid", "where": "year >= 2015", "facets": ["lang"]},
            ]
        }
    )
    query: Question | None = None
    vector: Vector | None = Field(None, description="In place of `query`.")

    @model_validator(mode="after")
    def _query_or_vector(self) -> "SearchRequest":
        if (self.query is None) == (self.vector is None):
            raise ValueError("give either query or vector")
        return self


class ExplainRequest(SearchRequest):
    """A search, and the key of a document that it may not find."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "how do whales sleep", "key": "whales", "k": 5}]}
    )
    key: StoredKey


class BatchRequest(SearchOptions):
    """Several questions with the same options."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"queries": ["how do whales sleep", "when do owls hunt"], "k": 3}]
        }
    )
    queries: Annotated[list[Question], Field(min_length=1, max_length=limits.MAX_BATCH)] | None = (
        None
    )
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=limits.MAX_BATCH)] | None = (
        Field(None, description="In place of `queries`.")
    )

    @model_validator(mode="after")
    def _queries_or_vectors(self) -> "BatchRequest":
        if (self.queries is None) == (self.vectors is None):
            raise ValueError("give either queries or vectors")
        return self


class SimilarRequest(SearchOptions):
    """A stored document, or several, in place of a question."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"key": "whales", "k": 5}, {"keys": ["whales", "owls"], "k": 5}]
        }
    )
    key: StoredKey | None = None
    keys: Annotated[list[StoredKey], _SEVERAL] | None = Field(
        None, description="In place of `key`."
    )

    @model_validator(mode="after")
    def _key_or_keys(self) -> "SimilarRequest":
        if (self.key is None) == (self.keys is None):
            raise ValueError("give either key or keys")
        return self


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


class TimingModel(BaseModel):
    """Milliseconds of each stage; `questions` were answered together and share them.

    `wait`: until the call began. `total`: all of it, as the server saw it.
    """

    wait: float
    encode: float
    search: float
    fetch: float
    total: float
    questions: int


class SearchResponse(BaseModel):
    """The hits of one question, best first."""

    collection: str
    hits: list[HitModel]
    facets: dict[str, list[FacetValue]]
    exact: bool = Field(description="Whether these are certainly the true nearest documents.")
    timing: TimingModel | None
    notes: list[str] = Field(description="Why there are no hits: fields that no document has.")
    replaced: dict[str, str] = Field(
        description="Unknown words of the question, and the words searched for instead."
    )


class ExplainResponse(BaseModel):
    """Why a search finds a document or not; null: it has no such rank."""

    collection: str
    text: str = Field(description="All of it as one sentence.")
    key: str
    rank: int | None = Field(description="In the search, from 1; null: not found.")
    reason: str = Field(description="Why it is not found, else empty.")
    matches: bool | None = Field(description="Whether it matches the filter; null without one.")
    vector: int | None = Field(description="By the full-width cosine, among all that match.")
    words: int | None = Field(description="By BM25, among all that match.")
    shortlist: int | None = Field(description="By the prefix, of its best passage.")
    fused: int | None = Field(description="Before group_by and min_score.")


class BatchResponse(BaseModel):
    """The hits of many questions, in their order."""

    collection: str
    results: list[SearchResponse]


Role = Literal["query", "document"]
_Text = Annotated[str, Field(min_length=1, max_length=limits.MAX_INPUT, pattern=r"\S")]
_INPUTS = Field(min_length=1, max_length=limits.MAX_INPUTS)


def _only_texts(value: Any) -> Any:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise ValueError(
            "send texts, not tokens; LangChain's OpenAIEmbeddings sends texts with "
            "check_embedding_ctx_length=False"
        )
    return value


def _kind(value: Any) -> str:
    """Which of the two kinds of input is meant, so that an error is of that one alone."""
    return "texts" if isinstance(value, list) else "text"


Input = Annotated[
    Annotated[_Text, Tag("text")] | Annotated[list[_Text], _INPUTS, Tag("texts")],
    Discriminator(_kind),
    BeforeValidator(_only_texts),
]


class EmbeddingsRequest(Strict):
    """Texts to encode, in the shape of OpenAI's API."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "papers", "input": ["how do whales sleep"], "dimensions": 64}]
        }
    )
    model: Name | None = Field(None, description="The collection whose encoder is used.")
    input: Input = Field(description="A text or several.")
    dimensions: Dimensions | None = Field(None, description="Prefix to keep, scaled to length 1.")
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Role = Field(
        "document", description="Role of the texts, for encoders that tell them apart."
    )
    user: str | None = Field(None, description="Ignored.", max_length=1000)


class Embedding(BaseModel):
    """A vector: numbers, or float32 in little-endian order as base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were read of all texts; 0 if the encoder has no tokenizer."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Vectors of length 1, in the order of the texts."""

    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: Usage
    truncated: list[int] = Field(description="Positions of the inputs that were not read whole.")
    max_tokens: int | None = Field(description="Tokens read of an input; null: any number.")


class ModelInfo(BaseModel):
    """A model of the embeddings route; `created`: when its collection last changed."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelInfo]


class DocumentModel(BaseModel):
    """A stored document: its fields and, next to them, its metadata."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"_id": "whales", "title": "Sleep", "text": "A whale rests …", "year": 2016}
            ]
        },
    )
    key: str = Field(alias="_id")
    title: str
    text: str


class DocumentList(BaseModel):
    """Documents in the order in which they were first added."""

    documents: list[DocumentModel]
    total: int | None = Field(description="Documents that match the filter; null with `after`.")
    next: int | None = Field(description="`after` of the next page; null: there is none.")


class KeyList(BaseModel):
    """Keys of documents in the order in which they were first added."""

    keys: list[str]
    next: int | None = Field(description="`after` of the next page; null: there is none.")


class KeysRequest(Strict):
    """Documents by their keys."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"keys": ["whales", "owls"]}]})
    keys: Annotated[list[StoredKey], Field(max_length=limits.MAX_PAGE)]


class Documents(BaseModel):
    """Documents in the order of the request; null for an unknown key.

    Of long documents only those of the first keys: ask again for the others.
    """

    documents: list[DocumentModel | None]


class Vectors(BaseModel):
    """For each key a vector of each passage, in their order; null for an unknown key.

    Of many passages only those of the first keys: ask again for the others.
    """

    vectors: list[list[list[float]] | None]
    dim: int = Field(description="Dimensions of a vector.")


class FacetsResponse(BaseModel):
    """Field → its values, most frequent first."""

    facets: dict[str, list[FacetValue]]


class MapRequest(Strict):
    """What to place on a map besides a sample of the documents."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "how do whales sleep", "keys": ["whales"]}]}
    )
    query: Question | None = None
    keys: list[StoredKey] = Field([], max_length=100)
    version: str | None = Field(None, max_length=64, description="The one of the last response.")


class Place(BaseModel):
    """A point of the map."""

    x: float
    y: float


class DocumentPlace(Place):
    """A document on the map."""

    key: str
    title: str


class MapResponse(BaseModel):
    """Documents on the first two principal components of a sample."""

    version: str = Field(description="Names the points; another commit has others.")
    points: list[DocumentPlace] | None = Field(
        description="A sample; null if `version` is the one of the request."
    )
    question: Place | None
    hits: list[DocumentPlace]
    explained: float = Field(description="Share of the variance of the sample that is shown.")


class PageField(BaseModel):
    """A metadata field to filter by; `low` and `high` are of the sample, for numbers and dates."""

    name: str = Field(description="As filters write it.")
    path: list[str] = Field(description="Its place in the metadata.")
    kind: Literal["choice", "number", "date", "text"]
    lists: bool = Field(description="Whether it has lists, which filters test by `contains`.")
    low: float | str | None
    high: float | str | None


class FieldsResponse(BaseModel):
    """Fields to filter by, of a sample of at most 200 documents."""

    fields: list[PageField]


class CountRequest(Strict):
    """What to count."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "whales", "fields": {"lang": "year >= 2015"}}]}
    )
    query: Question | None = None
    mode: Literal["auto", "vector", "text", "hybrid"] = "auto"
    typo_tolerance: bool = True
    where: Filter | None = None
    fields: Annotated[dict[FieldName, Filter | None], Field(max_length=limits.MAX_FACETS)] = Field(
        {}, description="Fields whose values are counted, each with a filter of its own."
    )


class CountResponse(BaseModel):
    """How many documents match, and how many have which values."""

    total: int = Field(description="By words: with a word of the question. Else: all ranked.")
    at_least: bool = Field(description="Whether counting stopped at `total`.")
    best: int | None = Field(
        description="The values are of so many best documents for the question; null: of all."
    )
    facets: dict[str, list[FacetValue]]


class NewDocument(BaseModel):
    """A document to store: `text` or `title`, and any metadata next to them."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "examples": [
                {"title": "Sleep", "text": "A whale rests half of its brain.", "year": 2016}
            ]
        },
    )
    title: str = ""
    text: str = ""


class Patch(BaseModel):
    """Metadata to merge; null removes a field."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"examples": [{"checked": True, "year": None}]}
    )


class PatchesRequest(RootModel[dict[StoredKey, dict[str, Any]]]):
    """Key → metadata to merge; null removes a field."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"whales": {"checked": True, "year": None}}]}
    )
    root: Annotated[dict[StoredKey, dict[str, Any]], Field(max_length=limits.MAX_PAGE)]


class Written(BaseModel):
    """A change that is committed."""

    key: str
    result: Literal["added", "changed", "metadata_updated", "unchanged"]


class Synonyms(Strict):
    """Groups of words and short texts that mean the same."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"groups": [["heart attack", "myocardial infarction", "MI"]]}]
        }
    )
    groups: list[list[str]] = Field(
        max_length=10_000, description="2 to 50 synonyms a group, of 1 to 8 words."
    )


class Deleted(BaseModel):
    """Documents deleted, which is committed."""

    deleted: int


class CollectionModel(BaseModel):
    """A collection of the server."""

    name: str
    ready: bool
    documents: int | None = Field(description="null: the collection cannot be read now.")


class CollectionList(BaseModel):
    """All collections of the server."""

    collections: list[CollectionModel]


class Health(BaseModel):
    """`status` is ok, or the missing part by collection."""

    status: str
    problems: dict[str, str] = {}


class ErrorDetail(BaseModel):
    """An error. `id` is in the log of the server and in the header X-Request-Id.

    `code`: the error of the engine, such as filter_error; null: another. `param`: the field.
    """

    type: str
    message: str
    param: str | None = None
    code: str | None = None
    id: str


class ErrorModel(BaseModel):
    """An error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "type": "invalid",
                        "message": "k: Input should be less than or equal to 1000",
                        "param": "k",
                        "code": None,
                        "id": "5f0e8a1c9b2d4e37",
                    }
                }
            ]
        }
    )
    error: ErrorDetail
