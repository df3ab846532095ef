"""Examples set aside to judge a run by: enough to tell steps apart, texts never trained on."""

import random
from collections import Counter
from dataclasses import dataclass

from trainer.training.data.files import Examples, identity, texts_without_label
from trainer.training.data.positives import Drawn, Kind, draw

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
    all_examples = examples.examples
    # A sentence alone has no positive of its own to be found.
    fit = sum(kind is not Kind.SENTENCE for kind, _ in all_examples)
    left = Counter(texts[1] for kind, texts in all_examples if kind is Kind.LABELLED)
    room, groups = round(SHARE * fit), _groups(examples)
    rng.shuffle(groups)
    held: set[int] = set()
    rows: list[Drawn] = []
    for group in groups:
        members = [all_examples[i] for i in group]
        taken = Counter(texts[1] for kind, texts in members if kind is Kind.LABELLED)
        if (
            len(group) > room
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
    rest = tuple(e for i, e in enumerate(all_examples) if i not in held)
    return Split(Examples(rest, examples.excluded), tuple(rows), len(held))


def _groups(examples: Examples) -> list[list[int]]:
    """The places of examples that are linked by a text, directly or through others."""
    parents = list(range(len(examples)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    first: dict[str, int] = {}  # where a text occurs first
    for i, example in enumerate(examples.examples):
        for text in texts_without_label(example):
            parents[root(i)] = root(first.setdefault(identity(text), i))
    groups: dict[int, list[int]] = {}
    for i in range(len(examples)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())
