"""No room for a file that is written by a library, or mapped while it is written."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths
from faults import in_child, in_mounts

from searchengine import SearchEngine
from searchengine.errors import CollectionError
from searchengine.indexer.building import write_index
from searchengine.indexer.native.library import faiss


def test_faiss_passes_over_no_error_of_a_small_file() -> None:
    """It writes the last 4 KB when it closes the file, and ignores that they found no room."""
    index = faiss.IndexFlatIP(8)
    index.add(np.ones((3, 8), np.float32))
    with pytest.raises(OSError, match="No space left"):
        write_index(index, Path("/dev/full"))


def test_no_memory_for_a_mapping_is_no_damage(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a bee"}])

    def work(say: Callable[[object], None]) -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        try:
            SearchEngine.open(tmp_path / "c", WordLengths())
        except CollectionError as error:
            say(str(error))

    (line,) = in_child(work).said
    assert "no memory left for a mapping: free some" in line and "repair" not in line


def test_a_full_disk_when_opening_is_no_damage(tmp_path: Path) -> None:
    script = """
mount -t tmpfs -o size=1200k none "$1" || exit 77
exec "$2" -c '
import sys
from pathlib import Path
from searchengine import SearchEngine
from searchengine.errors import CollectionError
from conftest import WordLengths
path = Path(sys.argv[1]) / "c"
with SearchEngine.create(path, WordLengths()) as engine:
    engine.add([{"_id": "a", "text": "a bee"}])
try:
    with open(path.parent / "rest", "wb", buffering=0) as rest:
        while rest.write(b"x" * 512):
            pass
except OSError:
    pass
try:
    SearchEngine.open(path, WordLengths())
except CollectionError as error:
    print(error)
(path.parent / "rest").unlink()
SearchEngine.open(path, WordLengths()).verify()
' "$1"
"""
    (line,) = in_mounts(script, tmp_path).splitlines()
    assert line.endswith("the disk is full: free some space there") and "damaged" not in line
