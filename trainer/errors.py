"""The errors of this package. Each message is one sentence that names the place and the way out."""


class TrainerError(ValueError):
    """Anything the trainer refuses; catch this one to catch them all."""


class ModelError(TrainerError):
    """A model that cannot be found, read, run or written."""


class ConfigError(TrainerError):
    """A training configuration that contradicts itself or names something unknown."""


class DataError(TrainerError):
    """A data file that cannot be read; messages begin with `file:line:` where they can."""


class TrainingError(TrainerError):
    """A training run that cannot go on, such as a loss that is not a number."""


class RuntimeChoiceWarning(UserWarning):
    """A faster runtime or precision that is not used, and why."""


# The former name, for one more release.
EngineWarning = RuntimeChoiceWarning


class TrainingWarning(UserWarning):
    """The kept step of a run is the model that it started from, or scores less."""


class MemoryWarning(UserWarning):
    """A training goes on with less memory, and what that costs."""


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
