"""mteb on data that lies here: the same figures as ours, and no word on the network."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from lazy import Lazy, needs
from tiny_model import WORDS, write_sentence_transformer

from searchengine.cli.measuring.evaluate import mteb as command
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.sts import Remembered, StsTask, sts_tasks, unit_prefix

pytestmark = needs("mteb", "mteb")
ours = Lazy("searchengine.trainer.evaluation.mteb")

PROMPTS = {"query": "the man ", "document": "a sea "}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """32 wide, for texts of WORDS, with a prompt for each role."""
    folder = write_sentence_transformer(
        tmp_path_factory.mktemp("model") / "tiny", prompts=PROMPTS, default_prompt_name=None
    )
    return Encoder.load(folder, precision="fp32")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What the command sets is set for this test alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "0"))
        patch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        yield


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 4)) for _ in range(count)]


def sets() -> tuple[list[tuple[str, str, str]], dict[str, str], dict[str, dict[str, int]]]:
    """Documents, of which the even ones have a title, questions and judgements of some."""
    bodies, titles = texts(60, 0), texts(60, 1)
    corpus = [(f"d{i}", t if i % 2 else "", b) for i, (t, b) in enumerate(zip(titles, bodies))]  # noqa: B905
    queries = {f"q{i}": text for i, text in enumerate(texts(12, 2))}
    rng = np.random.default_rng(3)
    qrels = {
        f"q{i}": {f"d{j}": int(rng.integers(1, 3)) for j in rng.choice(60, 5, replace=False)}
        for i in range(10)
    }
    return corpus, queries, qrels


def ndcg(encoder: Encoder, dim: int) -> float:
    """nDCG@10 by another library, of the exact ranking."""
    import ir_measures

    corpus, queries, qrels = sets()
    documents = encoder.encode([f"{t} {b}".strip() for _, t, b in corpus], role="document")
    vectors_of_queries = encoder.encode([queries[key] for key in qrels], role="query")
    scores = unit_prefix(vectors_of_queries, dim) @ unit_prefix(documents, dim).T
    run = {
        key: {corpus[j][0]: float(score) for j, score in enumerate(line)}
        for key, line in zip(qrels, scores, strict=True)
    }
    metric = ir_measures.nDCG @ 10
    return float(ir_measures.calc_aggregate([metric], qrels, run)[metric])


def pairs() -> list[tuple[float, str, str]]:
    scores = np.random.default_rng(4).uniform(0, 5, 40).round(1)
    return list(zip(scores.tolist(), texts(40, 5), texts(40, 6), strict=True))


def test_the_figures_are_those_of_other_libraries(encoder: Encoder) -> None:
    tasks = [ours.retrieval_task("asked", *sets()), ours.sts_task(StsTask("scored", pairs()))]
    rows = list(ours.evaluate(encoder, tasks, [32, 8]))
    assert [(r.task, r.type, r.dim, r.metric) for r in rows] == [
        ("asked", "Retrieval", 32, "ndcg_at_10"),
        ("asked", "Retrieval", 8, "ndcg_at_10"),
        ("scored", "STS", 32, "cosine_spearman"),
        ("scored", "STS", 8, "cosine_spearman"),
    ]
    expected = [ndcg(encoder, dim) for dim in (32, 8)]
    expected += [row.spearman for row in sts_tasks(encoder, [StsTask("", pairs())], [32, 8])]
    assert [row.score for row in rows] == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 4) for score in expected}) == 4


def test_prefixes_have_length_one_and_roles_their_prompts(encoder: Encoder) -> None:
    calls: list[int] = []
    known = Remembered(encoder)
    from mteb.types import PromptType

    batches = [{"text": ["a dog", "the cat"]}, {"text": ["a dog"]}]
    for prompt, role in ((None, None), (PromptType.query, "query"), (PromptType.document, "document")):  # fmt: skip  # noqa: E501
        model = ours._Prefix(encoder, 8, known, calls.append)
        vectors = model.encode(batches, prompt_type=prompt, batch_size=2)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
        whole = encoder.encode(["a dog", "the cat", "a dog"], role=role)
        np.testing.assert_allclose(vectors, unit_prefix(whole, 8), atol=1e-6)
    assert sum(calls) == 6  # each text once a role
    ours._Prefix(encoder, 32, known, calls.append).encode(batches)
    assert sum(calls) == 6


def test_prefixes_default_to_the_encoders_own(encoder: Encoder) -> None:
    (row,) = ours.evaluate(encoder, [ours.sts_task(StsTask("scored", pairs()))])
    assert row.dim == 32
    with pytest.raises(ConfigError, match="prefix length 33: expected 1 to 32"):
        list(ours.evaluate(encoder, [], [33]))


def test_result_files_are_mtebs_own(encoder: Encoder, tmp_path: Path) -> None:
    import mteb

    (whole, part) = ours.evaluate(
        encoder, [ours.sts_task(StsTask("scored", pairs()))], [32, 8], tmp_path
    )
    folder = tmp_path / "results" / "local__tiny" / encoder.fingerprint
    for row, file in ((whole, folder), (part, folder / "experiments" / "prefix_8")):
        result = mteb.TaskResult.from_disk(file / "scored.json")
        assert result.get_score() == pytest.approx(row.score, abs=1e-5)
        assert json.loads((file / "model_meta.json").read_text())["embed_dim"] == row.dim


def test_settings_that_cannot_be_measured() -> None:
    corpus, queries, qrels = sets()
    with pytest.raises(DataError, match="x: there are no documents"):
        ours.retrieval_task("x", [], queries, qrels)
    with pytest.raises(DataError, match="x: no question has a judgement"):
        ours.retrieval_task("x", corpus, queries, {"q99": {"d1": 1}})
    with pytest.raises(DataError, match="x: 1 scored pairs: expected at least 2"):
        ours.sts_task(StsTask("x", pairs()[:1]))
    with pytest.raises(ConfigError, match=r"mteb has no task SciFakt .*SciFact"):
        ours.own_task("SciFakt")
    with pytest.raises(ConfigError, match="is about image, expected text"):
        ours.own_task("CIFAR10")


def test_a_task_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import mteb

    task = mteb.get_task("STSBenchmark")

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(type(task), "load_data", unreachable)
    with pytest.raises(DataError, match=r"the data of STSBenchmark cannot be had \(ConnectionErr"):
        ours.own_task("STSBenchmark")


def written(folder: Path) -> Path:
    """The set as files."""
    corpus, queries, qrels = sets()
    (folder / "asked" / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": key, "title": t, "text": b}) for key, t, b in corpus]
    (folder / "asked" / "corpus.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({"_id": key, "text": text}) for key, text in queries.items()]
    (folder / "asked" / "queries.jsonl").write_text("\n".join(lines))
    rows = [f"{q}\t{d}\t{grade}" for q, of in qrels.items() for d, grade in of.items()]
    (folder / "asked" / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *rows])
    )
    rows = ["score\tsentence1\tsentence2", *("\t".join(map(str, pair)) for pair in pairs())]
    (folder / "scored.dev.tsv").write_text("\n".join(rows) + "\n")
    return folder


def test_the_command(encoder: Encoder, tmp_path: Path) -> None:
    folder = written(tmp_path)
    arguments = ["--retrieval", f"{folder / 'asked'}", "--retrieval", f"b={folder / 'asked'}"]
    arguments += ["--sts", f"{folder / 'scored.dev.tsv'}", "--encoder", encoder.source]
    arguments += ["--precision", "fp32"]
    done = CliRunner().invoke(command, [*arguments, "--prefixes", "32,8", "--json"])
    assert done.exit_code == 0, done.output
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    rows = [ours.MtebRow(**row) for row in json.loads(done.stdout)]
    assert [(row.task, row.dim) for row in rows] == [
        (name, dim) for name in ("asked", "b", "scored") for dim in (32, 8)
    ]
    for row in rows[:4]:
        assert row.score == pytest.approx(ndcg(encoder, row.dim), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no task is named; name one with --retrieval, --sts or --task"),
        (["--sts", "x.tsv", "--sts", "y/x.tsv"], "two tasks are called x: give one another name"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2 and message in done.output


def test_a_folder_without_the_files(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--retrieval", str(tmp_path)])
    assert f"{tmp_path}: no corpus.jsonl or corpus.jsonl.gz in it" in str(done.exception)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "a"}\n')
    done = CliRunner().invoke(command, ["--retrieval", str(tmp_path)])
    assert f"{tmp_path}: the folder has no queries.jsonl (.gz too)" in str(done.exception)


def test_without_mteb_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.delitem(sys.modules, "searchengine.trainer.evaluation.mteb")
    with pytest.raises(
        ImportError, match=r"^evaluating with mteb needs mteb: .*pip install 'searchengine\[mteb\]'"
    ):
        import searchengine.trainer.evaluation.mteb  # noqa: F401
