"""Completion of commands, options, choices and paths in a shell."""

import pytest
from click.shell_completion import ShellComplete

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
