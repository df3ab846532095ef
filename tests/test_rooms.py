"""The house has a size: no room is above its figure in budgets.toml, and no figure rises."""

import subprocess

import pytest
from conftest import REPOSITORY
from rooms import PACKAGES, budgets, measure, share_explained


def test_no_room_is_above_its_budget() -> None:
    sizes, rooms = measure(), budgets()
    assert sizes.keys() == rooms.keys()
    above = {
        name: (sizes[name], rooms[name].most) for name in rooms if sizes[name] > rooms[name].most
    }
    assert above == {}, "a feature pays with lines of its own room"


def test_budgets_only_fall() -> None:
    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], cwd=REPOSITORY, text=True)

    try:
        revisions = git("rev-list", "HEAD", "--", "budgets.toml").split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the history is not here: no git, or no clone")
    later = budgets()
    for revision in revisions:
        earlier = budgets(git("show", f"{revision}:budgets.toml"))
        rising = {
            name for name in later.keys() & earlier.keys() if later[name].most > earlier[name].most
        }
        assert not rising, f"higher than in {revision[:8]}"
        later = earlier


def test_what_is_cut_is_code() -> None:
    assert share_explained(*PACKAGES) == pytest.approx(0.169, abs=0.02)  # before the clearing
