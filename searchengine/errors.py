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
"""

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
