"""Documents read a block at a time; those that cannot be stored are left out, and counted."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from searchengine.corpus.documents import Document, LeftOut
from searchengine.errors import DuplicateKey
from searchengine.ingest.spool import Spool

# Most documents and characters of the first block and of the largest; each is twice the one before:
# the encoder has something to do soon, and while it is at it twice as much is read. The texts of a
# block are sorted by length and encoded together. In batches of 4096 tokens, padding adds 28 % to
# sentences in blocks of 512 and 8 % in blocks of 2048; to abstracts 2 % where 2^19 characters end
# a block. More would add less, but be heavier, and nothing would be reported for longer.
_FIRST = 512, 1 << 16
_LARGEST = 2048, 1 << 19  # only a document that has more alone is more


@dataclass(frozen=True, slots=True)
class Block:
    """Documents read together: how many there were, and those that can be stored."""

    read: int
    documents: list[Document]


class Intake:
    """Reads a stream of documents once, and remembers what it left out.

    Attributes:
        without_text: keys of documents with neither title nor text.
        repeated: keys of records without an id that were the same as one before.
        bad: a sentence for every document that is refused, with `skip_bad`; else that raises.
    """

    def __init__(
        self, path: Path, documents: Iterable[Document], spool: Spool, skip_bad: bool
    ) -> None:
        self.path = path
        self.without_text = LeftOut()
        self.repeated = LeftOut()
        self.bad = LeftOut()
        self._skip_bad = skip_bad
        self._spool = spool
        self._stream = iter(documents)
        self._ahead: Document | None = None
        self._limits = _FIRST

    def more(self) -> bool:
        """Whether there are documents left; one is read ahead to see."""
        if self._ahead is None:
            self._ahead = next(self._stream, None)
        return self._ahead is not None

    def block(self, most: int | None = None) -> Block | None:
        """The next documents, at most `most`; None when there are no more. Raises DuplicateKey."""
        if not self.more():
            return None
        documents, characters = self._limits
        self._limits = min(2 * documents, _LARGEST[0]), min(2 * characters, _LARGEST[1])
        read = self._next(documents if most is None else min(documents, most), characters)
        return Block(len(read), self._unseen(read))

    def _next(self, most: int, most_characters: int) -> list[Document]:
        """The next documents, at least one unless there are no more."""
        documents: list[Document] = []
        characters = 0
        while len(documents) < most and characters < most_characters and self.more():
            assert self._ahead is not None
            documents.append(self._ahead)
            characters += len(self._ahead.title) + len(self._ahead.text)
            self._ahead = None
        return documents

    def _unseen(self, documents: list[Document]) -> list[Document]:
        """Those with a text and a key that has not come before; the keys are remembered."""
        kept: dict[str, Document] = {}
        seen = self._spool.seen([document.key for document in documents])
        for document in documents:
            if not document.full_text:
                self.without_text.add(document.key)
            elif document.key not in seen and document.key not in kept:
                kept[document.key] = document
            elif document.derived:
                self.repeated.add(document.key)
            else:
                self.refuse(document, "occurs twice; give it another key or leave it out")
        self._spool.remember(kept)
        return list(kept.values())

    def refuse(self, document: Document, why: str) -> None:
        """Raise DuplicateKey for a document, or count it as bad."""
        message = f"{document.origin or 'add'}: the key {document.key!r} {why}"
        if not self._skip_bad:
            raise DuplicateKey(message)
        self.bad.add(message)

    def nothing(self) -> str:
        """Why there is nothing to index."""
        counts = [f"{self.without_text.count} without text"] if self.without_text.count else []
        counts += (
            [f"{self.bad.count} bad, the first: {self.bad.first[0]}"] if self.bad.count else []
        )
        left_out = f" ({', '.join(counts)})" if counts else ""
        return f"no document to index{left_out}; nothing was changed"
