"""Questions by an encoder of their own: used where it is named and belongs to the documents."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import WordLengths
from tiny_model import write_sentence_transformer

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.cli.serve import of_collections
from searchengine.errors import EncoderMismatch, QueryError
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.torch_model import keep_layers
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

TEXTS = ["a whale sings near the sea", "the dog sleeps", "two birds", "a child eats slowly"]
TORCH = RuntimeConfig("torch", "fp32")


class Letters:
    """Questions by their letters: another encoder, in the space of WordLengths."""

    dim = 16
    fingerprint = "letters"

    def __init__(self, aligned_to: str = "word-lengths", dim: int = 16):
        self.aligned_to, self.dim = aligned_to, dim

    def encode(self, texts: list[str], *, role: str | None = None) -> np.ndarray:
        assert role == "query"
        rows = np.zeros((len(texts), self.dim), np.float32)
        rows[np.arange(len(texts)), [len(text) % self.dim for text in texts]] = 1
        return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents by WordLengths: one word each, of two to six letters."""
    with SearchEngine.create(tmp_path / "w.index", WordLengths(), passages=False) as engine:
        engine.add([{"_id": "x" * n, "text": "x" * n} for n in range(2, 7)])
    return tmp_path / "w.index"


def test_questions_go_to_it_and_documents_do_not(folder: Path) -> None:
    documents = WordLengths()
    with SearchEngine.open(folder, documents, query_encoder=Letters()) as engine:
        assert [hit.key for hit in engine.search("12", k=1, mode="vector")] == ["xxx"]
        assert engine.search_batch(["1", "1234"], k=1, mode="vector")[1][0].key == "xxxxx"
        assert documents.calls == []  # nor when it warms up
        engine.warm()
        assert documents.calls == [] and engine.question_vectors() == {"cached": 0, "encoded": 3}
        engine.add([{"_id": "new", "text": "xxxxxxx"}])
        assert documents.calls == [["xxxxxxx"]]
        assert engine.search("123456", k=1, mode="vector")[0].key == "new"
        assert engine.encode_questions(["12"]).argmax() == 2
        assert engine.query_encoder.fingerprint == "letters"
        assert engine.encoder.wrapped is documents  # type: ignore[attr-defined]
    with SearchEngine.open(folder, documents) as engine:  # never by itself
        assert engine.query_encoder is engine.encoder


@pytest.mark.parametrize(
    "questions, message",
    [
        (
            Letters("other"),
            r"w.index was built by an encoder made in Python \(fingerprint word-lengths\), but the "
            r"question encoder made in Python belongs to the documents of another one \(other\); "
            r"train one for it \(train --preset question-encoder\), or leave query_encoder out",
        ),
        (
            Letters(dim=8),
            "holds vectors of 16 dimensions, and the question encoder made in Python gives 8; name",
        ),
        (WordLengths(fingerprint="x"), "of another one"),  # an encoder that names none is its own
    ],
)
def test_one_for_other_documents_is_refused(folder: Path, questions: Any, message: str) -> None:
    with pytest.raises(EncoderMismatch, match=message):
        SearchEngine.open(folder, WordLengths(), query_encoder=questions)
    with SearchEngine.open(folder, WordLengths()) as engine:  # and the collection was closed
        assert len(engine) == 5


def test_the_encoder_itself_may_be_named(folder: Path) -> None:
    with SearchEngine.open(folder, query_encoder=WordLengths()) as engine:
        assert engine.search("xx", k=1, mode="vector")[0].key == "xx"


def test_without_an_encoder_only_the_width_is_compared(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "v", None, dim=16) as engine:
        engine.add([{"_id": "a", "text": "x"}], np.eye(16, dtype=np.float32)[2:3])
        with pytest.raises(QueryError, match="no encoder"):
            engine.search("12", mode="vector")
    with SearchEngine.open(tmp_path / "v", query_encoder=Letters("other")) as engine:
        assert engine.search("12", mode="vector")[0].score == pytest.approx(1)
    with pytest.raises(EncoderMismatch, match="16 dimensions, and the question encoder"):
        SearchEngine.open(tmp_path / "v", query_encoder=Letters(dim=8))


