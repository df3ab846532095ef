"""adapt --only rotation: shortlists find more, scores stay, and the collection keeps the prefix."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapting import NOISE, TOPICS, documents, titled, write_axes

from searchengine import SearchEngine
from searchengine.adapt import adapting, rotation
from searchengine.adapt.adapting import Adaptation, adapt
from searchengine.adapt.material import Material, Sample, read_material
from searchengine.adapt.sampled_questions import Part
from searchengine.adapt.validation import Corpus
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.corpus.analyzer import Tokenizer
from searchengine.errors import QueryError
from searchengine.indexer.config import SegmentConfig
from searchengine.ingest.settings import CollectionSettings
from searchengine.trainer.encoder import ROTATION, Encoder
from searchengine.trainer.training import posthoc
from searchengine.trainer.training.posthoc import LinearMap, baked, unit
from searchengine.upkeep.reindex import settings_for

PREFIX = 8
CONFIG = {"prefix": PREFIX, "shortlist": 25}
QUESTIONS = [document["title"] for document in titled(200, seed=5)]


def no_progress(*_: object) -> None:
    return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "STRENGTHS", ((60, 3e-3),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_axes(tmp_path_factory.mktemp("rotation") / "model")


@pytest.fixture
def engine(model: Path, tmp_path: Path) -> Iterator[SearchEngine]:
    """Passages differ most in words that no title has: of these is the prefix by energy."""
    with SearchEngine.create(tmp_path / "c.index", model, CONFIG) as engine:
        engine.add(titled(160))
        yield engine


@pytest.fixture(scope="module")
def kept(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """A collection that no test changes."""
    with SearchEngine.create(tmp_path_factory.mktemp("r") / "c.index", model, CONFIG) as engine:
        engine.add(titled(160))
        yield engine


@pytest.fixture(scope="module")
def snapshot(kept: SearchEngine) -> Iterator[Snapshot]:
    with kept.reading() as snapshot:
        yield snapshot


@pytest.fixture(scope="module")
def material(kept: SearchEngine, snapshot: Snapshot) -> Material:
    return read_material(kept, snapshot, {}, 1000, 0, no_progress)


def judged(material: Material, snapshot: Snapshot) -> adapting.Outcome:
    config = CollectionSettings.from_stored(snapshot.settings).config
    return rotation.train_and_judge(material, snapshot, config, 0, no_progress)


def stored(settings: CollectionSettings, encoder: Encoder) -> dict[str, object]:
    return settings.as_stored(encoder) | {"tokenizer": Tokenizer.NONE}


def share(engine: SearchEngine) -> float:
    """Of the nearest ten of QUESTIONS, as users search them, the share that is found."""
    found, exact = (
        [[hit.key for hit in hits] for hits in engine.search_batch(QUESTIONS, 10, **options)]
        for options in ({"mode": "vector"}, {"mode": "vector", "exact": True})
    )
    pairs = zip(found, exact, strict=True)
    return float(np.mean([len({*some} & {*true}) / len(true) for some, true in pairs]))


def test_applied_it_finds_more_and_scores_stay(
    engine: SearchEngine, model: Path, tmp_path: Path
) -> None:
    exact = {"mode": "vector", "exact": True}
    before, nearest = share(engine), engine.search_batch(QUESTIONS[:20], 10, **exact)
    steps: dict[str, list[int]] = {}
    result = adapt(
        engine,
        tmp_path / "out",
        only="rotation",
        apply=True,
        progress=lambda step, done, total: steps.setdefault(step, [total or 0]).append(done),
    )
    assert result.offered and result.applied and result.out == tmp_path / "out"
    assert result.sentence.startswith(
        "The learnt rotation is better beyond doubt: share of the 10 nearest passages in a "
        "shortlist of 25 of "
    )
    (title, total) = result.rows
    assert (title.kind, total.kind) == ("title", "all") and title.after > title.before + 0.05
    for step in ("Training", "Validating", "Judging"):
        total_steps, *done = steps[step]
        assert sum(done) == total_steps
    # The collection has the learnt prefix, and finds as much more as was said.
    index = engine.collection.settings["index"]
    assert (index["rotation"], index["blocks"], index["prefix"]) == ("blocks", [PREFIX], PREFIX)
    assert share(engine) > before + 0.05
    for former, hits in zip(nearest, engine.search_batch(QUESTIONS[:20], 10, **exact), strict=True):
        # In bf16, perhaps: exactly compared below.
        assert [hit.score for hit in hits] == pytest.approx([h.score for h in former], abs=5e-3)
    engine.optimize()
    assert share(engine) > before + 0.05


def test_all_cosines_are_those_of_the_encoder(
    engine: SearchEngine, model: Path, tmp_path: Path
) -> None:
    result = adapt(engine, tmp_path / "out", only="rotation")
    assert result.offered and not result.applied
    assert engine.collection.settings["index"]["rotation"] == "pca"
    texts = [*TOPICS, *NOISE, *(document["text"] for document in titled(30))]
    (before, first), (after, second) = (
        (encoder.encode(texts), encoder)
        for encoder in (Encoder.load(each, precision="fp32") for each in (model, tmp_path / "out"))
    )
    assert after @ after.T == pytest.approx(before @ before.T, abs=1e-5)
    assert np.abs(after - before).max() > 0.1
    assert second.matryoshka_dims == (32, PREFIX)
    assert second.keeps_prefix and not first.keeps_prefix


def test_the_rotation_of_the_index_would_undo_it(material: Material, snapshot: Snapshot) -> None:
    change = judged(material, snapshot).change
    assert change is not None
    corpus = Corpus.of_sample(material.sample)
    pca_again = SegmentConfig(prefix=PREFIX, shortlist=25)
    kept = replace(pca_again, rotation="blocks", blocks=(PREFIX,))
    former, undone, better = (
        rotation.agreement(corpus, material.vectors, config, applied).mean()
        for config, applied in ((pca_again, None), (pca_again, change), (kept, change))
    )
    assert undone == pytest.approx(former, abs=0.01) and better > former + 0.05


def test_the_share_by_hand() -> None:
    # Thirty rows near the third axis, thirty near the first; a prefix of two sees only the first.
    near = np.arange(30)[:, None] * [0, 0.01, 0, 0]
    rows = unit(np.concatenate([np.eye(4)[2] + near, np.eye(4)[0] + near]))
    corpus = Corpus.of_sample(Sample(rows, np.arange(60), ()))
    question = np.array([[0.6, 0, 0.8, 0], [0.8, 0, 0.6, 0]], np.float32)
    config = SegmentConfig(prefix=2, rotation="identity", storage="float32", shortlist=25)
    swapped = LinearMap("swapped", np.eye(4, dtype=np.float32)[[2, 1, 0, 3]])
    assert rotation.agreement(corpus, question, config).tolist() == [0, 1]
    assert rotation.agreement(corpus, question, config, swapped).tolist() == [1, 0]


def test_training_and_choice_see_no_held_out_question(
    material: Material, snapshot: Snapshot
) -> None:
    """Held-out questions at random: the same rotation, and it is not offered."""
    held_out = np.array([each.question.part is Part.HELD_OUT for each in material.examples])
    noise = np.random.default_rng(0).normal(size=material.vectors.shape)
    vectors = np.where(held_out[:, None], unit(noise), material.vectors)
    true, other = judged(material, snapshot), judged(replace(material, vectors=vectors), snapshot)
    assert true.change is not None and other.change is not None
    assert np.array_equal(true.change.weight, other.change.weight)
    assert true.reason is None and other.reason is not None


def test_training_sees_its_questions_and_all_documents_and_so_does_the_judgement(
    kept: SearchEngine, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = read_material(kept, snapshot, {}, 80, 0, no_progress)
    assert len(np.unique(part.sample.documents)) < 100
    sizes: list[int] = []
    seen: list[np.ndarray] = []
    agreement, learn = rotation.agreement, posthoc.rotation

    def judged_among(corpus: Corpus, *rest: object) -> np.ndarray:
        sizes.append(len(np.unique(corpus.documents)))
        return agreement(corpus, *rest)  # type: ignore[arg-type]

    def trained_on(*given: object, **options: object) -> LinearMap:
        seen.extend(given[:2])  # type: ignore[arg-type]
        return learn(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rotation, "agreement", judged_among)
    monkeypatch.setattr(posthoc, "rotation", trained_on)
    judged(part, snapshot)
    assert len(sizes) >= 2 and set(sizes) == {160}
    of_training = [each.question.part is Part.TRAINING for each in part.examples]
    assert np.array_equal(seen[0], part.vectors[of_training])
    whole = Corpus.of_collection(snapshot, part.sample)
    assert np.array_equal(seen[1], np.concatenate(list(whole.blocks())))
    assert 0.5 < np.mean(of_training) < 0.8


def test_of_many_passages_an_even_sample_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(20, dtype=np.float32)[:, None]
    spans = np.zeros((20, 2), np.int64)
    corpus = Corpus(np.arange(20), lambda: iter([rows[:3], rows[3:14], rows[14:]]), spans)
    assert np.array_equal(rotation._evenly(corpus), rows)
    monkeypatch.setattr(rotation, "PASSAGES", 5)
    assert rotation._evenly(corpus).ravel().tolist() == [0, 4, 9, 14, 19]


def test_a_small_gain_is_not_offered(
    material: Material, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "MIN_GAIN", 0.9)
    assert judged(material, snapshot).reason == "the gain is not beyond doubt"


def test_what_does_not_help_writes_nothing(model: Path, tmp_path: Path) -> None:
    """Sixteen dimensions hold nearly all that these questions ask for."""
    with SearchEngine.create(tmp_path / "c", model, CONFIG | {"prefix": 16}) as engine:
        engine.add(documents(160))
        result = adapt(engine, tmp_path / "out", only="rotation", apply=True)
        assert not result.offered and not result.applied and result.out is None
        assert result.sentence.startswith("Adapting does not help: ")
        assert engine.collection.settings["index"]["rotation"] == "pca"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"prefix": 8}, "all 160 passages are scored at full width, so the prefix decides nothing"),
        ({"prefix": 32, "shortlist": 25}, "the prefix of the index has all 32 dimensions"),
    ],
)
def test_where_the_prefix_decides_nothing_it_says_so_at_once(
    model: Path, tmp_path: Path, config: dict[str, int], reason: str
) -> None:
    with SearchEngine.create(tmp_path / "c", model, config, passages=False) as engine:
        engine.add(titled(160))
        result = adapt(engine, tmp_path / "out", only="rotation")
    assert result == Adaptation(False, f"Adapting does not help: {reason}", (), 0, 0)


def test_other_values_are_refused(engine: SearchEngine, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="only must be 'rotation' or None, got 'prefix'"):
        adapt(engine, tmp_path / "out", only="prefix")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "learnt", "plain"),
    [("pca", "blocks", "pca"), ("itq", "blocks", "pca"), ("identity", "identity", "identity")],
)
def test_the_rotation_of_a_collection_follows_the_encoder(
    model: Path, before: str, learnt: str, plain: str
) -> None:
    """A learnt prefix is kept; an encoder without one needs no blocks."""
    encoder = Encoder.load(model)
    reverse = np.eye(32, dtype=np.float32)[::-1].copy()
    adapted = baked(encoder, LinearMap(ROTATION, reverse, dims=(8,)))
    first = CollectionSettings.for_encoder(encoder, {"rotation": before, "prefix": 8})
    then = settings_for(adapted, stored(first, encoder))
    assert then.config == rotation.kept(first.config)  # as it was judged
    assert then.config == replace(
        first.config, rotation=learnt, blocks=(8,) if learnt == "blocks" else ()
    )
    assert settings_for(encoder, stored(then, adapted)).config.rotation == plain
    if before == "pca":
        assert CollectionSettings.for_encoder(adapted, {"prefix": 8}).config == then.config


def test_an_encoder_trained_for_prefixes_keeps_the_rotation_of_its_collection(model: Path) -> None:
    encoder = Encoder.load(model)
    trained = Encoder(replace(encoder.model, matryoshka_dims=(32, 16, 8)), "trained")
    for before in ("pca", "blocks"):
        first = CollectionSettings.for_encoder(trained, {"rotation": before})
        assert settings_for(trained, stored(first, trained)).config == first.config


def test_a_collection_of_a_rotation_fitted_by_hand_keeps_its_prefix(model: Path) -> None:
    """And one of its first dimensions alone, which have no shorter prefix, needs no blocks."""
    encoder = Encoder.load(model)
    vectors = encoder.encode([document["text"] for document in titled(60)])
    found = posthoc.rotation(vectors[:20], vectors, PREFIX, steps=1)
    whole, cut = (baked(encoder, each) for each in (found, found.first(PREFIX)))
    assert whole.keeps_prefix and not cut.keeps_prefix
    config = CollectionSettings.for_encoder(whole).config
    assert (config.rotation, config.blocks) == ("blocks", (PREFIX,))
    assert CollectionSettings.for_encoder(cut).config.rotation == "pca"
    before = stored(CollectionSettings.for_encoder(encoder), encoder)
    assert settings_for(cut, before).config.rotation == "pca"
