"""Cross-encoders: scores as sentence-transformers gives them, errors, and training."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tiny_model import WORDS, write_cross_encoder, write_plain

from searchengine.cli import cli
from searchengine.measure.reranking import Reranking
from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.errors import (
    ConfigError,
    DataError,
    ModelError,
    RuntimeChoiceWarning,
    TrainingError,
)
from searchengine.trainer.model.network import _check_weights
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig
from searchengine.trainer.training import cross_encoder_training
from searchengine.trainer.training.cross_encoder_training import (
    CrossEncoderConfig,
    Order,
    train_cross_encoder,
)

FP32 = RuntimeConfig("torch", "fp32", "cpu")
QUESTIONS = ["the dog sleeps", "a whale", "", "the cat \ud800 sings", "sea " * 80, "bird"]
TEXTS = ["a dog runs far", "whale in the sea " * 30, "old house", "", "new car", "   "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("models") / "cross")


def configured(folder: Path, new: Path, **changes: Any) -> Path:
    """A copy of a model with other lines in config.json."""
    new.mkdir()
    for file in folder.iterdir():
        (new / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | changes
    (new / "config.json").write_text(json.dumps(config))
    return new


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_scores_are_those_of_sentence_transformers(
    folder: Path, tmp_path: Path, activation: str
) -> None:
    from sentence_transformers import CrossEncoder as Peer

    place = "linear" if activation == "Identity" else "activation"
    named = {"activation_fn": f"torch.nn.modules.{place}.{activation}"}
    model = configured(folder, tmp_path / "model", sentence_transformers=named)
    clean = [(q.replace("\ud800", "\ufffd"), t) for q, t in zip(QUESTIONS, TEXTS, strict=True)]
    expected = Peer(str(model), device="cpu").predict(clean)
    scores = CrossEncoder.load(model, FP32).score(QUESTIONS, TEXTS)
    assert scores.dtype == np.float32 and np.abs(scores - expected).max() < 1e-5
    assert np.ptp(scores) > 0.05  # else any order would do


def test_no_pairs(folder: Path) -> None:
    assert CrossEncoder.load(folder, FP32).score([], []).shape == (0,)


def test_bf16_of_torch_must_give_the_same_scores(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.cpu_has_native_bf16", lambda: True
    )
    exact = CrossEncoder.load(folder, FP32).score(QUESTIONS, TEXTS)
    lower = CrossEncoder.load(folder, RuntimeConfig("torch", "bf16", "cpu"))
    assert lower.precision == "bf16"
    assert 0 < np.abs(lower.score(QUESTIONS, TEXTS) - exact).max() < 0.1
    monkeypatch.setattr("searchengine.trainer.runtimes.measure.max_difference", lambda *_: 0.03)
    automatic = CrossEncoder.load(folder, RuntimeConfig("torch"))
    with pytest.warns(RuntimeChoiceWarning, match=r"torch in bf16 .*at most 0.02, got bf16 0.0300"):
        automatic.start()
    assert (automatic.runtime, automatic.precision) == ("torch", "fp32")
    assert np.allclose(automatic.score(QUESTIONS, TEXTS), exact, atol=1e-5)


def test_what_is_no_cross_encoder_is_refused(folder: Path, tmp_path: Path) -> None:
    unknown = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    two = write_cross_encoder(tmp_path / "two", labels=2)
    torn = configured(folder, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes(b"torn")
    headless = configured(folder, tmp_path / "headless")
    shutil.copy(write_plain(tmp_path / "plain") / "model.safetensors", headless)
    cases = {
        tmp_path / "plain": "is a BertModel, which scores no pairs",
        two: "has 2 outputs",
        configured(folder, tmp_path / "tanh", sentence_transformers=unknown): "applies torch.nn",
        tmp_path / "missing": "no model at",
        torn: "cannot be loaded by transformers",
        headless: "of the network's weights, such as bert.pooler.dense.bias",
        "starter": "train-cross-encoder",
    }
    for source, message in cases.items():
        with pytest.raises(ModelError, match=message):
            CrossEncoder.load(source, FP32)
        with pytest.raises(ModelError, match=message):
            CrossEncoder.load(source, RuntimeConfig("openvino"))
    network = SimpleNamespace(pooler="a classifier uses it")
    with pytest.raises(ModelError, match="lacks 1 of the network's weights"):
        _check_weights(network, ["pooler.dense.bias"], Path("m"), pools=True)
    _check_weights(network, ["pooler.dense.bias"], Path("m"), pools=False)
    assert network.pooler is None


@pytest.fixture(scope="module")
def triplets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whatever the question, the sea answers it and the house does not."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "triplets.tsv"

    def texts(word: str, count: int) -> list[str]:
        return [f"{a} {b} {word} {c}" for a, b, c in (rng.sample(WORDS, 3) for _ in range(count))]

    rows = [
        [" ".join(rng.sample(WORDS, 3)), *texts("sea", 1), *texts("house", 3)] for _ in range(200)
    ]
    header = ["query", "positive", "negative_1", "negative_2", "negative_3"]
    path.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]), encoding="utf-8")
    return path


def test_training_learns_which_text_answers(triplets: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder as Peer

    base = str(write_plain(tmp_path / "base"))
    losses: list[float] = []

    def settings(out: str) -> CrossEncoderConfig:
        return CrossEncoderConfig(
            [triplets], tmp_path / out, base, epochs=4, negatives=3, learning_rate=2e-3
        )

    trained = train_cross_encoder(settings("out"), lambda update: losses.append(update.loss))
    assert trained.held_out == 20 and trained.by_chance == pytest.approx(0.25)
    assert trained.first == 1.0 and losses[-1] < 0.5 * losses[0] and len(losses) == 4 * 12
    questions, texts = ["dog sings far", "whale the old"], ["the big sea sings", "a dog house near"]
    scores = trained.scorer.score(questions, texts)
    assert scores[0] > 0.8 and scores[1] < 0.2
    repeated = train_cross_encoder(settings("again"))
    assert np.array_equal(scores, repeated.scorer.score(questions, texts))
    expected = Peer(str(tmp_path / "out"), device="cpu").predict(
        list(zip(questions, texts, strict=True))
    )
    exact = CrossEncoder.load(tmp_path / "out", FP32).score(questions, texts)
    assert np.abs(exact - expected).max() < 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_computes_in_the_precision_that_an_encoder_would(
    precision: str, triplets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Precision(precision)
    monkeypatch.setattr(cross_encoder_training, "pick_precision", lambda *_: chosen)
    seen, autocast = set(), torch.autocast

    def entered(device: str, dtype: torch.dtype, enabled: bool) -> Any:
        seen.add(enabled)
        return autocast(device, dtype, enabled=enabled)

    monkeypatch.setattr(torch, "autocast", entered)
    base = str(write_plain(tmp_path / "base"))
    settings = CrossEncoderConfig([triplets], tmp_path / "out", base)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_cross_encoder(settings, stop)
    assert seen == {precision == "bf16"}


def test_wrong_texts_are_those_of_the_file_first(tmp_path: Path) -> None:
    from searchengine.trainer.training.cross_encoder_training import _groups
    from searchengine.trainer.training.examples import read_examples

    path = tmp_path / "triplets.tsv"
    path.write_text(
        "query\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\na\te\tf\tg\nh\ti\tj\tk\n",
        encoding="utf-8",
    )
    rows = [texts for _, texts in read_examples([path])]
    positives, rng = [row[1] for row in rows], random.Random(0)
    few = _groups(rows, positives, CrossEncoderConfig([path], tmp_path / "x", negatives=2), rng)
    assert {(q, *sorted(t[1:])) for q, t in few} == {
        ("a", "c", "d"), ("a", "f", "g"), ("h", "j", "k"),
    }  # fmt: skip
    more = _groups(rows, positives, CrossEncoderConfig([path], tmp_path / "x", negatives=4), rng)
    for question, texts in more:
        assert len(set(texts)) == len(texts)
        if question == "a":  # no other text that answers it
            assert not {"b", "e"} & set(texts[1:])


def test_nothing_that_was_held_out_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions with several texts, texts with several questions, and negatives of all of them."""
    from searchengine.trainer.training import cross_encoder_training as training

    rng = random.Random(1)
    rows = [(f"Question {i // 3}?", f"text {i // 2}") for i in range(300)]
    lines = [
        f"{q if i % 2 else q.lower()}\t{t}\t{rng.choice(rows)[1]}\n"
        for i, (q, t) in enumerate(rows)
    ]
    path = tmp_path / "triplets.tsv"
    path.write_text("query\tpositive\tnegative\n" + "".join(lines), encoding="utf-8")
    seen: dict[str, list[training.Group]] = {}

    def fit(network: Any, tokenizer: Any, groups: Any, *others: Any) -> None:
        seen["trained"] = groups

    def judged(scorer: Any, groups: Any) -> tuple[float, float]:
        seen["held out"] = groups
        return 0.5, 0.2

    monkeypatch.setattr(training, "_fit", fit)
    monkeypatch.setattr(training, "_judged", judged)
    train_cross_encoder(
        CrossEncoderConfig([path], tmp_path / "x", str(write_plain(tmp_path / "b")))
    )
    held = {q.lower() for q, _ in seen["held out"]} | {texts[0] for _, texts in seen["held out"]}
    trained = {text.lower() for q, texts in seen["trained"] for text in (q, *texts)}
    assert 20 <= len(seen["held out"]) <= 30 and held.isdisjoint(trained)
    assert len(seen["held out"]) + len(seen["trained"]) == 300


