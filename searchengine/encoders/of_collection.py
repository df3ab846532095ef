"""The encoder of an open collection: loaded when it is first needed, checked before it is used."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

from searchengine.backends.contract import Backend
from searchengine.encoders.loading import check_aligned, check_built_by, load_built_by, renamed
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
        for_questions: TextEncoder | None = None,
    ) -> None:
        """Without an encoder, the one that the collection names is loaded by `runtime`.

        `for_questions`: encodes questions in its place, which then need not be loaded for them.
        Raises EncoderMismatch if `encoder` did not build the collection, or `for_questions` does
        not belong to what did.
        """
        self.argument, self.runtime, self.for_questions = encoder, runtime, for_questions
        self._collection = collection
        self._questions: QuestionEncoder | None = None
        if for_questions is not None:
            check_aligned(for_questions, collection.settings["encoder"], collection.path)
            self._questions = QuestionEncoder(for_questions)
        self._loading = Lock()
        self._encoder: TextEncoder | None = None
        if encoder is not None:
            self._adopt(encoder)
        collection.accepts = self.check
        forks.inherit(self)

    def after_fork(self) -> None:
        """In a forked child: a new lock, because the parent's may be locked for ever."""
        self._loading = Lock()
        if (encoder := self.for_questions or self._encoder) is not None:
            self._questions = QuestionEncoder(encoder)

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
        named = self.argument is not None or self.for_questions is not None
        return named or stored != NO_ENCODER

    def questions(self, layers: int | None) -> QuestionEncoder:
        """What encodes questions, by the first `layers` of the encoder; None: by all."""
        self.load_for_questions()
        assert self._questions is not None
        return self._questions.at(layers)

    def load_for_questions(self) -> TextEncoder:
        """The encoder of questions. Raises as `load`."""
        return self.load() if self.for_questions is None else self.for_questions

    def counts(self) -> dict[str, int]:
        """How many questions were answered from the cache, and how many were encoded."""
        questions = self._questions
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
        if self.for_questions is not None:
            check_aligned(self.for_questions, settings["encoder"], self._collection.path)

    def _adopt(self, encoder: TextEncoder) -> None:
        check_built_by(encoder, self._collection.settings["encoder"], self._collection.path)
        self._collection.renamed = renamed(encoder)
        self._encoder = encoder
        if self.for_questions is None:
            self._questions = QuestionEncoder(encoder)
