"""Training of a cross-encoder: which text answers a question, told apart from others that do not.

    config = CrossEncoderConfig(train=["triplets.tsv"], out="my-cross-encoder")
    scorer = train_cross_encoder(config, report=print)

Binary cross-entropy on each pair, the positive as often as it occurs beside its negatives: Nogueira
& Cho, arXiv 1901.04085. Negatives are those of the file, hard ones as `searchengine mine` finds
them, and texts of other examples drawn at random where the file has too few.
"""

import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.errors import ConfigError, ModelError, TrainingError, first_line
from searchengine.trainer.evaluation.significance import compare
from searchengine.trainer.model.disk import new_folder
from searchengine.trainer.model.layout import require_safetensors
from searchengine.trainer.model.network import max_tokens, quiet
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig, RuntimeKind
from searchengine.trainer.runtimes.torch_runtime import pick_device, pick_precision
from searchengine.trainer.training import attention
from searchengine.trainer.training.example_files import identity
from searchengine.trainer.training.examples import Examples, read_examples
from searchengine.trainer.training.processes import launched_count
from searchengine.trainer.training.rows import Kind, Texts
from searchengine.trainer.training.setting_kinds import (
    SEED,
    Positive,
    PositiveInt,
    convert,
    kinds,
    limits,
)
from searchengine.trainer.training.step_judging import Groups

# What transformers raises for a folder that it cannot read.
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError
)  # fmt: skip
_WARM_UP = 0.1  # share of the updates
_HELD_OUT, _MOST_HELD_OUT = 0.1, 500  # share of the examples that judge the model, and most
_MAX_NORM = 1.0  # of the gradient
_MANY = 50  # questions: with fewer, a difference of some points is chance


@dataclass(frozen=True, slots=True)
class CrossEncoderConfig:
    """Settings of a training. Raises ConfigError.

    Attributes:
        train: files of pairs or triplets, as `searchengine train` reads them.
        out: a new folder for the model.
        base: a model folder, hub name, or "starter"; its network gets one output.
        exclude: files of texts; examples that contain one of them are left out.
        epochs: passes over the examples.
        negatives: texts per question that do not answer it.
        batch_size: questions per update, each with its positive and its negatives.
        learning_rate: peak, after a linear warm-up and before a linear decay.
        max_tokens: maximum of a pair; longer pairs are cut. At most what the network reads.
        seed: of the order, the random negatives and the new output.
        keep_worse: write a model even if a search orders its hits worse with it.
    """

    train: Sequence[str | Path]
    out: str | Path
    base: str = "starter"
    exclude: Sequence[str | Path] = ()
    epochs: PositiveInt = 1
    negatives: PositiveInt = 4
    batch_size: PositiveInt = 16
    learning_rate: Positive = 5e-5
    max_tokens: PositiveInt = 256
    seed: Annotated[int, SEED] = 0
    keep_worse: bool = False

    def __post_init__(self) -> None:
        for name, kind in kinds(CrossEncoderConfig).items():
            if limits(kind) is not None:
                convert(kind, name, getattr(self, name))
        out = Path(self.out)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists; name a new folder, or empty this one")


class Update(NamedTuple):
    """The state of a run after an update: updates done, of `steps`, and the loss of this one."""

    step: int
    steps: int
    loss: float


class Trained(NamedTuple):
    """Result of a run.

    Attributes:
        scorer: the model, as it was written.
        first: share of the held-out questions whose positive has the highest score.
        by_chance: what random scores give.
        held_out: number of these questions; no training used them.
        order: of a search, if one judged the model.
    """

    scorer: CrossEncoder
    first: float
    by_chance: float
    held_out: int
    order: "Order | None" = None


class Order(NamedTuple):
    """The order of a search for each of n held-out questions, without a cross-encoder and with it.

    Attributes:
        measure: name of the values.
        before, after: (n,), higher is better.
    """

    measure: str
    before: NDArray[np.float64]
    after: NDArray[np.float64]

    def __str__(self) -> str:
        return (
            f"{self.measure} {self.after.mean():.4f} with it, {self.before.mean():.4f} without "
            f"({len(self.before)} held-out questions; {compare(self.after, self.before)})"
        )


Judge = Callable[[Mapping[str, Sequence[str]], Sequence[str], CrossEncoder], Order]
"""Orders the results of a search with a cross-encoder: `searchengine.measure.reranking.Reranking`.

Its arguments: held-out questions with the texts that answer each, all texts, the cross-encoder.
"""

