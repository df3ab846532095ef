"""The encoder of an open collection: loaded when it is first needed, checked before it is used."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

from searchengine.backends.contract import Backend
from searchengine.encoders.loading import check_built_by, load_built_by, renamed
from searchengine.encoders.none import NO_ENCODER
from searchengine.encoders.protocol import TextEncoder
from searchengine.encoders.questions import QuestionEncoder
from searchengine.errors import CollectionError, EndpointError
from searchengine.storage.documents import forks
from trainer.errors import TrainerError
from trainer.runtimes.config import RuntimeConfig


class CollectionEncoder:
    """Safe to use from several threads, and in a forked child."""

    def __init__(
        self,
        collection: Backend,
        encoder: TextEncoder | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        """Without an encoder, the one that the collection names is loaded by `runtime`.

        Raises EncoderMismatch if `encoder` did not build the collection.
        """
        self.argument, self.runtime = encoder, runtime
        self._collection = collection
        self._loading = Lock()
        self._encoder: TextEncoder | None = None
        if encoder is not None:
            self._adopt(encoder)
        collection.accepts = self.check
        forks.inherit(self)

    def after_fork(self) -> None:
        """In a forked child: a new lock, because the parent's may be locked for ever."""
        self._loading = Lock()
        if self._encoder is not None:
            self._questions = QuestionEncoder(self._encoder)

    def load(self) -> TextEncoder:
        """The encoder. Raises EncoderMismatch if it has changed, CollectionError without it."""
        with self._loading:
            if self._encoder is None:
                stored = self._collection.settings["encoder"]
                self._adopt(load_built_by(stored, self._collection.path, self.runtime))
            assert self._encoder is not None
            return self._encoder

    @property
    def encodes(self) -> bool:
        """Whether there is an encoder; not if the vectors came with the documents, and no other."""
        stored = self._collection.settings["encoder"]["fingerprint"]
        return self.argument is not None or stored != NO_ENCODER

    def questions(self, layers: int | None) -> QuestionEncoder:
        """What encodes questions, by the first `layers` of the encoder; None: by all."""
        self.load()
        return self._questions.at(layers)

    def counts(self) -> dict[str, int]:
        """How many questions were answered from the cache, and how many were encoded."""
        questions = None if self._encoder is None else self._questions
        return {
            "cached": 0 if questions is None else questions.cached,
            "encoded": 0 if questions is None else questions.encoded,
        }

    def runs_on(self) -> str:
        """The runtime of the encoder, or the reason why it cannot run."""
        try:
            return str(getattr(self.load(), "runs_on", "made in Python"))
        except (CollectionError, EndpointError, TrainerError) as error:
            return str(error)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise EncoderMismatch if another encoder built a state of the collection."""
        if self._encoder is not None:
            check_built_by(self._encoder, settings["encoder"], self._collection.path)

    def _adopt(self, encoder: TextEncoder) -> None:
        check_built_by(encoder, self._collection.settings["encoder"], self._collection.path)
        self._collection.renamed = renamed(encoder)
        self._encoder, self._questions = encoder, QuestionEncoder(encoder)
