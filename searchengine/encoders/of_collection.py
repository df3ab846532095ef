"""The encoder of an open collection: loaded when it is first needed, checked before it is used.

A reindex of the same engine brings another one. From before its commit until the engine shows it,
both are held, and the settings of a state say which one built it. So a thread that searches, adds
or refreshes meanwhile never has the vectors of one and the encoder of the other.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

from searchengine.backends.contract import Backend
from searchengine.backends.folder.documents import forks
from searchengine.encoders.loading import check_aligned, check_built_by, load_built_by
from searchengine.encoders.protocol import NO_ENCODER, TextEncoder
from searchengine.encoders.questions import QuestionEncoder
from searchengine.errors import CollectionError, EncoderMismatch, EndpointError
from searchengine.trainer.errors import TrainerError
from searchengine.trainer.runtimes.config import RuntimeConfig


class _Held(NamedTuple):
    """An encoder, what it is run by, and what encodes questions by it."""

    encoder: TextEncoder
    runtime: RuntimeConfig | None
    questions: QuestionEncoder

    @classmethod
    def of(cls, encoder: TextEncoder, runtime: RuntimeConfig | None) -> "_Held":
        return cls(encoder, runtime, QuestionEncoder(encoder))


class CollectionEncoder:
    """Safe to use from several threads, and in a forked child.

    Attributes:
        argument, runtime: as it was opened, or reindexed.
        for_questions: encodes questions in place of the encoder.
    """

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
        self._asking: QuestionEncoder | None = None
        if for_questions is not None:
            check_aligned(for_questions, collection.settings["encoder"], collection.path)
            self._asking = QuestionEncoder(for_questions)
        self._loading = Lock()
        self._present: _Held | None = None
        self._expected: tuple[_Held, ...] = ()
        if encoder is not None:
            self._adopt(encoder)
        collection.accepts = self.check
        forks.inherit(self)

    def after_fork(self) -> None:
        """In a forked child: new locks, because the parent's may be locked for ever."""
        self._loading = Lock()
        if self.for_questions is not None:
            self._asking = QuestionEncoder(self.for_questions)
        if self._present is not None:
            self._present = _Held.of(self._present.encoder, self._present.runtime)
        self._expected = tuple(_Held.of(held.encoder, held.runtime) for held in self._expected)

    def load(self, settings: Mapping[str, Any] | None = None) -> TextEncoder:
        """The encoder that built the state of these settings; None: the state shown.

        Raises EncoderMismatch if it is another one, CollectionError without it.
        """
        return self._of(settings).encoder

    def is_past(self, settings: Mapping[str, Any]) -> bool:
        """Whether another encoder built the state shown now: then ask for that one."""
        return bool(settings["encoder"] != self._collection.settings["encoder"])

    def encodes(self, settings: Mapping[str, Any]) -> bool:
        """Whether there is an encoder; not if the vectors came with the documents, and no other."""
        named = self.argument is not None or self.for_questions is not None
        return named or settings["encoder"]["fingerprint"] != NO_ENCODER

    def questions(
        self, layers: int | None, settings: Mapping[str, Any] | None = None
    ) -> QuestionEncoder:
        """What encodes questions, by the first `layers` of the encoder; None: by all."""
        return (self._asking or self._of(settings).questions).at(layers)

    def load_for_questions(self) -> TextEncoder:
        """The encoder of questions. Raises as `load`."""
        return self.load() if self.for_questions is None else self.for_questions

    def counts(self) -> dict[str, int]:
        """How many questions were answered from the cache, and how many were encoded."""
        questions = self._asking or (self._present and self._present.questions)
        return {
            "cached": 0 if questions is None else questions.cached,
            "encoded": 0 if questions is None else questions.encoded,
        }

    def runs_on(self) -> str:
        """The runtime of the encoder, or the reason why it cannot run."""
        try:
            return self.load().runs_on
        except (CollectionError, EndpointError, TrainerError) as error:
            return str(error)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise EncoderMismatch if an encoder that is not held built a state of the collection."""
        if self._present is not None and self._built(settings) is None:
            self._check(self._present, settings)
        if self.for_questions is not None:
            check_aligned(self.for_questions, settings["encoder"], self._collection.path)

    def expect(self, encoder: TextEncoder, runtime: RuntimeConfig | None) -> object:
        """Hold another encoder too, until `settle` gets what this returns.

        A reindex may commit its vectors from now on.
        """
        with self._loading:
            held = _Held.of(encoder, runtime)
            self._expected += (held,)
            return held

    def settle(self, expected: object) -> None:
        """Hold the encoder that built the state shown, and those expected after it.

        Another thread may have begun the next reindex meanwhile.
        """
        with self._loading:
            built = self._built(self._collection.settings)
            if built is not None and built is not self._present:
                self.argument, self.runtime = built.encoder, built.runtime
                self._present = built
            past = [i for i, held in enumerate(self._expected) if held in (built, expected)]
            self._expected = self._expected[max(past, default=-1) + 1 :]

    def _of(self, settings: Mapping[str, Any] | None) -> _Held:
        settings = self._collection.settings if settings is None else settings
        with self._loading:
            if (held := self._built(settings)) is not None:
                return held
            if self._present is None:
                path = self._collection.path
                self._adopt(load_built_by(settings["encoder"], path, self.runtime), settings)
            assert self._present is not None
            self._check(self._present, settings)
            return self._present

    def _built(self, settings: Mapping[str, Any]) -> _Held | None:
        """The encoder held that built a state."""
        present, expected = self._present, self._expected
        if present is not None and self._suits(present, settings):
            return present
        if settings["encoder"]["fingerprint"] == NO_ENCODER:  # suits any, and is of no reindex
            return None
        return next((held for held in expected if self._suits(held, settings)), None)

    def _suits(self, held: _Held, settings: Mapping[str, Any]) -> bool:
        try:
            self._check(held, settings)
        except EncoderMismatch:
            return False
        return True

    def _check(self, held: _Held, settings: Mapping[str, Any]) -> None:
        check_built_by(held.encoder, settings["encoder"], self._collection.path)

    def _adopt(self, encoder: TextEncoder, settings: Mapping[str, Any] | None = None) -> None:
        held = _Held.of(encoder, self.runtime)
        self._check(held, self._collection.settings if settings is None else settings)
        self._present = held
