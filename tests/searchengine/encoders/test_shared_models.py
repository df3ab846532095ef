"""Engines of one process share a model, and closing them frees it without the garbage collector."""

import asyncio
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from faults import in_child
from tiny_model import write_model2vec, write_sentence_transformer

from searchengine import SearchEngine
from searchengine.trainer import encoder as encoder_module
from searchengine.trainer.encoder import Encoder, Handle
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

TORCH = RuntimeConfig("torch", "fp32")
DOCUMENTS = [{"_id": "a", "text": "the whale sings"}, {"_id": "b", "text": "two birds"}]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only references that end free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def model_of(engine: SearchEngine) -> ref[Handle]:
    """A weak reference to the model that an engine uses."""
    return ref(engine.encoder.load()._handle)


@pytest.fixture(params=["network", "static"])
def collection(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of an encoder that torch runs, and of a table."""
    writes = write_sentence_transformer if request.param == "network" else write_model2vec
    model = writes(tmp_path / "model")
    runtime = TORCH if request.param == "network" else None
    with SearchEngine.create(tmp_path / "c.index", model, runtime=runtime) as engine:
        engine.add(DOCUMENTS)
    return tmp_path / "c.index"


def runtime_of(collection: Path) -> RuntimeConfig | None:
    model = collection.parent / "model" / "modules.json"
    return TORCH if model.exists() and "Transformer" in model.read_text() else None


@pytest.mark.usefixtures("no_collector")
def test_closing_frees_the_model_at_once(collection: Path) -> None:
    for _ in range(3):
        engine = SearchEngine.open(collection, runtime=runtime_of(collection))
        assert engine.search("a whale")
        assert asyncio.run(engine.asearch("a whale"))
        loaded = model_of(engine)
        assert loaded() is not None
        engine.close()
        assert loaded() is None, gc.get_referrers(loaded())
    # Nor does an engine that nobody closed keep it.
    engine = SearchEngine.open(collection, runtime=runtime_of(collection))
    engine.search("a whale")
    loaded = model_of(engine)
    del engine
    assert loaded() is None


@pytest.mark.usefixtures("no_collector")
def test_engines_share_one_model(collection: Path) -> None:
    runtime = runtime_of(collection)
    engines = [SearchEngine.open(collection, runtime=runtime) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        hits = list(threads.map(lambda engine: engine.search("a whale"), engines))
    loaded = {model_of(engine) for engine in engines}
    assert len(loaded) == 1 and {hit[0].key for hit in hits} == {"a"}
    (model,) = loaded
    for engine in engines[:3]:
        engine.close()
    assert model() is not None and engines[3].search("birds")
    engines[3].close()
    assert model() is None


def test_other_settings_and_other_files_are_loaded_again(tmp_path: Path) -> None:
    model = write_model2vec(tmp_path / "model")
    first = Encoder.load(model, shared=True)
    assert Encoder.load(model, shared=True)._handle is first._handle
    assert Encoder.load(model)._handle is not first._handle  # one's own, which may be trained
    assert Encoder.load(model, device="cpu", shared=True)._handle is not first._handle
    other = write_model2vec(tmp_path / "other", embeddings=np.ones((200, 8), np.float32))
    shutil.rmtree(model)
    other.rename(model)
    assert Encoder.load(model, shared=True).dim == 8 != first.dim


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_loads_its_own(tmp_path: Path) -> None:
    model = write_sentence_transformer(tmp_path / "model")
    parent = Encoder.load(model, runtime="torch", precision="fp32", shared=True)
    expected = parent.encode(["a whale"])

    def child(say: Callable[[Any], None]) -> None:
        own = Encoder.load(model, runtime="torch", precision="fp32", shared=True)
        say(bool(np.allclose(own.encode(["a whale"]), expected)))

    with encoder_module._sharing:  # by a thread of the parent
        ended = in_child(child)
    assert (ended.problem, ended.said) == (None, [True])
