"""The contract of backends, on every backend: searchengine.backends.contract states the rules."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths, stored_states
from cut_documents import DOCUMENTS, Words, brute_force
from postgres_server import new_cluster_url, new_url

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Changed, Entry
from searchengine.backends.entries import all_entries, ids_of
from searchengine.backends.entries import entries as stored_entries
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.errors import CorpusError, EncoderMismatch, FilterError, QueryError, UnknownKey
from searchengine.indexer.arrays import unit_rows
from searchengine.query.ranking import rank_keys

DIM = 16
NEAR = 2e-3  # float16
CONFIG = {"prefix": 4}
BACKENDS = ["embedded", "postgresql", pytest.param("citus", marks=pytest.mark.cluster)]


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A path or URL at which there is no collection yet."""
    urls = {"postgresql": new_url, "citus": new_cluster_url}
    yield urls[request.param]() if request.param in urls else str(tmp_path / "c")


@pytest.fixture
def engine(where: str) -> Iterator[SearchEngine]:
    """An empty collection without an encoder."""
    with SearchEngine.create(where, None, CONFIG, dim=DIM, tokenizer="stem:en") as engine:
        yield engine


def units(n: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Unit rows whose variance decays, so that a prefix ranks."""
    rows = np.random.default_rng(seed).standard_normal((n, DIM)) * np.arange(1, DIM + 1) ** -0.6
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def entries(n: int = 60, per: int = 2) -> list[Entry]:
    """Documents of `per` passages each, the last without a vector."""
    vectors = units(n * per)
    return [
        Entry(
            Document(f"k{i}", "ab " * per, f"title {i}", {"n": i, "even": i % 2 == 0}),
            tuple((3 * j, 3 * j + 2) for j in range(per)) if i < n - 1 else (),
            vectors[i * per : (i + 1) * per] if i < n - 1 else vectors[:0],
        )
        for i in range(n)
    ]


def expected(
    stored: list[Entry], query: np.ndarray[Any, Any], keep: Callable[[int], bool] = lambda n: True
) -> dict[str, float]:
    """Key → cosine of the best passage."""
    query = query / np.linalg.norm(query)
    return {
        entry.document.key: float((entry.vectors @ query).max())
        for entry in stored
        if entry.spans and keep(entry.document.metadata["n"])
    }


def check_ranked(hits: Any, scores: dict[str, float], k: int) -> None:
    """The k best by score, in order, each document once."""
    assert len(hits) == len({hit.key for hit in hits}) == min(k, len(scores))
    found = [hit.score for hit in hits]
    assert found == sorted(found, reverse=True)
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.key], abs=NEAR)
    rest = [score for key, score in scores.items() if key not in {hit.key for hit in hits}]
    assert not rest or not found or max(rest) < found[-1] + NEAR


# --- settings -------------------------------------------------------------------------------------


def test_settings_are_stored_and_seen_by_others(engine: SearchEngine, where: str) -> None:
    with SearchEngine.open(where) as other:
        engine.collection.configure({"weight": 0.3, "extra": [1, "two"]})
        assert engine.collection.settings["weight"] == 0.3
        other.refresh()
        assert other.collection.settings["extra"] == [1, "two"] and other.stats().weight == 0.3
        other.collection.configure({"weight": None, "extra": None})
        other.collection.configure({"never": None})
        engine.refresh()
        assert not {"weight", "extra", "never"} & {*engine.collection.settings}
        assert engine.stats().weight == WEIGHT


# --- searching ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 200])
def test_scores_are_full_width_cosines_in_order(engine: SearchEngine, k: int) -> None:
    stored = entries()
    engine.collection.upsert(stored)
    for query in units(3, seed=1):
        check_ranked(
            engine.search(3 * query, k, shortlist=len(stored) * 2), expected(stored, query), k
        )


FILTERS: list[tuple[str, Callable[[int], bool]]] = [
    ("n >= 50", lambda n: n >= 50),
    ("n = 7", lambda n: n == 7),
    ("even and n in (1, 2, 4)", lambda n: n in (2, 4)),
    ("not even", lambda n: n % 2 == 1),
    ("n > 1000", lambda n: False),
]


@pytest.mark.parametrize(("source", "keep"), FILTERS, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("shortlist", [1, 200])
def test_filters_are_exact_and_never_under_fill(
    engine: SearchEngine, source: str, keep: Callable[[int], bool], shortlist: int
) -> None:
    stored = entries()
    engine.collection.upsert(stored)
    query = units(1, seed=2)[0]
    matching = expected(stored, query, keep)
    hits = engine.search(query, 10, where=source, shortlist=shortlist)
    assert len(hits) == min(10, len(matching))
    assert {hit.key for hit in hits} <= matching.keys()
    if shortlist == 200:
        check_ranked(hits, matching, 10)
        exact = engine.search(query, 10, where=source, exact=True)
        assert [hit.key for hit in exact] == [hit.key for hit in hits]
    assert engine.count(source) == sum(keep(i) for i in range(len(stored)))


def add_with_prefixes(engine: SearchEngine) -> None:
    """Add 200 documents; a server, too, has a coarse stage for their 1,194 passages."""
    engine.collection.upsert(entries(200, 6))
    engine.collection.upsert((), finished=0)


def test_the_rank_by_prefix_of_every_passage(engine: SearchEngine) -> None:
    add_with_prefixes(engine)
    with engine.collection.reading() as snapshot:
        ids = [ids_of(snapshot, [f"k{i}"])[f"k{i}"] for i in range(200)]
        passages = snapshot.passages(of=ids).ids
        query = units(1, seed=2)[0]
        ranks = snapshot.prefix_ranks(query, passages, None, 30)
        if isinstance(engine.collection.path, str):  # a server
            assert ranks == []
            return
        assert sorted(ranks) == [*range(1, 1195)]
        kept = snapshot.search(query[None], 30, shortlist=30).rows[0]
        listed = passages[np.array(ranks) <= 30]
        assert len({*kept} & {*listed}) >= 24  # all of them, but where a graph is walked


def test_why_a_document_is_not_found(engine: SearchEngine) -> None:
    add_with_prefixes(engine)
    for query in units(6, seed=3):
        for options in ({}, {"where": "n < 150"}, {"min_score": 0.2, "offset": 3}):
            asked = {"k": 5, "shortlist": 12, **options}
            hits = [hit.key for hit in engine.search(query, **asked)]
            for key in ("k1", "k40", "k170", "k199", hits[0]):
                why = engine.explain(query, key, **asked)
                assert why.found == (key in hits)


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_equal_scores_come_in_the_order_of_keys(engine: SearchEngine, mode: str) -> None:
    vector = units(1)
    keys = [f"k{(7 * i) % 30:02}" for i in range(30)]
    entries = [Entry(Document(key, "bread", "", {}), ((0, 5),), vector) for key in keys]
    engine.collection.upsert(entries)
    with engine.collection.reading() as snapshot:
        vectors = np.repeat(vector, 2, axis=0)
        for k in (5, 30):
            ranked = rank_keys(snapshot, ["bread"] * 2, vectors, k, Mode(mode))
            assert ranked == [sorted(keys)[:k]] * 2


def test_texts_are_cut_encoded_and_found(where: str) -> None:
    with SearchEngine.create(where, Words(), {"prefix": 4}) as engine:
        engine.add(DOCUMENTS)
        for question in ("bb ccc", "a a a", "dddd"):
            vector = engine.encode([question])[0]
            scores = brute_force(DOCUMENTS, vector)
            hits = engine.search(question, 5, mode="vector")
            best = {key: max(each.values()) for key, each in scores.items()}
            assert [hit.score for hit in hits] == pytest.approx(
                sorted(best.values(), reverse=True), abs=NEAR
            )
            assert all(
                scores[hit.key][hit.start, hit.end] == pytest.approx(hit.score, abs=NEAR)
                for hit in hits
            )
        near = engine.similar("near", 2)
        assert len(near) == 2 and "near" not in {hit.key for hit in near}
        grouped = engine.search("bb", 5, group_by="of.kind", mode="vector")
        assert len(grouped) == 4  # 1 and 1.0 are one kind, "x" another, two without
        facets = engine.search("bb", 1, facets=["of.kind"], mode="vector").facets
        assert facets == {"of.kind": {1: 2, "x": 1}}


def test_documents_similar_to_several(engine: SearchEngine) -> None:
    stored = entries()
    engine.collection.upsert(stored)
    unit = {}
    for entry in stored[:-1]:
        mean = entry.vectors.mean(axis=0)
        unit[entry.document.key] = mean / np.linalg.norm(mean)
    hits = engine.similar(["k3", "k8"], 30, shortlist=200)
    check_ranked(hits, expected(stored, unit["k3"] + unit["k8"], lambda n: n not in (3, 8)), 30)
    pages = [engine.similar(["k3", "k8"], 10, shortlist=200, offset=n) for n in (0, 10)]
    assert [hit.key for page in pages for hit in page] == [hit.key for hit in hits[:20]]
    with pytest.raises(QueryError, match="'k59' has no vector"):
        engine.similar(["k3", "k59"])
    with pytest.raises(QueryError, match="has no document 'gone'"):
        engine.similar(["k3", "gone"])


def test_near_duplicates_are_grouped(engine: SearchEngine) -> None:
    stored = entries(40)
    for i, copied in ((10, 3), (11, 3), (30, 7)):
        vectors = stored[copied].vectors + np.float32(0.003 * (i % 3))
        stored[i] = replace(stored[i], vectors=vectors)
    engine.collection.upsert(stored[:20])
    engine.collection.upsert(stored[20:])
    groups = engine.duplicates(0.999)
    assert [group.keys for group in groups] == [("k3", "k10", "k11"), ("k7", "k30")]
    for group in groups:
        means = [np.sum(stored[int(key[1:])].vectors, axis=0) for key in group.keys]
        means = [mean / np.linalg.norm(mean) for mean in means]
        assert group.cosines == pytest.approx([mean @ means[0] for mean in means], abs=NEAR)
    assert [group.keys for group in engine.duplicates(0.999, where="n > 3")] == [
        ("k7", "k30"),
        ("k10", "k11"),
    ]
    assert engine.duplicates(0.999, where="n > 100") == []
    with pytest.raises(QueryError, match="above must be a cosine above 0 and at most 1, got 0"):
        engine.duplicates(0)


# --- changing -------------------------------------------------------------------------------------


def state(engine: SearchEngine) -> list[tuple[bytes, Any]]:
    with engine.collection.reading() as snapshot:
        return [
            (entry.state, np.round(entry.vectors, 2).tolist())
            for batch in all_entries(snapshot)
            for entry in batch
        ]


def test_synonyms(engine: SearchEngine, where: str) -> None:
    texts = {
        "a": "a car drives",
        "b": "the automobiles drive",
        "c": "the owl hunts",
        "d": "motor owl hunts",
    }
    engine.collection.upsert(
        [Entry(Document(k, text, "", {}), ((0, len(text)),), units(1)) for k, text in texts.items()]
    )
    engine.set_default("text")
    with SearchEngine.open(where) as other:
        assert [hit.key for hit in other.search("car")] == ["a"]
        engine.set_synonyms([["car", "automobile", "motor vehicle"], ["hunt", "prey"]])
        other.refresh()
        stored = other.collection.settings["synonyms"]
        assert stored == "car, automobile, motor vehicle\nhunt, prey"
        assert other.stats().synonyms == 2
        hits = other.search("Cars")
        # The whole of one synonym, and half of the other: of equal length and frequency.
        assert {hit.key for hit in hits[:2]} == {"a", "b"} and [h.key for h in hits[2:]] == ["d"]
        scores = {hit.key: hit.score for hit in hits}
        assert scores["a"] == pytest.approx(scores["b"], rel=1e-5)
        assert scores["d"] == pytest.approx(scores["a"] / 2, rel=1e-5)
        assert hits[1].highlights and hits[2].highlights == ["motor"]
        assert other.search('"car"') and len(other.search('"car"')) == 1
        assert [hit.key for hit in other.search("prey")] == ["c", "d"]
        engine.set_synonyms([])
        other.refresh()
        assert [hit.key for hit in other.search("car")] == ["a"] and other.stats().synonyms == 0


def test_upserts_are_idempotent(engine: SearchEngine) -> None:
    stored = entries(20)
    engine.collection.upsert(stored)
    before = state(engine)
    engine.collection.upsert(stored)
    engine.collection.upsert(stored[5:9])
    assert state(engine) == before
    assert len(engine) == 20


def test_entries_come_back_as_they_were_stored(engine: SearchEngine) -> None:
    vectors = units(3)
    stored = [
        Entry(
            Document("ключ/1", "ab cd", "Ä", {"b": 1.0, "a": [1, None, {"x": 1e22}]}, root="/r"),
            ((0, 2), (3, 5)),
            vectors[:2],
            '{"b":2.50,"z":"é"}',
            b"\x01\x02",
        ),
        Entry(Document("no vector", "text"), (), vectors[:0], None, b""),
        Entry(Document("plain", "text", metadata={"deep": {"er": [True]}}), ((0, 4),), vectors[2:]),
    ]
    engine.collection.upsert(stored)
    back = stored_entries(engine.collection, [entry.document.key for entry in stored] + ["unknown"])
    assert [entry.state for entry in back] == [entry.state for entry in stored]
    for entry, other in zip(back, stored, strict=True):
        np.testing.assert_allclose(entry.vectors, other.vectors, atol=NEAR)
    assert list(back[0].document.metadata) == ["b", "a"]
    assert isinstance(back[0].document.metadata["b"], float)


def test_the_last_of_two_entries_with_one_key_counts(engine: SearchEngine) -> None:
    vectors = units(3)
    twice = [Entry(Document("d", f"text {i}"), ((0, 4),), vectors[i : i + 1]) for i in range(3)]
    engine.collection.upsert(twice[:2])
    engine.collection.upsert(twice[::2])
    (entry,) = stored_entries(engine.collection, ["d"])
    assert entry.state == twice[2].state and len(engine) == 1
    np.testing.assert_allclose(entry.vectors, vectors[2:], atol=NEAR)


@pytest.mark.parametrize(
    ("spans", "width"),
    [(((0, 1),), DIM + 1), (((0, 1), (1, 2)), DIM), ((), DIM)],
    ids=["width", "few", "many"],
)
def test_vectors_that_do_not_fit_are_refused(
    engine: SearchEngine, spans: tuple[tuple[int, int], ...], width: int
) -> None:
    bad = Entry(Document("bad", "text"), spans, np.ones((1, width), np.float32))
    with pytest.raises(CorpusError, match=rf"document 'bad': expected a vector of {DIM} numbers"):
        engine.collection.upsert([*entries(3), bad])
    assert len(engine) == 0
    engine.collection.upsert(entries(3))
    assert len(engine.search(units(1)[0], 5)) == 2


def test_nothing_is_written_where_another_state_is_expected(engine: SearchEngine) -> None:
    stored = entries(4)
    engine.collection.upsert(stored[:3])
    expected = stored_states(engine, ["k0", "k1", "k3"])
    engine.update({"k1": {"seen": True}})
    changed = [replace(each, document=replace(each.document, title="new")) for each in stored]
    for keys in ([1], [0, 1], [1, 3]):
        with pytest.raises(Changed):
            engine.collection.upsert([changed[i] for i in keys], expected)
    engine.collection.upsert(stored[3:])
    with pytest.raises(Changed):
        engine.collection.upsert(changed[3:], expected)  # added since
    assert [each.title for each in engine.documents()] == [f"title {i}" for i in range(4)]
    engine.collection.upsert(changed[:1], expected)
    engine.collection.upsert(changed[1:], stored_states(engine, ["k1", "k2", "k3"]))
    assert {each.title for each in engine.documents()} == {"new"}


def test_what_others_write_while_a_document_is_encoded(where: str) -> None:
    """An update is kept, and a text never gets the vectors of another one."""

    class Slow(WordLengths):
        meanwhile: Callable[[], object] | None = None

        def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> Any:
            if role == "document" and self.meanwhile is not None:
                work, self.meanwhile = self.meanwhile, None
                work()
            return super().encode(texts, role=role)

    encoder = Slow(DIM)
    with SearchEngine.create(where, encoder, CONFIG) as engine:
        engine.add([{"_id": "a", "text": "bb", "n": 1}, {"_id": "b", "text": "ccc ccc", "n": 1}])

        def work() -> None:
            with SearchEngine.open(where, WordLengths(DIM)) as other:
                other.update({"a": {"seen": True}})
                other.add([{"_id": "b", "text": "eeeee eeeee eeeee", "n": 1}])

        encoder.meanwhile = work
        engine.add([{"_id": "a", "text": "new", "n": 1}, {"_id": "b", "text": "ccc ccc", "n": 2}])
        assert encoder.calls[1:] == [["new"], ["ccc ccc"]]  # once each
        assert engine["a"].metadata == {"n": 1, "seen": True}
        for entry in stored_entries(engine.collection, ["a", "b"]):
            text = {"a": "new", "b": "ccc ccc"}[entry.document.key]
            assert entry.document.text == text and entry.spans == ((0, len(text)),)
            np.testing.assert_allclose(entry.vectors, WordLengths(DIM).encode([text]), atol=NEAR)


def test_vectors_come_back_by_key(engine: SearchEngine) -> None:
    """As they were added, rounded to float16: one row for each passage."""
    stored = entries(8)
    engine.collection.upsert(stored[:5])
    engine.collection.upsert(stored[5:])
    engine.delete(["k4"])
    first, unknown, deleted, again, last = engine.vectors(["k6", "k99", "k4", "k6", "k7"])
    assert unknown is None and deleted is None
    assert first is not None and again is not None and last is not None
    assert first.dtype == np.float32 and first.shape == (2, DIM) and last.shape == (0, DIM)
    given = unit_rows(stored[6].vectors).astype(np.float16)
    np.testing.assert_array_equal(first, given.astype(np.float32))
    np.testing.assert_array_equal(first, again)
    assert engine.vectors([]) == [] and engine.vectors(iter(["k99"])) == [None]
    with pytest.raises(QueryError, match="takes a list of keys, got 'k6'"):
        engine.vectors("k6")
    with pytest.raises(QueryError, match="key"):
        engine.vectors([6.0])  # type: ignore[list-item]


def test_pages_are_the_parts_of_one_answer(where: str) -> None:
    config = {**CONFIG, "shortlist": 12}
    rows = np.random.default_rng(4).standard_normal((260, DIM))
    with SearchEngine.create(where, None, config, dim=DIM) as engine:
        engine.add([{"_id": str(i), "n": i} for i in range(260)], rows)
        for condition in (None, "n >= 20"):
            whole = [hit.key for hit in engine.search(rows[40], 260, where=condition)]
            assert sorted(whole, key=int) == list(engine.keys(condition))
            pages = (
                engine.search(rows[40], 10, where=condition, offset=start)
                for start in range(0, 260, 10)
            )
            assert [hit.key for hits in pages for hit in hits] == whole


def test_get_count_and_delete(engine: SearchEngine) -> None:
    engine.collection.upsert(entries(10))
    assert engine.get("k3") == Document("k3", "ab ab ", "title 3", {"n": 3, "even": False})
    assert engine.get(["k1", "k99"])[1] is None
    with pytest.raises(UnknownKey, match="k99"):
        engine["k99"]
    assert "k3" in engine and "k99" not in engine
    with engine.collection.reading() as snapshot:  # as for judgements, whose keys may be any text
        assert [*snapshot.known(["a\0", "k3"])] == ["k3"]
    assert list(engine.keys("n < 3")) == ["k0", "k1", "k2"]
    assert [d.key for d in engine.documents(offset=8)] == ["k8", "k9"]
    assert engine.delete(["k1", "k99"]) == 1
    found = {hit.key for hit in engine.search(units(1)[0], 20)}
    assert found == {f"k{i}" for i in range(9)} - {"k1"}
    assert engine.delete(where="even") == 5
    assert (len(engine), engine.count("n > 5")) == (4, 2)
    assert {hit.key for hit in engine.search(units(1)[0], 20)} == {"k3", "k5", "k7"}


def test_updates_merge_and_outlive_the_same_document(where: str) -> None:
    documents = [
        {"_id": "a", "text": "bb", "n": 1, "o": {"x": 1, "y": 2}},
        {"_id": "b", "text": "c"},
    ]
    with SearchEngine.create(where, WordLengths(DIM), CONFIG) as engine:
        engine.add(documents)
        engine.update({"a": {"seen": True, "o": {"x": None}, "n": 5}})
        assert engine["a"].metadata == {"n": 5, "o": {"y": 2}, "seen": True}
        assert engine.count("n = 5 and seen") == 1
        with pytest.raises(QueryError, match="no document 'zz'"):
            engine.update({"b": {"n": 1}, "zz": {"n": 1}})
        with pytest.raises(QueryError, match="has no document ''"):
            engine.update({"": {"n": 1}})
        assert engine["b"].metadata == {}
        summary = engine.add([{**documents[0], "n": 1, "new": 1}, documents[1]])
        assert (summary.added, summary.changed, summary.metadata_updated) == (0, 0, 1)
        assert engine["a"].metadata == {"n": 5, "o": {"y": 2}, "seen": True, "new": 1}


def test_what_is_unchanged_is_not_encoded_again(where: str) -> None:
    encoder = WordLengths(DIM)
    documents = [{"_id": f"k{i}", "text": "a" * (i % 9 + 1) + " b", "n": i} for i in range(30)]
    with SearchEngine.create(where, encoder, CONFIG) as engine:
        assert engine.add(documents).added == 30
        encoder.calls.clear()
        changed = [*documents[:28], {**documents[28], "n": -1}, {**documents[29], "text": "new"}]
        summary = engine.add(changed)
        assert (summary.unchanged, summary.metadata_updated, summary.changed) == (28, 1, 1)
        assert encoder.calls == [["new"]]
        assert engine.count("n = -1") == 1
        assert engine.search("new", 1, mode="vector")[0].key == "k29"


def test_a_document_is_replaced_as_a_whole(engine: SearchEngine) -> None:
    """Readers see three passages or one, never some of both."""
    vectors = units(4)
    long = Entry(Document("d", "aa bb cc"), ((0, 2), (3, 5), (6, 8)), vectors[:3])
    short = Entry(Document("d", "dd"), ((0, 2),), vectors[3:])
    engine.collection.upsert([long])
    wrong: list[Any] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            (entry,) = stored_entries(engine.collection, ["d"])
            (hit,) = engine.search(vectors[0], 5)
            if entry.state not in (long.state, short.state):
                wrong.append(entry)
            if (hit.text, hit.end) not in {("aa bb cc", 2), ("dd", 2)}:
                wrong.append(hit)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for i in range(12):
            engine.collection.upsert([short if i % 2 == 0 else long])
    finally:
        done.set()
        for reader in readers:
            reader.join(30)
    assert not wrong
    assert stored_entries(engine.collection, ["d"])[0].state == long.state


# --- opening --------------------------------------------------------------------------------------


def test_another_encoder_is_refused(where: str) -> None:
    SearchEngine.create(where, WordLengths(DIM), CONFIG).close()
    for other in (WordLengths(DIM, "another"), WordLengths(8)):
        with pytest.raises(EncoderMismatch, match="with the encoder that built it"):
            SearchEngine.open(where, other)
    SearchEngine.open(where, WordLengths(DIM)).close()


OWN_FIELDS = [
    ("_id = 'b'", ["b"]),
    ("_id = 7", ["7"]),
    ("_id in (7, 'a', 8)", ["7", "a"]),
    ("_id not in ('a', 'b')", ["7"]),
    ("_id = 7.0", []),
    ("_id > 'a'", ["b"]),
    ("_id between '5' and 'a'", ["7", "a"]),
    ("_id like 'B'", ["b"]),
    ("exists(_id)", ["7", "a", "b"]),
    ("title", ["7", "b"]),
    ("exists(title)", ["7", "b"]),
    ("title = '0'", ["7"]),
    ("title = 0", []),
    ("title != 'Sea life'", ["7", "a"]),
    ("title like 'sea%'", ["b"]),
    ("title = date('2020')", []),
    ("title in (0, 'Sea life', null, true)", ["b"]),
    ("text like '%half_a%'", ["b"]),
    ("text < 'b'", ["7"]),
    ("not text like '%a%' or _id = 'a'", ["a"]),
    ("_id = 'a' and n = 1", []),
]


def test_filters_on_the_fields_of_documents(engine: SearchEngine) -> None:
    documents = [
        {"_id": "a", "text": "tides", "n": 2},
        {"_id": "b", "title": "Sea life", "text": "whales sleep half a brain"},
        {"_id": 7, "title": "0", "text": "a seal"},
    ]
    engine.add(documents, units(3))
    for where, expected in OWN_FIELDS:
        assert sorted(engine.keys(where)) == expected, where
    with pytest.raises(FilterError, match="title is a text, not an array; write title like"):
        engine.count("title contains 'Sea'")
    assert [hit.key for hit in engine.search(units(3)[0], where="title = '0'")] == ["7"]
    assert engine.delete(where="_id = 'a' or title = '0'") == 2 and "b" in engine
