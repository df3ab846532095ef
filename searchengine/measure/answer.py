"""What a bench answers, in ten seconds of reading: a sentence, a table of three rows, a command."""

from dataclasses import dataclass

from searchengine.measure.formatting import NOTHING, fraction, short, size
from searchengine.measure.recommend import Recommendation, command
from searchengine.measure.results import CONFIGURED, Kind, Results, Row


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bench.

    Attributes:
        sentence: what to use, and what it gives.
        heads: column heads; the first column says what a row is.
        rows: the cells of now, recommended and exact, in this order; those that are one are one.
        chosen: the position of the recommended row; None if nothing is recommended.
        reading: how the name of a cascade is read; "" if none is in the table.
        command: to copy; "" if nothing is to be done.
    """

    sentence: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    chosen: int | None
    reading: str
    command: str


def answer(results: Results, advice: Recommendation) -> Answer:
    """The answer for a recommendation."""
    recommended = next((row for row in results.rows if row.name == advice.name), None)
    configured = (row for row in results.rows if row.name.startswith(CONFIGURED))
    labels: dict[str, list[str]] = {}
    shown: dict[str, Row] = {}
    now = "now" if results.subject.get("encoder") else "default"
    for label, row in (
        (now, next(configured, None)),
        ("recommended", recommended),
        ("exact", results.exact),
    ):
        if row is not None:
            shown[row.name] = row
            labels.setdefault(row.name, []).append(label)
    judged = any(row.ndcg is not None for row in shown.values())
    cells = [_cells(labels[name], row, results, judged) for name, row in shown.items()]
    heads = ["", "operating point", *(["question, ms"] if results.encode_ms else ["search, ms"])]
    heads += [f"recall@{results.subject.get('k')}", *(["nDCG@10"] if judged else []), "in memory"]
    first = sorted(shown.values(), key=lambda row: row is not recommended)
    cascade = next((row for row in first if row.kind is Kind.CASCADE), None)
    return Answer(
        _sentence(results, recommended, advice),
        tuple(heads),
        tuple(cells),
        None if recommended is None else list(shown).index(recommended.name),
        "" if cascade is None else _reading(cascade),
        "" if recommended is None else command(recommended, results),
    )


def _cells(labels: list[str], row: Row, results: Results, judged: bool) -> tuple[str, ...]:
    name = row.name.removeprefix(CONFIGURED).removeprefix(": ")
    cells = [" = ".join(labels), name, short(_milliseconds(row, results)), fraction(row.recall)]
    return (*cells, *([fraction(row.ndcg)] if judged else []), size(row.hot_bytes))


def _milliseconds(row: Row, results: Results) -> float:
    """The time of a question: with its encoding, where it was measured."""
    encoding = 0.0 if results.encode_ms is None else results.encode_ms.median
    return encoding + row.p50_ms.median


def _sentence(results: Results, row: Row | None, advice: Recommendation) -> str:
    exact, k = results.exact, results.subject.get("k")
    if row is None:
        return advice.why[0]
    what = "a search" if results.encode_ms is None else "a question, with its encoding,"
    time = f"{what} takes {short(_milliseconds(row, results))} ms"
    if row.kind is Kind.EXACT:
        return f"Leave it, search exactly: {time}, and nothing measured is noticeably faster."
    if exact is not None:
        time += f" instead of {short(_milliseconds(exact, results))}"
    quality = f"{fraction(row.recall)} of the exact {k} nearest are found"
    if row.ndcg is not None and exact is not None and exact.ndcg is not None:
        quality += f" (nDCG@10 {row.ndcg:.3f}, exact {exact.ndcg:.3f})"
    begin = "Leave it as it is" if row.name.startswith(CONFIGURED) else f"Use {row.name}"
    return f"{begin}: {time}, and {quality}."


def _reading(row: Row) -> str:
    return (
        f"{row.prefix} → {row.shortlist}: the first {row.prefix} numbers of each vector choose a "
        f"shortlist of {row.shortlist}, which is reranked at full width."
    )


def lines(content: Answer) -> list[dict[str, str | None]]:
    """The rows of the table for a terminal."""
    return [
        {
            head: None if cell == NOTHING else cell
            for head, cell in zip(content.heads, row, strict=True)
        }
        for row in content.rows
    ]
