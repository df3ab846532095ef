"""Results of a bench: `results.json`, and as a sentence, a table, and one HTML page.

The page needs no scripts and no other file. Its plots are SVG: equal results give equal files.
"""

import io
import json
import shlex
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.indexer.config import SegmentConfig
from searchengine.measure.significance import EXACT
from searchengine.trainer.files import write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = 7
MIB = 2**20
RESULTS, PAGE = "results.json", "report.html"
RECOMMENDED = "recommended"
"""Name, after a path and #, of the row that is recommended."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operating point.

    Attributes:
        name: unique name of the row.
        config: the index config and operating point, as `searchengine tune --apply` stores it.
        recall: mean share of the exact k nearest that were found.
        recall_low, recall_high: its 95 % interval (bootstrap over queries).
        ndcg: nDCG@10, by documents, in the mode of `Results.subject`; None without judgements.
        ms: latency of one query alone, warm: the median of the rounds' medians. Rows are measured
            in turns, so they share the machine's load.
        p99_ms: the slowest of a hundred queries.
        memory: bytes that should stay in memory.
    """

    name: str
    config: SegmentConfig
    recall: float
    recall_low: float
    recall_high: float
    ndcg: float | None
    ms: float
    p99_ms: float
    memory: int


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a bench.

    Attributes:
        measured_at: start of the measurement, ISO 8601 in UTC.
        complete: False if the bench was interrupted.
        subject: the data set: name, path (of the collection; None for bare vectors), rows, dim,
            queries, k, judged (number of queries with judgements), mode (that of nDCG: the
            default mode, but vector where that is text; None for bare vectors).
        machine: processor, cores, threads.
        settings: repeats, and the goal: recall, confidence, k.
        encoding_ms: milliseconds to encode a question; None for bare vectors.
        now: the name of the row that searches as the collection does, or for bare vectors as a new
            collection would; None before it was measured.
        recommended: the name of the row that a tuning chose; None if none holds the goal.
        why: what held-out queries say of it, or why there is none.
        rows: the operating points, exact search first.
        curve: all points of the tuning, as it measured them: prefix, structure, code, shortlist,
            effort, recall, ms.
    """

    measured_at: str
    complete: bool
    subject: Mapping[str, Any]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    encoding_ms: float | None
    now: str | None
    recommended: str | None
    why: str
    rows: tuple[Row, ...]
    curve: tuple[Mapping[str, Any], ...]

    def named(self, name: str | None) -> Row | None:
        """The row with a name, in which -> may stand for →; None if there is none."""
        arrowed = None if name is None else name.replace("->", "→")
        return next((row for row in self.rows if row.name == arrowed), None)

    def point(self, name: str) -> Row:
        """The row with a name, or the one that is RECOMMENDED. Raises QueryError."""
        row = self.named(self.recommended if name == RECOMMENDED else name)
        if row is None and name == RECOMMENDED:
            raise QueryError(f"the bench recommends nothing: {self.why}")
        if row is None:
            names = ", ".join([RECOMMENDED, *(row.name for row in self.rows)])
            raise QueryError(f"the bench has no point {name!r}; its points are {names}")
        return row

    def table(self) -> list[dict[str, str]]:
        """A line for each point: the recommended one, the present one, exact search, then by speed.

        Recall has its interval.
        """
        about, order = self.subject, {EXACT: 2, self.now: 1, self.recommended: 0}
        rows = sorted(self.rows, key=lambda row: (order.get(row.name, 3), row.ms))
        marks = {RECOMMENDED: self.recommended, "now" if about["path"] else "default": self.now}
        quality = "nDCG@10" + ("" if about["mode"] == "vector" else f", {about['mode']}")
        return [
            {
                "": ", ".join(mark for mark, name in marks.items() if name == row.name),
                "point": row.name,
                f"recall@{about['k']}": with_ends(row.recall, row.recall_low, row.recall_high),
                **({quality: fraction(row.ndcg)} if about["judged"] else {}),
                "search, ms": short(row.ms),
                "p99, ms": short(row.p99_ms),
                "memory, MiB": short(row.memory / MIB),
            }
            for row in rows
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, folder: Path) -> Path:
        """Write `results.json` to a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / RESULTS
        partial = path.with_name(f".{RESULTS}.partial")
        write_json(partial, self.as_dict())
        partial.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read results from the file or its folder. Raises QueryError."""
        path = path / RESULTS if path.is_dir() else path
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            message = f"{path}: no such file; searchengine bench --out DIR writes one"
            raise QueryError(message) from None
        except (OSError, ValueError) as error:
            raise QueryError(f"{path} cannot be read as JSON ({error})") from error
        number = value.pop("format", None) if isinstance(value, dict) else None
        if number != FORMAT:
            raise QueryError(
                f"{path} must contain bench results in format {FORMAT}, got format {number!r}; "
                "measure again: searchengine bench --out DIR"
            )
        try:
            configs = [SegmentConfig.from_dict(row["config"]) for row in value["rows"]]
            pairs = zip(value["rows"], configs, strict=True)
            rows = tuple(Row(**row | {"config": config}) for row, config in pairs)
            return cls(**value | {"rows": rows, "curve": tuple(value["curve"])})
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(f"{path} is damaged: {error!r}; measure again") from error


def point_at(address: str, engine: SearchEngine) -> Row:
    """The row of FILE#NAME, measured on vectors as wide as those of a collection.

    FILE is a results.json or its folder, NAME as in `Results.point`. Raises QueryError.
    """
    path, _, name = address.partition("#")
    results, collection = Results.read(Path(path)), engine.collection
    if (measured := results.subject["dim"]) != (dim := collection.settings["encoder"]["dim"]):
        raise QueryError(
            f"{address} was measured on vectors of {measured} dimensions, and {collection.path} "
            f"has {dim}; bench this collection"
        )
    return results.point(name or RECOMMENDED)


def short(value: float) -> str:
    """Three significant digits: 0.0123, 1.23, 1,230."""
    rounded = float(f"{value:.3g}")
    if not rounded or abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:#.3g}".rstrip(".")  # "#" keeps the zeros of 1.20


def fraction(value: float | None) -> str:
    """A share such as recall, three digits; a value below 1 is never written as 1."""
    if value is None:
        return "–"  # not measured
    texts = (f"{value:.{digits}f}" for digits in (3, 4, 5))
    return next((text for text in texts if value >= 1 or float(text) < 1), "0.99999")


def with_ends(value: float, low: float, high: float) -> str:
    """A share and the ends of its interval; only the share if all are equal."""
    text, *ends = map(fraction, (value, low, high))
    return text if ends == [text, text] else f"{text} ({ends[0]}–{ends[1]})"


def sentence(results: Results) -> str:
    """What to use and what it gives, or why nothing is recommended."""
    row, now = results.named(results.recommended), results.named(results.now)
    if row is None:
        return f"No point is recommended: {results.why}"
    time = f"a search takes {short(row.ms)} ms"
    if now is not None and now is not row:
        time += f" ({'now' if results.subject['path'] else 'by default'} {short(now.ms)})"
    if results.encoding_ms is not None:
        time += f", encoding a question {short(results.encoding_ms)} ms"
    begin = "Leave it as it is" if row is now else f"Use {row.name}"
    return f"{begin}: {time}. {results.why}"


def command(results: Results, folder: Path | None) -> str:
    """The command that applies the recommendation; "" if there is nothing to do.

    `folder`: where results.json is; None: it was not written.
    """
    if folder is None or results.recommended in (None, results.now):
        return ""
    point = shlex.quote(f"{folder / RESULTS}#{RECOMMENDED}")
    collection = results.subject["path"]
    if collection is None:
        return f"searchengine tune COLLECTION --apply {point}  # COLLECTION: one of these vectors"
    return f"searchengine tune {shlex.quote(collection)} --apply {point}"


METHOD = (
    "A point: structure, code and prefix → shortlist, which is reranked at full width; ef or lists "
    "is the effort of the search. Recall: the share of the nearest rows of exact search that it "
    "finds, and its 95 % interval. Search: one query at a time, from its vector to row numbers, "
    "warm; the median of rounds in which all points take turns. Memory: what every search may read."
)


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json, report.html and its plots; return their paths in this order.

    The numbers are written first, so that a later failure does not lose them.
    """
    written = results.write(folder)
    drawn = plots(results) if find_spec("matplotlib") is not None else {}
    files = {PAGE: page(results, folder, drawn)}
    files |= {f"{name}.svg": svg for name, (svg, _) in drawn.items()}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [written, *(folder / name for name in files)]


