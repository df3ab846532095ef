"""The training loop: contrastive, nested over prefix lengths, resumable to the bit.

    config = TrainConfig(train=["pairs.tsv"], out="model")
    encoder = train(config, report=print)

AdamW with linear warm-up and decay on the loss of `training.objectives`. All randomness of update N
follows from (seed, N) alone, so a run that was interrupted and resumed ends with the same weights
as a run without interruption.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model.fingerprint import fingerprint
from searchengine.trainer.model.folder import Model
from searchengine.trainer.model.modules import SentenceModule
from searchengine.trainer.model.saving import remove_folder
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.batches import BatchPlan
from searchengine.trainer.training.checkpoint import JudgedStep
from searchengine.trainer.training.config import Objective, TrainConfig
from searchengine.trainer.training.data_sets import digest, read_data_sets
from searchengine.trainer.training.hardware import compile_layers, make_accelerator, torch_settings
from searchengine.trainer.training.head import (
    CLASSIFIER_TEXTS,
    cross_validate,
    fit_classifier,
    rotate_head,
    sample_texts,
)
from searchengine.trainer.training.judging import Judge, Measure, make_judge, measured_by
from searchengine.trainer.training.objectives.fixed import FixedEncoder
from searchengine.trainer.training.outcome import Run, finish, mean, prefix_weights
from searchengine.trainer.training.passes import Passes
from searchengine.trainer.training.preparation import (
    check_examples,
    check_place,
    check_start,
    load_base,
    make_optimizer,
    prepare_embeddings,
    starts_rotated,
)
from searchengine.trainer.training.processes import Processes, launched_rank
from searchengine.trainer.training.teachers import make_objective, teacher_targets
from searchengine.trainer.training.training_model import TrainingModel
from searchengine.trainer.training.update import Ahead, update


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a run after an update.

    step: updates done, of `steps`. loss: of this update, None before the first. scores: by prefix
    length if this step was evaluated (Spearman, accuracy, or top-1 accuracy without dev files),
    else None. alignment, uniformity: of the same vectors, with STS dev files. best_step: the best
    step so far. examples: number per epoch; excluded: number left out because of the exclude files.
    """

    step: int
    steps: int
    loss: float | None
    learning_rate: float
    scores: Mapping[int, float] | None
    alignment: float | None
    uniformity: float | None
    best_step: int
    examples: int
    excluded: int

    def values(self) -> dict[str, float]:
        """The numbers of this update by name, for a log: `wandb.log(report.values())`.

        loss, learning_rate, and of an evaluated step score/DIM, alignment and uniformity.
        """
        values = {
            "loss": self.loss,
            "learning_rate": self.learning_rate,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
            **{f"score/{dim}": score for dim, score in (self.scores or {}).items()},
        }
        return {name: value for name, value in values.items() if value is not None}


def train(
    config: TrainConfig,
    report: Callable[[Report], None] | None = None,
    resume: bool = False,
    measure: Measure | None = None,
) -> Encoder:
    """Train by the configuration, write the best step to `config.out` and return it.

    `recipe["chosen"]` of the returned encoder states which step that is and why. A TrainingWarning
    is issued if it is step 0, or scores less than step 0.

    report: called with the base model's scores, again after the rotation, then after each update.
    resume: continue from the newest checkpoint in OUT/checkpoint. measure: judges the steps, in
    place of dev files: `searchengine.measure.encoder_comparison.retrieval`. Under torchrun or
    accelerate each process calls this; the first one evaluates, reports and writes. Raises
    ConfigError, DataError, ModelError, or TrainingError for a loss that is not a number (the last
    checkpoint stays).
    The state of torch's random generators is restored afterwards.
    """
    check_place(config)
    # Of several processes that train as one, the first alone writes.
    with checkpoint.held(config.out) if launched_rank() == 0 else nullcontext():
        check_start(config, resume)
        with kept_random_state(), torch_settings(config):
            return run_training(config, report, resume, measure)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Put torch's generators back afterwards: every update seeds those of all devices."""
    apple = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # and the processor's
        try:
            yield
        finally:
            if apple is not None:
                torch.mps.set_rng_state(apple)


