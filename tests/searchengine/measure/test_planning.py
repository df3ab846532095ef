"""Plans: an exact cost model is found again, and real trials stay within their error."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from command_line import run, run_json
from postgres_server import new_url

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.measure.planning import trials
from searchengine.measure.planning.laws import Figure, Shape
from searchengine.measure.planning.plan import SERVER_STEP, Demand, plan, planned, trial_sizes
from searchengine.measure.planning.trials import Cost, Trial, needed

SIZES = (2_000, 8_000, 32_000)
DIM = 16


def model(documents: int, server: bool = True) -> Trial:
    """An exact cost model, with two passages a document."""
    n = 2 * documents
    words = 0.5 + n / 20_000 if server else 0.1 * n**0.2
    parts = {"vectors": 0.2 * n**0.25, "words": words}
    reads = {"vectors": 12 * n**0.5, "words": 3 + n / 500}
    return Trial(
        documents=documents,
        passages=n,
        disk=1e6 + 2_000.0 * n,
        memory=300.0 * n,
        shortlist=round(3 * n**0.4),
        recall=0.95,
        search_ms=Cost(sum(parts.values()) + 0.7, parts),
        client_ms=2.5 if server else None,
        reads=Cost(sum(reads.values()) + 40, reads) if server else None,
    )


def runs(*sizes: int, server: bool = True) -> list[Trial]:
    return [model(size, server) for size in sizes or SIZES]


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "values", "at_100"),
    [
        (Shape.LINEAR, {1: 5.0, 4: 11.0, 16: 35.0}, 203.0),  # 3 + 2 n
        (Shape.LINEAR, {1: 1.0, 4: 8.0, 16: 32.0}, 200.0),  # never below 0: 2 n
        (Shape.LINEAR, {1: 8.0, 4: 7.0, 16: 8.0}, 8.0),  # never falls
        (Shape.POWER, {1: 3.0, 4: 6.0, 16: 12.0}, 30.0),  # 3 √n
        (Shape.POWER, {1: 1.0, 4: 64.0, 16: 256.0}, 1600.0),  # at most linear: 16 n
    ],
)
def test_two_sizes_are_fitted(shape: Shape, values: dict[int, float], at_100: float) -> None:
    figure = Figure.fitted(shape, values)
    assert figure.at(100) == pytest.approx(at_100)
    assert figure.error == pytest.approx(abs(figure.at(16) / values[16] - 1))


def test_the_error_is_that_of_the_sizes_that_were_not_fitted() -> None:
    figure = Figure.fitted(Shape.LINEAR, {4: 11.0, 1: 5.0, 16: 70.0, 8: 9.5})
    assert figure.errors == {8: pytest.approx(1.0), 16: pytest.approx(-0.5)}
    assert figure.error == pytest.approx(1.0)


def test_the_shortlist_for_a_recall() -> None:
    recalls = {10: 0.5, 15: 0.7, 20: 0.9, 29: 1.0}
    assert needed(lambda size: recalls[size], 0.5, 10, 100) == (10, 0.5)
    # Halfway from 0.7 to 0.9 in the logarithm: √(15 · 20) = 17.3.
    assert needed(lambda size: recalls[size], 0.8, 10, 100) == (18, 0.8)
    assert needed(lambda size: recalls[size], 1.0, 10, 100) == (29, 1.0)
    assert needed(lambda _: 0.9, 0.95, 10, 100) == (None, 0.9)
    asked: list[int] = []
    needed(lambda size: float(bool(asked.append(size))), 1.0, 10, 33)
    assert asked == [10, 15, 20, 29, 33]  # at most all rows


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", [4_000, 32_000, 100_000, 3_000_000])
def test_an_exact_model_is_found_again(documents: int) -> None:
    demand = Demand(documents, rate=40, cores=4)
    result, truth = planned(demand, runs(), Shape.POWER, 0.5), model(documents)
    assert result.place == "PostgreSQL" and result.passages == 2 * documents
    assert result.factor == pytest.approx(documents / 32_000)
    assert truth.reads is not None
    expected = {
        "disk": truth.disk,
        "memory": truth.memory,
        "search_ms": truth.search_ms.whole,
        "client_ms": 2.5,
        "reads": truth.reads.whole,
        "encoding_ms": 0.5,
        "server_processors": 40 * truth.search_ms.whole / 1000 / 0.6,
        "processors": 40 * 3.0 / 1000 / 0.6,
        "machines": 1,
    }
    for name, value in expected.items():
        assert result[name].value == pytest.approx(value, rel=1e-6), name
    shortlist = 3 * truth.passages**0.4  # of whole rows
    assert result["shortlist"].value == pytest.approx(shortlist, rel=0.05)
    servers = result["server_processors"].value
    assert servers is not None and result["servers"].value == -(-servers // 4)
    for name in ("disk", "memory", "search_ms", "client_ms", "reads", "server_processors"):
        assert result[name].error == pytest.approx(0, abs=1e-9), name
    assert "Citus" in result.notes[-1]


def test_a_folder_has_no_servers_and_no_reads() -> None:
    result = planned(Demand(100_000, 1000, cores=2), runs(server=False), Shape.POWER, None)
    assert result.place == "a folder"
    names = {figure.name for figure in result.figures}
    assert names == {"disk", "memory", "shortlist", "search_ms", "processors", "machines"}
    needed_processors = 1000 * model(100_000, server=False).search_ms.whole / 1000 / 0.6
    assert result["processors"].value == pytest.approx(needed_processors)
    assert result["machines"].value == np.ceil(needed_processors / 2)
    assert "reads are not known" in result.notes[-1]


def test_what_does_not_follow_is_left_out() -> None:
    trials_run = runs()
    last = trials_run[-1]
    off = Cost(last.search_ms.whole * 1.5, last.search_ms.parts)
    trials_run[-1] = replace(last, search_ms=off, disk=last.disk * 1.2)
    result = planned(Demand(100_000, 10), trials_run, Shape.POWER, None)
    assert result["search_ms"].value is None and result["search_ms"].error > 0.3  # type: ignore[operator]
    assert "does not grow as expected" in result["search_ms"].reason
    for name in ("server_processors", "servers"):
        assert result[name].value is None
        assert result[name].reason == "search_ms is not known"
    assert result["machines"].value == 1  # the processes that ask are known
    assert result["disk"].value == pytest.approx(1e6 + 2000 * 200_000)  # 17 % off
    assert result["disk"].error == pytest.approx(1 - 1 / 1.2)


def test_what_is_too_little_to_be_measured_is_left_out() -> None:
    trials_run = runs()
    cost = trials_run[0].search_ms
    none = Cost(cost.whole, {**cost.parts, "words": 0.0})
    trials_run[0] = replace(trials_run[0], search_ms=none, memory=0.0)
    result = planned(Demand(100_000, 10), trials_run, Shape.POWER, None)
    for name in ("search_ms", "memory"):
        assert result[name].value is None and result[name].reason == "too little to be measured"


def test_a_part_that_outgrows_the_others_counts() -> None:
    """Words are a trifle in the trials, half of the cost of the plan, and 60 % off."""
    trials_run = runs()
    for i, words in enumerate((0.0012, 0.0048, 0.0120)):
        cost = trials_run[i].search_ms
        parts = {**cost.parts, "words": words}
        trials_run[i] = replace(trials_run[i], search_ms=Cost(sum(parts.values()) + 0.7, parts))
    near = planned(Demand(32_000, 10), trials_run, Shape.POWER, None)["search_ms"]
    assert near.error is not None and near.error < 0.01 and near.value is not None
    far = planned(Demand(3_200_000, 10), trials_run, Shape.POWER, None)["search_ms"]
    assert far.error is not None and far.error > 5 * near.error


def test_a_recall_that_is_not_reached_is_named() -> None:
    trials_run = [*runs()[:2], replace(runs()[2], shortlist=None, recall=0.91)]
    result = planned(Demand(100_000, 10), trials_run, Shape.POWER, None)
    assert result["shortlist"].value is None
    assert result["shortlist"].reason == "recall@10 is 0.910 at most with 64,000 passages"


@pytest.mark.parametrize("documents", [1_999, 3_200_001])
def test_far_demands_are_refused(documents: int) -> None:
    with pytest.raises(QueryError, match="a plan is made for 2,000 to 3,200,000, got"):
        planned(Demand(documents, 1), runs(), Shape.POWER, None)


@pytest.mark.parametrize(
    "wrong", [{"documents": 0}, {"rate": 0.0}, {"recall": 1.1}, {"k": 0}, {"cores": 0}]
)
def test_wrong_demands_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(QueryError, match=f"^{name} must be"):
        Demand(**{"documents": 1, "rate": 1.0, **wrong})


def test_the_sizes_of_trials() -> None:
    assert trial_sizes(100_000) == [2_000, 8_000, 32_000]
    assert trial_sizes(100_000, step=SERVER_STEP) == [8_000, 16_000, 32_000]
    assert trial_sizes(4_000) == trial_sizes(4_000, step=SERVER_STEP) == [1_000, 2_000, 4_000]
    assert trial_sizes(9_000, [8_000, 1_000, 3_000, 9_000]) == [1_000, 3_000, 8_000, 9_000]
    with pytest.raises(QueryError, match="a plan needs 4,000 documents"):
        trial_sizes(3_999)
    for sizes in ([1_000, 2_000], [999, 2_000, 4_000], [1_000, 2_000, 9_001]):
        with pytest.raises(QueryError, match="three sizes or more, from 1,000 to 9,000"):
            trial_sizes(9_000, sizes)


# --- real trials ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Documents with a few words and vectors of their own, searched by vectors."""
    path = tmp_path_factory.mktemp("plan") / "some.index"
    random = np.random.default_rng(0)
    vectors = random.standard_normal((4_200, DIM)) * np.arange(1, DIM + 1) ** -0.5
    with SearchEngine.create(path, None, {"prefix": 8}, dim=DIM) as engine:
        words = random.integers(0, 2_000, (4_200, 12))
        engine.add(
            [
                {"_id": str(i), "text": " ".join(f"w{w}" for w in row)}
                for i, row in enumerate(words)
            ],
            vectors,
        )
        engine.set_default("vector")
    yield path


