"""Exact search with a certificate: only rows that can be among the best k are read in full.

Cut a row x into a prefix x_p and the tail x_t after it. Store an 8-bit code x' of the prefix, and
only the lengths of what the code leaves out. By Cauchy and Schwarz

    <q, x>  <=  <q_p, x'> + |q_p| |x_p - x'| + |q_t| |x_t|,

and the right side is an inner product too, of (q_p, |q_p|, |q_t|) with (x', |x_p - x'|, |x_t|):
one scan of short codes bounds every score from above, as a vector-approximation file does with
cells (Weber, Schek and Blott 1998). A row whose bound is below the k-th best score found so far
cannot be among the best k; the others are scored. A tail cut into blocks, each with its length,
was no tighter than a longer prefix: after a rotation by energy the tails of all rows are similar.

The query is rounded to 8 bits too, which adds a term of the same kind. The whole scan is then a sum
of products of small integers: it is exact, and twice as fast as one of floats. Lengths are rounded
up. The only rounding left is that of the float32 scores of `rerank`: see Bounds.score_slack.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, Floats, Mask, RowNumbers, at_least_one
from searchengine.indexer.config import MAX_BOUNDS_DIMS
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.faiss_calls import faiss, native_threads, read_index, write_index
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import CoarseIndex, SearchResult, rerank
from searchengine.indexer.storage.vectors_file import VectorFile

LENGTHS = 3
"""Lengths in a code after its prefix: of what the code leaves out, of the tail, of the code itself.
A prefix of 32 n - 3 dimensions makes a code that faiss compares as integers."""

MAX_LENGTH = 1.01
"""Maximum length of a row: rows have length one, rounded to float16."""

LENGTH_MARGIN = np.array([16.0, 1.25, 1.25])
"""Factors by which lengths may exceed the sample's. The first is the largest, because a
single value outside its range makes the rounding longer. The steps of a length are so fine that it
costs nothing."""

EXACT_ALLOWED = 1000
"""If a filter leaves at most this many rows, all are scored, without a coarse stage."""

GATHER_SHARE = 1 / 400
"""Up to this share of all rows, candidates are gathered one by one; more are filtered by a scan."""

EXTRA_ROWS = 32
"""Rows beyond k that a scan returns, because its rounding differs from that of `rerank`."""

_EXACT_INTEGERS = 2.0**24  # float32 is exact for whole numbers below it
_ROUND_UP = 1 + 1e-9  # outweighs the rounding of the few float64 operations behind a length
_TINY = 1e-30


class Bounds:
    """An upper bound of every row's score, from width + 3 bytes per row and 8 for its number.

    faiss compares a flat scalar quantizer with a limit by unpacking one row after the other (590
    ns per row at 192 dimensions), and an inverted list in one pass over the codes (15 ns). So the
    codes are stored in two lists, which are both always searched: the second has the few rows with
    lengths outside the ranges of the sample, which are always candidates. The centroids hold these
    ranges.

    Attributes:
        rows, dim: number of rows, and their dimensions.
        width: leading dimensions of each row that are stored as 8-bit codes.
        score_slack: maximum error of a float32 score of a unit query.
    """

    def __init__(self, index: Any, dim: int) -> None:
        self._index = index
        self._code = _Code(index.quantizer.reconstruct_n(0, 2))
        self.rows = int(index.ntotal)
        self.dim = dim
        self.width = self._code.width
        self.score_slack = score_slack(dim)
        loose = index.invlists.list_size(1)
        ids = faiss.rev_swig_ptr(index.invlists.get_ids(1), loose) if loose else ()
        self._loose: RowNumbers = np.array(ids, np.int64)

    @classmethod
    def build(cls, blocks: Iterable[Floats], width: int, sample: Floats) -> Self:
        """Bound rows in blocks (n_i, D), exactly as the vectors file returns them.

        Args:
            blocks: float32 rows of length one, in row order. Their energy should fall along the
                dimensions (storage.rotation), because only the length of the tail is stored.
            width: dimensions kept as codes, 1 to min(D, MAX_BOUNDS_DIMS). 32 n - 3
                is scanned fastest.
            sample: (n, D) of these rows, n >= 1. It sets the ranges of the codes; rows far
                outside them cannot be bounded and are always candidates.

        Raises:
            VectorError: `width` is out of range, the sample is empty, a block is of another
                width, a row is longer than one, or there are no rows.
        """
        most = min(sample.shape[-1], MAX_BOUNDS_DIMS) if sample.ndim else 0
        if sample.ndim != 2 or not len(sample) or not 1 <= width <= most:
            raise VectorError(
                "bounds need a sample (n, D) with n >= 1 and a width from 1 to D and "
                f"{MAX_BOUNDS_DIMS}, got shape {sample.shape} and width {width}"
            )
        dim = sample.shape[1]
        code = _Code.fit(sample, width)
        index = _empty(code)
        for block in blocks:
            if block.ndim != 2 or block.shape[1] != dim or not (_norms(block) <= MAX_LENGTH).all():
                raise VectorError(
                    f"bounds need rows (n, {dim}) of length one, got shape {block.shape} "
                    "or a longer row; build them from the vectors file"
                )
            codes, fits = code.encode(block)
            ids = np.arange(index.ntotal, index.ntotal + len(block))
            for number, part in enumerate((fits, ~fits)):
                list_ids, list_codes = ids[part], codes[part]
                pointers = faiss.swig_ptr(list_ids), faiss.swig_ptr(list_codes)
                index.invlists.add_entries(number, len(list_ids), *pointers)
            index.ntotal += len(ids)
        if index.ntotal == 0:
            raise VectorError("bounds need at least one row, got none")
        return cls(index, dim)

    @classmethod
    def open(cls, path: Path, dim: int) -> Self:
        """Map a saved file. The caller has verified its checksum and passes the rows' dimensions.

        Raises:
            SegmentError: faiss cannot read it, or it holds no bounds of such rows.
        """
        index = read_index(path)
        ours = isinstance(index, faiss.IndexIVFScalarQuantizer) and index.nlist == 2
        if not ours or not 1 <= index.d - LENGTHS <= dim:
            raise SegmentError(f"{path} holds no bounds of rows {dim} wide; index again")
        return cls(index, dim)

    def save(self, path: Path) -> None:
        """Write the codes to a file. OSError if it cannot be written."""
        write_index(self._index, path)

    def candidates(
        self, rotated: Floats, at_least: Floats, allowed: Allowed | None = None
    ) -> list[RowNumbers]:
        """Every row that can score `at_least` or more, as `rerank` computes it.

        Args:
            rotated: (q, D) float32 queries in the basis of the rows.
            at_least: (q,) one score per query; -inf asks for all rows.
            allowed: the rows to consider; None for all.

        Returns:
            One rising array of row numbers per query.
        """
        selector = None if allowed is None else allowed.selector
        parameters = faiss.SearchParametersIVF(nprobe=2, sel=selector)
        loose = self._loose if allowed is None else self._loose[allowed.mask[self._loose]]
        candidates = []
        for query, score in zip(rotated.astype(np.float64), at_least, strict=True):
            slack = self.score_slack * np.linalg.norm(query)
            whole, limit = self._code.bounding(query, float(score) - float(slack))
            with native_threads(1):
                _, _, rows = self._index.range_search(whole[None], limit, params=parameters)
            candidates.append(np.union1d(rows, loose))
        return candidates


Rerank = Callable[[Floats, RowNumbers, int], SearchResult]
"""Queries (q, D), candidates (q, s) and k to their best k, as search.cascade.rerank."""


def certify(
    bounds: Bounds,
    score: Rerank,
    full: CoarseIndex,
    rotated: Floats,
    k: int,
    start: RowNumbers,
    allowed: Allowed | None = None,
) -> SearchResult:
    """Turn any result into the exact one.

    Args:
        bounds: of the rows.
        score: queries, candidates and k to the best k of the candidates, by their full width.
        full: the full-width rows, mapped by faiss, to filter many candidates.
        rotated: (q, D) float32 unit queries in the basis of the rows.
        k: rows per query, >= 1.
        start: (q, s) row numbers without repeats per query, -1 for padding. The better their k-th
            score, the fewer rows are read; the result is the same.
        allowed: the rows that may be found; None for all.

    Returns:
        Rows and scores equal to `score` over all (allowed) rows, to the last bit; `read` counts
        every row once.

    Raises:
        VectorError: k < 1, or queries of another width.
    """
    at_least_one("k", k)
    if rotated.ndim != 2 or rotated.shape[1] != bounds.dim:
        raise VectorError(f"queries must be (q, {bounds.dim}), got shape {rotated.shape}")
    if allowed is not None:
        start = np.where(allowed.mask[start] & (start >= 0), start, -1)
    best = score(rotated, start, k)
    best_rows, best_scores = np.empty_like(best.rows), np.empty_like(best.scores)
    read = np.empty(len(rotated), np.int64)
    for i, rows in enumerate(bounds.candidates(rotated, best.scores[:, -1], allowed)):
        query = rotated[i : i + 1]
        read[i] = np.union1d(start[i][start[i] >= 0], rows).size  # the start is read as well
        if rows.size > GATHER_SHARE * bounds.rows:
            rows = _filtered(full, query, k, rows, bounds.score_slack)
        best = score(query, rows[None], k)
        best_rows[i], best_scores[i] = best.rows[0], best.scores[0]
    return SearchResult(best_rows, best_scores, exact=True, read=read)


def _filtered(
    full: CoarseIndex, query: Floats, k: int, rows: RowNumbers, slack: float
) -> RowNumbers:
    """The rows that can be among the best k of a query (1, D), by the scores of faiss.

    The scores of faiss and of `rerank` each differ from the true one by at most `slack`. Once the
    k-th score and the last one returned differ by more than both errors at both ends, no row beyond
    the last can be among the best k.
    """
    gap = 4 * slack * float(np.linalg.norm(query))
    parameters = faiss.SearchParameters(sel=Allowed.from_rows(rows, full.rows).selector)
    size = k + EXTRA_ROWS
    while size < rows.size:
        with native_threads(1):
            scores, best = full.index.search(query, size, params=parameters)
        if scores[0, -1] < scores[0, k - 1] - gap:
            return np.asarray(best[0], np.int64)
        size *= 2
    return rows


def scan(
    shortlist: Callable[[Floats, int], RowNumbers],
    store: VectorFile,
    rotated: Floats,
    k: int,
    available: int,
    slack: float,
) -> SearchResult:
    """The best k of `available` rows, from a scan with scores that may be off by `slack`.

    A row that the scan did not return can be among the best k only while the k-th exact score and
    the last differ by less than both errors at both ends. For such queries more rows are scanned.

    Args:
        shortlist: rotated queries and a size to rows (q, size), by a scan of all available rows.
        store: the full-width rows.
        rotated: (q, D) float32 unit queries in the basis of the rows.
    """
    rows = np.full((len(rotated), k), -1, np.int64)
    scores = np.full(rows.shape, -np.inf, np.float32)
    pending = np.arange(len(rotated))
    size = min(k + EXTRA_ROWS, available)
    while pending.size and available:
        batch = rotated[pending]
        best = rerank(store, batch, shortlist(batch, size), size)
        count = min(k, size)
        rows[pending, :count], scores[pending, :count] = (
            best.rows[:, :count],
            best.scores[:, :count],
        )
        if size == available:
            break
        pending = pending[best.scores[:, count - 1] - best.scores[:, -1] <= 4 * slack]
        size = min(2 * size, available)
    return SearchResult(rows, scores)


def score_slack(dim: int) -> float:
    """Maximum error of a float32 score of a unit query with `dim` dimensions.

    An inner product of n float32 values is off by at most n / 2^24 |q| |x|, terms of higher order
    apart (Higham 2002), in any order of summation.
    """
    return 1.1 * (dim + 2) * 2.0**-24 * MAX_LENGTH


class _Code:
    """How rows and queries become bytes.

    The prefix of a row is middle + step * s with whole numbers s in [-128, 127]; a length is
    unit * (s + 128), rounded up. Ranges (2, width + 3): the middles and three zeros in the first
    row, the steps and three units in the second.
    """

    def __init__(self, ranges: Floats) -> None:
        self.ranges = ranges
        self.width = ranges.shape[1] - LENGTHS
        middle, step = ranges.astype(np.float64)
        self.middle, self.step, self.unit = middle[:-LENGTHS], step[:-LENGTHS], step[-LENGTHS:]

    @classmethod
    def fit(cls, sample: Floats, width: int) -> Self:
        """Ranges that hold all rows of a sample (n, D), with a margin."""
        low, high = sample[:, :width].min(axis=0), sample[:, :width].max(axis=0)
        ranges = np.zeros((2, width + LENGTHS), np.float32)
        ranges[0, :width] = (low + high) / 2
        ranges[1] = _TINY
        ranges[1, :width] = np.maximum((high - low) / 255, _TINY)
        most = LENGTH_MARGIN * cls(ranges)._parts(sample)[1].max(axis=0)
        ranges[1, width:] = np.maximum(most / 255, _TINY)
        return cls(ranges)

    def encode(self, rows: Floats) -> tuple[npt.NDArray[np.uint8], Mask]:
        """Codes (n, width + 3) of rows (n, D), and which rows have lengths within the ranges."""
        steps, lengths = self._parts(rows)
        counts = np.ceil(_ROUND_UP * lengths / self.unit)
        codes = np.concatenate([steps + 128, counts.clip(0, 255)], axis=1)
        return codes.astype(np.uint8), (counts <= 255).all(axis=1)

    def bounding(self, query: Doubles, at_least: float) -> tuple[Floats, float]:
        """A query (D,) in whole numbers from -128 to 127, and the limit that its product with a
        row's signed code exceeds if the row's score can be `at_least` or more.

        With q_p step = grain (w + e), w whole: <q, x> <= <q_p, middle> + grain (<w, s> + |e| |s|)
        + |q_p| |x_p - x'| + |q_t| |x_t|, and each |.| |.| is at most weight * (s + 128) grains.
        """
        head, tail = query[: self.width], query[self.width :]
        scaled = head * self.step
        lengths = np.array([np.linalg.norm(head), np.linalg.norm(tail)])
        grain = max(np.abs(scaled).max(), (lengths * self.unit[:2]).max(), _TINY**2) / 127
        whole = np.rint(scaled / grain)
        rest = np.linalg.norm(scaled / grain - whole)
        weights = np.ceil(_ROUND_UP * np.append(lengths / grain, rest) * self.unit)
        small = np.minimum(weights, 127)
        # The part of a weight above 127 is added in full for every row: a length counts to 255.
        lent = 128 * small.sum() + 255 * (weights - small).sum()
        limit = np.floor((at_least - 1e-9 - head @ self.middle) / grain - lent) - 1
        return np.append(whole, small).astype(np.float32), float(
            np.clip(limit, -_EXACT_INTEGERS, _EXACT_INTEGERS)
        )

    def _parts(self, rows: Floats) -> tuple[Doubles, Doubles]:
        """Whole steps (n, width) of the prefix, and lengths (n, 3)."""
        head, tail = np.split(rows.astype(np.float64), [self.width], axis=1)
        steps = np.rint((head - self.middle) / self.step).clip(-128, 127)
        remainder = head - self.middle - self.step * steps
        return steps, np.stack([_norms(remainder), _norms(tail), _norms(steps)], axis=1)


def _empty(code: _Code) -> Any:
    """A faiss index for these codes; its two centroids are the ranges."""
    width = code.ranges.shape[1]
    ranges = faiss.IndexFlatIP(width)
    ranges.add(code.ranges)
    index = faiss.IndexIVFScalarQuantizer(
        ranges,
        width,
        2,
        faiss.ScalarQuantizer.QT_8bit_direct_signed,
        faiss.METRIC_INNER_PRODUCT,
        False,
    )
    index.is_trained = True
    return index


def _norms(rows: npt.NDArray[np.floating]) -> Doubles:
    wide = rows.astype(np.float64)
    squares: Doubles = np.einsum("nd,nd->n", wide, wide)
    return np.sqrt(squares)
