"""How examples become rows."""

import random
from collections import Counter

from searchengine.trainer.training.rows import Augment, Kind, Row, draw


def test_kinds_without_chance() -> None:
    rng = random.Random(0)
    before = rng.getstate()
    assert draw(Kind.PAIR, ("a", "b"), rng) == Row("a", "b")
    assert draw(Kind.TRIPLET, ("a", "b", "c"), rng) == Row("a", "b", ("c",))
    assert draw(Kind.SENTENCE, ("a",), rng) == Row("a", "a", one_text=True)
    assert rng.getstate() == before


def test_every_ordered_pair_of_paraphrases_is_as_likely() -> None:
    rng = random.Random(1)
    counts = Counter(draw(Kind.PARAPHRASES, ("a", "b", "c"), rng)[:2] for _ in range(6000))
    assert set(counts) == {(x, y) for x in "abc" for y in "abc" if x != y}
    assert all(abs(n - 1000) < 150 for n in counts.values())  # 5 standard deviations


def test_augmented_sentences_lose_words_in_place() -> None:
    words = tuple(f"w{i}" for i in range(20))
    text = " ".join(words)
    rng = random.Random(2)
    for augment, share, left in (
        (Augment.NONE, 0.5, 20),
        (Augment.NEXT_SENTENCE, 0.5, 20),  # what follows is read from the file
        (Augment.DELETE_WORD, 0.5, 19),
        (Augment.DELETE, 0.3, 14),
        (Augment.CROP, 0.3, 14),
    ):
        for _ in range(50):
            row = draw(Kind.SENTENCE, (text,), rng, augment, share)
            kept = tuple(row.positive.split())
            assert row.anchor == text and len(kept) == left
            assert kept == tuple(w for w in words if w in set(kept))  # in their order
            if augment is Augment.CROP:
                start = words.index(kept[0])
                assert kept == words[start : start + left]


def test_every_crop_and_every_word_is_as_likely() -> None:
    rng = random.Random(3)
    text = "a b c d e f g h i j"
    crops = Counter(draw(Kind.SENTENCE, (text,), rng, Augment.CROP, 0.3)[1] for _ in range(8000))
    assert len(crops) == 4 and all(abs(n - 2000) < 200 for n in crops.values())
    gone = Counter(
        (
            set(text.split())
            - set(draw(Kind.SENTENCE, (text,), rng, Augment.DELETE_WORD)[1].split())
        ).pop()
        for _ in range(8000)
    )
    assert len(gone) == 10 and all(abs(n - 800) < 140 for n in gone.values())


def test_a_word_is_always_left() -> None:
    rng = random.Random(4)
    for augment in Augment:
        assert draw(Kind.SENTENCE, ("alone",), rng, augment, 0.9).positive == "alone"
        assert draw(Kind.SENTENCE, ("two words",), rng, augment, 0.99).positive.split()


def test_labels_and_several_negatives() -> None:
    rng = random.Random(0)
    assert draw(Kind.LABELLED, ("a", "yes"), rng) == Row("a", label="yes")
    assert draw(Kind.TRIPLET, ("a", "b", "c", "d"), rng) == Row("a", "b", ("c", "d"))
