"""What a report says besides its figures: what was searched, on what, how it was measured."""

from collections.abc import Mapping
from typing import Any

from searchengine.bench.amounts import plain, size
from searchengine.bench.recommend import FEW_MARGIN, MARGIN
from searchengine.bench.results import CONFIGURED, Kind, Results

Fact = tuple[str, str]  # a term, and what is said of it


def facts(results: Results) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """Headings, each with its facts; those without any are left out."""
    said = (
        ("What was searched", _subject(results)),
        ("How it was measured", _method(results)),
        ("What was asked for", _settings(results)),
        ("The machine", _machine(results)),
        ("Other engines, as they were set", _peers(results)),
        ("What was left out, and why", [(name, why) for name, why in results.missing.items()]),
    )
    return tuple((heading, tuple(facts)) for heading, facts in said if facts)


def _subject(results: Results) -> list[Fact]:
    told = dict(results.subject)
    if not told.get("encoder"):
        told["encoder"] = "none: bare vectors"
    if not told.get("judged"):
        told["judged"] = "none, so that there is no nDCG"
    named = {
        "dim": "numbers a row",
        "k": "nearest sought (k)",
        "judged": "queries with judgements",
    }
    facts = [(named.get(name, name), plain(value)) for name, value in told.items()]
    if not results.subject.get("encoder") and _configured(results):
        facts.append(
            (
                CONFIGURED,
                "the default recipe of a new collection, for bare vectors have no other",
            )
        )
    return [*facts, ("measured", f"{results.made}{'' if results.complete else ', interrupted'}")]


def _configured(results: Results) -> bool:
    return any(row.name.startswith(CONFIGURED) for row in results.rows)


def _method(results: Results) -> list[Fact]:
    counts = {len(row.rounds_ms) for row in results.rows}
    rounds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts, default=0))
    k, queries = results.subject.get("k"), plain(results.subject.get("queries"))
    facts = [
        (
            "latency",
            "one query at a time, from its vector to the numbers of the rows found, its rotation "
            "included and its encoding left out; warm, that is with the files in memory",
        ),
        (
            "rounds",
            f"{rounds}. The operating points take turns, round after round, so that whatever else "
            "the machine did fell on all of them. Of a round, the percentile over its queries is "
            "kept; shown is the median of the rounds (with their quartiles)",
        ),
        (
            "recall",
            f"the share of the {k} rows found by exact search that a point found too, mean over "
            f"{queries} queries; its 95 % interval is a bootstrap over the queries",
        ),
        (
            "as fast",
            "two points tie unless the median ratio of their rounds lies beyond "
            f"{MARGIN:g} and in all rounds the same one is faster, but for one in five (of many "
            "rounds, as many as the sign test allows); of fewer than three rounds, each lies "
            f"beyond {FEW_MARGIN:g}",
        ),
        (
            "times as fast as exact",
            "the median, over the rounds, of the latency of exact search in a round over the "
            "point's own in the same round",
        ),
        (
            "times fewer than exact",
            "multiply-adds, counted and not timed: rows × numbers of exact search over what a "
            "query computes, the rotation included",
        ),
        ("in a batch", "many queries in one call, which may use several threads"),
        (
            "in memory, on disk",
            "what every search may touch and should stay in memory (codes, links, rotation), and "
            "the rows at full width, of which a search reads the shortlist's alone; of other "
            "engines the memory that their process took to build, and their files",
        ),
    ]
    if any(row.cold_ms is not None for row in results.rows):
        facts.append(
            (
                "cold",
                "the first query on a fresh map of the rows, their pages dropped from the page "
                "cache, codes and links in memory; pages are those that it read from the disk",
            )
        )
    return facts


def _settings(results: Results) -> list[Fact]:
    told = dict(results.settings)
    funnels = told.get("funnels")
    if funnels:
        told["funnels"] = [", ".join(f"{w}:{n}" for w, n in stages) for stages in funnels]
    return [(name, plain(value)) for name, value in told.items()]


def _machine(results: Results) -> list[Fact]:
    facts: list[Fact] = []
    for name, value in results.machine.items():
        if isinstance(value, Mapping):
            facts.append((name, ", ".join(f"{part} {each}" for part, each in value.items())))
        else:
            facts.append((name, size(value) if name == "memory" else _as_is(value)))
    return facts


def _as_is(value: Any) -> str:
    """3.11 is a version of Python, not a number to round."""
    return value if isinstance(value, str) else plain(value)


def _peers(results: Results) -> list[Fact]:
    """What all points of an engine have in common; the rest is in their names."""
    common: dict[str, dict[str, Any]] = {}
    for row in results.rows:
        if row.kind is Kind.PEER:
            told = common.setdefault(row.name.partition(":")[0], dict(row.settings))
            for name in [name for name in told if row.settings.get(name) != told[name]]:
                del told[name]
    return [(engine, plain(told)) for engine, told in common.items() if told]
