"""`verify` encodes some passages again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from conftest import Remainders, WordLengths
from scenarios import document
from tiny_model import write_sentence_transformer

from searchengine import Document, SearchEngine
from searchengine.errors import CollectionError, QueryError
from searchengine.upkeep import verify


class Impostor(Remainders):
    """Other vectors under the name of WordLengths."""

    def __init__(self) -> None:
        super().__init__(fingerprint="word-lengths")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([document(i) for i in range(20)])
        yield engine


def spoil(path: Path, *keys: str) -> None:
    with SearchEngine.open(path, Impostor()) as other:
        other.add([Document(key, "x xx xxx xxxx xxxxxx") for key in keys])


def test_a_right_collection_passes(engine: SearchEngine) -> None:
    engine.delete(["d3"])
    assert engine.verify() == 0
    assert engine.verify(encode=7) == 7
    assert engine.verify(encode=100) == 19  # all there are


def test_vectors_of_another_encoder_are_named_with_the_way_out(
    engine: SearchEngine, path: Path
) -> None:
    spoil(path, "wrong", "worse")
    engine.refresh()
    engine.verify()
    way_out = (
        r"c holds vectors that its encoder does not give, of these documents: "
        r"'worse' \(cosine 0.68\), 'wrong' \(cosine 0.68\); delete and add them again, or encode "
        f"all documents again: searchengine reindex {path} --encoder ENCODER"
    )
    with pytest.raises(CollectionError, match=way_out):
        engine.verify(encode=100)
    engine.delete(["wrong"])
    engine.add([Document("wrong", "x xx xxx xxxx xxxxxx")])
    with pytest.raises(CollectionError, match=r"of this document: 'worse' \(c"):
        engine.verify(encode=100)
    engine.reindex(WordLengths())
    assert engine.verify(encode=100) == 22


def test_every_segment_is_looked_at(engine: SearchEngine, path: Path) -> None:
    """One wrong document of 21, in a segment of its own: two passages are enough."""
    spoil(path, "wrong")
    engine.refresh()
    assert engine.stats().segments == 2
    for _ in range(5):
        with pytest.raises(CollectionError, match="'wrong'"):
            engine.verify(encode=2)


def test_many_documents_are_counted(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_NAMED", 2)
    spoil(path, *"abcde")
    engine.refresh()
    with pytest.raises(CollectionError, match=r"and 3 more; delete and"):
        engine.verify(encode=100)


def test_small_differences_of_a_runtime_are_accepted(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors at 0.97 pass, at 0.93 not."""

    class Coarse(WordLengths):
        """As another machine's runtime computes them."""

        def __init__(self, cosine: float) -> None:
            super().__init__()
            self._cosine = cosine

        def encode(self, texts: Any, *, role: str | None = None) -> Any:
            rows = super().encode(texts)
            other = np.roll(rows, 8, axis=1)
            other -= (other * rows).sum(axis=1, keepdims=True) * rows
            other /= np.linalg.norm(other, axis=1, keepdims=True)
            return self._cosine * rows + np.sqrt(1 - self._cosine**2) * other

    with SearchEngine.open(path, Coarse(0.97)) as other:
        assert other.verify(encode=100) == 20
    with SearchEngine.open(path, Coarse(0.93)) as other:
        with pytest.raises(CollectionError, match="its encoder does not give"):
            other.verify(encode=100)


def test_vectors_that_came_with_documents_are_left_out(engine: SearchEngine) -> None:
    engine.add([Document("own", "x")], np.eye(1, 16, 9))
    assert engine.verify(encode=100) == 20


def test_passages_are_encoded_with_their_titles(tmp_path: Path) -> None:
    model = write_sentence_transformer(tmp_path / "model")
    long = " ".join(["the whale sleeps"] * 80)
    with SearchEngine.create(tmp_path / "m", model) as engine:
        engine.add([Document("long", long, "a title"), Document("short", "the whale")])
        assert engine.stats().passages > 2
        assert engine.verify(encode=100) == engine.stats().passages


def test_without_an_encoder_or_passages(tmp_path: Path, engine: SearchEngine) -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(QueryError, match="encode must be 0 passages or more, got"):
            engine.verify(encode=wrong)  # type: ignore[arg-type]
    engine.delete(list(engine.keys()))
    assert engine.verify(encode=5) == 0
    with SearchEngine.create(tmp_path / "none", None, dim=3) as without:
        with pytest.raises(QueryError, match="has no encoder, so no vector can be computed again"):
            without.verify(encode=5)


def test_the_command(tmp_path: Path) -> None:
    model = write_sentence_transformer(tmp_path / "model")
    corpus, path = tmp_path / "corpus.jsonl", tmp_path / "c.index"
    corpus.write_text("".join(json.dumps({"_id": w, "text": w}) + "\n" for w in ("a", "b", "c")))
    assert run("index", corpus, path, "--encoder", model).returncode == 0
    done = run("verify", path, "--encode", "2")
    assert (
        done.stdout.strip()
        == f"{path} is whole; 2 passages encoded again: the vectors are the same"
    )
    assert run_json("verify", path, "--encode", "9", "--encoder", model) == {
        "collection": str(path),
        "whole": True,
        "encoded": 3,
    }
