"""Which documents of a stream are new, changed, or stored as they are already."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from searchengine.changes import Changes, Known, as_json
from searchengine.corpus import Document, LeftOut
from searchengine.errors import DuplicateKey
from searchengine.store import Store

_BLOCK = 512  # documents encoded at a time: enough to sort by length, few enough to show progress
_BLOCK_CHARACTERS = 1 << 24  # and no more text than this, but for one document that has more


@dataclass(frozen=True, slots=True)
class Block:
    """Documents read together.

    Attributes:
        read: how many there were.
        changed: those to encode: new ones, and those whose title or text is another than stored.
        known: what is stored under the keys that are.
        relabelled: document id → new metadata (JSON), where nothing else has changed.
    """

    read: int
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

    def more(self) -> bool:
        """Whether there are documents left; one is read ahead to see."""
        if self._ahead is None:
            self._ahead = next(self._stream, None)
        return self._ahead is not None

    def blocks(self, store: Store, most: int | None = None) -> Iterator[Block]:
        """The stream in blocks until `most` documents have changed; goes on where it was left.

        Keys seen are kept in a temporary table of the connection, which is a file of its own: in
        memory they would grow with the corpus. Raises DuplicateKey.
        """
        changes = Changes(store)
        with store.named_errors():
            store.connection.execute(
                "CREATE TEMP TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY) WITHOUT ROWID"
            )
        taken = 0
        while (most is None or taken < most) and self.more():
            read = self._some(_BLOCK if most is None else min(_BLOCK, most - taken))
            fresh = self._unseen(store, read)
            known = changes.known([document.key for document in fresh])
            block = _sorted(len(read), fresh, known)
            taken += len(block.changed)
            yield block

    def _some(self, most: int) -> list[Document]:
        """The next documents, at least one unless there are no more."""
        some: list[Document] = []
        characters = 0
        while len(some) < most and characters < _BLOCK_CHARACTERS and self.more():
            assert self._ahead is not None
            some.append(self._ahead)
            characters += len(self._ahead.text)
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


def _sorted(read: int, fresh: list[Document], known: dict[str, Known]) -> Block:
    changed, relabelled = [], {}
    for document in fresh:
        stored = known.get(document.key)
        if stored is None or stored.digest != document.digest:
            changed.append(document)
        elif stored.metadata != (metadata := as_json(document.metadata)):
            relabelled[stored.id] = metadata
    return Block(read, changed, known, relabelled)
