"""searchengine plan."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from searchengine.cli import cli


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["plan", *arguments])


def test_a_billion_vectors() -> None:
    shown = run("--rows", "1e9", "--price", "2.5")
    assert shown.exit_code == 0
    for word in ("machines", "memory", "disk", "shortlist", "p99", "price"):
        assert word in shown.stdout
    values = json.loads(run("--rows", "1e9", "--price", "2.5", "--json").stdout)
    assert values["shards"] >= 100 and values["machines"] >= 4
    assert values["price_per_month"] == 2.5 * 730 * values["machines"]
    assert f"{values['machines']:,}" in shown.stdout


def test_shortlists_of_an_own_corpus() -> None:
    options = ("--rows", "1e8", "--json", "--prefix", "100")
    values = json.loads(run(*options, "--shortlists", "1e4:10,1e6:100").stdout)
    assert values["shortlist"][0] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rows", "many"), "expected a whole number of 1 or more, such as 1e9, got 'many'"),
        (("--rows", "0.5"), "expected a whole number"),
        (("--rows", "inf"), "expected a whole number"),
        (("--rows", "1e6", "--prefix", "100"), "give shortlists of your own corpus"),
        (("--rows", "1e6", "--shortlists", "1e4:10"), "needs two sizes"),
        (("--rows", "1e6", "--shortlists", "7"), "expected ROWS:K separated by commas"),
        (("--rows", "1e6", "--dim", "64"), "prefix"),
    ],
)
def test_bad_input(options: tuple[str, ...], message: str) -> None:
    shown = run(*options)
    assert shown.exit_code == 2 and message in " ".join(shown.stderr.split())
