"""Static models: a table of token vectors, against sentence-transformers and by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tiny_model import (
    WIDTH,
    static_table,
    static_tokenizer,
    write_json,
    write_model2vec,
    write_plain,
)

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError

TEXTS = [
    "a whale sings",
    "The DOG sleeps, slowly!",
    "zebra",
    "고래 42",
    "",
    "two birds " * 900,
    "a whale sings",
]


def expected(texts: list[str], table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit means of the tokens' rows, computed one by one in float64."""
    tokenizer = static_tokenizer()
    tokenizer.no_padding()
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    means = [
        table[i].astype(np.float64).mean(axis=0) if i else np.zeros(table.shape[1]) for i in ids
    ]
    return np.array([mean / (np.linalg.norm(mean) or 1) for mean in means], np.float32)


def test_against_the_mean_by_hand(tmp_path: Path) -> None:
    done: list[int] = []
    encoder = Encoder.load(write_model2vec(tmp_path / "m"))
    vectors = encoder.encode(TEXTS, on_batch=done.append)
    assert vectors.dtype == np.float32 and sum(done) == len(TEXTS)
    assert np.abs(vectors - expected(TEXTS, static_table())).max() < 1e-6
    assert not vectors[4].any()  # no token, no direction
    assert encoder.encode([]).shape == (0, WIDTH)
    assert (encoder.dim, encoder.layers, encoder.matryoshka_dims) == (WIDTH, 0, (WIDTH,))
    assert encoder.runs_on == "numpy fp32 (a static model)"
    assert (encoder.runtime, encoder.precision) == ("numpy", "fp32")


@pytest.mark.parametrize("modules", [True, False])
def test_weights_and_mapping_of_a_quantized_vocabulary(tmp_path: Path, modules: bool) -> None:
    rng, table = np.random.default_rng(1), static_table()[:20].astype(np.float16)
    size = static_tokenizer().get_vocab_size()
    mapping, weights = rng.integers(20, size=size), rng.random(size)
    tensors = {"embeddings": table, "mapping": mapping, "weights": weights}
    encoder = Encoder.load(write_model2vec(tmp_path / "m", modules, **tensors))
    whole = table[mapping].astype(np.float32) * weights[:, None]
    assert np.abs(encoder.encode(TEXTS) - expected(TEXTS, whole)).max() < 1e-6


def test_as_sentence_transformers(tmp_path: Path) -> None:
    """Its own folder with prompts, and a Model2Vec folder, to 1e-6."""
    texts = [text[:300] for text in TEXTS]  # it adds up any number in float32
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    prompts = {"query": "the man ", "document": "the bird "}
    table = modules.StaticEmbedding(static_tokenizer(), embedding_weights=static_table(seed=3))
    stack = [table, modules.Normalize()]
    theirs = library.SentenceTransformer(modules=stack, prompts=prompts, device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    ours = Encoder.load(tmp_path / "theirs")
    roles: list[tuple[Any, Any]] = [
        (None, theirs.encode), ("query", theirs.encode_query), ("document", theirs.encode_document)
    ]  # fmt: skip
    for role, encode in roles:
        assert np.abs(ours.encode(texts, role=role) - encode(texts)).max() < 1e-6
    write_model2vec(tmp_path / "m2v")
    (tmp_path / "m2v" / "1_Normalize").mkdir()  # Model2Vec does not write it
    loaded = library.SentenceTransformer(str(tmp_path / "m2v"), device="cpu")
    assert np.abs(Encoder.load(tmp_path / "m2v").encode(texts) - loaded.encode(texts)).max() < 1e-6


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncation_dims_and_tokens(tmp_path: Path, side: str) -> None:
    folder = write_model2vec(tmp_path / "m")
    tokenizer = static_tokenizer()
    tokenizer.enable_truncation(6, direction=side)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"truncate_dim": 8, "matryoshka_dims": [WIDTH, 16, 8, 4]}
    write_json(folder / "config_sentence_transformers.json", settings)
    encoder = Encoder.load(folder)
    assert encoder.matryoshka_dims == (8, 4) and encoder.max_tokens == encoder.room() == 6
    ends = {"left": "a two dog a two dog", "right": "two dog a two dog a"}
    read = expected([ends[side]], static_table()[:, :8])
    text = f"{ends['right']} {'bird ' * 900} {ends['left']}"
    assert np.abs(encoder.encode([text]) - read).max() < 1e-6
    (spans,) = encoder.token_spans(["the dog. a dog, a dog"])
    assert spans[:3].tolist() == [[0, 3], [4, 7], [7, 8]] and spans[-1].tolist() == [18, 21]
    assert Encoder.load(write_model2vec(tmp_path / "whole")).room("query") is None


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def tensors(**arrays: NDArray[Any]) -> Any:
    return lambda folder: save_file(arrays, folder / "model.safetensors")


def dense(folder: Path) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    prefix = "sentence_transformers.models."
    write_json(folder / "modules.json", [*listed, {"path": "2", "type": f"{prefix}Dense"}])


def config(**values: Any) -> Any:
    return lambda folder: write_json(folder / "config_sentence_transformers.json", values)


SPOILT: dict[str, tuple[Any, str]] = {
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json"),
    "tokenizer": (lambda f: write_json(f / "tokenizer.json", {}), "is not a tokenizer"),
    "weights": (lambda f: (f / "model.safetensors").write_bytes(b"x" * 20), "cannot be read"),
    "no table": (tensors(other=np.ones((3, 2))), "no table of token vectors: .* got other"),
    "few rows": (tensors(embeddings=np.ones((9, 4))), "the table has 9 rows"),
    "NaN": (tensors(embeddings=np.full((200, 4), np.nan)), "NaN"),
    "mapping": (tensors(embeddings=np.ones((9, 4)), mapping=np.full(200, 9)), "damaged"),
    "dense": (dense, "has a Dense behind its StaticEmbedding"),
    "similarity": (config(similarity_fn_name="manhattan"), "manhattan"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_damaged(tmp_path: Path, name: str) -> None:
    folder = write_model2vec(tmp_path / "m")
    SPOILT[name][0](folder)
    with pytest.raises(ModelError, match=SPOILT[name][1]):
        Encoder.load(folder)


def test_what_it_cannot_do(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path / "m")
    encoder = Encoder.load(folder)
    for call in (
        lambda: Encoder.load(folder, layers=2),
        lambda: Encoder.load(folder, precision="bf16"),
        lambda: Encoder.load(folder, device="meta"),
        lambda: encoder.save(tmp_path / "copy"),
    ):
        with pytest.raises(ModelError, match="is a static model"):
            call()
    assert Encoder.load(write_plain(tmp_path / "plain")).layers == 2
