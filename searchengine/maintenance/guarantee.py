"""What is left of a tuning's statement once rows were added, deleted or written again.

The statement is of the segments that the tuning wrote, which their checksums name. Among their rows
a search still finds what it found then, for segments never change and are searched one by one. What
may be missed besides, of the k nearest of a question:

* rows added since, in segments that nothing was measured on: on average a share added / rows;
* rows that have come in place of deleted ones: on average a share deleted / measured rows;

if the rows that changed are no nearer to the questions than the others are. So the mean recall
still exceeds the target less both shares, in the worst case that all of these are missed. Once that
is as much as the target itself allows to be missed, or a segment was merged, optimized or repaired,
which builds an index that nobody measured, nothing is guaranteed.
"""

from dataclasses import dataclass

from searchengine.storage.snapshot import Snapshot
from searchengine.storage.writer import TUNED


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is left of the statement that a tuning made; see searchengine.maintenance.guarantee.

    Attributes:
        recall: what the mean recall@k exceeds now; None: the guarantee is withdrawn.
        added, deleted: rows since it was tuned; None where that cannot be told any more.
        commit: the commit that the tuning made; None where it was not recorded.
        reason: why the guarantee is lowered or withdrawn; empty while nothing has changed.
    """

    recall: float | None
    added: int | None = None
    deleted: int | None = None
    commit: int | None = None
    reason: str = ""


def guarantee(snapshot: Snapshot, target: float) -> Guarantee:
    """What the mean recall of a tuned collection exceeds now, given what it was tuned for."""
    tuned = snapshot.settings.get(TUNED)
    if tuned is None:
        return Guarantee(None, reason="an earlier version tuned it, and did not record on what")
    names, commit = set(tuned["segments"]), int(tuned["commit"])
    measured = [row for row in snapshot.segments if row.manifest_sha256 in names]
    gone = len(names) - len(measured)
    if gone:
        reason = f"{gone} of the {len(names)} segments measured were merged, optimized or repaired "
        return Guarantee(None, commit=commit, reason=f"{reason}since commit {commit}")
    rows = sum(row.rows for row in measured)
    left = sum(row.rows if (live := snapshot.live[row]) is None else live.size for row in measured)
    added, deleted = snapshot.rows - left, rows - left
    if not added and not deleted:
        return Guarantee(target, 0, 0, commit)
    lost = added / max(1, snapshot.rows) + deleted / rows
    reason = f"{added} rows were added and {deleted} deleted since commit {commit}"
    if lost >= 1 - target:
        reason += f", by which {lost:.1%} may be missed, and the target allows {1 - target:.3g}"
        return Guarantee(None, added, deleted, commit, reason)
    return Guarantee(target - lost, added, deleted, commit, reason)