def run_training(
    config: TrainConfig,
    report: Callable[[Report], None] | None,
    resume: bool,
    measure: Measure | None,
) -> Encoder:
    """As `train`, without restoring torch's random generators."""
    accelerator, processes = make_accelerator(config)
    data = read_data_sets(config, accelerator.device)
    check_examples(data)
    model, projection = load_base(config, data)
    judge, splits = make_judge(config, data, measure)
    if config.patience and judge is None:
        raise ConfigError(
            f"patience is {config.patience}, but nothing judges the steps: give dev files, or more "
            "examples, so that some can be held out"
        )
    learnt = [replace(d, examples=s.train) for d, s in zip(data, splits, strict=True)]
    plan = BatchPlan(config, learnt)
    fixed = data[0].fixed
    width = fixed.dim if isinstance(fixed, FixedEncoder) else 0
    training_model = TrainingModel(model, config, projection, width)
    training_model = training_model.to(accelerator.device)
    prepare_embeddings(training_model, config.frozen_embeddings)
    compile_layers(training_model, config)
    optimizer = accelerator.prepare(make_optimizer(training_model, config, accelerator.device))
    run = Run(training_model, optimizer, checkpoint.copy_weights(training_model.kept))
    judged = [each for each, split in zip(data, splits, strict=True) if split.rows]
    run.measure = measured_by(config, judged, measure)
    beside = [each.fixed.fingerprint for each in data if each.fixed]
    origin = checkpoint.Origin(
        digest(data, config.dev),
        " ".join([fingerprint(model), *beside]),
        measure.name if measure else "",
    )
    send_report = functools.partial(make_report, run, plan, report if processes.main else None)
    labelled = config.objective is Objective.CLASSIFICATION
    if labelled and judge is None and processes.main:  # no score of step 0 to compare with
        encoder = view(model, training_model.sentence, config.precision)
        run.baseline = cross_validate(encoder, data[0].examples, prefix_weights(config, model))

    if resume:
        done, run.best = checkpoint.load(config, origin, plan.steps, training_model, optimizer)
        run.step, run.best_step = done.step, done.best_step
        run.losses, run.judged = list(done.losses), list(done.judged)
    else:
        begin(run, model, judge, plan, processes, send_report)

    objectives = [
        make_objective(each.config, training_model, model, processes, each.fixed) for each in data
    ]
    passes = Passes(
        training_model, view(model, training_model.sentence, "fp32"), config, accelerator.autocast
    )
    with Ahead(plan, objectives, passes) as batches:
        while run.step < plan.steps and not stops(run, config, processes, passes.device):
            run.losses.append(update(run, plan, passes, batches.at(run.step), processes))
            run.step += 1
            last = run.step == plan.steps
            if last or (config.eval_every and run.step % config.eval_every == 0):
                evaluate(run, model, judge, plan, processes)
            if config.checkpoint_every and run.step % config.checkpoint_every == 0 and not last:
                if processes.main:
                    progress = run.progress
                    checkpoint.save(config, origin, progress, training_model, optimizer, run.best)
                processes.wait()
            send_report()

    if not processes.main:  # only the first one evaluates and knows the best step
        processes.wait()
        return Encoder.load(config.out, trust_remote_code=config.trust_remote_code)
    trained = finish(config, run, model, data, splits)
    examples = data[0].examples
    if splits[0].rows and labelled and len(examples) <= CLASSIFIER_TEXTS:
        # The step is chosen, so the held-out labels may be used for the fit too.
        fit_classifier(trained, examples, prefix_weights(config, model))
    trained.save(config.out)
    remove_folder(checkpoint.folder_of(config.out))
    processes.wait()
    return trained


def view(model: Model, module: SentenceModule, precision: str) -> Encoder:
    """An encoder that shares the present weights, on their device."""
    device = str(next(module.parameters()).device)
    return Encoder(model, "", precision=precision, device=device)


def begin(
    run: Run,
    model: Model,
    judge: Judge | None,
    plan: BatchPlan,
    processes: Processes,
    send_report: Callable[[], None],
) -> None:
    """Evaluate the base model; if the run rotates it, evaluate it again after the rotation."""
    config = plan.config
    evaluate(run, model, judge, plan, processes)
    send_report()
    of_vectors = [each for each in plan.data if each.config.learns_vectors]
    texts = sample_texts([each.examples for each in of_vectors or plan.data], config.seed)
    targets = None
    if of_vectors and isinstance(of_vectors[0].fixed, FixedEncoder):
        targets = teacher_targets(run.training_model, of_vectors[0].fixed, texts)
        processes.share(run.training_model)
    if starts_rotated(config, model, plan.data):
        rotate_head(view(model, run.training_model.sentence, config.precision), texts, targets)
        # Rounding may give other processes other axes; and the copies are older than the rotation.
        processes.share(run.training_model)
        run.training_model.align()
        evaluate(run, model, judge, plan, processes)
        send_report()


def evaluate(
    run: Run, model: Model, judge: Judge | None, plan: BatchPlan, processes: Processes
) -> None:
    """Evaluate the model, and copy its weights if it is the best so far, or the last.

    A classifier is first fitted to the vectors, because its updates lag behind them: before
    training, and later if all examples can be used.
    The best step has the highest mean over the prefixes, weighted as in the loss; of equal steps
    the latest. For step 0 the last evaluation counts, which is the one after the rotation.
    """
    config, training_model = plan.config, run.training_model
    training_model.eval()
    if training_model.classifier is not None and (
        run.step == 0 or plan.examples <= CLASSIFIER_TEXTS
    ):
        fit_classifier(
            view(model, training_model.sentence, config.precision),
            plan.data[0].examples,
            prefix_weights(config, model),
        )
        processes.share(training_model.classifier)
    if not processes.main:
        return
    if judge is None:  # nothing to choose by: the last step is kept
        run.best_step, run.best = run.step, checkpoint.copy_weights(training_model.kept)
        return
    judgement = judge(view(model, training_model.sentence, config.precision))
    weights = prefix_weights(config, model)
    before = run.scores(run.best_step)
    better = run.step == 0 or mean(judgement.scores, weights) >= mean(before, weights)
    if better or config.keep_last:
        run.best_step, run.best = run.step, checkpoint.copy_weights(training_model.kept)
    rate = plan.learning_rate(max(0, run.step - 1))
    run.judged.append(
        JudgedStep(run.step, judgement.scores, judgement.alignment, judgement.uniformity, rate)
    )


def stops(run: Run, config: TrainConfig, processes: Processes, device: torch.device) -> bool:
    """Whether the scores have not risen for `patience` evaluations. Only the first one has them."""
    if not config.patience:
        return False
    return processes.add(run.worse if processes.main else 0, device) >= config.patience


def make_report(run: Run, plan: BatchPlan, report: Callable[[Report], None] | None) -> None:
    if report is None:
        return
    rate = plan.learning_rate(max(0, run.step - 1))
    last = run.judged[-1] if run.judged and run.judged[-1].step == run.step else None
    report(
        Report(
            run.step,
            plan.steps,
            run.losses[-1] if run.losses else None,
            rate,
            last.scores if last else None,
            last.alignment if last else None,
            last.uniformity if last else None,
            run.best_step,
            plan.examples,
            sum(each.examples.excluded for each in plan.data),
        )
    )
