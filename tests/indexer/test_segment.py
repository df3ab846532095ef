"""Segments: build, open, search, and what happens to damaged ones."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import faiss
import numpy as np
import pytest
from clustered import clustered, overlap
from conftest import REPOSITORY, disk_full_at
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import RowNumbers, prefix, unit_rows
from searchengine.indexer.config import Code, RotationKind, Storage, Structure
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.scoring import Allowed, open_coarse
from searchengine.indexer.segment import Segment, SegmentConfig, rows_beside
from searchengine.indexer.storage.files import PASSAGES

DIM = 48
DOCS = REPOSITORY / "docs" / "format.md"


ROWS = clustered(2500, 0, DIM)
QUERIES = clustered(30, 1, DIM)


def config(**settings: object) -> SegmentConfig:
    return SegmentConfig.from_dict({"prefix": 12, "shortlist": 60} | settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


@pytest.fixture(scope="module", params=product(Structure, Code), ids="-".join)
def segment(request: pytest.FixtureRequest, folder: Path) -> Iterator[Segment]:
    structure, code = request.param
    path = folder / f"{structure}-{code}"
    settings, notes = config(structure=structure, code=code), {"by": "hand"}
    with Segment.build(path, ROWS, settings, provenance=notes) as result:
        yield result


@pytest.fixture(scope="module")
def flat(folder: Path) -> Segment:
    return Segment.build(folder / "flat32", ROWS, config(storage="float32"))


# --- searching ---------------------------------------------------------------------------------


def test_two_stages_equal_the_slow_two_stages(segment: Segment) -> None:
    """Oracle: numpy over the stored rows, prefixes in float32."""
    path = segment.path / "vectors.faiss"
    bits = np.memmap(path, np.uint8, mode="r")
    stored = np.ndarray(ROWS.shape, np.float16, buffer=bits, offset=81).astype(np.float32)
    queries, matrix = unit_rows(QUERIES), np.load(segment.path / "rotation.npy")
    coarse = prefix(queries @ matrix.T, 12) @ prefix(stored @ matrix.T, 12).T
    short = np.argsort(-coarse, axis=1, kind="stable")[:, :60]
    full = np.full(coarse.shape, -np.inf)
    np.put_along_axis(full, short, np.take_along_axis(queries @ stored.T, short, axis=1), axis=1)
    expected = np.argsort(-full, axis=1, kind="stable")[:, :10]
    found = segment.search(QUERIES * 1000, 10)  # of any length
    # Codes and graphs move the cut of the shortlist.
    assert overlap(found.rows, expected) >= 0.97
    kind = segment.config
    if kind.structure is Structure.FLAT and kind.code is Code.FP16:
        assert overlap(found.rows, expected) == 1.0
    truth = np.einsum("qd,qkd->qk", unit_rows(QUERIES), unit_rows(ROWS)[found.rows])
    np.testing.assert_allclose(found.scores, truth, atol=1e-3)  # always the full-width cosine


@given(seed=st.integers(0, 999), small=st.integers(1, 300), more=st.integers(0, 300))
def test_more_shortlist_never_hurts_when_flat(
    flat: Segment, seed: int, small: int, more: int
) -> None:
    query = np.random.default_rng(seed).standard_normal((2, DIM))
    low = flat.search(query, 5, shortlist=small).scores
    high = flat.search(query, 5, shortlist=small + more).scores
    assert (high >= low).all()


@pytest.mark.parametrize("code", Code)
def test_ties_go_to_the_lower_row_also_where_a_shortlist_is_cut(tmp_path: Path, code: Code) -> None:
    """1,600 rows but only 16 different ones: every cut goes through a tie."""
    rows, query = np.tile(np.eye(16), (100, 1)), unit_rows(np.linspace(1, 0.5, 16)[None])
    by_score = np.concatenate([np.arange(100) * 16 + i for i in range(16)])
    plain = SegmentConfig(prefix=16, code=code, rotation="identity")  # type: ignore[arg-type]
    with Segment.build(tmp_path / "s", rows, plain) as segment:
        for size in (1, 30, 99, 100, 400, 1500):
            found = segment.shortlist(query, size)
            assert found[0].tolist() == by_score[:size].tolist() and found.dtype == np.int64


# --- what the vectors look like ----------------------------------------------------------------


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("rotation", RotationKind)
def test_vectors_are_stored_as_the_encoder_gave_them(
    tmp_path: Path, storage: Storage, rotation: RotationKind
) -> None:
    settings, given = config(storage=storage, rotation=rotation), unit_rows(ROWS)
    with Segment.build(tmp_path / "s", given, settings) as segment:
        stored = segment.vectors(np.arange(len(ROWS)))
        np.testing.assert_array_equal(stored, given.astype(storage).astype(np.float32))
        assert (tmp_path / "s" / "rotation.npy").exists() is (rotation is not RotationKind.IDENTITY)
        assert sum(map(len, segment.verified())) == segment.rows


def test_a_stream_builds_the_same_bytes_as_an_array(tmp_path: Path) -> None:
    rows = np.concatenate([ROWS] * 4)
    for kind in RotationKind:
        whole = Segment.build(tmp_path / f"a{kind}", rows, config(rotation=kind))
        cuts = np.split(rows, [1, 2, 700, 5000, 9999])
        parts = Segment.build(tmp_path / f"b{kind}", iter(cuts), config(rotation=kind))
        assert whole.manifest_sha256 == parts.manifest_sha256
        assert sorted(p.name for p in parts.path.iterdir()) == sorted(
            p.name for p in whole.path.iterdir()
        )
        assert sum(map(len, parts.verified())) == parts.rows


def test_the_documented_way_to_read_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page[page.index("## Segments") :], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for kind in RotationKind:
        for storage in Storage:
            path = tmp_path / "segment"
            settings = config(rotation=kind, storage=storage)
            expected = Segment.build(path, ROWS, settings).vectors(np.arange(2500))
            names: dict[str, object] = {}
            exec(code, names)
            np.testing.assert_array_equal(names["vectors"], expected)
            path.rename(tmp_path / f"{kind}-{storage}")


# --- opening -----------------------------------------------------------------------------------


def test_opening_gives_what_was_built(segment: Segment) -> None:
    with Segment.open(segment.path) as again:
        assert (again.rows, again.dim, again.config) == (2500, DIM, segment.config)
        assert again.manifest == segment.manifest
        assert again.manifest.provenance == {"by": "hand"}
        for allowed in (None, np.arange(0, 2500, 2), []):
            found, first = (each.search(QUERIES, 10, allowed=allowed) for each in (again, segment))
            np.testing.assert_array_equal(found.rows, first.rows)
            np.testing.assert_array_equal(found.scores, first.scores)


FILES = ["manifest.json", "vectors.faiss", "rotation.npy", "coarse.faiss", "passages.npy"]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    passages = np.arange(600).reshape(3, 200)
    Segment.build(tmp_path / "s", ROWS[:200], config(), passages=lambda _: passages).close()
    return tmp_path / "s"


@pytest.mark.parametrize("name", FILES)
def test_a_missing_truncated_or_longer_file_is_named(victim: Path, name: str) -> None:
    whole = (victim / name).read_bytes()
    for damaged in (whole[:-3], b"", whole + b"x"):
        (victim / name).write_bytes(damaged)
        with pytest.raises(SegmentError, match=name):
            Segment.open(victim)
    (victim / name).unlink()
    with pytest.raises(SegmentError, match=rf"{name} is missing"):
        Segment.open(victim)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.0, 0.3, 0.99])
def test_one_flipped_bit_is_named(victim: Path, name: str, place: float) -> None:
    data = bytearray((victim / name).read_bytes())
    data[int(place * (len(data) - 2))] ^= 1
    (victim / name).write_bytes(data)
    if name == "vectors.faiss" and place * len(data) > 81:
        Segment.open(victim).close()  # its rows are only mapped: `verified` is what reads them
    with pytest.raises(SegmentError, match=name), Segment.open(victim) as segment:
        list(segment.verified())


def test_another_kind_of_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"IxXX" + bytes(100))
    faiss.write_index(faiss.IndexLSH(16, 16), str(tmp_path / "lsh"))
    for name, message in (("noise", "cannot read .*noise"), ("lsh", "lsh must .* got IndexLSH")):
        with pytest.raises(SegmentError, match=message):
            open_coarse(tmp_path / name)


def test_no_segment_and_a_closed_one_say_so(victim: Path) -> None:
    with pytest.raises(SegmentError, match="is no segment"):
        Segment.open(victim.parent)
    segment = Segment.open(victim)
    segment.close()
    segment.close()
    for use in (segment.search, segment.exact):
        with pytest.raises(SegmentError, match="is closed; open it again"):
            use(QUERIES, 3)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (np.ones((1, DIM + 1)), f"must be {DIM} wide, got {DIM + 1}"),
        (np.ones(DIM), "must be 2-D"),
        (np.full((1, DIM), np.nan), "row 0 holds NaN"),
        (np.zeros((2, DIM)), "row 0 is all zeros"),
        (np.where(np.arange(200)[:, None] == 199, np.inf, np.ones(DIM)), "row 199 holds NaN"),
        (np.ones((0, DIM)), "must not be empty"),
    ],
)
def test_bad_queries_are_refused(segment: Segment, queries: np.ndarray, message: str) -> None:
    for use in (segment.search, segment.exact):
        with pytest.raises(VectorError, match=message):
            use(queries, 3)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True])
def test_k_and_shortlist_must_be_counts(flat: Segment, bad: int) -> None:
    for use in (flat.search, flat.exact):
        with pytest.raises(VectorError, match="k must be a whole number of at least 1"):
            use(QUERIES, bad)
    with pytest.raises(VectorError, match="shortlist must be a whole number"):
        flat.search(QUERIES, 3, shortlist=bad)
    with pytest.raises(VectorError, match="shortlist must be a whole number"):
        flat.shortlist(unit_rows(QUERIES), bad)


BAD = ROWS[:6000].copy()
BAD[1234] = 0


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (BAD, "row 1234 is all zeros"),
        ([BAD[:1000], BAD[1000:]], "row 1234 is all zeros"),
        (np.where(np.arange(2500)[:, None] == 77, np.nan, ROWS), "row 77 holds NaN"),
        ([ROWS[:5], ROWS[:5, :7]], f"must be {DIM} wide, got 7"),
        ([ROWS[:5], np.full((1, DIM), np.inf)], "row 5 holds NaN or infinity"),
        (ROWS[0], "must be 2-D"),
        (ROWS[:0], "must not be empty"),
        ([], "at least one vector"),
    ],
)
def test_bad_vectors_are_refused_and_leave_nothing(
    tmp_path: Path, vectors: object, message: str
) -> None:
    with pytest.raises(VectorError, match=message):
        Segment.build(tmp_path / "s", vectors, config())  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("width", "message"),
    [(DIM, r"prefix 64 is wider than the vectors \(48\)"), (65537, "at most 65536 dim.*got 65537")],
)
def test_a_width_that_does_not_fit_is_refused(tmp_path: Path, width: int, message: str) -> None:
    with pytest.raises(SegmentConfigError, match=message):
        Segment.build(tmp_path / "s", np.ones((1, width), np.float32), SegmentConfig())
    assert [*tmp_path.iterdir()] == []


def test_an_existing_folder_is_left_alone(victim: Path) -> None:
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    with pytest.raises(SegmentError, match="already exists"):
        Segment.build(victim, ROWS, config())
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before


@pytest.mark.parametrize("call", range(1, 7))
def test_a_full_disk_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The n-th sync of the build fails, as a full disk makes it fail."""
    syncs = disk_full_at(monkeypatch, call)
    with pytest.raises(OSError, match="No space left"):
        Segment.build(tmp_path / "s", iter([ROWS]), config())
    assert syncs() == call
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("storage", ["float16", "float32"])
def test_equal_rows_are_stored_equal(tmp_path: Path, storage: str) -> None:
    """BLAS sums a row in an order that depends on its place; that must not tell rows apart."""
    rng = np.random.default_rng(5)
    one = rng.standard_normal(384).astype(np.float32)
    others = rng.standard_normal((500, 384)).astype(np.float32)
    rows = np.concatenate([others, np.repeat(one[None], 5000, axis=0)])
    with Segment.build(tmp_path / "s", rows, SegmentConfig(storage=storage)) as segment:
        assert len(np.unique(segment.vectors(np.arange(500, 5500)), axis=0)) == 1
        for found in (segment.search(one[None], 3), segment.exact(one[None], 3)):
            assert found.rows.tolist() == [[500, 501, 502]]


