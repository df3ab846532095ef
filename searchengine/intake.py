"""Which documents of a stream are new, changed, or stored as they are already."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from searchengine.changes import Changes, Known, as_json
from searchengine.corpus import Document, LeftOut
from searchengine.errors import DuplicateKey
from searchengine.store import Store

# Most documents and characters of the first block and of the largest; each is twice the one before:
# the encoder has something to do soon, and while it is at it twice as much is read. The texts of a
# block are sorted by length and encoded together. In batches of 4096 tokens, padding adds 28 % to
# sentences in blocks of 512 and 8 % in blocks of 2048; to abstracts 2 % where 2^19 characters end
# a block. More would add less, but be heavier, and nothing would be heard of it for longer.
_FIRST = 512, 1 << 16
_LARGEST = 2048, 1 << 19  # only a document that has more alone is more


@dataclass(frozen=True, slots=True)
class Block:
    """Documents read together.

    Attributes:
        read: how many there were.
        fresh: those with a text and a key that has not come before.
        changed: those of them to encode: new ones, and those whose title or text is another than
            stored.
        known: what is stored under the keys that are.
        relabelled: document id → new metadata (JSON), where nothing else has changed.
    """

    read: int
    fresh: list[Document]
    changed: list[Document]
    known: dict[str, Known]
    relabelled: dict[int, str]


class Intake:
    """Reads a stream of documents once, and remembers what it left out.

    Attributes:
        without_text: keys of documents with neither title nor text.
        bad: a sentence for every key that came twice, with `skip_bad`; else that raises.
    """

    def __init__(self, path: Path, documents: Iterable[Document], skip_bad: bool) -> None:
        self.path = path
        self.without_text = LeftOut()
        self.bad = LeftOut()
        self._skip_bad = skip_bad
        self._stream = iter(documents)
        self._ahead: Document | None = None
        self._limits = _FIRST

    def more(self) -> bool:
        """Whether there are documents left; one is read ahead to see."""
        if self._ahead is None:
            self._ahead = next(self._stream, None)
        return self._ahead is not None

    def block(self, store: Store, most: int | None = None) -> Block | None:
        """The next documents, at most so many; None when there are no more.

        Keys seen are kept in a temporary table of the connection, which is a file of its own: in
        memory they would grow with the corpus. Raises DuplicateKey.
        """
        if not self.more():
            return None
        documents, characters = self._limits
        self._limits = min(2 * documents, _LARGEST[0]), min(2 * characters, _LARGEST[1])
        read = self._some(documents if most is None else min(documents, most), characters)
        with store.named_errors():
            store.connection.execute(
                "CREATE TEMP TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY) WITHOUT ROWID"
            )
        return _compared(len(read), self._unseen(store, read), store)

    def again(self, store: Store, block: Block) -> Block:
        """The same documents, compared with what is stored now."""
        return _compared(block.read, block.fresh, store)

    def _some(self, most: int, most_characters: int) -> list[Document]:
        """The next documents, at least one unless there are no more."""
        some: list[Document] = []
        characters = 0
        while len(some) < most and characters < most_characters and self.more():
            assert self._ahead is not None
            some.append(self._ahead)
            characters += len(self._ahead.title) + len(self._ahead.text)
            self._ahead = None
        return some

    def _unseen(self, store: Store, documents: list[Document]) -> list[Document]:
        """Those with a text and a key that has not come before; the keys are remembered."""
        kept: dict[str, Document] = {}
        marks = ", ".join("?" * len(documents))
        keys = [document.key for document in documents]
        seen = {
            row[0] for row in store.read(f"SELECT key FROM temp.seen WHERE key IN ({marks})", keys)
        }
        for document in documents:
            if not document.full_text:
                self.without_text.add(document.key)
            elif document.key in seen or document.key in kept:
                self._refuse(document)
            else:
                kept[document.key] = document
        with store.named_errors():
            store.connection.executemany(
                "INSERT INTO temp.seen (key) VALUES (?)", ((key,) for key in kept)
            )
        return list(kept.values())

    def _refuse(self, document: Document) -> None:
        message = (
            f"{document.origin or 'add'}: the key {document.key!r} occurs twice; "
            "give it another key or leave the document out"
        )
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


def _compared(read: int, fresh: list[Document], store: Store) -> Block:
    known = Changes(store).known([document.key for document in fresh])
    changed, relabelled = [], {}
    for document in fresh:
        stored = known.get(document.key)
        if stored is None or stored.digest != document.digest:
            changed.append(document)
        elif stored.metadata != (metadata := as_json(document.metadata)):
            relabelled[stored.id] = metadata
    return Block(read, fresh, changed, known, relabelled)
