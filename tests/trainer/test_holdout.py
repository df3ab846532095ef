"""What is held out: enough of it, no text on both sides, no label lost."""

from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.training.examples import (
    Example,
    Examples,
    Kind,
    identity,
    texts_without_label,
)
from searchengine.trainer.training.step_judging import MIN_HELD_OUT, hold_out


def pairs(count: int) -> tuple[Example, ...]:
    return tuple((Kind.PAIR, (f"anchor {i}", f"positive {i}")) for i in range(count))


def test_a_tenth_is_held_out_and_sentences_are_not() -> None:
    alone = tuple((Kind.SENTENCE, (f"sentence {i}",)) for i in range(50))
    data = Examples(pairs(250) + alone)
    split = hold_out(data, seed=3)
    assert (len(split.rows), split.examples_held, len(split.train)) == (25, 25, 275)
    assert hold_out(data, seed=3).rows == split.rows != hold_out(data, seed=4).rows
    assert len(hold_out(Examples(pairs(9000)), seed=0).rows) == 512


def test_too_few_are_not_used() -> None:
    """Two of 20 examples are both right by chance, and then no step is better than the first."""
    for count in (2, 20, 10 * MIN_HELD_OUT - 10):
        data = Examples(pairs(count))
        split = hold_out(data, seed=0)
        assert split.train is data and split.rows == () and split.examples_held == 0


@given(st.integers(0, 1000), st.integers(2, 6))
def test_no_text_on_both_sides(seed: int, size: int) -> None:
    """Anchors with several positives; positives that other anchors share, up to capitals."""
    shared = tuple(
        (Kind.PAIR, (f"question {i // size}", f"{'Answer' if i % 2 else 'answer!'} {i // 3}"))
        for i in range(1200)
        if i % 30
    )
    split = hold_out(Examples(shared + pairs(300)), seed)
    trained = {identity(text) for example in split.train for text in texts_without_label(example)}
    assert len(split.rows) >= MIN_HELD_OUT and split.examples_held <= 146
    assert len(split.train) + split.examples_held == 1460
    for row in split.rows:
        assert trained.isdisjoint({identity(row.anchor), identity(row.positive)})
    texts = [identity(text) for row in split.rows for text in row[:2]]
    assert len(texts) == len(set(texts))  # nor in two rows: a row has one right answer


def test_mined_negatives_link_no_examples() -> None:
    """They are positives of other examples: linked by them, nothing could be held out."""
    data = tuple(
        (Kind.TRIPLET, (f"anchor {i}", f"positive {i // 2}", f"positive {(i * 7 + 2) % 250}"))
        for i in range(500)
    )
    split = hold_out(Examples(data), seed=0)
    assert (len(split.rows), split.examples_held) == (25, 50)
    trained = {text for _, texts in split.train for text in texts[:2]}
    for row in split.rows:
        assert trained.isdisjoint(row[:2])


def test_examples_that_all_share_a_text_are_not_held_out() -> None:
    chain = tuple((Kind.PAIR, (f"text {i}", f"text {i + 1}")) for i in range(500))
    assert len(hold_out(Examples(chain), seed=0).train) == len(chain)


def test_every_label_keeps_an_example() -> None:
    data = tuple((Kind.LABELLED, (f"text {i}", f"label {i % 150}")) for i in range(300))
    for seed in range(5):
        split = hold_out(Examples(data), seed)
        assert len(split.rows) == 30
        assert {texts[1] for _, texts in split.train} == {t[1] for _, t in data}