def test_rows_whose_length_float32_rounds_are_stored_and_verified_as_they_are(
    tmp_path: Path,
) -> None:
    given = np.array([[1 + 3 * 2.0**-23, 0], [0, 1], [0.6, 0.8]], np.float32)
    settings = SegmentConfig(prefix=2, storage=Storage.FLOAT32)
    with Segment.build(tmp_path / "s", given, settings) as segment:
        np.testing.assert_array_equal(segment.vectors([0, 1, 2]), given)
        np.testing.assert_array_equal(np.concatenate([*segment.verified()]), given)


def test_near_duplicates_are_told_apart(tmp_path: Path) -> None:
    """Thousands of rows closer than a scan's rounding: the right ones, the lower row first."""
    noise = np.random.default_rng(5).standard_normal((3000, DIM))
    rows = unit_rows(ROWS[:1]) + 3e-6 * noise.astype(np.float32)
    with Segment.build(tmp_path / "s", rows, config()) as segment:
        found, every = segment.exact(QUERIES, 10), segment.exact(QUERIES, 3000)
        truth = unit_rows(QUERIES) @ segment.vectors(np.arange(3000)).T
        best = np.sort(truth, axis=1)[:, :-11:-1]
        np.testing.assert_allclose(found.scores, best, rtol=0, atol=1e-6)
        # By the scores that are returned, which the order follows, and those of all other rows.
        np.testing.assert_array_equal(found.rows, every.rows[:, :10])
        order = np.lexsort((every.rows, -every.scores), axis=1)
        np.testing.assert_array_equal(order, np.broadcast_to(np.arange(3000), order.shape))


