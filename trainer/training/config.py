"""A training run as one frozen dataclass that checks itself and is written as JSON."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.data.columns import Reading
from searchengine.trainer.training.settings.fields import NOT_NEGATIVE, POSITIVE, changed, setting
from searchengine.trainer.training.settings.fields import Objective as Objective
from searchengine.trainer.training.settings.groups import (
    DataSettings,
    EvaluationSettings,
    NestingSettings,
    OptimizationSettings,
    OutputSettings,
)
from searchengine.trainer.training.settings.model import LengtheningSettings, ModelSettings
from searchengine.trainer.training.settings.model import Pooler as Pooler
from searchengine.trainer.training.settings.objective import (
    ContrastiveSettings,
    DistillationLoss,
    LabelSettings,
    ObjectiveSettings,
    TeacherAxes,
    TeacherSettings,
)

# Settings that mean nothing where a table is trained in place of a network.
OF_NETWORKS = frozenset({
    "adapter_rank", "attention_group", "compile", "frozen_embeddings", "gradient_checkpointing",
    "head_only", "mlm_weight", "pooling", "window",
})  # fmt: skip


PROMPTS = {"query_prompt": "query", "document_prompt": "document"}
WEIGHTS = {"weight": NOT_NEGATIVE, "loss_weight": POSITIVE}
# Settings that a data set may have for itself; the others are the run's.
OWN = frozenset({
    "train", "columns", "expects", "augment", "augment_share", "batch_size", "objective",
    "temperature", "similarity_loss", "hard_negative_weight", "mask_above", "guide", "guide_margin",
    "guide_margin_kind", "contrast_anchors", "contrast_positives", "teacher", "distillation_loss",
    "teacher_temperature", "teacher_axes",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """A data set of a run.

    config: the run's settings with those of the data set. weight: how often an epoch goes through
    it. loss_weight: factor of its loss. prompts: by role, instead of the model's.
    """

    config: "TrainConfig"
    weight: float = 1.0
    loss_weight: float = 1.0
    prompts: Mapping[str, str] = field(default_factory=dict)


# dataclasses takes the fields of the last base first.
@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    OutputSettings,
    EvaluationSettings,
    OptimizationSettings,
    NestingSettings,
    TeacherSettings,
    LabelSettings,
    ContrastiveSettings,
    ObjectiveSettings,
    LengtheningSettings,
    ModelSettings,
    DataSettings,
):
    """A training run: `train` and `out` are required, docs/training-reference.md lists all.

    `training.settings` defines each of them. Lists become tuples, strings paths and choices.
    Raises ConfigError for values out of range, and for settings that exclude one another.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            value = setting(item).convert(item.name, getattr(self, item.name))
            object.__setattr__(self, item.name, value)
        if self.question_encoder and not self.teacher:
            object.__setattr__(self, "teacher", self.base)
        self._check_prefixes()
        self._check_lengths()
        for conflict in (
            *self._wrong_objective(),
            *self._conflicts(),
            *self._head_conflicts(),
            *self._teacher_conflicts(),
            *self._patience_conflicts(),
            *self._question_encoder_conflicts(),
            *self._data_set_conflicts(),
        ):
            raise ConfigError(f"{conflict}: leave one of them out")
        if self.learns_vectors and not self.teacher:
            raise ConfigError(
                f"distillation_loss {self.distillation_loss} learns vectors: name the `teacher` "
                "that gives them, or learn scores with kl or margin-mse"
            )
        if not self.train and not self.data_sets:
            raise ConfigError("train names no file: expected at least one")
        if len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"columns is {', '.join(self.columns)}: expected different names, anchor first, "
                "then positive, then negatives"
            )
        parts(self)  # checks each

    def _check_prefixes(self) -> None:
        lengths, weights = self.prefixes, self.prefix_weights
        if list(lengths) != sorted(set(lengths), reverse=True):
            raise ConfigError(
                f"prefixes is {', '.join(map(str, lengths))}: expected different lengths, "
                "descending, such as 768,256,64"
            )
        if weights and (len(weights) != len(lengths) or max(weights) == 0):
            raise ConfigError(
                f"prefix_weights has {len(weights)} numbers for {len(lengths)} prefixes: give "
                "prefixes, and one weight for each, none negative and not all 0"
            )

    def _check_lengths(self) -> None:
        if self.window is not None and self.max_tokens < self.window:
            raise ConfigError(
                f"max_tokens is {self.max_tokens} with window {self.window}: expected "
                f"{self.window} or more, as positions that no text reaches are not trained"
            )
        if self.attention_group == 1:
            raise ConfigError("attention_group is 1: expected 2 or more tokens, or 0 for none")

    def _wrong_objective(self) -> Iterator[str]:
        """Settings of the objective that is not trained."""
        for name, meaning, _ in changed(self):
            if meaning.objective not in ("", self.objective):
                of_pairs = meaning.objective == Objective.CONTRASTIVE
                if self.objective is Objective.CLASSIFICATION and of_pairs:
                    yield f"objective classification has no pairs for {name}"
                else:
                    yield f"{name} needs objective {meaning.objective}"

    def _conflicts(self) -> Iterator[str]:
        """Settings that exclude one another: what each would mean beside the other is undefined."""
        dropped = self.pooling is Pooler.CLS_BEFORE_POOLER
        averaged = self.pooling in (Pooler.FIRST_LAST, Pooler.LAST_TWO)
        if self.objective is Objective.CLASSIFICATION and dropped:
            yield "a classifier would read the layer that pooling cls-before-pooler drops"
        if not self.nested and self.prefixes:
            yield "nested false trains no prefixes"
        if self.nested and len(self.prefixes) != 1 and dropped:
            yield "nested would train prefixes behind the layer that is dropped"
        if self.queue_size > 0 and self.layers_per_step > 0:
            yield "queue_size has no layers_per_step"
        if averaged and self.layers_per_step > 0:
            yield f"layers_per_step cannot cut into {self.pooling}"
        if self.mlm_weight > 0 and self.mlm_probability == 0:
            yield "mlm_weight with mlm_probability 0"
        if self.window is None and self.kept_positions is not None:
            yield "kept_positions without window"
        if self.adapter_rank == 0 and not self.adapter_extras:
            yield "adapter_extras false without adapter_rank"

    def _head_conflicts(self) -> Iterator[str]:
        """Settings that change nothing where the network is not trained."""
        if not self.head_only:
            return
        dropout = self.dropout is not None or self.fixed_dropout or self.gradient_cache
        if self.mlm_weight > 0 or self.layers_per_step > 0:
            yield "head_only trains no network for mlm or layers"
        if dropout:
            yield "head_only has no dropout and needs no gradient_cache"
        if self.window is not None or self.attention_group > 0 or self.adapter_rank > 0:
            yield "head_only trains no network for window, attention_group or adapter_rank"
        if self.encoders > 1:
            yield "head_only trains one head, not two encoders"
        if self.queue_size > 0:
            yield "head_only trains one head, without a queue"
        if self.frozen_embeddings:
            yield "head_only trains no embeddings for frozen_embeddings to leave out"
        if self.gradient_checkpointing:
            yield "head_only has no gradients of layers for gradient_checkpointing"
        if self.compile:
            yield "head_only trains no layers for compile"

    def _teacher_conflicts(self) -> Iterator[str]:
        """Settings of a guide or a teacher that change nothing without it, or beside others."""
        if self.guide and self.queue_size > 0:
            yield "queue_size keeps no texts for a guide to encode"
        if self.guide_margin > 0 and not self.guide:
            yield "guide_margin without a guide"
        if self.learns_vectors and self.teacher_temperature is not None:
            yield f"distillation_loss {self.distillation_loss} has no teacher_temperature"
        if self.learns_vectors and self.pooling is Pooler.CLS_BEFORE_POOLER:
            yield "a teacher's vectors would be learnt behind the layer that is dropped"
        if self.teacher_axes is not TeacherAxes.PCA and not self.learns_vectors:
            yield f"teacher_axes with distillation_loss {self.distillation_loss}"

    def _patience_conflicts(self) -> Iterator[str]:
        """Settings beside which there is nothing to wait for."""
        if self.patience > 0 and self.keep_last:
            yield "patience waits for a better step than the last, which keep_last keeps"
        if self.patience > 0 and self.eval_every == 0:
            yield "patience with eval_every 0, which evaluates only at the end"

    def _question_encoder_conflicts(self) -> Iterator[str]:
        """Settings by which questions could not be compared with the teacher's documents."""
        if self.question_encoder and not self.learns_vectors:
            yield f"question_encoder learns no vectors by {self.distillation_loss}"
        elif self.question_encoder and self.teacher_axes is not TeacherAxes.OWN:
            yield f"question_encoder with teacher_axes {self.teacher_axes}, not own"
        if self.kept_layers != 0:
            return
        if not self.question_encoder:
            yield "kept_layers 0 without question_encoder"
        for name, _, _ in changed(self):
            if name in OF_NETWORKS:
                table = "for a table choose preset static-question-encoder"
                yield f"kept_layers 0 leaves no network for {name} ({table})"

    def _data_set_conflicts(self) -> Iterator[str]:
        """Settings that belong to one of several data sets, or have no meaning with several."""
        if not self.data_sets:
            return
        if self.train:
            yield "train beside data_sets, which name their own files"
        if self.objective is not Objective.CONTRASTIVE:
            yield f"objective {self.objective} beside data_sets, each of which names its own"
        if self.queue_size > 0:
            yield "queue_size would mix the texts of the data_sets"
        if self.encoders > 1:
            yield "data_sets train one encoder, not two"

    @property
    def learns_vectors(self) -> bool:
        """Whether the vectors of a teacher are learnt."""
        of_vectors = self.distillation_loss in (DistillationLoss.MSE, DistillationLoss.COSINE)
        return self.objective is Objective.DISTILLATION and of_vectors

    @property
    def reading(self) -> Reading:
        """What is read of the files besides texts."""
        if self.objective is Objective.CLASSIFICATION:
            return Reading.LABELS
        of_files = self.objective is Objective.DISTILLATION and not self.teacher
        scored = of_files or self.objective is Objective.SIMILARITY
        return Reading.SCORES if scored else Reading.TEXTS

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {name: _as_json(value) for name, value in asdict(self).items()}

    def to_json(self) -> str:
        """The configuration as a JSON object; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The configuration in a JSON object; raises ConfigError for unknown or missing names."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the training configuration is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError("the training configuration is not a JSON object")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration in a JSON object already read. Raises ConfigError as `from_json`."""
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            near = difflib.get_close_matches(unknown[0], known, 1)
            raise ConfigError(
                f"unknown in a training configuration: {', '.join(unknown)}; "
                + (f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}")
            )
        files = [] if "data_sets" in values else ["train"]
        if missing := [name for name in (*files, "out") if name not in values]:
            raise ConfigError(f"the training configuration lacks {', '.join(missing)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"the training configuration has a wrong type: {error}") from error


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def parts(config: TrainConfig) -> list[Part]:
    """The data sets of a run. Raises ConfigError, which names the data set by its number."""
    if not config.data_sets:
        return [Part(config)]
    found = []
    for number, values in enumerate(config.data_sets, 1):
        try:
            found.append(_part(config, values))
        except ConfigError as error:
            raise ConfigError(f"data set {number}: {error}") from error
    if not any(part.weight for part in found):
        raise ConfigError("every data set has the weight 0: expected one with more")
    return found


def _part(config: TrainConfig, values: Mapping[str, Any]) -> Part:
    known = OWN | PROMPTS.keys() | WEIGHTS.keys()
    if unknown := sorted(values.keys() - known):
        run = any(item.name == unknown[0] for item in fields(config))
        what = "is set for the whole run" if run else "is unknown"
        raise ConfigError(f"{unknown[0]} {what}: a data set may have {', '.join(sorted(known))}")
    own = {name: value for name, value in values.items() if name in OWN}
    objective = own.get("objective", Objective.CONTRASTIVE)
    # The run's settings of contrastive learning are not for a data set that learns otherwise, nor
    # are the kinds that its preset learns from.
    foreign = {
        item.name: item.default
        for item in fields(config)
        if setting(item).objective not in ("", objective)
    }
    part = replace(config, **{**foreign, "data_sets": (), "expects": (), **own})
    if part.objective is Objective.CLASSIFICATION:
        raise ConfigError("labels are learnt alone: give their files as `train`, in another run")
    if part.learns_vectors and part.teacher_axes is not TeacherAxes.OWN:
        raise ConfigError(
            "a teacher's principal axes are not those of the other data sets: set teacher_axes "
            "own, or learn its cosines (distillation_loss kl)"
        )
    prompts = {}
    for name, role in PROMPTS.items():
        if name in values:
            if not isinstance(values[name], str):
                raise ConfigError(f"{name} is {values[name]!r}: expected text")
            prompts[role] = values[name]
    weights = {name: range.check(name, values.get(name, 1.0)) for name, range in WEIGHTS.items()}
    return Part(part, **weights, prompts=prompts)