def test_one_process_trains_it(triplets: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="2 processes were launched, and each would train the"):
        train_cross_encoder(CrossEncoderConfig([triplets], tmp_path / "new"))


def test_a_model_that_a_search_is_worse_with_is_not_written(triplets: Path, tmp_path: Path) -> None:
    base = str(write_plain(tmp_path / "base"))
    asked: list[Any] = []

    def judge(after: float) -> Any:
        def of(answers: Any, texts: Any, scorer: Any) -> Order:
            asked.append((answers, texts, scorer.score(["dog"], ["sea"]).shape))
            return Order("nDCG@10", np.array([0.5, 0.7] * 6), np.array([after, 0.7] * 6))

        return of

    config = CrossEncoderConfig([triplets], tmp_path / "out", base, max_tokens=16)
    with pytest.raises(TrainingError) as error:
        train_cross_encoder(config, judge=judge(0.1))
    said = str(error.value)
    assert "out was not written, for a search orders its hits worse with it: nDCG@10 0.4000" in said
    assert "0.6000 without (12 held-out questions; difference -0.2000, 95 % interval -0" in said
    assert "more examples than the 180 that it learnt from, more questions to judge by" in said
    assert "hard negatives" not in said and not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]
    answers, texts, shape = asked[0]
    held = [text for found in answers.values() for text in found]
    assert len(answers) == len(held) == 20 and texts[:1] == held[:1] and set(held) < set(texts)
    assert shape == (1,)
    written = train_cross_encoder(replace(config, keep_worse=True), judge=judge(0.1))
    assert written.order is not None and (tmp_path / "out" / "config.json").exists()
    equal = replace(config, out=tmp_path / "equal")
    assert train_cross_encoder(equal, judge=judge(0.5)).order is not None


