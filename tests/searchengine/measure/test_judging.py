"""Search quality as the measure of a training, against nDCG by hand."""

import json
import math
from pathlib import Path

import command_line
import numpy as np
import pytest

from searchengine.errors import CorpusError
from searchengine.measure import retrieval as judging
from searchengine.measure.retrieval import is_judged, retrieval
from searchengine.trainer.encoder import Encoder
from tests.tiny_model import WORDS, write_sentence_transformer

NOUNS, VERBS = WORDS[2:8], WORDS[8:13]
TEXTS = [f"the {noun} {verb}" for noun in NOUNS for verb in VERBS]
ASKED = range(0, len(TEXTS), 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of 30 texts; each question turns one around, and the next one is half right."""
    base = tmp_path / "judged"
    (base / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(TEXTS)]
    asked = [{"_id": f"q{i}", "text": " ".join(reversed(TEXTS[i].split()))} for i in ASKED]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (base / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    grades = [f"q{i}\td{i}\t2\nq{i}\td{i + 1}\t1" for i in ASKED]
    (base / "qrels" / "dev.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *grades]))
    return base


def by_hand(encoder: Encoder, shortlist: int) -> dict[int, float]:
    """nDCG@10 of the best `shortlist` by a prefix, ordered by the full width.

    The index turns vectors to the principal axes of its documents, the strongest first.
    """
    questions = [" ".join(reversed(TEXTS[i].split())) for i in ASKED]
    q, d = encoder.encode(questions, role="query"), encoder.encode(TEXTS, role="document")
    axes = np.linalg.eigh(d.T @ d)[1][:, ::-1]
    q, d = q @ axes, d @ axes
    ideal = 2 + 1 / math.log2(3)
    scores = {}
    for dim in encoder.matryoshka_dims:
        short = d[:, :dim] / np.linalg.norm(d[:, :dim], axis=1, keepdims=True)
        values = []
        for i, row in zip(ASKED, q, strict=True):
            kept = np.arange(len(TEXTS))
            if dim < encoder.dim:
                kept = np.argsort(-(short @ row[:dim]), kind="stable")[:shortlist]
            order = kept[np.argsort(-(d[kept] @ row), kind="stable")][:10].tolist()
            gains = {i: 2, i + 1: 1}
            values.append(sum(gains.get(j, 0) / math.log2(r + 2) for r, j in enumerate(order)))
        scores[dim] = float(np.mean(values)) / ideal
    return scores


def test_scores_are_those_of_search(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_sentence_transformer(tmp_path / "base", matryoshka_dims=[32, 8, 2])
    encoder = Encoder.load(base, precision="fp32")
    monkeypatch.setattr(judging, "SHORTLIST", 3)
    measure = retrieval(folder)
    found = measure.scores(encoder, (32, 8, 2))
    assert measure.name == "nDCG@10 on judged (dev)"
    assert found == pytest.approx(by_hand(encoder, 3), abs=1e-6)
    assert len(set(found.values())) == 3  # the prefixes differ, so that a mistake would show


def test_the_split_is_dev_or_the_only_one_or_named(folder: Path) -> None:
    qrels = folder / "qrels"
    (qrels / "dev.tsv").rename(qrels / "train.tsv")
    assert retrieval(folder).name == "nDCG@10 on judged (train)"
    (qrels / "test.tsv").write_text((qrels / "train.tsv").read_text())
    with pytest.raises(CorpusError, match=r"judgements for test, train; name one .*test\.tsv"):
        retrieval(folder)
    assert retrieval(qrels / "train.tsv").name == "nDCG@10 on judged (train)"
    assert is_judged(folder) and is_judged(qrels / "train.tsv")
    assert not is_judged(folder / "queries.jsonl")


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels/dev.tsv"])
def test_a_folder_that_lacks_something_is_refused_before_training(
    folder: Path, tmp_path: Path, missing: str
) -> None:
    (folder / missing).unlink()
    (tmp_path / "pairs.tsv").write_text("a dog\tthe dog\n" * 3)
    done = command_line.run("train", "pairs.tsv", "--out", "m", "--dev", str(folder), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and missing.removesuffix(".tsv") in done.stderr
    assert not (tmp_path / "m").exists()


def test_search_chooses_the_step_of_a_training(folder: Path, tmp_path: Path) -> None:
    write_sentence_transformer(tmp_path / "base")
    rows = [f"{text}\t{' '.join(reversed(text.split()))}" for text in TEXTS]
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\n" + "\n".join(rows) + "\n")
    options = ["--base", "base", "--set", "prefixes=[32,8]", "--set", "batch_size=6"]
    options += ["--set", "learning_rate=0.002"]
    settings = ["--set", "max_steps=8", "--set", "eval_every=4", "--set", "precision=fp32"]
    done = command_line.run(
        "train", "pairs.tsv", "--out", "m", *options, *settings, "--dev", str(folder), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (figures,) = Encoder.load(tmp_path / "m").recipe["measures"]
    assert figures["measure"] == "nDCG@10 on judged (dev)" and figures["n"] == 10
    # Ten questions prove nothing, so the base is kept; its prefixes are those of the run.
    kept = {int(dim): score for dim, score in figures["base"].items()}
    encoder = Encoder.load(tmp_path / "base")
    assert kept == pytest.approx(retrieval(folder).scores(encoder, (32, 8)), abs=1e-3)
