"""The base of all errors, and those of collections.

Every message names the fault, its place and the way out.

SearchEngineError
├── CorpusError        a file of documents, queries or judgements that cannot be read
│   ├── EmptyCorpus    nothing in it to index
│   ├── UnreadableFile  all of a file, not one of its records
│   └── UnknownFields  no field of it holds the text, or the one named is not there
├── DuplicateKey       a document key that is stored already
├── FilterError        a `where` expression that does not parse
├── QueryError         a query, k or shortlist that makes no sense
│   ├── SearchTimeout  a search that takes longer than it may
│   └── UnknownKey     no document has this key; a KeyError too
├── ServerError        a server (`searchengine serve`) that refuses, or cannot be reached
├── EndpointError      an encoder behind a URL that cannot be reached, or answers wrongly
├── CollectionError    a folder that is not a collection, or a damaged one
│   ├── CollectionBusy     another process is writing
│   ├── BackendUnavailable  the server of a collection cannot be reached, or went away
│   ├── EncoderMismatch    built by a different encoder
│   └── EncoderMissing     the encoder cannot be loaded
├── TrainerError       of models and their training: searchengine.trainer.errors
└── IndexerError       of vectors and segments: searchengine.indexer.errors

LanguageWarning       documents in a language that the encoder does not read
FieldWarning          a filter on a field that no document has

For names that other libraries use, the message has the one that is used here.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

FORBIDDEN = "this user may not read it; change its owner or its mode"
"""What errors say of a file for which the system refuses permission, behind its path."""


class SearchEngineError(ValueError):
    """Base of all errors that searchengine raises on bad input."""


class CorpusError(SearchEngineError):
    """A file of documents, queries or judgements cannot be read."""


class EmptyCorpus(CorpusError):
    """There is nothing to index."""


class UnreadableFile(CorpusError):
    """A file cannot be read at all."""


class UnknownFields(CorpusError):
    """No field of a file holds the text, or a field that was named is not there."""


class DuplicateKey(SearchEngineError):
    """A document key occurs twice, or is stored already."""


class FilterError(SearchEngineError):
    """A `where` expression does not parse."""


class QueryError(SearchEngineError):
    """A query, k or shortlist makes no sense."""


class SearchTimeout(QueryError):
    """A search takes longer than its timeout."""


class UnknownKey(QueryError, KeyError):
    """No document has this key."""

    __str__ = Exception.__str__  # KeyError shows the repr of its message


class EndpointError(SearchEngineError):
    """An encoder behind a URL cannot be reached, refuses, or answers wrongly."""


class ServerError(SearchEngineError):
    """A server refuses a request, cannot be reached, or answers wrongly."""


class CollectionError(SearchEngineError):
    """The folder is not a collection, or is damaged."""


class CollectionBusy(CollectionError):
    """Another process is writing to the collection."""


class BackendUnavailable(CollectionError):
    """The server that keeps the collection cannot be reached, or went away; it may be back soon."""


class EncoderMismatch(CollectionError):
    """The collection was built by a different encoder."""


class EncoderMissing(CollectionError):
    """The encoder that built the collection cannot be loaded; searches by words need none."""


class LanguageWarning(UserWarning):
    """Documents are in a language that the encoder does not read.

    Attributes:
        share: share of the documents, 0–1.
        languages: their languages in words.
    """

    def __init__(self, message: str, share: float = 0.0, languages: str = "") -> None:
        super().__init__(message)
        self.share, self.languages = share, languages


class FieldWarning(UserWarning):
    """A filter has a field that no document has, and nothing matches."""


# ------------------------------------------------------------------------- names of other libraries

_FIELDS = "a field of each document: {'_id': …, 'text': …, 'year': 2016}"
OPTIONS = {
    **dict.fromkeys(("top_k", "topk", "n_results", "limit", "num_results", "size", "n"), "k"),
    **dict.fromkeys(("filter", "filters", "filter_expression", "prefilter"), "where"),
    **dict.fromkeys(("ids", "id", "metadatas", "metadata", "texts", "payload", "uris"), _FIELDS),
    **dict.fromkeys(("embeddings", "xb"), "vectors"),
    **dict.fromkeys(("query_type", "search_type", "hybrid"), "mode"),
    **dict.fromkeys(("rerank", "reranker"), "cross_encoder"),
    **dict.fromkeys(("dimension", "dimensions", "vector_size", "d"), "dim"),
    **dict.fromkeys(("score_threshold", "threshold"), "min_score"),
    **dict.fromkeys(("skip", "start"), "offset"),
    **dict.fromkeys(("embedding_function", "embedding", "embedder", "model"), "encoder"),
    **dict.fromkeys(("query_texts", "question", "text"), "query"),
    **dict.fromkeys(("query_embeddings", "query_vector", "vector"), "query, which may be a vector"),
    "where_document": "where, as in: text like '%whale%'",
    "include": "nothing: every hit has its text, metadata and score; stored vectors: vectors(keys)",
    **dict.fromkeys(
        ("metric", "distance", "space"), "nothing: the similarity is the cosine, always"
    ),
    "get_or_create": "SearchEngine.open_or_create",
    "exist_ok": "SearchEngine.open_or_create",
}
"""Keyword of another library → its name here."""
_ADD = "add, which replaces documents of the same key"
_SAVED = "nothing: what add, update and delete return from is stored"
METHODS = {
    **dict.fromkeys(("upsert", "insert", "add_texts", "add_documents", "index", "put"), _ADD),
    **dict.fromkeys(("save", "persist", "commit", "flush"), _SAVED),
    **dict.fromkeys(("load", "connect", "get_or_create_collection"), "SearchEngine.open_or_create"),
    **dict.fromkeys(("query", "similarity_search", "ask"), "search"),
    "batchsearch": "search_batch",
    "head": "documents(limit=…)",
    "info": "stats()",
    "path": "collection.path",
    "create_index": "tune",
    "remove": "delete",
    "peek": "sample",
    "merge_insert": _ADD,
    **dict.fromkeys(("ntotal", "num_docs", "count_rows"), "count(), or len(engine)"),
    "to_pandas": "documents(), or the to_pandas of hits",
}
"""Method of another library → its name here."""
HIT_NAMES = {
    **dict.fromkeys(("id", "_id", "doc_id", "uuid"), "key"),
    **dict.fromkeys(("content", "page_content", "document", "body", "contents"), "text"),
    **dict.fromkeys(("distance", "similarity", "_distance"), "score, which is higher for nearer"),
    **dict.fromkeys(("payload", "meta", "fields"), "metadata"),
    **dict.fromkeys(("to_list", "tolist"), "to_dicts"),
    "to_dict": "as_dict of a hit, to_dicts of hits",
    "limit": "k of the search, or hits[:k]",
    "ids": "[hit.key for hit in hits]",
    "to_polars": "to_arrow",
    **dict.fromkeys(("to_df", "df"), "to_pandas"),
}
"""Attribute of a hit, or of hits, in another library → its name here."""

P = ParamSpec("P")
R = TypeVar("R")


def hinted(call: Callable[P, R]) -> Callable[P, R]:
    """A function whose TypeError for a keyword of another library has the name used here."""
    known = signature(call).parameters

    @wraps(call)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known and name in OPTIONS:
                raise TypeError(
                    f"{call.__name__} has no argument {name!r}; here it is {OPTIONS[name]}"
                )
            if name not in known and (close := get_close_matches(name, known, 1)):
                raise TypeError(
                    f"{call.__name__} has no argument {name!r}; did you mean {close[0]!r}?"
                )
        return call(*arguments, **options)

    return checked


def other_name(owner: Any, name: str, names: dict[str, str]) -> AttributeError:
    """The error for an attribute that does not exist, with its name here if it has one."""
    kind = type(owner).__name__
    hint = f"; here it is {names[name]}" if name in names else ""
    return AttributeError(f"{kind!r} has no attribute {name!r}{hint}", name=name, obj=owner)