def test_a_folder_is_planned_and_stays_as_it_is(folder: Path) -> None:
    before = run_json("info", folder)
    result = run_json("plan", folder, "--documents", "1e5", "--rate", "20", "--cores", "2")
    figures = {figure["name"]: figure for figure in result["figures"]}
    assert result["place"] == "a folder" and result["passages"] == 100_000
    assert result["factor"] == pytest.approx(100_000 / 4_100)
    # A row has 16 float16 numbers and a code of 8: the disk grows by 48 bytes a row, and texts.
    assert figures["memory"]["value"] > 16 * 100_000
    assert figures["disk"]["value"] > (32 + 16 + 50) * 100_000
    for name in ("disk", "memory", "shortlist"):
        assert figures[name]["error"] <= 0.3, figures[name]
    assert len(figures["disk"]["measured"]) == 3
    assert run_json("info", folder) == before
    shown = run("plan", folder, "--documents", "1e5", "--rate", "20").stdout
    assert "extrapolated 24.4 times beyond the largest" in shown


def test_postgresql_is_planned_and_nothing_is_left_there(folder: Path) -> None:
    url = new_url()
    with SearchEngine.open(folder) as engine:
        result = plan(engine, Demand(100_000, 20), url, sizes=[2_000, 2_900, 4_100])
        assert result.place == "PostgreSQL"
        for name in ("disk", "memory", "reads"):
            figure = result[name]
            assert figure.value is not None and figure.error is not None, figure
            assert figure.error <= 0.3, figure
        # A row of passages has 32 bytes of numbers; 8 KiB pages hold it with its document.
        assert 100 * 100_000 < result["disk"].value < 3_000 * 100_000  # type: ignore[operator]
        assert 1 < result["reads"].value < 10_000  # type: ignore[operator]
        assert json.dumps(result.as_dict())
    with psycopg.connect(url.partition("#")[0]) as connection:
        sql = "SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, 'plan_')"
        assert connection.execute(sql).fetchone() == (0,)


