"""Do the tests notice when the code is broken? Fifteen standing ways to break it, one at a time.

    python tests/mutants.py             # make mutants: all of them
    python tests/mutants.py "stale snapshot" "lost tombstone"

The repository is copied into a temporary folder, which is what the tests import and start. There
each mutant replaces one text of one file; then the tests named beside the mutant and tests/public
run until the first failure. Before all mutants, the same tests must pass on the code as it is.

Exit status 1: a mutant was not caught, or its text is no longer in its file ("stale"): then write
it again for the code of today. Before a test is deleted, run this with it and without it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLIC = "tests/public"
MINUTES = 20  # of the tests of one mutant; a mutant that takes longer hangs, and is caught
_NOT_COPIED = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "demo")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Mutant(NamedTuple):
    """A fault: in `file`, the text `old`, which is there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


CONTRACT = "tests/searchengine/backends/test_backends.py"
FOLDER = "searchengine/backends/folder"
MUTANTS = [
    Mutant(
        "wrong sort order",
        "indexer/search/scoring.py",
        "order = np.lexsort((rows, -scores), axis=1)[:, :k]",
        "order = np.lexsort((rows, scores), axis=1)[:, :k]",
        [CONTRACT, "tests/indexer/test_cascade.py"],
    ),
    Mutant(
        "off-by-one row",
        f"{FOLDER}/snapshot.py",
        "columns[:, inside] = file[:count, passages[inside] - row.base]",
        "columns[:, inside] = file[:count, passages[inside] - row.base - 1]",
        ["tests/searchengine/query/test_ties.py", CONTRACT],
    ),
    Mutant(
        "lost tombstone",
        f"{FOLDER}/snapshot.py",
        "same = before.live if before and before._deletions == self._deletions else {}",
        "same = before.live if before else {}",
        [CONTRACT],
    ),
    Mutant(
        "filter after the shortlist",
        f"{FOLDER}/snapshot.py",
        "                return segment.search(queries, count, shortlist=shortlist, "
        "allowed=allowed[row])\n",
        "                live = self.live[row]\n"
        "                found = segment.search(queries, count, shortlist, live)\n"
        "                if allowed is not self.live:\n"
        "                    lost = ~np.isin(found.rows, allowed[row].rows)\n"
        "                    found.rows[lost], found.scores[lost] = -1, -np.inf\n"
        "                    order = np.argsort(-found.scores, axis=1, kind='stable')\n"
        "                    found.rows[:] = np.take_along_axis(found.rows, order, axis=1)\n"
        "                    found.scores[:] = np.take_along_axis(found.scores, order, axis=1)\n"
        "                return found\n",
        ["tests/searchengine/backends/test_filters.py", CONTRACT],
    ),
    Mutant(
        "swapped prompts",
        "trainer/encoder.py",
        "for name in ROLE_PROMPTS[role]:",
        "for name in ROLE_PROMPTS['document' if role == 'query' else 'query']:",
        ["tests/trainer/test_prompts.py"],
    ),
    Mutant(
        "half a commit shown",
        f"{FOLDER}/snapshot.py",
        "self.store.hold()",
        "pass",
        [CONTRACT],
    ),
    Mutant(
        "stale snapshot",
        f"{FOLDER}/snapshot.py",
        """if (store.identity, store.settings().get("commit_id")) == (
                    current.store.identity,
                    current.settings.get("commit_id"),
                )""",
        "if (store.identity) == (current.store.identity)",
        [CONTRACT],
    ),
    Mutant(
        "missing normalisation",
        "indexer/arrays.py",
        'np.divide(single, norms[:, None], out=unit, casting="same_kind")',
        "unit[:] = single",
        ["tests/indexer/test_vectors.py"],
    ),
    Mutant(
        "prefix not renormalised",
        "indexer/arrays.py",
        "head /= norms[:, None]",
        "pass",
        ["tests/indexer/test_vectors.py"],
    ),
    Mutant(
        "wrong segment base",
        "indexer/search/cascade.py",
        "np.where(result.rows < 0, -1, result.rows + base)",
        "np.where(result.rows < 0, -1, result.rows + bases[0])",
        [CONTRACT],
    ),
    Mutant(
        "ignored offset",
        "searchengine/query/ranking.py",
        "slice(query.offset, query.depth)",
        "slice(0, query.k)",
        ["tests/searchengine/query/test_paging.py"],
    ),
    Mutant(
        "dropped passage",
        "searchengine/ingest/passages.py",
        "    passages.append((int(starts[first]), int(ends[-1])))\n",
        "",
        ["tests/searchengine/ingest/test_passages.py"],
    ),
    Mutant(
        "wrong encoding",
        "searchengine/corpus/contents.py",
        'text = data.decode(name or ("latin-1" if b"\\0" in data else "utf-8"))',
        'text = data.decode("latin-1")',
        ["tests/searchengine/corpus/test_encodings.py"],
    ),
    Mutant(
        "unchecked checksum",
        "indexer/storage/files.py",
        "if contents and (checksum or sha256)(path) != self.sha256:",
        "if contents and not (checksum or sha256)(path):",
        ["tests/indexer/test_segment.py"],
    ),
    Mutant(
        "gradient of one loss wrong",
        "trainer/training/losses.py",
        "target = (full.detach() / temperature)",
        "target = (full / temperature)",
        ["tests/trainer/test_loss_references.py"],
    ),
]


