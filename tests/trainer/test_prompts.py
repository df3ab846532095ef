"""The prompts of published models whose folders name none."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tiny_model import WORDS, write_json, write_sentence_transformer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.sources.source import published_prompts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig

E5 = {"query": "query: ", "document": "passage: "}
EMPTY = {"query": "", "document": ""}
# Models whose prompts mteb names; it leaves Qwen's and most of Arctic's to their folders.
NAMES = (
    "intfloat/e5-small",
    "intfloat/e5-base-v2",
    "intfloat/multilingual-e5-large",
    "BAAI/bge-small-en-v1.5",
    "BAAI/bge-base-en",
    "BAAI/bge-large-zh-v1.5",
    "mixedbread-ai/mxbai-embed-large-v1",
    "nomic-ai/nomic-embed-text-v1.5",
    "nomic-ai/modernbert-embed-base",
    "Snowflake/snowflake-arctic-embed-m-v1.5",
)
WITHOUT = (
    "BAAI/bge-m3",
    "sentence-transformers/all-MiniLM-L6-v2",
    "Alibaba-NLP/gte-modernbert-base",
    "minishlab/potion-base-8M",
)


@pytest.mark.parametrize("name", [*NAMES, *WITHOUT])
def test_they_are_those_of_the_models_cards(name: str) -> None:
    mteb = pytest.importorskip("mteb", reason="the extra `mteb` is not installed")
    stated = mteb.get_model_meta(name).loader_kwargs.get("model_prompts", {})
    expected = {role: stated[role] for role in ("query", "document") if role in stated}
    assert published_prompts(Path(name)) == expected
    assert bool(expected) == (name in NAMES)


@pytest.mark.parametrize(
    ("folder", "query"),
    [
        ("Qwen3-Embedding-0.6B", "Instruct: Given a web search query"),
        ("snowflake-arctic-embed-l-v2.0", "query: "),
        ("models--intfloat--e5-small-v2/snapshots/ffb93f3bd4047442299a41", "query: "),
        ("my-e5-small", None),
        ("e5-small-finetuned", None),
        ("bge", None),
    ],
)
def test_the_name_of_a_folder_decides(folder: str, query: str | None) -> None:
    prompts = published_prompts(Path(folder))
    assert prompts["query"].startswith(query) if query else prompts == {}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, E5),
        ({"prompts": {"query": "a "}}, {"query": "a "}),
        ({"prompts": EMPTY}, E5),  # which sentence-transformers saves with every model
        ({"prompts": EMPTY | {"query": "a "}}, EMPTY | {"query": "a "}),
        ({"recipe": {"base": "e5-small"}}, {}),  # trained here, without prompts
    ],
)
def test_a_folder_that_names_prompts_or_was_trained_here_keeps_its_own(
    config: Mapping[str, object], expected: Mapping[str, str], tmp_path: Path
) -> None:
    folder = write_sentence_transformer(tmp_path / "e5-small")
    path = folder / "config_sentence_transformers.json"
    write_json(path, json.loads(path.read_text()) | {"prompts": {}} | config)
    assert Encoder.load(folder).prompts == expected


def test_prompts_are_trained_and_stored(tmp_path: Path) -> None:
    """As if the texts began with them."""
    pairs = [(f"the {n} {v}", f"{v} the {n}") for n in WORDS[2:8] for v in WORDS[8:13]]

    def trained(name: str, before: str, prompts: dict[str, str]) -> Encoder:
        base, path = tmp_path / f"{name} base", tmp_path / f"{name}.tsv"
        write_sentence_transformer(base, prompts={"document": "a house ", "other": "x"} | prompts)
        path.write_text("\n".join(["anchor\tpositive", *(f"{before}{a}\t{p}" for a, p in pairs)]))
        config = {"train": (path,), "out": tmp_path / name, "base": str(base)}
        return train(TrainConfig(**config, max_steps=2, batch_size=8))  # type: ignore[arg-type]

    encoder = trained("prompted", "", {"query": "near the sea "})
    written = trained("written", "near the sea ", {})
    again = Encoder.load(tmp_path / "prompted")
    assert dict(again.prompts) == {"document": "a house ", "other": "x", "query": "near the sea "}
    np.testing.assert_allclose(
        encoder.encode(["a dog"], role="query"), written.encode(["near the sea a dog"]), atol=1e-6
    )
