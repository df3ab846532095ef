"""The recall guarantee of a tuning after rows were added, deleted or merged.

Tuning guarantees a recall for the segments that it wrote; their checksums identify them. Segments
never change and are searched one by one, so a search finds the same rows in them as before. Of the
k nearest rows of a query, it may miss in addition:

* rows added since, in segments that were not measured: on average the fraction added / rows;
* rows that took the place of deleted ones: on average the fraction deleted / measured rows;

if the rows that changed are no nearer to the queries than the others. So the mean recall exceeds
the target less both fractions, in the worst case that all of these rows are missed. Nothing is
guaranteed once that loss is as large as the target itself allows, or if a segment was merged,
optimized or repaired, which builds an index that was not measured.
"""

from dataclasses import dataclass

from searchengine.backends.folder.snapshot import Snapshot
from searchengine.backends.folder.writer import TUNED


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The recall guarantee that remains of a tuning.

    Attributes:
        recall: the mean recall@k exceeds it; None: the guarantee is withdrawn.
        added, deleted: rows since the tuning; None: withdrawn for another reason.
        commit: the commit of the tuning.
        reason: why the guarantee is lowered or withdrawn; empty while nothing has changed.
    """

    recall: float | None
    added: int | None = None
    deleted: int | None = None
    commit: int | None = None
    reason: str = ""


def guarantee(snapshot: Snapshot, target: float) -> Guarantee:
    """The guarantee that remains of a tuning for a `target` of mean recall."""
    tuned = snapshot.settings[TUNED]
    names, commit = tuned["segments"], int(tuned["commit"])  # equal rows have equal checksums
    measured = [row for row in snapshot.segments if row.manifest_sha256 in names]
    lost = len(names) - len(measured)
    if lost:
        reason = f"{lost} of the {len(names)} segments measured were merged, optimized or repaired "
        return Guarantee(None, commit=commit, reason=f"{reason}since commit {commit}")
    rows = sum(row.rows for row in measured)
    left = sum(row.rows if (live := snapshot.live[row]) is None else live.size for row in measured)
    added, deleted = snapshot.rows - left, rows - left
    if not added and not deleted:
        return Guarantee(target, 0, 0, commit)
    missed = added / max(1, snapshot.rows) + deleted / rows
    reason = f"{added} rows were added and {deleted} deleted since commit {commit}"
    if missed >= 1 - target:
        reason += f", by which {missed:.1%} may be missed, and the target allows {1 - target:.3g}"
        return Guarantee(None, added, deleted, commit, reason)
    return Guarantee(target - missed, added, deleted, commit, reason)
