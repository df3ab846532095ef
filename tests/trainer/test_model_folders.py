"""Model folders that bring code, or ask for something else than cosines of whole vectors."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedModel

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.errors import CollectionError
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WIDTH, write_json, write_plain, write_sentence_transformer

TEXTS = ["the whale sleeps in the sea", "a dog", "two old birds sing near the big green tree"]
# Leaves a file behind when it is run.
CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel

Path({ran!r}).touch()

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig
    factor = 1.0

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=False)

    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        found[0][..., 0] *= self.factor
        return found
"""


def change_json(path: Path, **values: Any) -> None:
    """Write some values of a JSON object again."""
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | values)


# ---------------------------------------------------------------------------------- code of a model


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the code in `with_code` leaves behind."""
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "ran"


@pytest.fixture
def with_code(tmp_path: Path, ran: Path) -> Path:
    """A model of a type that only the code in its folder knows."""
    folder = write_sentence_transformer(tmp_path / "own")
    (folder / "own_code.py").write_text(CODE.format(ran=str(ran)))
    auto_map = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    change_json(folder / "config.json", model_type="own", auto_map=auto_map)
    return folder


def test_code_of_a_model_is_refused_without_a_question(with_code: Path, ran: Path) -> None:
    with pytest.raises(ModelError, match=r"needs Python code .*own_code.OwnModel.*trust-remote"):
        Encoder.load(with_code)
    with pytest.raises(ModelError, match="needs Python code"):
        Encoder.load(with_code, trust_remote_code=False)
    pairs = with_code.parent / "pairs.tsv"
    pairs.write_text("anchor\tpositive\na dog\tthe dog\n")
    with pytest.raises(
        ConfigError, match="needs Python code that came with it; training runs none"
    ):
        train(TrainConfig(train=(pairs,), base=str(with_code), out=with_code.parent / "out"))
    assert not ran.exists()


def test_yes_on_stdin_runs_no_code_of_a_model(with_code: Path, ran: Path) -> None:
    script = (
        "import sys; from searchengine.trainer.encoder import Encoder; Encoder.load(sys.argv[1])"
    )
    command = [sys.executable, "-c", script, str(with_code)]
    done = subprocess.run(command, input="y\ny\ny\n", capture_output=True, text=True)
    assert done.returncode == 1 and "needs Python code that came with it" in done.stderr
    assert "[y/N]" not in done.stdout and not ran.exists()


def test_trusted_code_of_a_model_runs_by_torch_and_is_logged(
    with_code: Path, ran: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    plain = Encoder.load(write_sentence_transformer(with_code.parent / "plain"), precision="fp32")
    encoder = Encoder.load(with_code, trust_remote_code=True, precision="fp32")
    assert ran.exists() and "own_code.OwnModel" in caplog.text
    np.testing.assert_allclose(encoder.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)
    chosen = Encoder.load(with_code, trust_remote_code=True, device="cpu").runs_on
    assert chosen.startswith("torch") and "own_code.OwnConfig, own_code.OwnModel" in chosen
    with pytest.raises(ModelError, match="native runtime cannot run"):
        Encoder.load(with_code, trust_remote_code=True, runtime="native")
    # Other code is another fingerprint.
    other = shutil.copytree(with_code, with_code.parent / "other")
    code = (other / "own_code.py").read_text()
    (other / "own_code.py").write_text(code.replace("factor = 1.0", "factor = 9.0"))
    second = Encoder.load(other, trust_remote_code=True, precision="fp32")
    assert np.abs(encoder.encode(TEXTS) - second.encode(TEXTS)).max() > 0.01
    assert encoder.fingerprint != second.fingerprint
    again = Encoder.load(with_code, trust_remote_code=True, precision="fp32")
    assert again.fingerprint == encoder.fingerprint


def test_a_collection_does_not_remember_that_code_was_trusted(
    with_code: Path, tmp_path: Path
) -> None:
    trusting = RuntimeConfig(trust_remote_code=True)
    with SearchEngine.create(tmp_path / "c.index", with_code, runtime=trusting) as engine:
        engine.add([{"_id": "1", "text": "a dog"}])
    with SearchEngine.open(tmp_path / "c.index", runtime=trusting) as engine:
        assert [hit.key for hit in engine.search("dog")] == ["1"]
    with (
        SearchEngine.open(tmp_path / "c.index") as engine,
        pytest.raises(CollectionError, match="needs Python code that came with it"),
    ):
        engine.search("dog")


def test_the_command_line_trusts_code_on_request(with_code: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a dog")
    arguments = ["index", str(tmp_path / "notes"), str(tmp_path / "n.index")]
    arguments += ["--encoder", str(with_code)]
    refused = CliRunner().invoke(cli, arguments)
    assert refused.exit_code == 2 and "--runtime trust-remote-code" in refused.output
    trusted = CliRunner().invoke(cli, [*arguments, "--runtime", "trust-remote-code"])
    assert trusted.exit_code == 0, trusted.output


def test_a_type_that_transformers_knows_needs_no_code(tmp_path: Path, ran: Path) -> None:
    folder = write_plain(tmp_path / "known")
    (folder / "own_code.py").write_text(CODE.format(ran=str(ran)))
    change_json(folder / "config.json", auto_map={"AutoModel": "own_code.OwnModel"})
    Encoder.load(folder)
    assert not ran.exists()


# ------------------------------------------------------------------ sentence-transformers' settings


def without_normalize(folder: Path) -> None:
    """Drop the last module, so that vectors are not of length 1."""
    write_json(folder / "modules.json", json.loads((folder / "modules.json").read_text())[:2])


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("name", ["dot", "euclidean", "cosine", None, "manhattan"])
@pytest.mark.parametrize("dim", [None, WIDTH * 2, 8])
def test_similarities_that_order_as_the_cosine_does(
    tmp_path: Path, unit: bool, name: str | None, dim: int | None
) -> None:
    folder = write_sentence_transformer(tmp_path / "m", similarity_fn_name=name, truncate_dim=dim)
    if not unit:
        without_normalize(folder)
    if name in ("cosine", None) or (unit and dim != 8 and name != "manhattan"):
        assert Encoder.load(folder).dim == min(dim or WIDTH, WIDTH)
    else:
        with pytest.raises(ModelError, match=f"similarity_fn_name '{name}'"):
            Encoder.load(folder)


@pytest.mark.parametrize("unit", [True, False])
def test_truncate_dim_is_that_of_sentence_transformers(tmp_path: Path, unit: bool) -> None:
    dims = {"matryoshka_dims": [WIDTH, 16, 8, 4]}
    folder = write_sentence_transformer(tmp_path / "m", truncate_dim=8, **dims)
    if not unit:
        without_normalize(folder)
    encoder = Encoder.load(folder, precision="fp32")
    model = SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(TEXTS, normalize_embeddings=True)
    assert encoder.dim == expected.shape[1] == 8 and encoder.matryoshka_dims == (8, 4)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-6)
    encoder.save(tmp_path / "out")
    again = Encoder.load(tmp_path / "out", precision="fp32")
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config_args", {"num_attention_heads": 2}),
        ("config_kwargs", {"hidden_act": "relu"}),
        ("tokenizer_args", {"truncation_side": "left"}),
    ],
)
def test_settings_that_change_the_configs_are_refused(
    tmp_path: Path, name: str, values: dict[str, Any]
) -> None:
    folder = write_sentence_transformer(tmp_path / "m")
    write_json(folder / "sentence_bert_config.json", {name: {"trust_remote_code": True}})
    Encoder.load(folder)
    write_json(folder / "sentence_bert_config.json", {name: values})
    with pytest.raises(ModelError, match=rf"{name} .*{min(values)}"):
        Encoder.load(folder)


@pytest.mark.parametrize("name", ["custom_st.Transformer", "own_code.Transformer", "Pooling"])
def test_modules_that_are_not_sentence_transformers_own_are_refused(
    tmp_path: Path, name: str
) -> None:
    folder = write_sentence_transformer(tmp_path / "m")
    listed = json.loads((folder / "modules.json").read_text())
    listed[name == "Pooling"]["type"] = name
    write_json(folder / "modules.json", listed)
    with pytest.raises(ModelError, match=f"names the module {name}"):
        Encoder.load(folder)


# ------------------------------------------------------------------------------- several at once


def test_threads_load_models_at_once(tmp_path: Path) -> None:
    """transformers replaces a method of its class while it loads, for all threads."""
    folder = write_sentence_transformer(tmp_path / "model")
    tie_weights = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(8) as pool:
        prints = {*pool.map(lambda _: Encoder.load(folder).fingerprint, range(16))}
    assert len(prints) == 1 and PreTrainedModel.tie_weights is tie_weights
