"""Examples set aside to judge a run by: enough to tell steps apart, texts never trained on."""

import hashlib
import random
from array import array
from collections import Counter
from dataclasses import dataclass

import numpy as np

from searchengine.trainer.training.data.examples import Examples
from searchengine.trainer.training.data.files import identity, texts_without_label
from searchengine.trainer.training.data.positives import Drawn, Kind, draw

# Fewer would choose steps by chance: of 20, one more right answer is 5 points.
MIN_HELD_OUT = 20
SHARE, MAX_HELD_OUT = 0.1, 512


@dataclass(frozen=True, slots=True)
class Split:
    """Examples to train on, and rows to judge by; rows is () where too few could be held out.

    examples_held: how many examples are not trained on. A row is judged for each group of examples
    that share a text.
    """

    train: Examples
    rows: tuple[Drawn, ...] = ()
    examples_held: int = 0


def hold_out(examples: Examples, seed: int) -> Split:
    """Draw rows for judging from a tenth of the examples that have a positive or a label.

    Examples that share a text are held out together or not at all, and every label keeps an
    example to learn from.
    """
    rng = random.Random(f"hold out {seed}")
    # A sentence alone has no positive of its own to be found.
    room = round(SHARE * (len(examples) - len(examples.of_kind(Kind.SENTENCE))))
    if room < MIN_HELD_OUT:
        return Split(examples)
    left = Counter(examples[int(i)][1][1] for i in examples.of_kind(Kind.LABELLED))
    groups = _Groups(examples)
    held: set[int] = set()
    rows: list[Drawn] = []
    for place in map(int, np.random.default_rng(seed).permutation(len(examples))):
        group = groups.of(place, room)
        members = [examples[i] for i in group]
        taken = Counter(texts[1] for kind, texts in members if kind is Kind.LABELLED)
        if (
            not 0 < len(members) <= room
            or any(kind is Kind.SENTENCE for kind, _ in members)
            or any(left[label] <= count for label, count in taken.items())
        ):
            continue
        held.update(group)
        left -= taken
        room -= len(group)
        rows.append(draw(*members[0], rng))
        if room == 0 or len(rows) == MAX_HELD_OUT:
            break
    if len(rows) < MIN_HELD_OUT:
        return Split(examples)
    return Split(examples.without(held), tuple(rows), len(held))


class _Groups:
    """Examples that are linked by a text, directly or through others; 16 bytes for each text."""

    def __init__(self, examples: Examples):
        hashes, starts = array("q"), array("q", [0])
        for example in examples:
            hashes.extend(_hash(identity(text)) for text in texts_without_label(example))
            starts.append(len(hashes))
        self._starts = np.frombuffer(starts, dtype=np.int64)
        self._hashes = np.frombuffer(hashes, dtype=np.int64)
        owners = np.repeat(np.arange(len(examples), dtype=np.int32), np.diff(self._starts))
        order = np.argsort(self._hashes, kind="stable")
        self._sorted, self._owners = self._hashes[order], owners[order]
        self._seen = np.zeros(len(examples), dtype=bool)
        self._known: dict[int, list[int]] = {}  # by their first example, not asked for yet

    def of(self, place: int, most: int) -> list[int]:
        """The places of the group whose first example this is, in order.

        () for any other example, and for groups with more than `most`. So groups are drawn with the
        same probability, however many examples they have.
        """
        if self._seen[place]:
            return self._known.pop(place, [])
        group, waiting = {place}, [place]
        followed: set[int] = set()  # texts: many members may share one
        while waiting:
            member = waiting.pop()
            texts = self._hashes[self._starts[member] : self._starts[member + 1]].tolist()
            for text in set(texts) - followed:
                followed.add(text)
                first, end = np.searchsorted(self._sorted, [text, text + 1])
                linked = set(self._owners[first:end].tolist()) - group
                # What is linked to a group that was too large is of that group.
                if len(group) + len(linked) > most or any(self._seen[i] for i in linked):
                    self._seen[[*group, *linked]] = True
                    return []
                group |= linked
                waiting += linked
        self._seen[list(group)] = True
        if place != min(group):
            self._known[min(group)] = sorted(group)
            return []
        return sorted(group)


def _hash(text: str) -> int:
    """A number of 63 bits: equal for equal texts, for others with negligible probability."""
    whole = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(whole, "little") >> 1
