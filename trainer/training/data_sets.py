"""The data sets of a run, read and ready: examples, teacher or guide, and prompts of each."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from searchengine.trainer.training.config import TrainConfig, parts
from searchengine.trainer.training.data.examples import Examples, read_examples
from searchengine.trainer.training.data.positives import Augment
from searchengine.trainer.training.teachers import Fixed, load_fixed


@dataclass(frozen=True, slots=True)
class DataSet:
    """Examples, and how a run learns from them.

    config: the run's with the settings of this data set. weight: how often an epoch goes through
    it. loss_weight: factor of its loss. prompts: by role, instead of the model's. fixed: the
    teacher, or the guide.
    """

    config: TrainConfig
    examples: Examples
    weight: float = 1.0
    loss_weight: float = 1.0
    prompts: Mapping[str, str] = field(default_factory=dict)
    fixed: Fixed = None


def read_data_sets(config: TrainConfig, device: torch.device) -> list[DataSet]:
    """All data sets of a run, at least one. Raises ConfigError and DataError.

    A teacher of several is loaded once.
    """
    known: dict[tuple[str, str], Fixed] = {}  # by teacher and guide
    found = []
    for part in parts(config):
        own = part.config
        examples = read_examples(
            own.train,
            own.columns,
            own.exclude,
            reading=own.reading,
            expects=own.expects,
            next_sentence=own.augment is Augment.NEXT_SENTENCE,
            folder=own.out.absolute().parent,
        )
        names = own.teacher, own.guide
        if names not in known:
            known[names] = load_fixed(own, device)
        found.append(
            DataSet(own, examples, part.weight, part.loss_weight, part.prompts, known[names])
        )
    return found


def digest(data: Sequence[DataSet], files: Iterable[Path]) -> str:
    """sha256 (hex) of all examples in order and of files: the same in a resumed run."""
    if len(data) == 1:
        return data[0].examples.digest(files)
    whole = hashlib.sha256(data[0].examples.digest(files).encode())
    for each in data[1:]:
        whole.update(each.examples.digest().encode())
    return whole.hexdigest()
