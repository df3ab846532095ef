"""The training loop: batch → vectors → loss → update → evaluate → save; resumable to the bit.

    config = TrainConfig(train=["pairs.tsv"], out="model")
    encoder = train(config, report=print)

A step is `update`: a batch gives views, the views vectors, the vectors a loss that is summed over
the prefixes; AdamW with linear warm-up and decay follows its gradient. All randomness of update N
follows from (seed, N) alone, so a run that was interrupted and resumed ends with the same weights
as a run without interruption.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingError
from searchengine.trainer.runtimes.torch_runtime import ran_out_of_memory
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.examples import Batch
from searchengine.trainer.training.judging import Measure, Scores, mean, unjudged
from searchengine.trainer.training.moco import text_ids
from searchengine.trainer.training.processes import launched_rank
from searchengine.trainer.training.result import finish, judge_base
from searchengine.trainer.training.run import Run, copy_weights, make_run
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import (
    CLASSIFIER_TEXTS,
    fit_classifier,
    rotate_head,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHECKPOINT_SECONDS = 300
"""A checkpoint is written this often, before the result is written, and when a signal comes."""
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a run after an update.

    step: updates done, of `steps`. loss: None before the first. scores: by prefix length, if this
    step was evaluated. base: those of the base as shipped; {} if nothing judges. examples,
    excluded: numbers of those trained on, and left out for exclude and dev files. unjudged: why
    nothing judges the steps, or "".
    """

    step: int
    steps: int
    loss: float | None
    learning_rate: float
    scores: Scores | None
    best_step: int
    examples: int
    excluded: int
    base: Scores = field(default_factory=dict)
    unjudged: str = ""

    def values(self) -> dict[str, float]:
        """loss, learning_rate, and of an evaluated step score/DIM: `wandb.log(report.values())`."""
        scores = {f"score/{dim}": score for dim, score in (self.scores or {}).items()}
        loss = {} if self.loss is None else {"loss": self.loss}
        return {**loss, "learning_rate": self.learning_rate, **scores}


OnReport = Callable[[Report], None]


def train(
    config: TrainConfig,
    report: OnReport | None = None,
    resume: bool = False,
    measure: Measure | None = None,
) -> Encoder:
    """Train by the configuration, write the result to `config.out` and return it.

    The result is the best step if that is better than the base as shipped, beyond the noise of
    what judges them; otherwise the base, with a TrainingWarning. `recipe["verdict"]` of the
    returned encoder says so in a sentence, and `recipe["measures"]` in figures.

    report: called before the first update, then after each. measure: chooses the step, before dev
    files: `searchengine.measure.retrieval.retrieval`. Under torchrun each process calls this; the
    first one evaluates, reports and writes. Raises ConfigError, DataError, ModelError, or
    TrainingError for a loss that is not a number (the last checkpoint stays). The state of torch's
    random generators is restored afterwards.
    """
    # Of several processes that train as one, the first alone writes; and every update seeds the
    # generators of all devices.
    held = checkpoint.held(config.out) if launched_rank() == 0 else nullcontext()
    with held, torch.random.fork_rng(range(torch.cuda.device_count())):
        checkpoint.check_start(config.out, resume)
        run, trained = make_run(config, measure), None
        if resume:
            checkpoint.load(run)
        if run.processes.main and run.measures:
            judge_base(run)
        if not resume:
            start(run)
            send_report(run, report)
        with postponed_signals() as signals:
            run_updates(run, signals, report)
            if run.processes.main:
                checkpoint.save(run)  # what cannot be written now, on a full disk, --resume writes
            if not is_stopped(run, signals) and run.processes.main:
                trained = finish(run)
                shutil.rmtree(checkpoint.file_of(config.out).parent)
            is_stopped(run, signals)  # the others wait here
        return trained or Encoder.load(config.out)


def run_updates(run: Run, signals: list[int], report: OnReport | None) -> None:
    """Update the weights to the end of the run or a signal, evaluating and saving on the way."""
    state, saved = run.state, time.monotonic()
    if state.step and is_evaluated(run) and not state.scores(state.step):
        evaluate(run)  # a signal came between the update and this
    while state.step < run.plan.steps:
        state.losses.append(update(run))
        state.step += 1
        if is_stopped(run, signals):
            break
        if is_evaluated(run):
            evaluate(run)
        if run.processes.main and time.monotonic() - saved > CHECKPOINT_SECONDS:
            checkpoint.save(run)
            saved = time.monotonic()
        send_report(run, report)


def is_evaluated(run: Run) -> bool:
    """Whether this step is evaluated: the last one is, if something judges."""
    step, every = run.state.step, run.config.eval_every
    return bool(run.measures) and (step == run.plan.steps or bool(every and step % every == 0))


def is_stopped(run: Run, signals: list[int]) -> bool:
    """Whether a signal came to any of the processes, which all end by it."""
    if run.processes.add(len(signals), run.passes.device) and not signals:
        signals.append(signal.SIGTERM)
    return bool(signals)


