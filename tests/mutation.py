"""Do the tests notice when the code is broken? Breaks it on purpose, one line at a time.

    mutation.py sample GROUP --count 220 --seed 0   draw mutants, into tests/mutants/GROUP.jsonl
    mutation.py run GROUP --folder F                run the tests against each of them
    mutation.py report --folder F                   how many were noticed, and which were not

A mutant is one changed line of one function. cosmic-ray draws most of them; one kind is added, a
statement left out, for the worst faults are a lock not taken and a file not synced. What changes
nothing but annotations is not drawn. The sample is kept by the text of its lines, so that it can be
run again after other changes: a mutant whose line is no longer there is "gone".

Run in a copy of the repository: it is changed on disk, for programs that tests start must see the
mutant too. Each runs in a forked process, before which only what is slow to import is loaded, and
none of our own: nothing has begun a thread yet, so a fork is safe. Tests are taken by what they
run: those that pass through the changed line, the module's own first and then the quickest, until
one fails. The time each has is ten times what it took unbroken, and a minute.

Needs coverage and cosmic-ray, which nothing else here does: pip install coverage cosmic-ray
"""

import argparse
import ast
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "mutants"

GROUPS = {
    "indexer": [
        "indexer/tuning/tune.py",
        "indexer/tuning/confidence.py",
        "indexer/building/merge.py",
    ],
    "searchengine": [
        "searchengine/backends/folder/documents/store.py",
        "searchengine/backends/folder/documents/database.py",
        "searchengine/backends/folder/documents/changes.py",
        "searchengine/backends/folder/writer.py",
        "searchengine/backends/folder/snapshot.py",
        "searchengine/backends/folder/view.py",
        "searchengine/ingest/ingestion.py",
        "searchengine/upkeep/verify.py",
        "searchengine/upkeep/copies.py",
    ],
    "trainer": [
        "trainer/training/losses.py",
        "trainer/training/objectives.py",
        "trainer/training/rows.py",
        "trainer/training/example_files.py",
    ],
}
# Where a group's tests are looked for; which of them pass through a line is measured.
TESTS = {
    "indexer": ["indexer", "searchengine/backends/test_filters.py"],
    "searchengine": [
        "searchengine/backends/folder",
        "searchengine/ingest",
        "searchengine/query/test_engine.py",
        "indexer/test_tuning.py",  # Writer.rebuild
        "trainer/test_resume.py",  # commit_every
    ],
    "trainer": ["trainer"],
}
REWRITTEN = "pytest.PytestAssertRewriteWarning"
SLOWEST = 90  # seconds of tests for a mutant
MEMORY = 12 << 30  # bytes of address space, beyond which a mutant fails

COMPARISONS = "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Is_IsNot IsNot_Is".split()
ARITHMETIC = (
    "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul BitOr_BitAnd BitAnd_BitOr"
).split()
OPERATORS = [
    *(f"core/ReplaceComparisonOperator_{name}" for name in COMPARISONS),
    *(f"core/ReplaceBinaryOperator_{name}" for name in ARITHMETIC),
    *(f"core/ReplaceUnaryOperator_{name}" for name in ("Delete_Not", "Delete_USub", "USub_UAdd")),
    *("core/AddNot", "core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue"),
    *("core/ReplaceAndWithOr", "core/ReplaceOrWithAnd", "core/NumberReplacer"),
    "core/ZeroIterationForLoop",
]


@dataclass(frozen=True)
class Mutant:
    """One changed line: the `occurrence`-th line `before` of the function, from 0."""

    module: str
    function: str
    before: str
    after: str
    occurrence: int
    kind: str

    def line(self, source: str) -> int | None:
        """The number of the changed line, from 1; None where it is gone."""
        found = [
            number
            for number, text in enumerate(source.splitlines(), 1)
            if text == self.before and function_at(source, number) == self.function
        ]
        return found[self.occurrence] if self.occurrence < len(found) else None


def function_at(source: str, line: int) -> str:
    """The qualified name of what is defined around a line; "" at the module's level."""
    names: list[str] = []
    node: ast.AST | None = ast.parse(source)
    while node is not None:
        inner = [
            child
            for child in ast.iter_child_nodes(node)
            if hasattr(child, "lineno") and child.lineno <= line <= (child.end_lineno or 0)
        ]
        node = inner[-1] if inner else None
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
    return ".".join(names)


