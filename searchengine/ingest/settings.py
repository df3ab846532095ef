"""Collection settings: fixed when a collection is created, and stored in it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from searchengine.backends.contract import Backend
from searchengine.backends.mode import Mode
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.protocol import NoEncoder, TextEncoder
from searchengine.errors import CollectionError
from searchengine.indexer.config import SegmentConfig
from searchengine.ingest.passages import PassageConfig, check_tokenizes, tokenizes

DEFAULT_PREFIX = 128
"""Dimensions. To find 0.995 of the true ten neighbours takes a shortlist of 76 to 150 rows among
15,000 to 110,000 real sentences (768 dimensions), and of 455 to 1,735 over the first 64."""

_LANES = 8
"""faiss compares this many dimensions at once if a prefix is a multiple, else one at a time: a
scan of 100 dimensions takes 4 times as long as one of 104, and 10 times as long as one of 96."""


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """How a collection is built.

    Attributes:
        config: index config; `tune` may change it later.
        passages: how documents are cut into passages; None keeps them whole.
        analyzer: how text becomes words, for the modes text and hybrid; None: the first documents
            decide.
    """

    config: SegmentConfig
    passages: PassageConfig | None
    analyzer: Analyzer | None

    @classmethod
    def for_encoder(
        cls,
        encoder: TextEncoder,
        config: SegmentConfig | Mapping[str, Any] | None = None,
        passages: PassageConfig | bool = True,
        tokenizer: Analyzer | str | None = None,
    ) -> Self:
        """Settings for an encoder, with defaults that suit it.

        Args:
            encoder: the encoder; documents can be cut if it has a tokenizer.
            config: index config, or some of its fields. By default a flat coarse
                stage over the first 128 dimensions (or a multiple of 8, of narrower vectors),
                rotated, and a shortlist that each segment measures.
            passages: True cuts if the encoder has a tokenizer, False never. Without an encoder
                True lets a document come with several vectors.
            tokenizer: "unicode", "stem", "none", or "stem:de,ru" with the
                languages, see searchengine.corpus.analyzer; None: the first documents decide
                (searchengine.ingest.defaults), as they do on the languages of "stem".

        Raises:
            CollectionError: a prefix wider than the encoder's vectors, or an option that the
                encoder does not support.
            SegmentConfigError: an index config that does not fit vectors of this width.
        """
        if not isinstance(config, SegmentConfig):
            SegmentConfig.check_names(config or {})
            fields = {"prefix": default_prefix(encoder.dim), **(config or {})}
            if not fields.get("stages"):  # which name the rows that they keep of the shortlist
                fields.setdefault("shortlist", 0)
            config = SegmentConfig(**fields)
        config.check_width(encoder.dim)  # now, not when the first documents are encoded
        if isinstance(passages, PassageConfig):
            check_tokenizes(encoder)  # raises: the collection could be created but never added to
            cut: PassageConfig | None = passages
        elif isinstance(passages, bool):
            can_cut = passages and (isinstance(encoder, NoEncoder) or tokenizes(encoder))
            cut = PassageConfig() if can_cut else None
        else:
            raise CollectionError(
                f"passages must be True, False or a PassageConfig, got {passages!r}"
            )
        try:
            return cls(config, cut, None if tokenizer is None else Analyzer.chosen(tokenizer))
        except (AttributeError, ValueError) as error:
            raise CollectionError(
                f"tokenizer must be one of {', '.join(Tokenizer)}, or stem with languages, such as "
                f"stem:de,ru; got {tokenizer!r}"
            ) from error

    @classmethod
    def from_stored(cls, settings: Mapping[str, Any]) -> Self:
        """The settings of a stored collection."""
        return cls(
            SegmentConfig.from_dict(settings["index"]),
            PassageConfig.from_stored(settings),
            Analyzer.parse(settings["tokenizer"]),
        )

    def as_stored(self, encoder: TextEncoder) -> dict[str, Any]:
        """The stored form of these settings and of the encoder: name → JSON value."""
        described = {
            "source": encoder.source,
            "fingerprint": encoder.fingerprint,
            "dim": encoder.dim,
        }
        if isinstance(encoder, FunctionEncoder):
            described["name"] = encoder.name
        return {
            "encoder": described,
            "index": self.config.as_dict(),
            "passages": None if self.passages is None else asdict(self.passages),
            "mode": Mode.VECTOR if self.analyzer == Analyzer(Tokenizer.NONE) else Mode.HYBRID,
        }


def check_compatible(
    collection: Backend,
    config: SegmentConfig | Mapping[str, Any],
    dim: int | None,
    passages: PassageConfig | bool | None,
    tokenizer: Tokenizer | str | None,
) -> None:
    """Raise CollectionError if an option differs from the stored one; None: no preference."""
    settings = CollectionSettings.from_stored(collection.settings)
    stored = settings.config.as_dict()
    options = config.as_dict() if isinstance(config, SegmentConfig) else config
    SegmentConfig.check_names(options)
    # As stored: lists, and enums by value.
    values = {name: (stored[name], json.loads(json.dumps(options[name]))) for name in options}
    if dim is not None:
        values["dim"] = collection.settings["encoder"]["dim"], dim
    if passages not in (None, True):
        values["passages"] = settings.passages or "none", passages or "none"
    if tokenizer not in (None, getattr(settings.analyzer, "tokenizer", None)):
        values["tokenizer"] = str(settings.analyzer), tokenizer
    for name, (present, wanted) in values.items():
        if present != wanted:
            raise CollectionError(
                f"{collection.path} has {name} {present}, got {wanted}; leave the option out, or "
                "index into a new folder"
            )


def default_prefix(dim: int) -> int:
    """The prefix of a collection that names none: DEFAULT_PREFIX, or what `dim` has of it."""
    widest = min(DEFAULT_PREFIX, dim)
    return widest - widest % _LANES or widest
