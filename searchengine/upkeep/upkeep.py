"""What an engine offers to keep a collection fast and safe: optimize, tune, verify, copies."""

from collections.abc import Callable, Sequence
from pathlib import Path

from searchengine.backends.folder.collection import Local
from searchengine.backends.mode import Mode
from searchengine.encoders.of_collection import CollectionEncoder
from searchengine.encoders.protocol import NoEncoder
from searchengine.errors import QueryError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import integer
from searchengine.indexer.tuning.tune import Goal, Tuning
from searchengine.ingest.languages import choose_again
from searchengine.upkeep import check, copies
from searchengine.upkeep.defaults import set_default
from searchengine.upkeep.encoded import check_encoded
from searchengine.upkeep.repair import repair
from searchengine.upkeep.tuning import stored_goal, tune_collection


class Upkeep(Local):
    """Keeps an open collection fast and safe."""

    _encoder: CollectionEncoder

    def index_fields(self, *names: str) -> None:
        """Index metadata fields (`year`, `author.name`), which makes filters on them fast."""
        self.collection.index_fields(names)

    def set_default(self, mode: Mode | str | None = None, weight: float | None = None) -> None:
        """Choose how questions are ranked that name no mode.

        Other processes follow at their next refresh. Languages do not change the choice any more;
        a reindex by another encoder keeps the mode and forgets the weight.

        Args:
            mode: "vector", "text" or "hybrid"; None leaves it as it is.
            weight: weight of the cosine in the mode hybrid, 0–1; BM25 has the rest. None leaves it
                as it is.

        Raises QueryError (a bad value; no index of words), CollectionBusy."""
        set_default(self.collection, mode, weight)

    def optimize(self, *, retune: bool = False, progress: Progress | None = None) -> None:
        """Merge all segments into one, without deleted rows and with a new rotation.

        Where the first documents chose the tokenizer, the present ones choose it again.
        `retune`: tune again, for the same goal as before, or the default one. Readers go on
        meanwhile. `progress` as `building` of `add`."""
        choose_again(self.local)
        self.local.optimize(progress)
        if retune:
            self.tune(goal=stored_goal(self.local), building=progress)

    def tune(
        self,
        queries: Sequence[str] | None = None,
        goal: Goal | None = None,
        *,
        on_step: Callable[[str], None] | None = None,
        building: Progress | None = None,
    ) -> Tuning:
        """Find the cheapest index config that meets a recall target, and use it from now on.

        All segments are replaced in one commit, or nothing changes; later ones use it too.

        Args:
            queries: a random sample of the queries to expect, at least
                searchengine.indexer.tuning.tune.queries_needed; None takes documents as queries.
            goal: the recall target, and what to minimize; see searchengine.indexer.tuning.tune.
            on_step: progress callback: a message for each step.
            building: as for `add`, while the segments are rebuilt.

        Raises QueryError (too few documents, an empty query), TuneError (too few queries, or a
        target that cannot be shown), CollectionError (changed by another process meanwhile)."""
        if isinstance(queries, str):
            raise QueryError("tune takes a list of questions, got one text")
        self.local.refresh()
        encoder = self._encoder
        return tune_collection(self.local, encoder, queries, goal, on_step, building)

    def warm(self) -> int:
        """Load what encodes questions and read all files, so no search waits; returns bytes."""
        if not isinstance(encoder := self._encoder.load_for_questions(), NoEncoder):
            encoder.start()
            encoder.encode(["warm"], role="query")
        with self.local.reading() as snapshot:
            return check.warm(snapshot)

    def verify(self, *, encode: int = 0) -> int:
        """Check files, checksums and tables. Raises CollectionError on the first error.

        `encode`: number of passages, from all segments, to encode again and to compare with the
        stored vectors. Returns how many were: a collection may have fewer, and vectors that came
        with their documents are left out."""
        if integer(encode) is None or encode < 0:
            raise QueryError(f"encode must be 0 passages or more, got {encode!r}")
        check.verify(self.local)
        return check_encoded(self.local, self._encoder, encode) if encode else 0

    repair = staticmethod(repair)

    def backup(self, path: str | Path) -> None:
        """Copy the last commit to a new folder, while others read and write."""
        copies.backup(self.local, Path(path))

    def export(self, path: str | Path) -> int:
        """Write documents.jsonl, passages.jsonl and vectors.npy to a new folder (docs/format.md).

        Returns the number of documents. Raises CollectionError if the folder exists."""
        with self.local.reading() as snapshot:
            return copies.export(snapshot, Path(path))
