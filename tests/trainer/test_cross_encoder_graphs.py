"""Cross-encoders run by OpenVINO: the scores and the order of torch; stored, checked, refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from faults import in_child
from tiny_model import write_cross_encoder, write_model2vec, write_plain
from transformers import RobertaConfig, RobertaForSequenceClassification, set_seed

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.encoders.cross_encoders import CrossEncoders
from searchengine.errors import QueryError
from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError, RuntimeChoiceWarning
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes import graph as graph_module
from searchengine.trainer.runtimes.graph import Graph
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

pytest.importorskip("openvino", reason="the extra `fast` is not installed")

pytestmark = pytest.mark.usefixtures("traced_once")

TORCH, OPENVINO = RuntimeConfig("torch", "fp32", "cpu"), RuntimeConfig("openvino", "fp32")
QUESTIONS = ["the dog sleeps", "a whale", "", "the cat \ud800 sings", "sea " * 80, "bird", "far"]
TEXTS = ["a dog runs far", "whale in the sea " * 30, "old house", "", "new car", "   ", "near"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled cross-encoder to copy."""
    folder = write_cross_encoder(tmp_path_factory.mktemp("kept") / "m")
    CrossEncoder.load(folder, OPENVINO).start()
    return folder


@pytest.fixture
def model(kept: Path, tmp_path: Path) -> Path:
    """A compiled cross-encoder to change."""
    return Path(shutil.copytree(kept, tmp_path / "m"))


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A cross-encoder that nothing was compiled of."""
    return write_cross_encoder(tmp_path / "fresh")


def found(folder: Path) -> Graph | None:
    return graph_module.find_graph(replace(Source.find(folder), pairs=True))


def compiled(folder: Path) -> Path:
    """The folder of the one graph beside a model."""
    (record,) = (folder / "compiled").glob("*/graph.json")
    return record.parent


def check_same(folder: Path) -> None:
    """OpenVINO gives the scores of torch, and their order."""
    fast, exact = CrossEncoder.load(folder, OPENVINO), CrossEncoder.load(folder, TORCH)
    scores, expected = fast.score(QUESTIONS, TEXTS), exact.score(QUESTIONS, TEXTS)
    assert (fast.runs_on, exact.runs_on) == ("openvino fp32", "torch fp32")
    assert np.abs(scores - expected).max() < 2e-5
    assert np.array_equal(np.argsort(scores), np.argsort(expected))
    assert np.diff(np.sort(expected)).min() > 1e-4  # else the order would show nothing


# --------------------------------------------------------------------------------- the same scores


def test_a_graph_gives_what_torch_gives(kept: Path) -> None:
    check_same(kept)
    graph = found(kept)
    assert graph is not None and graph.pairs and not graph.packed
    accuracy = graph.accuracies["fp32"]
    assert accuracy.cosine is None and accuracy.difference < 1e-5 and accuracy.agreement > 0.999


def test_outputs_that_are_taken_as_they_are(fresh: Path) -> None:
    config = json.loads((fresh / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (fresh / "config.json").write_text(json.dumps(config))
    check_same(fresh)
    assert CrossEncoder.load(fresh, OPENVINO).score(QUESTIONS, TEXTS).min() < 0


def test_a_network_that_tells_no_text_from_another(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "m")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = RobertaConfig(
        vocab_size=200, num_attention_heads=4, max_position_embeddings=49, type_vocab_size=1,
        pad_token_id=0, initializer_range=0.3, num_labels=1, **sizes,
    )  # fmt: skip
    set_seed(0)
    RobertaForSequenceClassification(config).save_pretrained(folder)
    check_same(folder)


# -------------------------------------------------------------------------------- stored and found

SCORE = """
import sys
from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
scorer = CrossEncoder.load(sys.argv[1], RuntimeConfig("openvino", "fp32"))
print(scorer.score(["the dog", "a whale"], ["sleeps", "far"]).round(4).tolist(), scorer.runs_on)
print(sorted(name for name in ("torch", "transformers") if name in sys.modules))
"""


def test_what_is_compiled_is_found_without_torch(kept: Path) -> None:
    scorer = CrossEncoder.load(kept, OPENVINO)
    command = [sys.executable, "-c", SCORE, str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = scorer.score(["the dog", "a whale"], ["sleeps", "far"]).round(4).tolist()
    assert done.stdout.splitlines() == [f"{expected} openvino fp32", "[]"]


def test_the_graph_of_an_encoder_is_another_one(model: Path) -> None:
    """transformers reads the network of a classifier without its output, too."""
    pairs = found(model)
    encoder = Encoder.load(model, runtime="openvino", precision="fp32")
    assert encoder.encode(["the dog"]).shape == (1, 32)
    texts = graph_module.find_graph(Source.find(model))
    assert pairs is not None and found(model) == pairs
    assert texts is not None and not texts.pairs and texts.folder != pairs.folder
    check_same(model)


# ----------------------------------------------------------------------------------------- refused


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of the runtime is free."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)


def test_an_inaccurate_graph_is_refused_with_a_word(
    fresh: Path, free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("searchengine.trainer.runtimes.measure.max_difference", lambda *_: 0.03)
    message = "openvino in fp32 is not accurate .* by at most 0.02, got fp32 0.0300"
    scorer = CrossEncoder.load(fresh, RuntimeConfig(precision="fp32"))
    with pytest.warns(RuntimeChoiceWarning, match=message):
        scores = scorer.score(QUESTIONS, TEXTS)
    assert scorer.runs_on.startswith("torch") and scorer.runtime == "torch"
    assert np.array_equal(scores, CrossEncoder.load(fresh, TORCH).score(QUESTIONS, TEXTS))
    with pytest.raises(ModelError, match=message):
        CrossEncoder.load(fresh, OPENVINO).start()
    with pytest.raises(QueryError, match=f"cross_encoder: {message}"):
        CrossEncoders(OPENVINO).get(fresh)


# --------------------------------------------------------------------------- processes and commands


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_loads_its_own_and_waits_for_no_thread(kept: Path, free: None) -> None:
    loaded = CrossEncoders(RuntimeConfig(precision="fp32"))
    scorer = loaded.get(kept)
    assert scorer is not None and scorer.runtime == "openvino"
    expected = scorer.score(QUESTIONS, TEXTS)

    def child(say: Callable[[Any], None]) -> None:
        with pytest.raises(ModelError, match="loaded before this process was forked"):
            scorer.score(QUESTIONS, TEXTS)
        with pytest.warns(RuntimeChoiceWarning, match="openvino has run in the process that"):
            own = CrossEncoders(RuntimeConfig(precision="fp32")).get(kept)
        assert own is not None and own.runtime == "torch"
        say(float(np.abs(own.score(QUESTIONS, TEXTS) - expected).max()) < 2e-5)
        for load in (
            lambda: CrossEncoder.load(kept, OPENVINO).start(),
            lambda: Encoder.load(kept, runtime="openvino", precision="fp32").encode(["a"]),
        ):
            with pytest.raises(ModelError, match="start workers by multiprocessing's spawn, or"):
                load()
        say("refused")

    ended = in_child(child)
    assert (ended.problem, ended.said) == (None, [True, "refused"])


def test_the_command_line_compiles_it_once_and_says_so(tmp_path: Path, fresh: Path) -> None:
    encoder = write_model2vec(tmp_path / "encoder")
    with SearchEngine.create(tmp_path / "c", encoder, runtime=TORCH) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(TEXTS) if text.strip()])
        expected = engine.search("far", 3, cross_encoder=str(fresh))
    options = ["--cross-encoder", str(fresh), "--runtime", "openvino", "--precision", "fp32"]
    command = ["search", str(tmp_path / "c"), "far", "-k", "3", "--json", *options]
    runner = CliRunner()
    first, second = (runner.invoke(cli, command) for _ in range(2))
    assert first.exit_code == 0, first.output
    note = "Compiling the cross-encoder, once…"
    assert note in first.stderr and note not in second.stderr
    for result in (first, second):
        hits = json.loads(result.stdout)["hits"]
        assert [hit["key"] for hit in hits] == [hit.key for hit in expected]
        assert [h["score"] for h in hits] == pytest.approx([h.score for h in expected], abs=2e-5)
    assert compiled(fresh).is_dir()
