"""The sides of a comparison: each in a process of its own, loaded once, working when asked.

The thread pools of torch and faiss disturb each other in one process, and a start-up must
not count. A side therefore loads what it needs, waits for a request (a line of JSON), and answers
with what it timed itself; whoever asks asks one side at a time. A script with sides is started by
`run`, which makes it one of them where a Side started it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

AS_SIDE = "--as-side"
SETTLE = 0.1  # seconds before an answer is begun: the threads of the side before spin a while


class Side:
    """One side of a comparison, loaded when this returns.

    script: the file that makes the side of the rest, see `run`. python: runs it, this one if there
    is none. `about` is the side's description of itself. Raises RuntimeError with the end of its
    messages if it fails.
    """

    def __init__(self, script: str, *, python: str | None = None, **what: Any) -> None:
        self._name = f"{script} as {what}"
        self._messages = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python or sys.executable, script, AS_SIDE, json.dumps(what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
        )
        self.about: dict[str, Any] = self._answer()

    def ask(self, **request: Any) -> Any:
        """What the side answers; nothing else of the comparison runs meanwhile."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its requests is the end of the side
        self._messages.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._messages.seek(0)
        messages = self._messages.read().decode(errors="replace")
        raise RuntimeError(f"{self._name} failed:\n{messages[-2000:]}")


def once(script: str, **what: Any) -> Any:
    """The only answer of a side: measured in a process without what others left over."""
    with Side(script, **what) as side:
        return side.ask()


@contextmanager
def running(
    script: str, sides: Mapping[str, Mapping[str, Any]], scripts: Mapping[str, str] | None = None
) -> Iterator[dict[str, Side]]:
    """All sides by name, loaded one after another, ended with the block.

    scripts: by name, of the sides that another file makes.
    """
    files = {name: script for name in sides} | (dict(scripts) if scripts else {})
    with ExitStack() as stack:
        yield {name: stack.enter_context(Side(files[name], **what)) for name, what in sides.items()}


def run(main: Callable[[], Any], be: Callable[..., tuple[Callable[..., Any], Any]]) -> None:
    """Run a script: as a side if a Side started it, otherwise its command.

    be: called with what the Side was given; returns the function that answers requests, and a
    description of the side.
    """
    if sys.argv[1:2] != [AS_SIDE]:
        main()
        return
    # Libraries that print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer, about = be(**json.loads(sys.argv[2]))
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        time.sleep(SETTLE)
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The names, another first each turn: what comes first may find the machine cooler."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def memory_mb() -> dict[str, float]:
    """Memory of this process in MB: now, and at most.

    Not getrusage's ru_maxrss, which begins with the parent's.
    """
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        name: round(int(fields[field].split()[0]) / 1024, 1)
        for name, field in (("now", "VmRSS"), ("peak", "VmHWM"))
    }