Group = tuple[str, list[str]]
"""A question, and its texts; the first one answers it."""


def train_cross_encoder(
    config: CrossEncoderConfig,
    report: Callable[[Update], None] | None = None,
    judge: Judge | None = None,
) -> Trained:
    """Train and write a cross-encoder, which CrossEncoder and sentence-transformers load.

    judge: compares a search without it and with it on the held-out questions. A model that lowers
    the mean is not written, unless the configuration says `keep_worse`. Raises ConfigError,
    DataError, ModelError, and TrainingError for such a model, or a loss that is not a number.
    """
    paths, exclude = [Path(path) for path in config.train], [Path(p) for p in config.exclude]
    if launched_count() > 1:
        raise ConfigError(
            f"{launched_count()} processes were launched, and each would train the same "
            "cross-encoder: start one, without torchrun or accelerate"
        )
    examples = read_examples(paths, exclude=exclude, expects=(Kind.PAIR, Kind.TRIPLET))
    network, tokenizer = _network(config)
    rng = random.Random(config.seed)
    held, rest = _split([texts for _, texts in examples], config.seed)
    if not rest:
        raise ConfigError(
            f"{paths[0]}: all examples share a question or its text with others, so that none can "
            "be held out and others trained; give examples of other questions"
        )
    trained = [row[1] for row in rest]
    learn = _groups(rest, trained, config, rng)
    held_out = _groups(held, [*trained, *(row[1] for row in held)], config, rng)
    device = pick_device(None)
    attention.use_plain(network)
    _fit(network.to(device), tokenizer, learn, config, report)
    attention.restore(network)
    network, order = network.cpu(), None
    if judge is not None:
        with tempfile.TemporaryDirectory(dir=Path(config.out).absolute().parent) as scratch:
            _write(network, tokenizer, Path(scratch) / "model")
            scorer = _loaded(Path(scratch) / "model")
            order = judge(_answers(held), _texts(held, rest), scorer)
        if order.after.mean() < order.before.mean() and not config.keep_worse:
            raise TrainingError(_refusal(config, order, rest))
    _write(network, tokenizer, Path(config.out))
    scorer = _loaded(Path(config.out))
    return Trained(scorer, *_judged(scorer, held_out), len(held_out), order)


def _loaded(folder: Path) -> CrossEncoder:
    return CrossEncoder.load(folder, RuntimeConfig(RuntimeKind.TORCH, Precision.FP32))


def _answers(held: Sequence[Texts]) -> dict[str, list[str]]:
    """The held-out questions, each with all texts that answer it."""
    answers: dict[str, list[str]] = {}
    for question, positive, *_ in held:
        answers.setdefault(question, []).append(positive)
    return answers


def _texts(held: Sequence[Texts], rest: Sequence[Texts]) -> list[str]:
    """All texts of the examples, those of the held-out ones first."""
    return list(dict.fromkeys(text for row in (*held, *rest) for text in row[1:]))


def _refusal(config: CrossEncoderConfig, order: Order, rest: Sequence[Texts]) -> str:
    """Why a model was not written, and what is missing."""
    missing = [f"more examples than the {len(rest)} that it learnt from"]
    if not any(len(row) > 2 for row in rest):
        missing.insert(0, "hard negatives, as `searchengine mine` finds them")
    if len(order.before) < _MANY:
        missing.append(f"more questions to judge by than {len(order.before)}")
    return (
        f"{config.out} was not written, for a search orders its hits worse with it: {order}. What "
        f"may be missing: {', '.join(missing)}; or start from a cross-encoder made elsewhere"
    )


