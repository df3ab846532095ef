"""Which documents a collection takes: those that have a text, and a key that is not stored yet."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from searchengine.corpus import Document
from searchengine.errors import DuplicateKey
from searchengine.store import Store

_BLOCK = 512  # documents encoded at a time: enough to sort by length, few enough to show progress


@dataclass(frozen=True, slots=True)
class Intake:
    """Lets documents through in blocks, and remembers what it left out.

    Attributes:
        path: the collection, for messages.
        skip_bad: leave out keys that occur twice, which otherwise raise DuplicateKey.
        without_text: keys left out for want of text.
        bad: a sentence for every key left out for having been there before.
    """

    path: Path
    skip_bad: bool
    without_text: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    def blocks(self, store: Store, documents: Iterable[Document]) -> Iterator[list[Document]]:
        """The documents let through; none of the blocks is empty."""
        stream = iter(documents)
        while block := list(islice(stream, _BLOCK)):
            stored = store.stored_keys([document.key for document in block])
            fresh: dict[str, Document] = {}
            for document in block:
                if not document.full_text:
                    self.without_text.append(document.key)
                elif document.key in stored or document.key in fresh:
                    self._refuse(document, document.key in stored)
                else:
                    fresh[document.key] = document
            if fresh:
                yield list(fresh.values())

    def _refuse(self, document: Document, stored: bool) -> None:
        where = f"is in {self.path} already" if stored else "occurs twice"
        message = (
            f"{document.origin or 'add'}: the key {document.key!r} {where}; "
            "give it another key or leave the document out"
        )
        if not self.skip_bad:
            raise DuplicateKey(message)
        self.bad.append(message)

    def nothing(self) -> str:
        """Why there is nothing to index."""
        counts = [f"{len(self.without_text)} without text"] if self.without_text else []
        counts += [f"{len(self.bad)} bad, the first: {self.bad[0]}"] if self.bad else []
        left_out = f" ({', '.join(counts)})" if counts else ""
        return f"no document to index{left_out}; nothing was changed"
