"""Which documents of a call of `add` can be stored: those with a text, each key once."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from searchengine.backends.contract import Known
from searchengine.corpus.documents import Document, LeftOut
from searchengine.errors import DuplicateKey
from searchengine.ingest.spool import Spool, Supplied


class Keys:
    """The keys of one call.

    Attributes:
        without_text, bad, repeated: what was left out, as in AddSummary.
    """

    def __init__(self, spool: Spool, skip_bad: bool, bad: LeftOut) -> None:
        self.without_text, self.bad, self.repeated = LeftOut(), bad, LeftOut()
        self._spool, self._skip_bad = spool, skip_bad

    @property
    def reasons(self) -> str:
        """Why documents were left out, for a message."""
        reasons = []
        if self.without_text.count:
            reasons.append(f"{self.without_text.count} without text")
        if self.bad.count:
            reasons.append(f"{self.bad.count} bad, the first: {self.bad.first[0]}")
        return f" ({', '.join(reasons)})" if reasons else ""

    def storable(
        self, documents: Sequence[Document], supplied: Mapping[str, Supplied]
    ) -> list[Document]:
        """Documents with a text or vector and a new key; counts the others."""
        kept: dict[str, Document] = {}
        seen = self._spool.seen([document.key for document in documents])
        for document in documents:
            vectors = supplied.get(document.key)
            if not document.full_text and not (vectors and vectors.spans):
                self.without_text.add(document.key)
            elif document.key not in seen and document.key not in kept:
                kept[document.key] = document
            elif document.derived:
                self.repeated.add(document.key)
            else:
                self._refuse(document, "occurs twice; give it another key or leave it out")
        self._spool.remember(kept)
        return list(kept.values())

    def may_replace(self, document: Document, stored: Mapping[str, Known]) -> bool:
        """False for a file whose key another folder's file has, if skip_bad leaves it out."""
        before = stored.get(document.key)
        if before is None or not before.root or before.root == document.root or not document.root:
            return True
        if not (Path(before.root) / document.file).exists():  # the folder was moved
            return True
        self._refuse(
            document,
            f"is that of a file of {before.root}; give the keys of one of the two folders a "
            "prefix: --key-prefix NAME/",
        )
        return False

    def _refuse(self, document: Document, why: str) -> None:
        message = f"{document.origin or 'add'}: the key {document.key!r} {why}"
        if not self._skip_bad:
            raise DuplicateKey(message)
        self.bad.add(message)
