"""The encoder: vectors equal to those of sentence-transformers, folders read, refused and saved."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import full_disk, interrupt
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import T5Config, T5Model

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.layout import POOLING_MODES
from searchengine.trainer.model.tokens import PIECE, TokenIds, Tokenization
from tests.tiny_model import WIDTH, write_plain, write_sentence_transformer

TEXTS = [
    "the whale sleeps in the sea",
    "a dog",
    "",
    "two old birds sing slowly near the big green tree " * 6,
    "the whale sleeps in the sea",
    "müsic, not xylophones!",
]
PROMPTS = {"query": "the dog: ", "passage": "a cat: ", "default": "red "}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def prompted(tmp_path: Path) -> Encoder:
    folder = tmp_path / "prompted"
    write_sentence_transformer(folder, prompts=PROMPTS, default_prompt_name="default")
    return Encoder.load(folder, precision="fp32")


def oracle(folder: Path, texts: list[str], **how: Any) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(texts, convert_to_numpy=True, show_progress_bar=False, **how)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def check_saved(encoder: Encoder, path: Path) -> None:
    """Saved and loaded, by both libraries, the model is the same."""
    encoder.save(path)
    again = Encoder.load(path, precision="fp32")
    assert again.fingerprint == encoder.fingerprint
    assert (again.prompts, again.recipe) == (encoder.prompts, encoder.recipe)
    assert again.matryoshka_dims == encoder.matryoshka_dims
    assert not list(path.rglob("*.bin"))
    for role in ("query", "document"):
        vectors = encoder.encode(TEXTS, role=role)
        np.testing.assert_array_equal(again.encode(TEXTS, role=role), vectors)
        prompt = encoder.prompt(role)
        np.testing.assert_allclose(oracle(path, TEXTS, prompt=prompt), vectors, atol=1e-5)


# ----------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize(
    "config",
    [
        *({"embedding_dimension": WIDTH, "pooling_mode": mode} for mode in POOLING_MODES),
        {"embedding_dimension": WIDTH, "pooling_mode": ["mean", "cls"]},
        {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True},
        {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": True,
            "pooling_mode_max_tokens": False,
        },
    ],
)
def test_each_pooling_is_that_of_sentence_transformers(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = write_sentence_transformer(tmp_path / "m", config, prompts={"query": "the dog: "})
    encoder = Encoder.load(folder, precision="fp32")
    np.testing.assert_allclose(encoder.encode(TEXTS), oracle(folder, TEXTS), atol=2e-6)
    check_saved(encoder, tmp_path / "again")


def test_rows_are_unit_float32_in_the_order_given(tiny: Path) -> None:
    encoder = Encoder.load(tiny, precision="fp32")
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), WIDTH) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for i, text in enumerate(TEXTS):
        np.testing.assert_allclose(encoder.encode([text])[0], vectors[i], atol=2e-6)
    assert np.array_equal(vectors[0], vectors[4])
    assert vectors[0] @ vectors[1] < 0.999  # the texts are told apart at all
    assert encoder.encode([]).shape == (0, WIDTH)
    lone, replaced = encoder.encode(["dog \ud83d sea", "dog \ufffd sea"])  # a lone surrogate
    np.testing.assert_allclose(lone, replaced, atol=1e-6)
    fast = Encoder.load(tiny, precision="bf16")
    assert fast.precision == "bf16" and not np.array_equal(fast.encode(TEXTS), vectors)
    assert (fast.encode(TEXTS) * vectors).sum(axis=1).min() > 0.999
    assert {p.dtype for p in fast.module.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("role", "text", "tokens"),
    [("query", "the dog: sea", 3), ("document", "a cat: sea", 3), (None, "red sea", 1)],
)
def test_a_role_chooses_the_prompt_and_what_is_read(
    prompted: Encoder, tiny: Path, role: Any, text: str, tokens: int
) -> None:
    expected = Encoder.load(tiny, precision="fp32").encode([text])
    np.testing.assert_allclose(prompted.encode(["sea"], role=role), expected, atol=1e-6)
    room = prompted.room(role)
    assert room == 24 - 2 - tokens
    same = ["dog"] * (room - 1)
    fits, other = (" ".join([*same, last]) for last in ("sea", "house"))
    assert [len(spans) for spans in prompted.token_spans([fits])] == [room]
    read, read_too, one_more = prompted.encode([fits, other, fits + " house"], role=role)
    assert read @ read_too < 0.9999  # the last token is read
    np.testing.assert_allclose(one_more, read, atol=1e-6)  # and none behind it


@pytest.mark.parametrize(
    ("texts", "role", "message"),
    [
        ("one text", None, "texts is a str: expected a list of str"),
        (["a", None], None, r"texts\[1\] is a NoneType: expected str"),
        ({"a": 1}, None, "texts is a dict"),
        (["a"], "title", "role is 'title': expected one of query, document"),
    ],
)
def test_what_is_not_encoded(tiny: Path, texts: Any, role: Any, message: str) -> None:
    encoder = Encoder.load(tiny)
    with pytest.raises(ModelError, match=message):
        encoder.encode(texts, role=role)
    if role is None:
        with pytest.raises(ModelError, match=message):
            encoder.token_spans(texts)


# -------------------------------------------------------------------------------------------- spans


def test_token_spans_are_the_texts_own_tokens(tiny: Path) -> None:
    encoder = Encoder.load(tiny, precision="fp32")
    first, none, long = encoder.token_spans(["The whale, sée", "", "a dog " * 400])
    # "sée" is s ##e ##e; the comma is unknown, and a token all the same.
    assert first.tolist() == [[0, 3], [4, 9], [9, 10], [11, 12], [12, 13], [13, 14]]
    assert first.dtype == np.int32 and none.shape == (0, 2)
    assert len(long) == 800 and long[-1].tolist() == [2396, 2399]
    assert encoder.token_spans([]) == []
    lone = encoder.token_spans(["dog \ud83d sea", "dog \ud83d\ude00 sea"])
    assert [spans[-1].tolist() for spans in lone] == [[6, 9], [7, 10]]


def small_tokenizer(kind: str) -> Any:
    """As transformers has one: byte-level BPE as in RoBERTa, or pieces of words as in XLM-R."""
    lines = ["the whale sleeps in the sea, not far from 고래는 잔다. 鯨は眠る。"] * 3 + TEXTS
    tokenizer: Tokenizer
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: Any = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        trainer = trainers.UnigramTrainer(vocab_size=120, show_progress=False, unk_token="<unk>")
    tokenizer.train_from_iterator(lines, trainer)
    return SimpleNamespace(backend_tokenizer=tokenizer, pad_token_id=0, truncation_side="right")


@pytest.mark.parametrize("kind", ["bytes", "pieces", "words"])
def test_long_texts_are_tokenised_in_pieces_alike(tiny: Path, kind: str) -> None:
    tokenizer = Encoder.load(tiny).model.tokenizer if kind == "words" else small_tokenizer(kind)
    whole = tokenizer.backend_tokenizer
    text = "The whale  sleeps,\nnot far. 고래는 잔다. 鯨は眠る。 (big) sea-birds é e\u0301 🙂 sing"
    texts = ["a dog", text * (PIECE // 20), "", text[::-1]]
    tokenization = Tokenization.of(tokenizer, 16)
    spans = TokenIds(tokenization).spans(texts)
    encoded = [whole.encode(text, add_special_tokens=False) for text in texts]
    assert [rows.tolist() for rows in spans] == [[list(o) for o in e.offsets] for e in encoded]
    for side in ("left", "right"):
        whole.enable_truncation(16, direction=side)
        ids = TokenIds(replace(tokenization, truncation_side=side))(texts)
        assert [row.tolist() for row in ids] == [whole.encode(text).ids for text in texts]


# ---------------------------------------------------------------------------------- reading folders


def test_plain_folder_gets_mean_pooling_and_unit_rows(tmp_path: Path) -> None:
    # It has no pooler weights: transformers would fill them at random at each load.
    folder = write_plain(tmp_path / "plain")
    encoder = Encoder.load(folder, precision="fp32")
    assert encoder.max_tokens == 48 and encoder.matryoshka_dims == (WIDTH,)
    assert encoder.source == str(folder.resolve())
    np.testing.assert_allclose(encoder.encode(TEXTS), oracle(folder, TEXTS), atol=2e-6)
    check_saved(encoder, tmp_path / "out")


def test_the_encoder_half_of_t5_is_taken_and_saved(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "t5")
    torch.manual_seed(0)
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=200, **shape, decoder_start_token_id=0)
    T5Model(config).save_pretrained(folder)
    encoder = Encoder.load(folder, precision="fp32")
    np.testing.assert_allclose(encoder.encode(TEXTS), oracle(folder, TEXTS), atol=2e-6)
    check_saved(encoder, tmp_path / "out")


# ------------------------------------------------------------------------------------------- saving


def test_save_replaces_a_model_but_nothing_else(tiny: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny)
    encoder.save(tmp_path / "out")
    (tmp_path / "out" / "checkpoint").mkdir()
    encoder.save(tmp_path / "out")
    assert (tmp_path / "out" / "checkpoint").is_dir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="exists and is not a model"):
        encoder.save(tmp_path / "home")
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "out"]


@pytest.mark.parametrize(
    ("room", "error"),
    [
        (1 << 30, KeyboardInterrupt),
        (100, ModelError),  # of Python, safetensors and tokenizers: each has another error
        (10_000, ModelError),
        (1_000_000, ModelError),
    ],
)
def test_an_interrupted_save_leaves_the_old_model(
    tiny: Path, tmp_path: Path, room: int, error: type[BaseException]
) -> None:
    encoder = Encoder.load(tiny)
    encoder.save(tmp_path / "out")
    (tmp_path / "out" / "checkpoint").mkdir()
    encoder.model.tokenizer.add_tokens([f"word{i}" for i in range(10_000)])
    stopping: Any = SimpleNamespace(keys=interrupt)
    stopped = Encoder(replace(encoder.model, history=stopping), "")
    for name in ("out", "new"):
        message = (
            f"cannot be written to .*{name}: .*File too large" if error is ModelError else None
        )
        with pytest.raises(error, match=message), full_disk(room):
            stopped.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "checkpoint").is_dir()
    assert Encoder.load(tmp_path / "out").fingerprint == encoder.fingerprint
