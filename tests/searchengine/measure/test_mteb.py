"""mteb on data of our own: its figures are those of other libraries."""

from typing import Any

import numpy as np
import pytest
from lazy import Lazy, needs
from tiny_model import WORDS, write_sentence_transformer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.evaluation.sts import StsTask, sts_tasks, unit_prefix

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


def local_task(kind: str, score: str, data: Any) -> Any:
    """One of mteb's kinds of task, without the network."""
    import mteb

    metadata = mteb.TaskMetadata(
        name=kind,
        type=kind,
        main_score=score,
        description="Local data.",
        dataset={"path": "local", "revision": "local"},
        eval_langs=["und-Zyyy"],
        eval_splits=["test"],
    )
    base = getattr(mteb.abstasks, f"AbsTask{kind}")
    task = type("LocalTask", (base,), {"metadata": metadata})()
    task.dataset, task.data_loaded = {"default": {"test": data}}, True
    return task


def tasks() -> list[Any]:
    from datasets import Dataset

    corpus, queries, qrels = sets()
    columns = ("score", "sentence1", "sentence2")
    scored = Dataset.from_list([dict(zip(columns, pair, strict=True)) for pair in pairs()])
    documents = [{"id": key, "title": title, "text": text} for key, title, text in corpus]
    data = {
        "corpus": Dataset.from_list(documents),
        "queries": Dataset.from_list([{"id": key, "text": queries[key]} for key in qrels]),
        "relevant_docs": qrels,
        "top_ranked": None,
    }
    return [
        local_task("Retrieval", "ndcg_at_10", data),
        local_task("STS", "cosine_spearman", scored),
    ]


def test_the_figures_are_those_of_other_libraries(encoder: Encoder) -> None:
    rows = list(ours.evaluate(encoder, tasks(), [32, 8]))
    assert [(r.task, r.type, r.dim, r.metric) for r in rows] == [
        ("Retrieval", "Retrieval", 32, "ndcg_at_10"),
        ("Retrieval", "Retrieval", 8, "ndcg_at_10"),
        ("STS", "STS", 32, "cosine_spearman"),
        ("STS", "STS", 8, "cosine_spearman"),
    ]
    expected = [ndcg(encoder, dim) for dim in (32, 8)]
    expected += [row.spearman for row in sts_tasks(encoder, [StsTask("", pairs())], [32, 8])]
    assert [row.score for row in rows] == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 4) for score in expected}) == 4


def test_what_cannot_be_measured(encoder: Encoder) -> None:
    with pytest.raises(ConfigError, match="prefix length 33: expected 1 to 32"):
        list(ours.evaluate(encoder, [], [33]))
    with pytest.raises(ConfigError, match=r"mteb has no task SciFakt .*SciFact"):
        ours.load_task("SciFakt")
