"""A full disk, a folder that cannot be written, failing and damaged files."""

import sqlite3
from pathlib import Path

import pytest
from conftest import WordLengths
from faults import campaign, missing
from scenarios import create

from searchengine import SearchEngine
from searchengine.errors import CollectionError

faults = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@faults
@pytest.mark.parametrize(
    ("scenario", "points", "error"),
    [
        ("changes", "4", ["ENOSPC"]),
        ("stream", "3", ["ENOSPC"]),
        ("changes", "9", ["EIO", "--once"]),
        ("changes", "3", ["EROFS"]),
        ("adds", "3", ["EACCES"]),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("create", "25", ["ENOSPC"]),
                ("changes", "80", ["ENOSPC"]),
                ("stream", "25", ["ENOSPC"]),
                ("changes", "40", ["ENOSPC", "--once"]),
                ("changes", "40", ["EIO", "--once"]),
                ("changes", "30", ["EIO"]),
                ("changes", "30", ["EROFS"]),
                ("adds", "20", ["EACCES"]),
            )
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_what_a_disk_refuses_is_refused_whole(scenario: str, points: str, error: list[str]) -> None:
    tally = campaign("fail", "--scenario", scenario, "--points", points, "--errno", *error)
    assert tally["problems"] == []
    assert tally["refused"] > 0


few_and_many = pytest.mark.parametrize("points", [4, pytest.param(100, marks=pytest.mark.long)])


@faults
@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("vectors.faiss", 4),
        ("manifest.json", 4),
        ("documents.db-wal", 4),
        *(
            pytest.param(name, 100, marks=pytest.mark.long)
            for name in (
                *("vectors.faiss", "coarse.faiss", "rotation.npy"),
                *("manifest.json", "documents.db-wal"),
            )
        ),
    ],
)
def test_a_damaged_file_is_found_or_harmless(name: str, points: int) -> None:
    tally = campaign("damage", "--file", name, "--points", str(points))
    assert tally["problems"] == []
    assert tally["faults"] == points + 5


@faults
@few_and_many
def test_a_damaged_database_is_named_or_harmless(points: int) -> None:
    tally = campaign("damage", "--file", "documents.db", "--points", str(3 * points))
    assert tally["problems"] == []


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "words.index"
    create(path).close()
    connection = sqlite3.connect(path / "documents.db")
    with connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) "
            "VALUES ('searchengine', 'm999_future', '')"
        )
    connection.close()
    with pytest.raises(CollectionError, match=r"newer version .*m999_future.*upgrade"):
        SearchEngine.open(path, WordLengths())
