"""A training run in TensorBoard: what the trainer reports, written as scalars while it runs.

with TensorBoard("runs/my-model") as report:
    train(config, report)

tensorboard --logdir runs
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.training.loop import Report


class TensorBoard:
    """A callback for `loop.train` that writes event files to a folder, until it is left.

    Scalars by step: loss, learning_rate, and of judged steps score/DIM, alignment and uniformity.
    Step 0 is written twice where training begins with a turn: before it and after. The first report
    decides where the run goes on: what an interrupted run wrote from that step on is hidden, and so
    is all of an earlier run in the same folder when a new one begins. Raises ConfigError where
    TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "writing for TensorBoard needs the package of that name: install the extra "
                "`tensorboard` (pip install 'searchengine[tensorboard]')"
            ) from None
        self._open = functools.partial(SummaryWriter, str(folder))
        self._writer: SummaryWriter | None = None

    def __call__(self, told: "Report") -> None:
        """Write the numbers of one report."""
        if self._writer is None:
            self._writer = self._open(purge_step=told.step)
        for tag, value in scalars(told).items():
            self._writer.add_scalar(tag, value, told.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Everything told is in the files from here on."""
        if self._writer is not None:
            self._writer.close()


def scalars(told: "Report") -> dict[str, float]:
    """The numbers of a report by their tags in TensorBoard; those it does not have are left out."""
    found = {
        "loss": told.loss,
        "learning_rate": told.learning_rate,
        "alignment": told.alignment,
        "uniformity": told.uniformity,
        **{f"score/{dim}": score for dim, score in (told.scores or {}).items()},
    }
    return {tag: value for tag, value in found.items() if value is not None}
