"""The errors of this package. Each message is one sentence that names the place and the way out."""

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from searchengine.errors import SearchEngineError


class TrainerError(SearchEngineError):
    """Anything the trainer refuses; catch this one to catch them all."""


class ModelError(TrainerError):
    """A model that cannot be found, read, run or written."""


class ConfigError(TrainerError):
    """A training configuration that contradicts itself or names something unknown."""


class DataError(TrainerError):
    """A data file that cannot be read; messages begin with `file:line:` where they can."""


class TrainingError(TrainerError):
    """A training run that cannot go on, such as a loss that is not a number."""


class TrainingWarning(UserWarning):
    """The kept step of a run is the model that it started from, or scores less."""


TRAINING = ("torch", "transformers", "peft")
"""The modules of the extra `train`."""


def install_line(extra: str) -> str:
    """The command that adds an extra to this installation, whichever environment is active."""
    return pip_line(f"'searchengine[{extra}]'")


def pip_line(arguments: str) -> str:
    """The command that installs something here: what follows `pip install`."""
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {arguments}"
    is_active = shutil.which("pip") == str(Path(sys.executable).with_name("pip"))
    return f"{'pip' if is_active else f'{python} -m pip'} install {arguments}"


def require(extra: str, purpose: str, *modules: str) -> None:
    """Raise ImportError, with the command to type, unless the modules of an extra are installed."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"{purpose} needs {module}: {install_line(extra)}")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