def without_annotations(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def every_mutant(module: str) -> Iterator[Mutant]:
    """All that can be drawn from a module."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / module).read_text()
    plain = without_annotations(source)
    lines = source.splitlines()

    def mutant(line: int, after: str, kind: str) -> Mutant:
        function = function_at(source, line)
        same = [
            number
            for number, text in enumerate(lines[: line - 1], 1)
            if text == lines[line - 1] and function_at(source, number) == function
        ]
        return Mutant(module, function, lines[line - 1], after, len(same), kind)

    for name in OPERATORS:
        for occurrence in count():
            changed = mutate_code(source, get_operator(name)(), occurrence)
            if changed is None:
                break
            with suppress(SyntaxError):
                if without_annotations(changed) == plain:
                    continue
                after = changed.splitlines()
                pairs = enumerate(zip(lines, after, strict=False), 1)
                differ = [n for n, pair in pairs if len({*pair}) == 2]
                if len(after) == len(lines) and len(differ) == 1:
                    yield mutant(differ[0], after[differ[0] - 1], name.partition("/")[2])
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Yield)
        if isinstance(node, ast.Expr | ast.Raise | ast.AugAssign | ast.Delete) and not is_text:
            if node.lineno == node.end_lineno:
                indent = lines[node.lineno - 1][: node.col_offset]
                yield mutant(node.lineno, f"{indent}pass", "LeaveOutStatement")


def sample(group: str, size: int, seed: int) -> None:
    mutants = [mutant for module in GROUPS[group] for mutant in every_mutant(module)]
    numbers = [mutant for mutant in mutants if mutant.kind == "NumberReplacer"]
    others = [mutant for mutant in mutants if mutant.kind != "NumberReplacer"]
    draw = random.Random(seed)
    # Numbers are most of all, and many are but a block's size.
    sampled = draw.sample(numbers, size // 4) + draw.sample(others, size - size // 4)
    draw.shuffle(sampled)
    KEPT.mkdir(exist_ok=True)
    with open(KEPT / f"{group}.jsonl", "w") as file:
        file.writelines(json.dumps(asdict(mutant), ensure_ascii=False) + "\n" for mutant in sampled)
    print(f"{size} of {len(mutants)} mutants of {group}")


class Passing:
    """A pytest plugin: which tests pass through which lines, and how long they take."""

    def __init__(self, modules: list[str]) -> None:
        import coverage

        self.coverage = coverage.Coverage(data_file=None, include=[str(ROOT / m) for m in modules])
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def tests_of(group: str, folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """Module → line → the tests that pass through it; and test → seconds. Measured once."""
    kept = folder / f"{group}.lines.json"
    if not kept.exists():
        import pytest

        places = [ROOT / "tests" / place for place in TESTS[group]]
        passing = Passing(GROUPS[group])
        passing.coverage.start()
        pytest.main(["-q", *map(str, places)], plugins=[passing])
        passing.coverage.stop()
        data = passing.coverage.get_data()
        lines = {}
        for module in GROUPS[group]:
            by_line = data.contexts_by_lineno(str(ROOT / module))
            lines[module] = {
                line: sorted(set(tests) - passing.failed - {""}) for line, tests in by_line.items()
            }
        kept.write_text(json.dumps([lines, passing.seconds]))
    lines, seconds = json.loads(kept.read_text())
    return {m: {int(n): t for n, t in of.items()} for m, of in lines.items()}, seconds


def chosen(
    mutant: Mutant, line: int, lines: dict[int, list[str]], seconds: dict[str, float]
) -> list[str]:
    """The tests for a mutant, in their order."""
    through = lines.get(line, [])
    if not mutant.function or not through:  # what runs as the module is imported
        through = sorted({test for tests in lines.values() for test in tests})
    own = f"test_{Path(mutant.module).stem}.py"
    ordered = sorted(through, key=lambda test: (own not in test, seconds.get(test, 0)))
    taken, total = [], 0.0
    for test in ordered:
        if total > SLOWEST:
            break
        taken.append(test)
        total += seconds.get(test, 0)
    return taken


def outcome(tests: list[str], expected: float) -> tuple[str, str]:
    """What a forked process says of the tests: "killed", "survived" or "timeout"; and by which."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        import pytest

        class First:
            def pytest_runtest_logreport(self, report: Any) -> None:
                if report.failed:
                    os.write(writing, report.nodeid.encode())

            pytest_collectreport = pytest_runtest_logreport

        # It warns of plug-ins that were imported before, and a warning is an error here.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", f"ignore::{REWRITTEN}"]
        code = pytest.main([*options, *tests], plugins=[First()])
        os._exit(int(code != 0))
    os.close(writing)
    deadline = time.monotonic() + 60 + 10 * expected
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    timeout = ended[0] == 0
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if timeout:
        os.waitpid(child, 0)
    os.set_blocking(reading, False)
    by = ""
    with suppress(BlockingIOError):  # a process that the tests left may hold the pipe open
        by = os.read(reading, 10_000).decode()
    os.close(reading)
    if timeout:
        return "timeout", ""
    if os.WIFSIGNALED(ended[1]):
        return "killed", f"signal {os.WTERMSIG(ended[1])}"
    if ended[1] and not by:
        raise RuntimeError(f"pytest ended with {ended[1]} before any test failed: {tests[:3]} …")
    return ("killed", by) if ended[1] else ("survived", "")


def run(group: str, folder: Path) -> None:
    """Run what has not been run yet; results go to GROUP.results.jsonl in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.chdir(ROOT)
    child = os.fork()  # so that what measuring imports is not in the processes of the mutants
    if child == 0:
        tests_of(group, folder)
        os._exit(0)
    os.waitpid(child, 0)
    lines, seconds = tests_of(group, folder)
    import faiss  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    results = folder / f"{group}.results.jsonl"
    done = {line for line in results.read_text().splitlines()} if results.exists() else set()
    known = {json.dumps(json.loads(line)["mutant"], sort_keys=True) for line in done}
    for text in (KEPT / f"{group}.jsonl").read_text().splitlines():
        mutant = Mutant(**json.loads(text))
        if json.dumps(asdict(mutant), sort_keys=True) in known:
            continue
        path, began = ROOT / mutant.module, time.monotonic()
        source = path.read_text()
        line = mutant.line(source)
        if line is None:
            found, by, tests = "gone", "", []
        else:
            tests = chosen(mutant, line, lines[mutant.module], seconds)
            changed = source.splitlines(keepends=True)
            changed[line - 1] = mutant.after + "\n"
            try:
                path.write_text("".join(changed))
                expected = sum(seconds.get(test, 0) for test in tests)
                found, by = outcome(tests, expected) if tests else ("survived", "no test")
            finally:
                path.write_text(source)
        took = round(time.monotonic() - began, 1)
        record = {"mutant": asdict(mutant), "outcome": found, "by": by, "tests": len(tests)}
        with open(results, "a") as file:
            file.write(json.dumps(record | {"seconds": took}, ensure_ascii=False) + "\n")
        print(found, took, mutant.module, mutant.function, mutant.after.strip(), flush=True)


def report(folder: Path) -> None:
    for path in sorted(folder.glob("*.results.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        ran = [record for record in records if record["outcome"] != "gone"]
        noticed = sum(record["outcome"] != "survived" for record in ran)
        share = noticed / max(len(ran), 1)
        print(f"\n{path.name.partition('.')[0]}: {noticed} of {len(ran)} noticed, {share:.1%}")
        for record in ran:
            if record["outcome"] == "survived":
                mutant = record["mutant"]
                place = f"{mutant['module']} {mutant['function']}"
                print(f"  {place} ({mutant['kind']}; {record['tests']} tests)")
                print(f"    - {mutant['before'].strip()}\n    + {mutant['after'].strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["sample", "run", "report"])
    parser.add_argument("group", nargs="?", choices=GROUPS)
    parser.add_argument("--count", type=int, default=220)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.what == "sample":
        sample(options.group, options.count, options.seed)
    elif options.what == "run":
        run(options.group, options.folder)
    else:
        report(options.folder)


if __name__ == "__main__":
    main()
