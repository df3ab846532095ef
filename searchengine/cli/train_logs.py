"""`searchengine train --log`: loss and scores where teams keep them.

Each gives a callback for `train`, which takes a Report after every update. Project and server are
set as the service's own documentation says: WANDB_PROJECT, MLFLOW_TRACKING_URI.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from searchengine.trainer.errors import ConfigError, install_line
from searchengine.trainer.sources.source import RUNS
from searchengine.trainer.training.loop import OnReport, Report
from searchengine.trainer.training.train_config import TrainConfig


@contextmanager
def wandb_log(config: TrainConfig) -> Iterator[OnReport]:
    """A run of Weights & Biases. Raises ConfigError if wandb is not installed."""
    try:
        import wandb
    except ImportError:
        raise _missing("wandb") from None
    with wandb.init(config=config.to_dict()) as run:
        yield lambda report: run.log(report.values(), step=report.step)


@contextmanager
def mlflow_log(config: TrainConfig) -> Iterator[OnReport]:
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


@contextmanager
def tensorboard_log(config: TrainConfig) -> Iterator[OnReport]:
    """Event files in `runs`, below the folder of the model.

    with tensorboard_log(config) as report:
        train(config, report)

    Tags are those of `Report.values`. The first report decides where the run continues: later steps
    of an interrupted run in the same folder are hidden, and a new run hides all of an earlier one.
    Raises ConfigError if TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        line = install_line("tensorboard")
        raise ConfigError(f"writing for TensorBoard needs tensorboard: {line}") from None
    writers: list[Any] = []

    def write(report: Report) -> None:
        if not writers:
            writers.append(SummaryWriter(str(config.out / RUNS), purge_step=report.step))
        for tag, value in report.values().items():
            writers[0].add_scalar(tag, value, report.step)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


LOGS: dict[str, Callable[[TrainConfig], Any]] = {
    "wandb": wandb_log,
    "mlflow": mlflow_log,
    "tensorboard": tensorboard_log,
}