def update(run: Run) -> float:
    """One training step on a batch; returns its loss.

    Raises TrainingError if memory runs out, or the loss is not a number.
    """
    config, training_model, processes = run.config, run.training_model, run.processes
    for group in run.optimizer.param_groups:
        group["lr"] = run.plan.learning_rate(run.state.step) * group["rate_factor"]
    training_model.train()
    run.optimizer.zero_grad()
    rows = run.plan.at(run.state.step)
    try:
        loss = add_gradients(run, rows)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise TrainingError(
            f"memory ran out in update {run.state.step + 1}: set gradient_cache, which a resumed "
            f"run may change; or lower batch_size ({config.batch_size}) or max_tokens "
            f"({config.max_tokens})"
        ) from error
    loss = processes.add(loss, run.passes.device)
    trainable = [p for p in training_model.parameters() if p.requires_grad]
    processes.add_gradients(trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, MAX_GRAD_NORM).item()
    for name, value in (("loss", loss), ("norm of the gradient", norm)):
        if not math.isfinite(value):
            raise TrainingError(
                f"the {name} of update {run.state.step + 1} is {value}: lower learning_rate "
                f"({config.learning_rate}) or raise temperature ({config.temperature}); "
                f"{checkpoint.kept(config.out)}"
            )
    run.optimizer.step()
    if training_model.queue is not None:
        _, positives, _ = run.objective.views(rows)
        vectors = run.passes.momentum_vectors(positives)
        training_model.queue.push(vectors, text_ids(row.positive for row in rows))
        training_model.follow()
    return loss


def add_gradients(run: Run, rows: Batch) -> float:
    """Add the gradients of an update's batch; returns this process's part of the loss."""
    views = run.objective.views(rows)
    # No two updates share the first seed of their passes.
    seed = (run.config.seed * 1_000_003 + run.state.step) * 64 + run.processes.rank
    seed = seed * 10_000_000 % 2**63
    vectors = run.passes.encode(views, run.objective.layers(run.state.step), seed)  # (L, n, D) each
    # Of all prefixes. Every process computes that of the whole batch.
    loss = run.objective.loss(vectors, rows, run.state.step) / run.processes.count
    loss.backward()  # type: ignore[no-untyped-call]
    value = loss.item()
    if run.training_model.language is not None:
        value += run.passes.language_backward(views[0], seed)
    return value


def start(run: Run) -> None:
    """Rotate the vectors to their principal axes if prefixes are trained, and evaluate step 0."""
    if run.config.rotate and run.objective.dims[1:]:
        rotate_head(run.encoder(), run.plan.examples, run.config.seed)
        # Rounding may give other processes other axes; and the copies are older than the rotation.
        run.processes.share(run.training_model)
        run.training_model.follow(1.0)
    evaluate(run)


def evaluate(run: Run) -> None:
    """Judge the weights by the first measure, and copy them if they are the best so far.

    The best step has the highest mean over the prefixes, weighted as in the loss. A classifier is
    first fitted to the vectors, because its updates lag behind them: before training, and later if
    all examples can be used.
    """
    state, training_model, classifier = run.state, run.training_model, run.training_model.classifier
    training_model.eval()
    if classifier is not None and (state.step == 0 or len(run.plan.examples) <= CLASSIFIER_TEXTS):
        fit_classifier(run.encoder(), classifier, run.plan.examples)
        run.processes.share(classifier)
    if not run.processes.main:
        return
    before = state.scores(state.best_step)
    if run.measures:
        scores = run.measures[0].scores(run.encoder(), run.objective.dims)
        state.judged[str(state.step)] = {str(dim): score for dim, score in scores.items()}
    if state.step == 0 or mean(scores, run.weights) > mean(before, run.weights):
        state.best_step, run.best = state.step, copy_weights(training_model.kept)


def send_report(run: Run, report: OnReport | None) -> None:
    if report is None or not run.processes.main:
        return
    state, plan = run.state, run.plan
    report(
        Report(
            step=state.step,
            steps=plan.steps,
            loss=state.losses[-1] if state.losses else None,
            learning_rate=plan.learning_rate(max(0, state.step - 1)),
            scores=state.scores(state.step) or None,
            best_step=state.best_step,
            examples=len(plan.examples),
            excluded=run.split.excluded,
            base=run.summarize_base(),
            unjudged="" if run.measures else unjudged(run.split.train),
        )
    )


@contextmanager
def postponed_signals() -> Iterator[list[int]]:
    """A block in which a signal to end the process is only added to the list; raised at its end.

    After the first one all do again what they did before, so a second one ends the process at once.
    Signals that are ignored stay so.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        restore()

    if current_thread() is main_thread():  # only there may handlers be set
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()
    if received:
        signal.raise_signal(received[0])