def _network(config: CrossEncoderConfig) -> tuple[Any, Any]:
    """The network of the base with a new output, and its tokenizer. Raises ModelError."""
    place = Source.find(config.base)
    require_safetensors(place.folder)
    torch.manual_seed(config.seed)
    try:
        with quiet():
            network = AutoModelForSequenceClassification.from_pretrained(
                str(place.folder), num_labels=1, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(str(place.folder))
    except _UNREADABLE as error:
        raise ModelError(
            f"{place.name} cannot become a cross-encoder: {first_line(error)}"
        ) from error
    network.config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    tokenizer.model_max_length = min(config.max_tokens, max_tokens({}, tokenizer, network.config))
    return network, tokenizer


def _split(rows: Sequence[Texts], seed: int) -> tuple[list[Texts], list[Texts]]:
    """Rows to judge by, at least one, and rows to train on.

    Rows with a common question or positive stay together, up to capitals and signs, so that no
    training row has one of a held-out row; nor has it one of their positives as a negative.
    """
    pairs = Examples((Kind.PAIR, row[:2]) for row in rows)
    groups, room = Groups(pairs), min(_MOST_HELD_OUT, math.ceil(_HELD_OUT * len(rows)))
    held: list[int] = []
    for place in map(int, np.random.default_rng(seed).permutation(len(rows))):
        held += groups.of(place, room - len(held))
        if len(held) == room:
            break
    if not held:
        return [], []
    answers = {identity(rows[i][1]) for i in held}
    rest = [row for i, row in enumerate(rows) if i not in set(held)]
    return [rows[i] for i in held], [
        (*row[:2], *(text for text in row[2:] if identity(text) not in answers)) for row in rest
    ]


def _groups(
    rows: Sequence[Texts], others: Sequence[str], config: CrossEncoderConfig, rng: random.Random
) -> list[Group]:
    """Each question with its positive and its negatives; of `others` where a row has too few."""
    answers: dict[str, set[str]] = {}
    for question, positive, *_ in rows:
        answers.setdefault(question, set()).add(positive)
    groups = []
    for question, positive, *own in rows:
        negatives = rng.sample(own, min(len(own), config.negatives))
        for _ in range(10 * config.negatives):  # few texts may leave too few that differ
            if len(negatives) == config.negatives:
                break
            other = rng.choice(others)
            if other not in answers[question] and other not in negatives and other != question:
                negatives.append(other)
        if not negatives:
            raise ConfigError(
                f"no text but its positive is there for {question[:40]!r}: give more examples, "
                "or negatives"
            )
        groups.append((question, [positive, *negatives]))
    return groups


def _fit(
    network: Any,
    tokenizer: Any,
    groups: Sequence[Group],
    config: CrossEncoderConfig,
    report: Callable[[Update], None] | None,
) -> None:
    """AdamW with warm-up and decay. Raises TrainingError."""
    device = network.device
    steps = config.epochs * math.ceil(len(groups) / config.batch_size)
    warm_up = max(1, round(_WARM_UP * steps))
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / warm_up, (steps - done) / max(1, steps - warm_up))
    )
    half = pick_precision(Precision.AUTO, device) is Precision.BF16
    network.train()
    step = 0
    for epoch in range(config.epochs):
        order = list(groups)
        random.Random(f"{config.seed} {epoch}").shuffle(order)
        for start in range(0, len(order), config.batch_size):
            batch = order[start : start + config.batch_size]
            pairs = [(question, text) for question, texts in batch for text in texts]
            encoded = tokenizer(pairs, truncation=True, padding=True, return_tensors="pt")
            targets = [float(not i) for _, texts in batch for i in range(len(texts))]
            labels = torch.tensor(targets, device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                logits = network(**encoded.to(device)).logits[:, 0]
            # As much weight for the positives as for the negatives.
            weight = (len(targets) - labels.sum()) / labels.sum()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits.float(), labels, pos_weight=weight
            )
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"the loss is {loss.item()} at update {step + 1}; choose a lower learning rate"
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), _MAX_NORM)
            optimizer.step()
            schedule.step()
            step += 1
            if report is not None:
                report(Update(step, steps, loss.item()))
    network.eval()


def _write(network: Any, tokenizer: Any, out: Path) -> None:
    """Raises ModelError, also if there is something in `out` by now."""
    with new_folder(out) as new:
        with quiet():
            network.save_pretrained(new, safe_serialization=True)
            tokenizer.save_pretrained(new)
        if out.exists():
            out.rmdir()  # empty, or an error


def _judged(scorer: CrossEncoder, groups: Sequence[Group]) -> tuple[float, float]:
    """Share of questions whose positive scores highest, and what chance gives."""
    questions = [question for question, texts in groups for _ in texts]
    scores = scorer.score(questions, [text for _, texts in groups for text in texts])
    first, start = 0, 0
    for _, texts in groups:
        first += int(scores[start : start + len(texts)].argmax() == 0)
        start += len(texts)
    chance = sum(1 / len(texts) for _, texts in groups)
    return first / len(groups), chance / len(groups)
