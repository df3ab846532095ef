"""The house has a size: rooms are within budgets.toml, whose figures rise to their targets only."""

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


def test_budgets_fall_or_stay_within_their_targets() -> None:
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
            name
            for name in later.keys() & earlier.keys()
            if later[name].most > max(earlier[name].most, later[name].target)
        }
        assert not rising, f"higher than in {revision[:8]}"
        later = earlier


def test_what_is_cut_is_code() -> None:
    assert share_explained(*PACKAGES) == pytest.approx(0.169, abs=0.03)  # before the clearing
