"""adapt: what it learns, what it offers, and what it leaves as it was."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapting import documents, write_bag_of_words
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.adapt import adapting, validation
from searchengine.adapt.adapting import (
    Material,
    adapt,
    read_material,
    train_and_judge,
)
from searchengine.adapt.sampled_questions import Kind, Part
from searchengine.adapt.validation import objection
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.errors import CollectionError, CorpusError, EncoderMismatch, QueryError
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.posthoc import LinearMap, unit

COUNT = 160


def no_progress(*_: object) -> None:
    return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two strengths that take a tenth of a second for 32 dimensions."""
    monkeypatch.setattr(adapting, "STRENGTHS", ((20, 1e-3), (60, 1e-2)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bag_of_words(tmp_path_factory.mktemp("adapt") / "model")


@pytest.fixture
def engine(model: Path, tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c.index", model, tokenizer="none") as engine:
        engine.add(documents(COUNT))
        yield engine


@pytest.fixture(scope="module")
def kept(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """A collection that no test changes."""
    path = tmp_path_factory.mktemp("adapt") / "c.index"
    with SearchEngine.create(path, model, tokenizer="none") as engine:
        engine.add(documents(COUNT))
        yield engine


@pytest.fixture(scope="module")
def snapshot(kept: SearchEngine) -> Iterator[Snapshot]:
    with kept.reading() as snapshot:
        yield snapshot


@pytest.fixture(scope="module")
def material(kept: SearchEngine, snapshot: Snapshot) -> Material:
    return read_material(kept, snapshot, {}, 1000, 0, no_progress)


def outcome(material: Material, snapshot: Snapshot) -> adapting.Outcome:
    config = next(iter(snapshot.segments.values())).config
    return train_and_judge(material, snapshot, config, (32,), 0, no_progress)


def with_rows(material: Material, seed: int, *parts: Part) -> Material:
    """The same with random vectors of the documents and questions of some parts."""
    rng = np.random.default_rng(seed)

    def changed(rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.where(at[:, None], unit(rng.normal(size=rows.shape)), rows).astype(np.float32)

    sample = material.sample
    of_part = np.array([material.parts[i] in parts for i in sample.documents.tolist()])
    asked = np.array([each.question.part in parts for each in material.examples])
    return replace(
        material,
        sample=replace(sample, vectors=changed(sample.vectors, of_part)),
        vectors=changed(material.vectors, asked),
    )


def test_a_better_encoder_is_offered_and_the_collection_stays(
    engine: SearchEngine, tmp_path: Path
) -> None:
    commit = engine.collection.settings["commit_id"]
    steps: dict[str, list[int]] = {}
    result = adapt(
        engine,
        tmp_path / "out",
        progress=lambda step, done, total: steps.setdefault(step, [total or 0]).append(done),
    )
    assert result.offered and not result.applied and result.out == tmp_path / "out"
    assert result.documents == COUNT and "better beyond doubt" in result.sentence
    assert [row.kind for row in result.rows] == ["sentence", "title", "all"]
    assert all(row.after - row.before > 0.2 and row.comparison.p < 0.01 for row in result.rows)
    assert {step: sum(done) for step, (_, *done) in steps.items()} == {
        step: total for step, (total, *_) in steps.items()
    }
    assert list(steps) == ["Encoding", "Training", "Validating", "Judging"]
    engine.refresh()
    assert engine.collection.settings["commit_id"] == commit
    json.dumps(result.as_dict())
    with pytest.raises(CollectionError, match="exists; name a new folder"):
        adapt(engine, tmp_path / "out")


def test_applied_it_answers_as_the_judgement_says(engine: SearchEngine, tmp_path: Path) -> None:
    questions = [str(document["title"]) for document in documents(COUNT)]
    before = engine.search_batch(questions, 1, mode="vector")
    result = adapt(engine, tmp_path / "out", apply=True)
    assert (
        result.applied and engine.encoder.fingerprint == Encoder.load(tmp_path / "out").fingerprint
    )
    after = engine.search_batch(questions, 1, mode="vector")
    right = [[hits[0].key == str(i) for i, hits in enumerate(batch)] for batch in (before, after)]
    assert np.mean(right[1]) > np.mean(right[0]) + 0.1
    with SearchEngine.open(tmp_path / "c.index") as again:
        hit = again.search(questions[0], 1, mode="vector")[0]
        assert hit.score == pytest.approx(after[0][0].score, abs=1e-3)  # in bf16, perhaps


def test_the_model_encodes_what_the_map_makes_of_the_vectors(
    engine: SearchEngine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps: list[LinearMap] = []
    baked = adapting.baked
    monkeypatch.setattr(
        adapting, "baked", lambda encoder, change: maps.append(change) or baked(encoder, change)
    )
    adapt(engine, tmp_path / "out")
    texts = ["the dog sleeps", "A red whale near the sea."]
    before, after = (
        Encoder.load(folder, precision="fp32").encode(texts, role="query")
        for folder in (model, tmp_path / "out")
    )
    assert after == pytest.approx(maps[0](before), abs=1e-5)
    assert np.abs(after - before).max() > 0.1


def test_shuffled_pairs_are_not_offered(material: Material, snapshot: Snapshot) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        vectors = material.vectors.copy()
        for part in Part:
            places = [i for i, each in enumerate(material.examples) if each.question.part is part]
            vectors[places] = vectors[rng.permutation(places)]
        found = outcome(replace(material, vectors=vectors), snapshot)
        assert found.change is None or objection(found.rows) is not None


def test_training_sees_no_other_part(material: Material, snapshot: Snapshot) -> None:
    strongest = adapting._train(material, (32,), 0, no_progress)[0][-1].weight
    for part, same in ((Part.HELD_OUT, True), (Part.VALIDATION, True), (Part.TRAINING, False)):
        other = adapting._train(with_rows(material, 1, part), (32,), 0, no_progress)[0][-1].weight
        assert np.array_equal(strongest, other) is same


def test_the_choice_sees_no_held_out_question(material: Material, snapshot: Snapshot) -> None:
    """Held-out questions at random: the same map is chosen, and it is not offered."""
    vectors = with_rows(material, 2, Part.HELD_OUT).vectors
    true = outcome(material, snapshot)
    found = outcome(replace(material, vectors=vectors), snapshot)
    assert true.change is not None and found.change is not None
    assert np.array_equal(true.change.weight, found.change.weight)
    assert objection(true.rows) is None and objection(found.rows) is not None


def test_no_map_if_validation_says_so(material: Material, snapshot: Snapshot) -> None:
    """Vectors that answer every question already: nothing can be better, so nothing is judged."""
    rows = np.eye(COUNT, dtype=np.float32)
    places = {
        document: i for i, document in enumerate(np.unique(material.sample.documents).tolist())
    }
    examples = tuple(
        replace(each, positives=rows[[places[i] for i in each.question.documents]])
        for each in material.examples
    )
    vectors = rows[[places[each.question.documents[0]] for each in examples]]
    sample = replace(
        material.sample, vectors=rows[[places[i] for i in material.sample.documents.tolist()]]
    )
    config = adapting.SegmentConfig(prefix=64)
    found = validation.best(
        replace(material, sample=sample, examples=examples, vectors=vectors),
        validation.Corpus.of_sample(sample),
        [LinearMap("same", np.eye(COUNT, dtype=np.float32))],
        lambda corpus, *rest: validation.judge(corpus, *rest[:2], config, rest[2]),
        no_progress,
    )
    assert found is None


def test_what_does_not_help_writes_nothing(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "STRENGTHS", ((1, 1e-9),))
    monkeypatch.setattr(adapting, "RIDGE", 1e6)
    result = adapt(engine, tmp_path / "out", apply=True)
    assert not result.offered and not result.applied and result.out is None
    assert result.sentence.startswith("Adapting does not help: ")
    assert not (tmp_path / "out").exists()
    assert engine.encoder.source.endswith("model")


def test_an_uncertain_gain_is_not_written(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "MIN_GAIN", 1.0)
    result = adapt(engine, tmp_path / "out", apply=True)
    assert result.rows and not result.offered and not result.applied and result.out is None
    assert result.sentence.startswith("Adapting does not help: the gain is not beyond doubt: nDCG")
    assert not (tmp_path / "out").exists() and engine.encoder.source.endswith("model")


def test_clicks_train_and_judge_beside_the_rest(engine: SearchEngine, tmp_path: Path) -> None:
    log = tmp_path / "clicks.jsonl"
    lines = [
        {"question": f"where {each['title']}", "clicked": [each["_id"], "gone"]}
        for each in documents(COUNT)
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    result = adapt(engine, tmp_path / "out", log=log)
    rows = {row.kind: row for row in result.rows}
    assert rows["click"].questions == rows["title"].questions
    assert rows["all"].questions == sum(
        row.questions for kind, row in rows.items() if kind != "all"
    )
    assert result.offered


def test_the_nearest_stored_passage_of_a_clicked_document_is_a_positive(
    kept: SearchEngine, snapshot: Snapshot
) -> None:
    encoder = kept.encoder
    keys = [str(i) for i in range(COUNT)]
    clicks = {f"dog {key}": [key] for key in keys}
    examples = read_material(kept, snapshot, clicks, 1000, 0, no_progress).examples[-COUNT:]
    several = 0
    for each in examples:
        assert each.question.kind is Kind.CLICK
        passages = snapshot.store.passages_of(each.question.documents)
        rows = snapshot.vectors(np.array([passage.id for passage in passages]))
        nearest = rows[(rows @ encoder.encode([each.question.text], role="query")[0]).argmax()]
        assert np.array_equal(each.positives, nearest[None])
        several += len(rows) > 1
    assert several > 5


def test_questions_are_not_in_the_encoded_documents(
    kept: SearchEngine, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    encode = Encoder.encode

    def recorded(self: Encoder, batch: list[str], **options: object) -> np.ndarray:
        if options.get("role") == "document":
            texts.extend(batch)
        return encode(self, batch, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Encoder, "encode", recorded)
    material = read_material(kept, snapshot, {}, 1000, 0, no_progress)
    of_document = dict.fromkeys(material.sample.documents.tolist(), "")
    for document, text in zip(material.sample.documents.tolist(), texts, strict=True):
        of_document[document] += text
    assert len(of_document) == COUNT
    kinds = {Kind.TITLE: 0, Kind.SENTENCE: 0}
    for each in material.examples:
        kinds[each.question.kind] += 1
        for document in each.question.documents:
            if each.question.kind is Kind.SENTENCE:
                assert each.question.text not in of_document[document]
            else:  # it is in front of every passage that is stored
                assert not of_document[document].startswith(each.question.text)
    assert kinds[Kind.TITLE] > 100 and kinds[Kind.SENTENCE] > 100


def test_an_encoder_changed_meanwhile_is_not_replaced(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_bag_of_words(tmp_path / "other")
    model = Encoder.load(other)
    changed = adapting.baked(model, LinearMap("turned", np.eye(32, dtype=np.float32)[::-1].copy()))
    changed.save(tmp_path / "changed")
    save = Encoder.save

    def save_late(self: Encoder, path: Path) -> None:
        save(self, path)
        with SearchEngine.open(tmp_path / "c.index") as another:
            another.reindex(tmp_path / "changed")

    monkeypatch.setattr(Encoder, "save", save_late)
    with pytest.raises(EncoderMismatch):
        adapt(engine, tmp_path / "out", apply=True)
    with SearchEngine.open(tmp_path / "c.index") as now:
        assert now.collection.settings["encoder"]["source"] == str(tmp_path / "changed")


def refused(folder: Path, model: object, texts: list[dict[str, object]], **options: object) -> str:
    with SearchEngine.create(folder / "c.index", model) as engine:  # type: ignore[arg-type]
        if texts:
            engine.add(texts)
        with pytest.raises((CollectionError, QueryError)) as caught:
            adapt(engine, folder / "out", **options)  # type: ignore[arg-type]
    assert not (folder / "out").exists()
    return str(caught.value)


def test_an_empty_collection_is_refused(model: Path, tmp_path: Path) -> None:
    assert "has no document with a text" in refused(tmp_path, model, [])


def test_few_documents_are_refused(model: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    message = refused(tmp_path, model, documents(20), progress=lambda step, *_: steps.append(step))
    assert "questions for training, adapt needs 50" in message and "at most" in message
    assert steps == []  # nothing was encoded
    assert "must be at least 1, got 0" in refused(tmp_path / "b", model, [], documents=0)


def test_other_encoders_are_refused(tmp_path: Path) -> None:
    assert "is encoded by WordLengths, which cannot be trained" in refused(
        tmp_path, WordLengths(), [{"_id": "1", "text": "a bee"}]
    )


def test_a_collection_without_encoder_is_refused(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c.index", None, dim=4) as engine:
        engine.add(vectors=np.eye(4, dtype=np.float32))
        with pytest.raises(CollectionError, match="has no encoder, so there is nothing to adapt"):
            adapt(engine, tmp_path / "out")


def test_vectors_without_texts_are_refused(model: Path, tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c.index", model, tokenizer="none") as engine:
        engine.add(vectors=np.eye(32, dtype=np.float32))
        with pytest.raises(QueryError, match="has no document with a text"):
            adapt(engine, tmp_path / "out")


def test_a_static_model_is_refused(tmp_path: Path) -> None:
    from tiny_model import write_model2vec

    message = refused(tmp_path, write_model2vec(tmp_path / "static"), documents(3))
    assert "cannot be adapted" in message and "static model" in message


def test_a_router_is_refused(model: Path, tmp_path: Path) -> None:
    """The map would be missing in its network for questions."""
    encoder = Encoder.load(model)
    both = Encoder(replace(encoder.model, questions=encoder.model), "both")
    both.save(tmp_path / "router")
    message = refused(tmp_path, tmp_path / "router", documents(3))
    assert "a Router with a network for questions, which cannot be adapted" in message
    with pytest.raises(ConfigError, match="its network for questions would lack the map"):
        adapting.baked(both, LinearMap("same", np.eye(32, dtype=np.float32)))


def test_a_pending_reindex_is_refused(engine: SearchEngine, tmp_path: Path) -> None:
    turned = LinearMap("turned", np.eye(32, dtype=np.float32)[::-1].copy())
    adapting.baked(Encoder.load(engine.encoder.source), turned).save(tmp_path / "turned")
    engine.preview_reindex(["dog"], tmp_path / "turned")
    with pytest.raises(CollectionError, match=r"a reindex of .* is pending; finish it, or drop it"):
        adapt(engine, tmp_path / "out", apply=True)


def test_an_unreadable_log_is_refused(engine: SearchEngine, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"missing\.jsonl"):
        adapt(engine, tmp_path / "out", log=tmp_path / "missing.jsonl")
