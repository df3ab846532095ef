"""The same tests for every kind of encoder: a function, an HTTP endpoint and a static model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from loopback import EmbeddingServer
from tiny_model import static_table, write_model2vec

from searchengine import SearchEngine
from searchengine.encoders.loading import load_given
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionError, EncoderMismatch, SearchEngineError
from searchengine.ingest.passages import tokenizes

TEXTS = [
    "a whale sings near the sea",
    "The dog sleeps.",
    "두 마리 고래",
    "two birds",
    "a child eats slowly in the old house",
    "a whale sings near the sea",
]


def lengths(texts: list[str]) -> Any:
    """Never without a direction, and not of length 1."""
    return 3 * np.nan_to_num(WordLengths(8).encode([f"{text} x" for text in texts]))


def other_lengths(texts: list[str]) -> Any:
    return lengths([f"{text[::2]} zebra" for text in texts])


@dataclass
class Case:
    """A kind of encoder.

    make: the argument of SearchEngine.create. change: another model takes its place under its name.
    reopens: a collection finds it again by itself. named: what an error calls it.
    """

    make: Callable[[], Any]
    change: Callable[[], object]
    reopens: bool
    named: str


def function(folder: Path) -> Iterator[Case]:
    current = [lengths]

    def embed(texts: list[str]) -> Any:
        return current[0](texts)

    yield Case(lambda: embed, lambda: current.__setitem__(0, other_lengths), False, "embed")


def endpoint(folder: Path) -> Iterator[Case]:
    with EmbeddingServer(lengths) as server:
        source = f"{server.url}#words"

        def change() -> None:
            server.encode = other_lengths

        yield Case(lambda: source, change, True, "words")


def static(folder: Path) -> Iterator[Case]:
    path = write_model2vec(folder / "static")

    def change() -> None:
        other = write_model2vec(folder / "other", embeddings=static_table(seed=1))
        (other / "model.safetensors").replace(path / "model.safetensors")

    yield Case(lambda: path, change, True, str(path))


KINDS = [function, endpoint, static]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    yield from request.param(tmp_path)


@pytest.fixture
def encoder(case: Case) -> TextEncoder:
    return load_given(case.make())


def test_shapes_types_and_unit_rows(encoder: TextEncoder) -> None:
    for role in (None, "query", "document"):
        vectors = encoder.encode(TEXTS, role=role)  # type: ignore[arg-type]
        assert vectors.shape == (len(TEXTS), encoder.dim) and vectors.dtype == np.float32
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert encoder.encode([]).shape == (0, encoder.dim)


def test_every_text_has_its_vector_in_any_batch(encoder: TextEncoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors[0] == pytest.approx(vectors[5], abs=1e-6)
    assert vectors[0] @ vectors[1] < 0.999
    assert encoder.encode(TEXTS[::-1])[::-1] == pytest.approx(vectors, abs=1e-5)
    assert np.concatenate([encoder.encode([text]) for text in TEXTS]) == pytest.approx(
        vectors, abs=1e-5
    )
    assert encoder.encode(tuple(TEXTS)) == pytest.approx(vectors, abs=1e-6)


def test_empty_and_long_texts(encoder: TextEncoder) -> None:
    """An empty text may be without a direction, but disturbs no other."""
    long = "a big dog sings slowly " * 500
    vectors = encoder.encode(["", long, TEXTS[0]])
    assert vectors.shape == (3, encoder.dim) and np.isfinite(vectors).all()
    assert np.linalg.norm(vectors[1:], axis=1) == pytest.approx(1, abs=1e-5)
    assert vectors[2] == pytest.approx(encoder.encode(TEXTS[:1])[0], abs=1e-5)


@pytest.mark.filterwarnings("ignore::searchengine.errors.LanguageWarning")
def test_indexed_and_found(case: Case, encoder: TextEncoder, tmp_path: Path) -> None:
    long = " ".join(TEXTS * 40)
    with SearchEngine.create(tmp_path / "c", case.make()) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate([*TEXTS[:5], long])])
        for i, text in enumerate(TEXTS[:5]):
            hit = engine.search(text, 1, mode="vector")[0]
            question, document = (encoder.encode([text], role=r)[0] for r in ("query", "document"))  # type: ignore[arg-type]
            assert hit.key == str(i) and hit.score == pytest.approx(question @ document, abs=2e-3)
        assert (engine.stats().passages > 6) == tokenizes(encoder)
        engine.verify()


def test_it_is_known_again(case: Case, encoder: TextEncoder, tmp_path: Path) -> None:
    assert load_given(case.make()).fingerprint == encoder.fingerprint
    with SearchEngine.create(tmp_path / "c", case.make()) as engine:
        engine.add([{"_id": "0", "text": TEXTS[0]}])
    with SearchEngine.open(tmp_path / "c", case.make()) as engine:
        assert engine.search(TEXTS[0], 1, mode="vector")[0].score == pytest.approx(1, abs=2e-3)
    with SearchEngine.open(tmp_path / "c") as engine:
        if case.reopens:
            assert engine.search(TEXTS[0], 1, mode="vector")[0].score == pytest.approx(1, abs=2e-3)
        else:
            with pytest.raises(CollectionError, match=f"the encoder {case.named}; pass it again"):
                engine.search(TEXTS[0])


def test_a_changed_encoder_is_refused_by_name(case: Case, tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", case.make()) as engine:
        engine.add([{"_id": "0", "text": TEXTS[0]}])
    case.change()
    with pytest.raises(EncoderMismatch, match="was built by") as raised:
        SearchEngine.open(tmp_path / "c", case.make())
    assert case.named in str(raised.value)
    if case.reopens:
        with (
            SearchEngine.open(tmp_path / "c") as engine,
            pytest.raises(EncoderMismatch, match="was built by"),
        ):
            engine.search(TEXTS[0])


class Minimal(TextEncoder):
    """What a user's encoder needs, and no more; it returns lists."""

    def __init__(self, **members: Any) -> None:
        self.dim, self.fingerprint = 8, "minimal"
        vars(self).update(members)

    def encode(self, texts: list[str], *, role: str | None = None, on_batch: Any = None) -> Any:
        return lengths(texts).tolist()


def test_a_class_of_ones_own_gets_the_members_that_it_lacks() -> None:
    encoder = load_given(Minimal())
    assert (encoder.source, encoder.runs_on) == (None, "made in Python")
    assert encoder.matryoshka_dims == (8,)
    assert encoder.token_spans(["x"])[0].shape == (0, 2) and encoder.room("query") is None


@pytest.mark.parametrize("members", [{"dim": "32"}, {"fingerprint": 7}])
def test_a_class_of_ones_own_is_checked(tmp_path: Path, members: dict[str, Any]) -> None:
    message = r"^Minimal must have a dim \(a whole number\) and a fingerprint .*, got .* and "
    with pytest.raises(CollectionError, match=message):
        SearchEngine.create(tmp_path / "c", Minimal(**members))


def test_other_settings_are_refused_when_a_collection_is_there(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with SearchEngine.open_or_create(path, Minimal(), {"prefix": 4}) as engine:
        engine.add([{"_id": "0", "text": TEXTS[0]}])
    options: Any
    for options, message in (
        ({"dim": 3}, "has dim 8, got 3"),
        ({"config": {"prefx": 8}}, "'prefx' is no field of an index config"),
        ({"config": {"prefix": 2}}, "has prefix 4, got 2"),
    ):
        with pytest.raises(SearchEngineError, match=message):
            SearchEngine.open_or_create(path, Minimal(), **options)