def page(results: Results, folder: Path, drawn: Mapping[str, tuple[str, str]]) -> str:
    """The page. drawn: name of a plot → its SVG and caption."""
    about, machine = results.subject, results.machine
    title = escape(f"Bench of {about['name']}")
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{title}</h1>",
    ]
    if not results.complete:
        parts.append('<p class="warning">The bench was interrupted: rows may be missing.</p>')
    parts.append(f'<p class="answer">{escape(sentence(results))}</p>')
    if apply := command(results, folder):
        parts.append(f"<pre><code>{escape(apply)}</code></pre>")
        after = f"With another name after <code>{RESULTS}#</code> it applies that point."
        parts.append(f'<p class="caption">{after}</p>')
    parts += _table(results.table())
    for svg, caption in drawn.values():
        source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
        image = f'<img alt="{escape(caption)}" src="{source}">'
        card = f'<div class="card" tabindex="0" role="group" aria-label="plot">{image}</div>'
        parts.append(f"<figure>\n{card}\n<figcaption>{escape(caption)}</figcaption>\n</figure>")
    conditions = (
        f"Measured {results.measured_at}: {about['rows']:,} rows × {about['dim']} dimensions, "
        f"{about['queries']:,} queries; {machine['processor']}, {machine['cores']} cores."
    )
    parts += [f'<p class="caption">{escape(text)}</p>' for text in (METHOD, conditions)]
    return "\n".join([*parts, "</main>\n</body>\n</html>\n"])


