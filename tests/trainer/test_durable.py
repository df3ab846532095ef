"""A model folder appears at once or not at all."""

from pathlib import Path

import pytest
from safetensors import SafetensorError

from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import new_folder


def filled(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "parent" / "model"
    (path / "kept").mkdir(parents=True)
    (path / "old.txt").write_text("old")
    (path / "kept" / "state").write_text("42")
    return path


def test_a_folder_is_replaced_at_the_end(path: Path) -> None:
    with new_folder(path, keep="kept") as new:
        (new / "new.txt").write_text("new")
        assert filled(path) == {"old.txt": "old", "kept/state": "42"}
    assert filled(path.parent) == {"model/new.txt": "new", "model/kept/state": "42"}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError("no room"), SafetensorError("no room")]
)
def test_an_interrupted_write_leaves_what_was_there(path: Path, error: BaseException) -> None:
    before = filled(path.parent)
    with pytest.raises((KeyboardInterrupt, ModelError)) as raised:
        with new_folder(path, keep="kept") as new:
            (new / "new.txt").write_text("new")
            raise error
    assert filled(path.parent) == before
    if error is not KeyboardInterrupt:
        assert f"cannot be written to {path}: no room" in str(raised.value)


def test_an_error_of_tokenizers_is_one_of_writing(tmp_path: Path) -> None:
    """It raises Exception itself where the disk is full; other errors stay what they are."""
    with pytest.raises(ModelError, match=r"cannot be written to .*: No space left"):
        with new_folder(tmp_path / "model"):
            raise Exception("No space left on device (os error 28)")
    with pytest.raises(KeyError), new_folder(tmp_path / "model"):
        raise KeyError("weights")
    assert not list(tmp_path.iterdir())
