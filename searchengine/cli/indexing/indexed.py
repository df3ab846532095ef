"""What a run of `searchengine index` did, on the terminal and as JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchengine.corpus.documents import LeftOut

if TYPE_CHECKING:
    from searchengine.corpus.files import Unread

_COUNTS = ("added", "changed", "metadata_updated", "moved", "removed", "unchanged")


def show_summary(
    collection: Path | str,
    summary: Any,
    malformed: LeftOut,
    unread: "Unread",
    documents: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Print the numbers of documents added and left out, or the result of the run as JSON."""
    from searchengine.cli.console import counted, note, show_json

    left_out = {
        "without_text": summary.without_text,
        "repeated": summary.repeated,
        "bad": malformed,
        "unreadable": unread.failed,
    }
    counts = {name: getattr(summary, name) for name in _COUNTS}
    if as_json:
        show_json(
            {
                "collection": str(collection),
                **counts,
                "relabelled": summary.metadata_updated,  # the former name
                "documents": documents,
                "seconds": seconds,
                "skipped": dict(unread.kinds),
                "encodings": dict(unread.encodings),
                **{name: asdict(each) for name, each in left_out.items()},
            }
        )
        return
    done = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n)
    total = counted(documents, "document")
    note(f"{done or '0 added'} in {collection}, {total} now, in {seconds} s")
    for name, records in left_out.items():
        if records.count:
            note(f"{records.count} {name.replace('_', ' ')}, left out:{first_lines(records)}")
    if unread.encodings:
        found = ", ".join(f"{n:,} in {name}" for name, n in unread.encodings.most_common())
        note(f"not UTF-8 and converted: {found}")
    if sentence := unread.sentence():
        note(sentence)


def first_lines(left_out: LeftOut) -> str:
    """Return the first messages, one per line, and the number of further ones."""
    most = 10
    lines = left_out.first[:most]
    if left_out.count > most:
        lines.append(f"… and {left_out.count - most} more; --json lists the first 1000")
    return "".join(f"\n  {line}" for line in lines)
