"""Which file systems are other machines' too, and what is refused there."""

import logging
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder import folders as filesystem
from searchengine.backends.folder.folders import network_kind
from searchengine.errors import CollectionError

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,relatime - proc proc rw
30 22 0:40 / /srv/my\040data rw,relatime shared:7 master:1 - nfs4 server:/export rw,vers=4.2
31 30 8:1 /inner /srv/my\040data/local rw - xfs /dev/sda1 rw
32 22 0:41 /share /mnt/tab\011back\134slash rw - cifs //server/share rw
33 22 0:40 /sub /bound rw shared:7 - nfs4 server:/export rw,vers=4.2
34 22 0:42 / /home rw - autofs systemd-1 rw
35 34 0:43 / /home rw - nfs server:/home rw
36 22 0:44 / /media/s rw - fuse.sshfs me@server: rw
37 22 0:45 / /media/n rw - fuse.ntfs-3g /dev/sdb1 rw
39 22 0:47 / /media/j rw - FUSE.JuiceFS /dev/j rw
38 22 0:46 / /var/lib/c rw - overlay overlay rw,lowerdir=/a,upperdir=/b
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/srv", None),
        ("/srv/my data", "nfs4"),
        ("/srv/my data/c.index", "nfs4"),
        ("/srv/my data2", None),
        ("/srv/my data/local/c.index", None),
        ("/mnt/tab\tback\\slash/c", "cifs"),
        ("/bound/deep/er", "nfs4"),
        ("/home/me/c", "nfs"),
        ("/media/s/c", "fuse.sshfs"),
        ("/media/n/c", None),
        ("/media/j/c", "FUSE.JuiceFS"),
        ("/var/lib/c/x", None),
    ],
)
def test_the_type_of_the_longest_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str | None
) -> None:
    (tmp_path / "mountinfo").write_text(f"nonsense\n\n22 1 254:0 / / rw\n{MOUNTS}")
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.delenv(filesystem.ALLOW, raising=False)
    assert network_kind(Path(path)) == kind


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that mountinfo says is NFS; beside it `local` is not."""
    network = tmp_path.resolve() / "net"
    network.mkdir()
    text = f"22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:40 / {network} rw - nfs4 server:/ rw\n"
    (tmp_path / "mountinfo").write_text(text)
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.delenv(filesystem.ALLOW, raising=False)
    return network


def test_links_are_followed_and_nothing_need_exist(mounts: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(mounts)
    assert network_kind(tmp_path / "link" / "not" / "yet") == "nfs4"
    assert network_kind(tmp_path / "local") is None


def test_where_the_system_does_not_say(
    mounts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "gone")
    assert network_kind(mounts) is None


def test_a_collection_is_not_created_on_a_network(mounts: Path) -> None:
    with pytest.raises(CollectionError, match="c is on nfs4, a network file system") as error:
        SearchEngine.create(mounts / "c", WordLengths())
    assert f"set {filesystem.ALLOW}=1" in str(error.value)
    assert list(mounts.iterdir()) == []


def test_a_collection_on_a_network_is_read_with_a_warning_and_not_written(
    mounts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SearchEngine.create(tmp_path / "local", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a bee"}])
        engine.backup(mounts / "c")
    assert caplog.records == []
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


def test_it_can_be_allowed(
    mounts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(filesystem.ALLOW, "1")
    with SearchEngine.create(mounts / "c", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a bee"}])
    assert caplog.records == []
    monkeypatch.setenv(filesystem.ALLOW, "0")
    with pytest.raises(CollectionError, match="nfs4"):
        SearchEngine.create(mounts / "d", WordLengths())
