"""Which file systems are other machines' too, and what is refused there."""

import logging
import os
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder import folders as filesystem
from searchengine.backends.folder.folders import network_warning
from searchengine.errors import CollectionError


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that mountinfo says is NFS."""
    say(tmp_path, monkeypatch, "nfs4")
    return tmp_path / "net"


def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Have the system say that the folder is on such a file system."""
    (tmp_path / "net").mkdir(exist_ok=True)
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = ["nonsense", "", f"22 1 {number} / /", "23 22 0:999 / /srv rw - nfs4 server:/ rw"]
    lines += [f"24 22 {number} / /a\\040b rw shared:7 master:1 - {kind} server:/ rw"]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.delenv(filesystem.ALLOW, raising=False)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "FUSE.JuiceFS"])
def test_the_type_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    say(tmp_path, monkeypatch, kind)
    (tmp_path / "link").symlink_to(tmp_path / "net")
    for path in (tmp_path, tmp_path / "link" / "not" / "yet"):
        assert f"is on {kind}, a network" in str(network_warning(path))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "autofs", "fuse.ntfs-3g", "overlay"])
def test_a_local_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    say(tmp_path, monkeypatch, kind)
    assert network_warning(tmp_path / "net" / "c") is None


def test_a_collection_is_not_created_on_a_network(mounts: Path) -> None:
    with pytest.raises(CollectionError, match="c is on nfs4, a network file system") as error:
        SearchEngine.create(mounts / "c", WordLengths())
    assert f"set {filesystem.ALLOW}=1" in str(error.value)
    assert list(mounts.iterdir()) == []


def test_a_collection_on_a_network_is_read_with_a_warning_and_not_written(
    mounts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(filesystem.ALLOW, "1")
    with SearchEngine.create(mounts / "c", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a bee"}])
    assert caplog.records == []
    monkeypatch.delenv(filesystem.ALLOW)
    with SearchEngine.open(mounts / "c", WordLengths()) as engine:
        (record,) = caplog.records
        assert record.levelno == logging.WARNING and "is on nfs4" in record.getMessage()
        assert [hit.key for hit in engine.search("a bee")] == ["a"]
        for write in (
            lambda: engine.add([{"_id": "b", "text": "b"}]),
            lambda: engine.delete(["a"]),
            lambda: engine.update({"a": {"year": 1}}),
            lambda: engine.index_fields("year"),
            lambda: engine.optimize(),
        ):
            with pytest.raises(CollectionError, match="is on nfs4"):
                write()
        assert engine.stats().documents == 1