def test_a_trial_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    url = new_url()
    monkeypatch.setattr(trials, "_cost", fail)
    with SearchEngine.open(folder) as engine, pytest.raises(KeyboardInterrupt):
        plan(engine, Demand(100_000, 20), url, sizes=[2_000, 2_900, 4_100])
    with psycopg.connect(url.partition("#")[0]) as connection:
        sql = "SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, 'plan_')"
        assert connection.execute(sql).fetchone() == (0,)


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        (10**6, {}, "is made for 2,000 to 410,000, got 1,000,000"),
        (10**5, {"on": "some/folder"}, "on must be the URL of a server.*got 'some/folder'"),
        (10**5, {"questions": []}, "needs a question at least"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_trials(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    documents: int,
    options: dict[str, Any],
    message: str,
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a trial has begun")

    monkeypatch.setattr(trials, "run", refuse)
    with SearchEngine.open(folder) as engine, pytest.raises(QueryError, match=message):
        plan(engine, Demand(documents, 20), sizes=[2_000, 2_900, 4_100], **options)


class _Elsewhere:
    path = "postgresql://me@db/search#papers"

    def __init__(self, settings: dict[str, Any], seconds: Any) -> None:
        self.settings = settings
        self.processor_seconds = lambda: seconds


def test_what_cannot_be_measured_is_refused() -> None:
    cluster: Any = _Elsewhere({"citus": True}, {})
    with pytest.raises(QueryError, match=r"Citus.*is not known: nothing is planned for it"):
        trials.check_one_machine(cluster)
    remote: Any = _Elsewhere({}, None)
    with pytest.raises(QueryError, match="is on another machine, whose processor cannot be"):
        trials.check_one_machine(remote)