def test_a_result_too_large_to_hold_is_refused(flat: Segment) -> None:
    calls = [
        lambda k: flat.search(QUERIES, k),
        lambda k: flat.exact(QUERIES, k),
        lambda k: flat.rerank(QUERIES, np.zeros((30, 1), np.int64), k),
        lambda k: flat.shortlist(QUERIES, k),
    ]
    for call in calls:
        with pytest.raises(VectorError, match=r"at most 1048576 .* 2500 rows, got 10{12}; ask"):
            call(10**12)
    # A shortlist longer than all rows is one of all rows.
    assert flat.search(QUERIES, 10, shortlist=10**12).exact


# --- rows that may be found ---------------------------------------------------------------------


def test_allowed_rows_of_another_segment_are_refused(flat: Segment) -> None:
    for use in (flat.search, flat.exact):
        with pytest.raises(VectorError, match="of a segment of 2500 rows, got 5 rows"):
            use(QUERIES, 3, allowed=Allowed.from_rows([1], 5))
        with pytest.raises(VectorError, match=r"rise strictly within \[0, 2500\)"):
            use(QUERIES, 3, allowed=[5, 2500])


def test_allowed_rows_by_hand() -> None:
    for some in (Allowed.from_rows([0, 2, 3], 5), Allowed.without([1, 4], 5)):
        assert (some.size, some.total) == (3, 5)
        assert some.rows.tolist() == [0, 2, 3] and some.rows.dtype == np.int64
        assert some.mask.tolist() == [True, False, True, True, False]
        assert repr(some) == "Allowed(3 of 5 rows)"
        assert [some.selector.is_member(i) for i in range(5)] == some.mask.tolist()
        for array in (some.rows, some.mask):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    assert Allowed.from_rows([], 5).size == 0 and Allowed.without([], 5).size == 5
    assert Allowed.without([], 5).selector is None  # nothing to ask of every row
    assert Allowed.without(range(5), 5).rows.tolist() == []