def test_the_order_of_a_search_before_and_after() -> None:
    """A scorer that knows the answers puts each first; one that knows the others puts it last."""
    from conftest import WordLengths

    texts = ["a" * n + " bee" for n in range(1, 31)]
    answers = {"aaa bee": [texts[20]], "aaaaa bee": [texts[4]]}

    class Knowing:
        def __init__(self, sign: float) -> None:
            self.sign = sign

        def score(self, questions: Any, found: Any) -> Any:
            right = [text in answers[q] for q, text in zip(questions, found, strict=True)]
            return self.sign * np.array(right, dtype=np.float32)

    judge = Reranking(WordLengths())
    first = judge(answers, texts, Knowing(1))  # type: ignore[arg-type]
    last = judge(answers, texts, Knowing(-1))  # type: ignore[arg-type]
    assert first.measure == "nDCG@10" and first.after.tolist() == [1, 1]
    assert last.after.tolist() == [0, 0]
    assert first.before.tolist() == last.before.tolist() and first.before[1] > first.before[0]


def test_bad_settings_and_files(triplets: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    for settings, message in (
        ({"out": tmp_path / "there"}, "name a new folder"),
        ({"epochs": 0}, "epochs is 0: expected"),
        ({"negatives": 1.5}, "negatives is 1.5: expected"),
        ({"learning_rate": 0}, "learning_rate is 0: expected"),
        ({"seed": -1}, "seed is -1: expected"),
    ):
        with pytest.raises(ConfigError, match=message):
            CrossEncoderConfig(**{"train": [triplets], "out": tmp_path / "new", **settings})
    sentences = tmp_path / "sentences.tsv"
    sentences.write_text("sentence\na b\n", encoding="utf-8")
    with pytest.raises(DataError, match="holds a sentence"):
        train_cross_encoder(CrossEncoderConfig([sentences], tmp_path / "new"))
    single = tmp_path / "single.tsv"
    single.write_text("query\tpositive\na\tb\nc\tb\nc\td\n", encoding="utf-8")
    base = str(write_plain(tmp_path / "base"))
    with pytest.raises(ConfigError, match="none can be held out"):
        train_cross_encoder(CrossEncoderConfig([single], tmp_path / "new", base=base))
    with pytest.raises(TrainingError, match="choose a lower learning rate"):
        monkeypatch.setattr(
            "torch.nn.functional.binary_cross_entropy_with_logits",
            lambda *_, **__: np.nan * __import__("torch").ones(()),
        )
        train_cross_encoder(CrossEncoderConfig([triplets], tmp_path / "new", base=base))
    assert not (tmp_path / "new").exists()


def test_on_the_command_line(triplets: Path, tmp_path: Path) -> None:
    base = write_plain(tmp_path / "base")
    options = ["--base", str(base), "--max-tokens", "16", "--out", str(tmp_path / "out")]
    options.append("--keep-worse")
    result = CliRunner().invoke(cli, ["train-cross-encoder", str(triplets), *options, "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["held-out questions"] == 20 and (tmp_path / "out" / "config.json").exists()
    assert 0 <= figures["nDCG@10 without"] <= 1 and 0 <= figures["nDCG@10 with"] <= 1
    result = CliRunner().invoke(cli, ["train-cross-encoder", str(triplets), *options])
    assert result.exit_code == 2 and "name a new folder" in result.output
