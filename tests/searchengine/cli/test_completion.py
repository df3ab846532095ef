"""Completion of commands, options, choices and paths in a shell."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from command_line import COMMAND

from searchengine.cli import cli


def completed(line: str) -> set[tuple[str, str]]:
    """What completes the last word of a line: kind and value."""
    *words, last = line.split(" ")
    items = ShellComplete(cli, {}, "searchengine", "_").get_completions(words, last)
    return {(item.type, item.value) for item in items}


def values(line: str) -> set[str]:
    return {value for _, value in completed(line)}


def test_commands_options_and_choices() -> None:
    assert values("se") == {"search", "serve"}
    assert values("evaluate r") == {"retrieval"}
    assert values("search notes.index owls --mo") == {"--mode"}
    assert values("search notes.index owls --mode ") == {"auto", "vector", "text", "hybrid"}


@pytest.mark.parametrize(
    "line",
    [
        "search no",
        "mcp no",
        "serve a.index no",
        "index no",
        "index notes no",
        "search notes.index owls --encoder no",
        "evaluate sts no",
        "evaluate sts a.tsv --encoder no",
        "train no",
    ],
)
def test_paths_are_left_to_the_shell(line: str) -> None:
    ((kind, _),) = completed(line)
    assert kind in ("file", "dir")


def test_bash_completes(tmp_path: Path) -> None:
    """The script that the documentation names, in a real shell."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    script = f"""
PATH="{Path(COMMAND).parent}:$PATH"
eval "$(_SEARCHENGINE_COMPLETE=bash_source searchengine)"
COMP_WORDS=(searchengine sim) COMP_CWORD=1
"$(complete -p searchengine | sed 's/.*-F \\([^ ]*\\).*/\\1/')" searchengine sim searchengine
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        [bash, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ)
    )
    assert done.stdout == "similar\n", done.stderr
