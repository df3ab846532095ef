"""A map of the question's vector, learnt from judged questions."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_json
from hypothesis import given
from hypothesis import strategies as st
from loopback import EmbeddingServer
from postgres_server import new_url

from searchengine import SearchEngine
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import QueryError
from searchengine.measure.learning import TEMPERATURE, _verdict, directions, forget, learn
from searchengine.upkeep.copies import copy

DIM, COUNT = 16, 150
ROTATION = np.linalg.qr(np.random.default_rng(7).standard_normal((DIM, DIM)))[0]
Questions = tuple[dict[str, str], dict[str, dict[str, int]]]


_LETTERS = str.maketrans("0123456789", "abcdefghij")
_DIGITS = {letter: digit for digit, letter in _LETTERS.items()}


class Rotated(TextEncoder):
    """The vector of "n17", or "nnbh", is random; as a question it is turned halfway by ROTATION."""

    dim, fingerprint = DIM, "rotated"

    def __init__(self, turn: bool = True) -> None:
        self.turn = turn

    def encode(self, texts: Sequence[str], *, role: str | None = None, **_: Any) -> Any:
        rows = np.stack([self.vector(text, role == "query") for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def vector(self, text: str, is_question: bool) -> Any:
        number, _, copy = text.lstrip("nq").translate(_DIGITS).partition(" ")
        row = np.random.default_rng(int(number)).standard_normal(DIM)
        if not is_question:
            return row
        noise = np.random.default_rng([int(number), int(copy or 0)]).standard_normal(DIM)
        return (row + 1.5 * ROTATION @ row if self.turn else row) + 0.1 * noise


class Another(Rotated):
    """Another encoder."""

    fingerprint = "another"


def judged(right: bool = True) -> Questions:
    """Two questions a document; of a wrong judgement, the document is another one."""
    names = [(f"n{i} {j}", i if right else 37 * i % COUNT) for i in range(COUNT) for j in (1, 2)]
    return {text: text for text, _ in names}, {text: {f"d{i}": 1} for text, i in names}


def create(where: Any, encoder: Any = None, **options: Any) -> SearchEngine:
    encoder = encoder or Rotated()
    engine = SearchEngine.create(where, encoder, {"prefix": 8}, passages=False, **options)
    engine.add({"_id": f"d{i}", "text": f"n{i}"} for i in range(COUNT))
    return engine


def answers(engine: SearchEngine, mode: str = "vector") -> list[str]:
    hits = engine.search_batch(
        [f"n{i} 3" for i in range(COUNT)], 1, mode=mode, typo_tolerance=False
    )
    return [each[0].key for each in hits]


def right(found: list[str]) -> int:
    return sum(key == f"d{i}" for i, key in enumerate(found))


@pytest.fixture(params=["folder", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return new_url() if request.param == "postgresql" else tmp_path / "c"


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    """A collection with a map."""
    with create(tmp_path / "mapped", tokenizer="none") as engine:
        assert learn(engine, *judged()).stored
    return tmp_path / "mapped"


def test_a_known_rotation_is_found_and_applied_to_questions_only(where: Any) -> None:
    steps: list[str] = []
    with create(where, tokenizer="unicode") as engine, SearchEngine.open(where, Rotated()) as other:
        engine.set_default("vector")
        before, alike = answers(engine), [hit.key for hit in engine.similar("d3", 5)]
        vector = engine.encode(["n3 3"])[0]
        assert answers(other) == before
        learning = learn(engine, *judged(), progress=lambda step, done, total: steps.append(step))
        assert learning.stored and learning.comparison.p < 0.001
        assert {*steps} == {"Encoding", "Learning", "Ranking"}
        figures = learning.figures["vector"]
        assert figures["after"] > figures["before"] + 0.1
        assert right(answers(engine)) > right(before) + COUNT // 10
        shows_newest = "://" in str(where)  # a server shows the newest commit to each search
        assert answers(other) == (answers(engine) if shows_newest else before)
        other.refresh()
        assert answers(other) == answers(engine)
        assert [hit.key for hit in engine.similar("d3", 5)] == alike
        (first,) = engine.search(vector, 1)  # as it came: it may be a document's
        assert first.key == before[3] and right(answers(engine, "hybrid")) > right(before)
        turned = engine.encode(["n3 3"])[0]
        assert np.linalg.norm(turned) == pytest.approx(1) and turned @ vector < 0.9999
        stored = engine.stats().query_map
        assert stored is not None and stored["questions"] == 2 * COUNT
        assert "map" in engine.stats().described()["questions"]
        engine.verify()
        assert forget(engine) and not forget(engine)
        assert answers(engine) == before and "questions" not in engine.stats().described()


def test_what_is_not_better_is_not_stored(where: Any) -> None:
    with create(where, tokenizer="none") as engine:
        before = answers(engine)
        learning = learn(engine, *judged(right=False))
        assert not learning.stored and engine.stats().query_map is None
        assert answers(engine) == before


def test_the_steps_of_a_fold_are_chosen_on_the_other_folds() -> None:
    """Each number of steps helps one fold and harms the others, which choose for it."""
    fold = np.repeat([0, 1, 2], 40)
    table = {0: {1.0: np.full(120, 0.5)}}
    table |= {n: {1.0: np.where(fold == i, 1.0, 0.4)} for i, n in enumerate((1, 2, 4))}
    learning = _verdict(table, {"vector": 1.0}, fold)
    assert learning.figures["vector"] == pytest.approx({"before": 0.5, "after": 0.4})
    assert learning.steps == 1 and not learning.stored


@pytest.mark.long
def test_the_default_mode_decides(tmp_path: Path) -> None:
    """Where words mislead, a hybrid search gains less than one by vectors; its weight stays."""
    word = [str(i).translate(_LETTERS) for i in range(COUNT)]  # numbers are found by themselves
    pairs = [(f"qq{word[i]} {i + j}", f"d{i}") for i in range(COUNT) for j in (209, 211)]
    questions = {text: text for text, _ in pairs}, {text: {name: 1} for text, name in pairs}
    with SearchEngine.create(
        tmp_path / "c", Rotated(), passages=False, tokenizer="unicode"
    ) as engine:
        engine.add({"_id": f"d{i}", "text": f"nn{word[i]} {i + 210}"} for i in range(COUNT))
        engine.set_default("hybrid", 0.3)
        learning = learn(engine, *questions)
        assert learning.stored and learning.mode == "hybrid" and engine.stats().weight == 0.3
        vector, hybrid = learning.figures["vector"], learning.figures["hybrid"]
        assert vector["before"] > hybrid["before"] and vector["after"] > hybrid["after"]
        gain = hybrid["after"] - hybrid["before"]
        assert learning.comparison.difference == pytest.approx(gain) and gain > 0.1


def test_words_alone_and_unknown_documents_are_refused(tmp_path: Path) -> None:
    queries, qrels = judged()
    with create(tmp_path / "c", tokenizer="unicode") as engine:
        with pytest.raises(QueryError, match="no relevant document is stored"):
            learn(engine, queries, {key: {"gone": 1} for key in qrels})
        engine.set_default("text")
        with pytest.raises(QueryError, match="mode text"):
            learn(engine, queries, qrels)


def test_backups_and_copies_carry_the_map_and_a_reindex_drops_it(
    mapped: Path, tmp_path: Path
) -> None:
    url = new_url()
    with SearchEngine.open(mapped, Rotated()) as engine:
        expected = answers(engine)
        engine.backup(tmp_path / "backup")
    copy(mapped, url)
    copy(url, tmp_path / "back")
    for place in (tmp_path / "backup", tmp_path / "back", url):
        with SearchEngine.open(place, Rotated()) as engine:
            engine.verify()
            assert right(answers(engine)) == right(expected)
    with SearchEngine.open(mapped, Rotated()) as engine:
        engine.reindex(Another())
        assert engine.stats().query_map is None and right(answers(engine)) < right(expected)


def test_a_map_is_for_the_encoder_that_it_was_learnt_with(tmp_path: Path) -> None:
    """Where vectors came with the documents, any encoder of their width may open them."""
    encoder, names = Rotated(), [f"n{i}" for i in range(COUNT)]
    with SearchEngine.create(tmp_path / "c", None, dim=DIM, tokenizer="none") as engine:
        documents = [{"_id": f"d{i}", "text": name} for i, name in enumerate(names)]
        engine.add(documents, encoder.encode(names))
    with SearchEngine.open(tmp_path / "c", encoder) as engine:
        plain = engine.encode(["n3 3"])
        assert learn(engine, *judged()).stored
        assert not np.allclose(engine.encode(["n3 3"]), plain)
    with SearchEngine.open(tmp_path / "c", Another()) as engine:
        np.testing.assert_allclose(engine.encode(["n3 3"]), plain, atol=1e-6)


def test_the_command(tmp_path: Path) -> None:
    queries, qrels = judged()
    lines = [json.dumps({"_id": key, "text": text}) for key, text in queries.items()]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    pairs = [(key, name) for key, names in qrels.items() for name in names]
    judgements = [f"{key}\t{name}\t1" for key, name in pairs]
    (tmp_path / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judgements]))
    place = tmp_path / "c"

    def encode(texts: Sequence[str]) -> Any:  # a prompt marks questions; a probe has no number
        numbers = [text if text[-1].isdecimal() else "n0" for text in texts]
        return [Rotated().vector(text, text[0] == "q") for text in numbers]

    with EmbeddingServer(encode) as server:
        create(place, f"{server.url}#words&query_prompt=q", tokenizer="none").close()
        learnt = run_json(
            "learn", place, "--queries", tmp_path / "q.jsonl", "--qrels", tmp_path / "train.tsv"
        )
        assert run_json("info", place)["query_map"]["figures"] == learnt["figures"]
    assert learnt["stored"] and learnt["questions"] == 2 * COUNT and learnt["mode"] == "vector"


@given(st.integers(0, 10**6))
def test_moves_are_negative_gradients_by_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, questions = rng.standard_normal((12, 5)) / 9, rng.standard_normal((4, 5)) / 9
    chosen = [rng.choice(12, 4, replace=False) for _ in range(4)]
    relevant = [[each[:2], each[2:3], each[3:]][: rng.integers(1, 4)] for each in chosen]
    best, own = [[n[0] for n in each] for each in relevant], [*map(np.concatenate, relevant)]
    judge = partial(directions, rows=rows, best=[*map(np.array, best)], own=own)
    moves, losses = judge(questions)
    for i, documents in enumerate(best):
        scores = np.exp(rows @ questions[i] / TEMPERATURE)
        others = np.delete(scores, own[i]).sum()
        each = [-np.log(scores[r] / (scores[r] + others)) for r in documents]
        assert losses[i] == pytest.approx(np.mean(each), abs=1e-9)
        for d in range(5):
            step = np.zeros_like(questions)
            step[i, d] = 1e-5
            up, down = (judge(questions + s * step)[1][i] for s in (1, -1))
            assert moves[i, d] == pytest.approx(-TEMPERATURE * (up - down) / 2e-5, abs=1e-6)
