"""The base of all errors, and those of collections: trainer and indexer have their own below it.

Every message names the fault, its place and the way out.
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
    """The folder or server of the collection is away, or was replaced; it may be back soon."""


class EncoderMismatch(CollectionError):
    """The collection was built by a different encoder."""


class EncoderMissing(CollectionError):
    """The encoder that built the collection cannot be loaded; searches by words need none."""


class LanguageWarning(UserWarning):
    """Documents are in a language that the encoder does not read."""


class FieldWarning(UserWarning):
    """A filter has a field that no document has, and nothing matches."""