def copied(folder: Path) -> Path:
    """A copy of the repository, with compiled kernels and links, beside the same data."""
    copy = folder / "repository"
    ignored = shutil.ignore_patterns(*_NOT_COPIED)
    shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=ignored)
    (copy / ".venv").symlink_to(REPOSITORY / ".venv")
    if (REPOSITORY.parent / "shared").exists():  # data that some tests read
        (folder / "shared").symlink_to(REPOSITORY.parent / "shared")
    return copy


def environment(copy: Path) -> dict[str, str]:
    """In which the copy is imported, by programs that tests start too, and never an old .pyc."""
    paths = os.pathsep.join([str(copy), str(copy / "tests")])
    return os.environ | {
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def check_imports(copy: Path) -> None:
    """Exit unless the packages are imported from the copy."""
    names = ("searchengine", "searchengine.indexer.segment", "searchengine.trainer.encoder")
    program = f"import {', '.join(names)}, sys\nfor n in {names}: print(sys.modules[n].__file__)"
    command = [sys.executable, "-c", program]
    output = subprocess.check_output(command, cwd=copy, env=environment(copy), text=True)
    for line in output.splitlines():
        if not Path(line).resolve().is_relative_to(copy.resolve()):
            sys.exit(f"not the copy would be tested: {line} was imported")


def first_failure(copy: Path, tests: Sequence[str]) -> str:
    """The first of the tests that fails; "" if all pass."""
    # Without the real data tests are skipped. A test that is not there cannot notice anything.
    present = [name for name in tests if (copy / name).exists()]
    options = ["-x", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "--tb=no", "-rfE"]
    command = [sys.executable, "-m", "pytest", *options, *present]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment(copy),
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        return f"(no end after {MINUTES} minutes)"
    if done.returncode == 0:
        return ""
    found = _FAILED.search(done.stdout)
    return found[1] if found else f"(pytest ended with {done.returncode}: {done.stdout[-300:]})"


def caught_by(copy: Path, mutant: Mutant) -> str:
    """The test that fails with this mutant; "" if none does; "stale" if there is no such code."""
    path = copy / mutant.file
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if source.count(mutant.old) != 1:
        return "stale"
    try:
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        return first_failure(copy, [*mutant.tests, PUBLIC])
    finally:
        path.write_text(source, encoding="utf-8")


def main(names: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if unknown := {*names} - {mutant.name for mutant in chosen}:
        sys.exit(f"no mutant is called {', '.join(sorted(unknown))}")
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copied(Path(folder))
        check_imports(copy)
        tests = list(dict.fromkeys([PUBLIC, *(name for m in chosen for name in m.tests)]))
        if failed := first_failure(copy, tests):
            sys.exit(f"the code as it is fails {failed}: mend that first")
        for mutant in chosen:
            began = time.monotonic()
            by = caught_by(copy, mutant)
            survived += by in ("", "stale")
            said = {"": "NOT CAUGHT", "stale": f"STALE: write it again for {mutant.file}"}
            seconds = f"{time.monotonic() - began:4.0f} s"
            print(f"{mutant.name:<28}{seconds}  {said.get(by, by)}", flush=True)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
