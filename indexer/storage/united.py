"""Several terms as one, such as all that begin alike: their postings united."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from indexer.arrays import Doubles, RowNumbers
from indexer.storage.postings import WINDOW, Postings, bounds_of, entry_heads


@dataclass(frozen=True, slots=True, eq=False)
class United:
    """The documents that have one of some terms, in the memory.

    Attributes:
        documents: (postings,) rising.
        counts: (postings,) how often each has one of the terms; float64.
        lows: as those of Postings, as are the entries: one for each window that has a posting.
    """

    documents: RowNumbers
    counts: Doubles
    lows: npt.NDArray[np.uint16]
    entry_starts: RowNumbers
    entry_windows: npt.NDArray[np.uint32]
    entry_bounds: npt.NDArray[np.float32]

    @classmethod
    def of(cls, postings: Postings, documents: RowNumbers, counts: Doubles) -> Self:
        """The summed counts of documents of a segment, which rise; at least one."""
        heads = entry_heads(documents)
        return cls(
            documents,
            counts,
            (documents % WINDOW).astype(np.uint16),
            np.append(heads, documents.size),
            (documents[heads] // WINDOW).astype(np.uint32),
            bounds_of(counts, postings.lengths[documents], postings.average, heads),
        )
