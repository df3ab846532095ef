"""`searchengine train --log`: loss and scores sent to the services that teams keep them in.

Each takes the numbers of an update as a dictionary, `Report.values()`. Project and server are set
as the service's own documentation says: WANDB_PROJECT, MLFLOW_TRACKING_URI.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.loop import Report
from searchengine.trainer.training.train_config import TrainConfig


@contextmanager
def wandb_log(config: TrainConfig) -> Iterator[Callable[[Report], None]]:
    """A run of Weights & Biases. Raises ConfigError if wandb is not installed."""
    try:
        import wandb
    except ImportError:
        raise _missing("wandb") from None
    with wandb.init(config=config.to_dict()) as run:
        yield lambda report: run.log(report.values(), step=report.step)


@contextmanager
def mlflow_log(config: TrainConfig) -> Iterator[Callable[[Report], None]]:
    """A run of MLflow. Raises ConfigError if mlflow is not installed."""
    try:
        import mlflow
    except ImportError:
        raise _missing("mlflow") from None
    with mlflow.start_run():
        mlflow.log_params({name: str(value) for name, value in config.to_dict().items()})
        yield lambda report: mlflow.log_metrics(report.values(), step=report.step)


def _missing(package: str) -> ConfigError:
    return ConfigError(f"--log {package} needs the package {package}: pip install {package}")


LOGS = {"wandb": wandb_log, "mlflow": mlflow_log}