@pytest.mark.parametrize(
    "bad", [[2, 1], [1, 1], [-1, 2], [3, 10], [[1, 2]], [0.5], ["a"], [True, False]]
)
def test_allowed_rows_that_do_not_rise_are_refused(bad: list[object]) -> None:
    for make in (Allowed.from_rows, Allowed.without):
        with pytest.raises(VectorError, match="allowed rows must"):
            make(bad, 10)  # type: ignore[arg-type]


# --- passages.npy: which passage each row is the vector of ----------------------------------------


CONFIG = SegmentConfig.from_dict({"prefix": 2})
VECTORS = np.eye(5, dtype=np.float32)
COLUMNS = np.array([[7, 7, 7, 3, 9], [0, 4, 8, 0, 2], [4, 8, 9, 5, 6]])


def told(rows: int) -> RowNumbers:
    return COLUMNS[:, :rows]


def test_a_segment_keeps_its_passages(tmp_path: Path) -> None:
    with (
        Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=told) as built,
        Segment.rebuild(tmp_path / "2", built.path, CONFIG) as rebuilt,
        Segment.merge(tmp_path / "3", [(built, [1, 3])], CONFIG) as bare,
        Segment.merge(tmp_path / "4", [(built, [1, 3])], CONFIG, passages=told) as merged,
    ):
        assert bare.passages is None and merged.passages is not None
        assert merged.passages.tolist() == COLUMNS[:, :2].tolist()
        for segment in (built, rebuilt):
            assert segment.passages is not None
            assert segment.passages.tolist() == COLUMNS.tolist()
            assert rows_beside(segment.passages[0], np.array([4, 1])).tolist() == [4, 0, 1, 2]
    assert np.load(tmp_path / "1" / PASSAGES).tolist() == COLUMNS.tolist()


def test_passages_are_added_to_a_finished_segment(tmp_path: Path) -> None:
    """Then it is as if it had been built with them."""
    Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=told).close()
    with Segment.build(tmp_path / "2", VECTORS, CONFIG) as before:
        assert before.passages is None
    Segment.add_passages(tmp_path / "2", told)
    files = [{f.name: f.read_bytes() for f in (tmp_path / n).iterdir()} for n in ("1", "2")]
    assert files[0] == files[1]


def test_there_is_a_passage_for_each_row(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match=r"passages must have shape \(3, 5\), got \(3, 4\)"):
        Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=lambda _: told(4))
    assert not list(tmp_path.iterdir())