def test_a_reindex_by_another_encoder_is_refused_before_it_begins(folder: Path) -> None:
    other = WordLengths(fingerprint="second")
    with SearchEngine.open(folder, WordLengths(), query_encoder=Letters()) as engine:
        with pytest.raises(EncoderMismatch, match=r"reindexed, was built by .*another one"):
            engine.reindex(other)
        assert other.calls == []
        assert engine.search("12", k=1, mode="vector")[0].key == "xxx"
    questions = Letters()
    with SearchEngine.open(folder, WordLengths(), query_encoder=questions) as engine:
        engine.reindex(WordLengths())
        assert engine.query_encoder.wrapped is questions  # type: ignore[attr-defined]
        assert engine.search("12", k=1, mode="vector")[0].key == "xxx"


def test_a_reindex_elsewhere_is_noticed(folder: Path) -> None:
    with SearchEngine.open(folder, query_encoder=Letters()) as reader:
        with SearchEngine.open(folder, WordLengths()) as writer:
            writer.reindex(WordLengths(fingerprint="second"))
        with pytest.raises(EncoderMismatch, match="of another one"):
            reader.refresh()


def test_it_is_pickled_with_the_engine(folder: Path) -> None:
    with SearchEngine.open(folder, WordLengths(), query_encoder=Letters()) as engine:
        with pickle.loads(pickle.dumps(engine)) as again:
            assert again.search("12", k=1, mode="vector")[0].key == "xxx"


@pytest.fixture
def router(tmp_path: Path) -> Callable[[int], tuple[Path, Path]]:
    """Writes an encoder, and a Router of it with this number of its layers for questions."""

    def write(layers: int) -> tuple[Path, Path]:
        base = write_sentence_transformer(tmp_path / "base")
        model = Encoder.load(base, runtime="torch", precision="fp32").model
        both = replace(model, questions=keep_layers(model, layers))
        Encoder(both, "", precision="fp32").save(tmp_path / "router")
        return base, tmp_path / "router"

    return write


@pytest.mark.parametrize("layers", (1, 0))
def test_a_router_serves_its_own_collection_and_that_of_its_documents(
    router: Callable[[int], tuple[Path, Path]], tmp_path: Path, layers: int
) -> None:
    """Indexed as the encoder, it is found again; beside the plain encoder, only if it is named."""
    base, folder = router(layers)
    documents = [{"_id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    for name, encoder in (("plain", base), ("routed", folder)):
        with SearchEngine.create(tmp_path / name, encoder, runtime=TORCH) as engine:
            engine.add(documents)
    questions = Encoder.load(folder, runtime="torch", precision="fp32", route="query")
    expected = questions.encode(TEXTS, role="query")
    own = Encoder.load(base, runtime="torch", precision="fp32").encode(TEXTS, role="query")
    for path, options, vectors in (
        ("plain", {}, own),
        ("plain", {"query_encoder": folder}, expected),
        ("plain", {"encoder": folder}, expected),
        ("routed", {}, expected),
        ("routed", {"encoder": base}, own),
    ):
        with SearchEngine.open(tmp_path / path, runtime=TORCH, **options) as engine:  # type: ignore[arg-type]
            assert np.abs(engine.encode_questions(TEXTS) - vectors).max() < 1e-6
            assert len(engine.search(TEXTS[0], k=2)) == 2


def test_the_command_line(router: Callable[[int], tuple[Path, Path]], tmp_path: Path) -> None:
    base, folder = router(0)
    with SearchEngine.create(tmp_path / "c", base, runtime=TORCH) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(TEXTS)])
    (tmp_path / "q.txt").write_text("the dog\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    runner, options = CliRunner(), ["--query-encoder", str(folder), "--runtime", "torch"]
    found = runner.invoke(cli, ["search", str(tmp_path / "c"), "dog", "-k", "1", *options])
    assert found.exit_code == 0, found.output
    task = ["--queries", str(tmp_path / "q.txt"), "--qrels", str(tmp_path / "qrels.tsv")]
    command = ["evaluate", "retrieval", str(tmp_path / "c"), *task, *options]
    measured = runner.invoke(cli, command)
    assert measured.exit_code == 0, measured.output


def test_collections_of_a_server_have_their_own() -> None:
    two = {"a": Path("a"), "b": Path("b")}
    assert of_collections("--query-encoder", ["b=x/y"], two) == {"b": "x/y"}
    assert of_collections("--query-encoder", ["x"], {"a": Path("a")}) == {"a": "x"}
    with pytest.raises(QueryError, match="--query-encoder x: name its collection, one of a, b: "):
        of_collections("--query-encoder", ["x"], two)
    with pytest.raises(QueryError, match="--query-encoder c=x: the collections are a, b, got 'c'"):
        of_collections("--query-encoder", ["c=x"], two)
