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


class EngineWarning(UserWarning):
    """A faster engine that is not used, and why."""


class TrainingWarning(UserWarning):
    """A run that keeps what it started from, or a step that scores less."""