def _table(lines: list[dict[str, str]]) -> Iterable[str]:
    """The table; the name and the mark of a point stay in view where it is scrolled."""
    _, point, *others = lines[0]
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in (point, *others))
    yield '<div class="scroll" tabindex="0" role="group" aria-label="points"><table>'
    yield f"<thead><tr>{heads}</tr></thead>\n<tbody>"
    for line in lines:
        mark, name, *cells = map(escape, line.values())
        state = ' class="chosen"' if RECOMMENDED in mark else ""
        note = f'<span class="mark">{mark}</span>' if mark else ""
        values = "".join(f"<td>{cell}</td>" for cell in cells)
        yield f'<tr{state}><th scope="row">{name}{note}</th>{values}</tr>'
    yield "</tbody></table></div>"


# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind readers can
# distinguish; the marks distinguish the same series in print.
LOOKS = {"flat": ("#0072B2", "o"), "hnsw": ("#D55E00", "s"), "ivf": ("#009E73", "D")}
INK = "#333333"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "searchengine",  # without it, ids are random
    "font.family": "DejaVu Sans",  # part of matplotlib: equal on every machine
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
}
TICKS = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1)
FLOOR = 1e-3  # added to 1 − recall, so that a recall of 1 has a position


def plots(results: Results) -> dict[str, tuple[str, str]]:
    """Name of a file → its SVG and what to see on it: recall against time, and by shortlist."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        return {
            "recall-latency": (
                _svg(recall_latency(results)),
                "Every mark is a point; lower and further right is better. Bars: 95 % interval of "
                "recall. Small marks: only tuned with. Ring: recommended. Dashed line: the target.",
            ),
            "recall-shortlist": (
                _svg(recall_shortlist(results)),
                "The best recall of each prefix length by its shortlist.",
            ),
        }


def recall_latency(results: Results) -> "Figure":
    """Recall against the milliseconds of a search; results of at least one row."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, (axes,) = _figure(1, 4.6)
    target = results.settings["recall"]
    _recall_scale(axes, "x", [target, *(row.recall_low for row in results.rows)])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_locator(NullLocator())
    for point in results.curve:
        colour, marker = LOOKS[point["structure"]]
        axes.plot(point["recall"], point["ms"], marker, color=colour, markersize=2.5, alpha=0.35)
    for row in results.rows:
        name = EXACT if row.name == EXACT else str(row.config.structure)
        colour, marker = ("#000000", "X") if name == EXACT else LOOKS[name]
        axes.plot([row.recall_low, row.recall_high], [row.ms] * 2, color=colour, linewidth=0.8)
        label = None if name in axes.get_legend_handles_labels()[1] else name
        axes.plot(row.recall, row.ms, marker, color=colour, label=label)
    axes.axvline(target, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlabel(f"recall@{results.subject['k']}")
    axes.set_ylabel("one query alone, median ms")
    axes.set_title("Recall against latency; lower right is better", loc="left")
    chosen = results.named(results.recommended)
    if chosen is not None:
        place = chosen.recall, chosen.ms
        axes.plot(*place, "o", color=INK, markersize=13, markerfacecolor="none")
        axes.set_title(f"{chosen.name}: {short(chosen.ms)} ms", loc="left")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def recall_shortlist(results: Results) -> "Figure":
    """The best recall of a prefix by the length of its shortlist: a panel for each structure."""
    from matplotlib import colormaps

    best: dict[tuple[str, int], dict[int, float]] = {}
    shown = [{**row.config.as_dict(), "recall": row.recall} for row in results.rows]
    for point in results.curve or shown:  # without a tuning, the rows
        if point["shortlist"] < results.subject["rows"]:
            sizes = best.setdefault((point["structure"], point["prefix"]), {})
            sizes[point["shortlist"]] = max(point["recall"], sizes.get(point["shortlist"], 0.0))
    structures = [name for name in LOOKS if any(name == each for each, _ in best)] or ["flat"]
    figure, panels = _figure(len(structures), 1.0 + 2.6 * len(structures))
    widths = sorted({prefix for _, prefix in best}, reverse=True)
    shades = colormaps["viridis"](np.linspace(0.05, 0.85, len(widths)))
    for axes, structure in zip(panels, structures, strict=True):
        series = [sorted(best.get((structure, prefix), {}).items()) for prefix in widths]
        for line, shade in zip(series, shades, strict=True):
            axes.plot([x for x, _ in line], [y for _, y in line], "o-", color=shade)
        _recall_scale(axes, "y", [recall for line in series for _, recall in line] or [0.9])
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_ylabel(f"recall@{results.subject['k']}")
        axes.set_title(f"{structure}: recall by shortlist, a line for each prefix", loc="left")
    panels[-1].set_xlabel("shortlist: rows reranked at full width")
    lines = panels[0].get_lines()
    figure.legend(lines, map(str, widths), title="prefix", loc="outside right center")
    return figure


def _figure(panels: int, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure  # not pyplot, so there is no global state

    figure = Figure(figsize=(7, height), layout="constrained")
    return figure, list(figure.subplots(panels, sharex=True, squeeze=False)[:, 0])


def _recall_scale(axes: "Axes", which: str, values: Iterable[float]) -> None:
    """Scale an axis logarithmically in 1 − recall: 0.9 to 0.99 is about as long as 0.99 to 1."""

    def missed(recall: Any) -> Any:
        return -np.log10(np.maximum(1 + FLOOR - np.asarray(recall), 1e-9))

    def found(place: Any) -> Any:
        return 1 + FLOOR - 10.0 ** -np.asarray(place)

    low, high = found(missed(np.array([max(0.0, min(values)), 1.0])) + np.array([-0.1, 0.1]))
    ticks = [tick for tick in TICKS if low <= tick <= high]
    getattr(axes, f"set_{which}scale")("function", functions=(missed, found))
    getattr(axes, f"set_{which}lim")(low, high)
    getattr(axes, f"{which}axis").set_ticks(ticks, [f"{tick:g}" for tick in ticks])


def _svg(figure: "Figure") -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
