"""Question encoders: a network for questions beside that of the documents, as a Router."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.model.modules import Normalize
from searchengine.trainer.model.torch_model import keep_layers
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.objectives import Distillation
from searchengine.trainer.training.presets import PRESETS, preset
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.rows import Row
from searchengine.trainer.training.step_judging import Measure, top1_right
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WIDTH, WORDS, write_json, write_model2vec, write_sentence_transformer

TEXTS = ["a whale sings near the sea", "The DOG sleeps, slowly!", "two birds", "고래 42 zebra"]
PROMPTS = {"query": "the man ", "document": "a bird "}
STATIC = "query_0_StaticEmbedding"
EXACT: dict[str, Any] = {"runtime": "torch", "precision": "fp32"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of the documents: two layers, with prompts."""
    return write_sentence_transformer(tmp_path_factory.mktemp("base") / "m", prompts=PROMPTS)


@pytest.fixture
def routed(base: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Writes a Router: the base, and this number of its layers for questions; untrained."""

    def write(layers: int) -> Path:
        model = Encoder.load(base, **EXACT).model
        both = replace(model, questions=keep_layers(model, layers))
        Encoder(both, "", precision="fp32").save(tmp_path / f"{layers}")
        return tmp_path / f"{layers}"

    return write


@pytest.fixture
def config(base: Path, tmp_path: Path) -> TrainConfig:
    """All sentences of three words; the rates of the presets are for larger models."""
    rows = [f"the {a} {b} {c}" for a in WORDS[2:10] for b in WORDS[8:14] for c in WORDS[15:20]]
    (tmp_path / "texts.tsv").write_text("\n".join(["sentence", *rows]) + "\n")
    values: dict[str, Any] = preset("question-encoder") | {
        "train": (tmp_path / "texts.tsv",),
        "out": tmp_path / "out",
        "base": str(base),
        "prefixes": (WIDTH, 8),
        "kept_layers": 1,
        "frozen_embeddings": False,  # no setting of a table
        "batch_size": 16,
        "max_steps": 15,
        "learning_rate": 2e-3,
        "precision": "fp32",
    }
    return TrainConfig(**values)


@pytest.mark.parametrize("layers", (1, 0))
def test_a_router_is_that_of_sentence_transformers(
    routed: Callable[[int], Path], base: Path, tmp_path: Path, layers: int
) -> None:
    """Both read what the other wrote, and give its vectors, by role."""
    library = pytest.importorskip("sentence_transformers")
    ours = Encoder.load(routed(layers), **EXACT)
    theirs = library.SentenceTransformer(str(routed(layers)), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    back = Encoder.load(tmp_path / "theirs", **EXACT)
    for role, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        expected = encode(TEXTS)
        for encoder in (ours, back):
            assert np.abs(encoder.encode(TEXTS, role=role) - expected).max() < 1e-5
    assert np.abs(ours.encode(TEXTS) - theirs.encode(TEXTS)).max() < 1e-5  # without a role
    alone = Encoder.load(base, **EXACT)
    assert np.array_equal(ours.encode(TEXTS, role="document"), alone.encode(TEXTS, role="document"))
    questions = ours.encode(TEXTS, role="query")
    assert np.abs(questions - alone.encode(TEXTS, role="query")).max() > 0.1


@pytest.mark.parametrize("layers", (1, 0))
def test_a_router_is_saved_again(
    routed: Callable[[int], Path], base: Path, tmp_path: Path, layers: int
) -> None:
    first = Encoder.load(routed(layers), **EXACT)
    first.save(tmp_path / "again")
    second = Encoder.load(tmp_path / "again", **EXACT)
    for role in ("query", "document"):
        assert np.array_equal(first.encode(TEXTS, role=role), second.encode(TEXTS, role=role))  # type: ignore[arg-type]
    assert second.fingerprint == first.fingerprint == Encoder.load(base, **EXACT).fingerprint
    assert second.aligned_to == second.fingerprint
    part = Encoder.load(tmp_path / "again", **EXACT, route="query")
    assert np.array_equal(part.encode(TEXTS, role="query"), first.encode(TEXTS, role="query"))
    assert part.fingerprint != first.fingerprint and part.aligned_to == first.aligned_to
    assert part.layers == layers and first.layers == 2


def test_both_networks_are_compiled_and_found_again(routed: Callable[[int], Path]) -> None:
    """They share the files of one folder, and the one is not taken for the other."""
    pytest.importorskip("openvino")
    folder = routed(1)
    exact = Encoder.load(folder, **EXACT)
    for _ in range(2):
        encoder = Encoder.load(folder, runtime="openvino", precision="fp32")
        for role in ("query", "document"):
            expected = exact.encode(TEXTS, role=role)  # type: ignore[arg-type]
            assert np.abs(encoder.encode(TEXTS, role=role) - expected).max() < 1e-5  # type: ignore[arg-type]
    assert encoder.runs_on == "openvino fp32; questions: openvino fp32"


def test_static_questions_need_no_torch(routed: Callable[[int], Path]) -> None:
    program = """
import sys
from searchengine.trainer.encoder import Encoder
encoder = Encoder.load(sys.argv[1], route="query", precision="bf16")  # of the other network
assert encoder.encode(["a whale"], role="query").shape == (1, 32) and encoder.layers == 0
assert not {"torch", "transformers", "openvino"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program, routed(0)], check=True)


def test_evenly_spread_layers(base: Path) -> None:
    model = Encoder.load(base, **EXACT).model
    network: Any = keep_layers(model, 1).module.transformer
    assert len(network.encoder.layer) == network.config.num_hidden_layers == 1
    whole: Any = model.module.transformer
    deep = replace(model, module=type(model.module)(_deeper(whole, 6), model.module.pooling, []))
    for kept, places in ((2, [0, 5]), (3, [0, 2, 5]), (6, [0, 1, 2, 3, 4, 5])):
        network = keep_layers(deep, kept).module.transformer
        rows = [layer.output.dense.bias[0].item() for layer in network.encoder.layer]
        assert rows == places
    with pytest.raises(ModelError, match=r"^layers is 7: expected 1 to 6, the layers"):
        keep_layers(deep, 7)


def _deeper(network: Any, layers: int) -> Any:
    """A network of that many layers, whose first bias is their place."""
    config = type(network.config)(**network.config.to_dict() | {"num_hidden_layers": layers})
    deep = type(network)(config, add_pooling_layer=False)
    for place, layer in enumerate(deep.encoder.layer):
        torch.nn.init.constant_(layer.output.dense.bias, place)
    return deep


def test_a_table_has_the_vectors_of_the_tokens_alone(base: Path) -> None:
    """Where a text is one token, the static model gives the vector of the network."""
    encoder = Encoder.load(base, **EXACT)
    encoder.model.tokenizer.backend_tokenizer.enable_padding(length=20)  # as the starter's has
    static = Encoder(replace(keep_layers(encoder.model, 0), prompts={}), "", precision="fp32")
    for word in ("whale", "sea"):
        assert np.abs(static.encode([word]) - encoder.encode([word])).max() < 1e-6
    assert static.layers == 0 and static.token_spans(["the dog."])[0].shape == (3, 2)


@pytest.mark.parametrize("layers", (1, 0))
def test_the_teachers_vectors_of_questions_are_learnt(
    config: TrainConfig, base: Path, layers: int
) -> None:
    """Both prefixes come nearer to the documents' encoder, whose own vectors stay as they are."""
    lines: list[Report] = []
    rate = {1: 2e-3, 0: 5e-2}[layers]
    settings = replace(config, kept_layers=layers, dropout=0.0, learning_rate=rate)
    trained = train(settings, lines.append)
    losses = [line.loss for line in lines if line.loss is not None]
    assert np.mean(losses[-3:]) < 0.5 * losses[0]
    teacher, loaded = Encoder.load(base, **EXACT), Encoder.load(config.out, **EXACT)
    texts = [
        f"the {a} {b} {c}" for a, b, c in zip(WORDS[2:7], WORDS[8:13], WORDS[15:20], strict=True)
    ]
    questions = loaded.encode(texts, role="query")
    assert np.abs(questions - trained.encode(texts, role="query")).max() < 1e-2  # one is in bf16
    expected = teacher.encode(texts, role="query")
    untrained = Encoder(keep_layers(teacher.model, layers), "", precision="fp32")
    before = untrained.encode(texts, role="query")
    for dim in (WIDTH, 8):
        assert _cosines(questions, expected, dim) > _cosines(before, expected, dim)
    documents = teacher.encode(texts, role="document")
    assert np.array_equal(loaded.encode(texts, role="document"), documents)
    assert Encoder.load(config.out, **EXACT, route="query").layers == layers
    assert loaded.fingerprint == teacher.fingerprint
    assert loaded.aligned_to == teacher.fingerprint
    assert loaded.prompts == PROMPTS and loaded.recipe["config"]["teacher"] == str(base)
    assert "encodes questions only" in (config.out / "README.md").read_text()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_measure_judges_in_the_precision_of_the_run(config: TrainConfig, precision: str) -> None:
    judged: list[str] = []

    def scores(encoder: Encoder) -> dict[int, float]:
        judged.append(encoder.precision)
        return dict.fromkeys(encoder.matryoshka_dims, 0.5)

    settings = replace(config, max_steps=1, keep_last=True, precision=precision)
    train(settings, measure=Measure("a script", scores))
    assert judged and set(judged) == {precision}


def test_frozen_embeddings_stay_those_of_the_base(config: TrainConfig, base: Path) -> None:
    trained = train(replace(config, frozen_embeddings=True))
    teacher = Encoder.load(base, **EXACT)
    networks = [each.model.questions or each.model for each in (trained, teacher)]
    ours, theirs = (dict(each.module.transformer.named_parameters()) for each in networks)
    equal = {name for name, weight in ours.items() if torch.equal(weight, theirs[name])}
    assert equal == {name for name in ours if "_embeddings." in name} and len(equal) == 3
    assert all(weight.requires_grad for weight in ours.values())
    for model in (trained.model, networks[0]):
        network: Any = model.module.transformer
        assert network.config._attn_implementation == "sdpa"
    assert "Embeddings were not trained" in (config.out / "README.md").read_text()


def test_a_table_learns_for_tokens_that_no_text_has(config: TrainConfig, base: Path) -> None:
    """The layer that all tokens share is in the table at the end."""
    model = Encoder.load(base, **EXACT).model
    network: Any = keep_layers(model, 0).module.transformer
    unseen = [word for word in WORDS if word not in config.train[0].read_text()]
    rows = model.tokenizer.convert_tokens_to_ids(unseen)
    assert len(rows) > 3
    before = network.embedding.weight.detach().numpy()[rows]
    for rate, changed in ((1e-12, False), (1e-2, True)):
        out = config.out / str(rate)
        trained = train(replace(config, kept_layers=0, learning_rate=rate, out=out))
        questions = trained.model.questions
        assert questions and [type(layer) for layer in questions.module.head] == [Normalize]
        written = load_file(out / STATIC / "model.safetensors")
        assert [*written] == ["embedding.weight"]
        after = written["embedding.weight"][rows]
        after /= np.linalg.norm(after, axis=1, keepdims=True)  # they were shortened
        assert ((np.abs(after - before).max(axis=1) > 1e-3) == changed).all()


def _cosines(a: np.ndarray, b: np.ndarray, dim: int) -> float:
    a, b = (x[:, :dim] / np.linalg.norm(x[:, :dim], axis=1, keepdims=True) for x in (a, b))
    return float((a * b).sum(axis=1).mean())


def test_pairs_are_learnt_by_their_questions_and_judged_by_the_teachers_documents(
    config: TrainConfig, tmp_path: Path
) -> None:
    """With all layers the student is the teacher: each question is nearest to its document."""
    texts = [line for line in config.train[0].read_text().splitlines()[1:]]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(["query\tpositive", *(f"{t}\tthe man {t}" for t in texts)]) + "\n")
    whole = replace(config, train=(pairs,), kept_layers=2, dropout=0.0, rotate=False, max_steps=1)
    lines: list[Report] = []
    judged = train(replace(whole, learning_rate=1e-9), lines.append)
    assert lines[-1].loss == pytest.approx(0, abs=1e-4)  # the documents are not compared
    model = Encoder.load(config.base, **EXACT)
    assert judged.recipe["judged_by"].startswith("top-1 accuracy")
    row = Row("a dog", "the sea", ("a car",))
    views = Distillation(whole, (WIDTH,), Processes(0, 1)).views([row])
    assert [(view.texts, view.role) for view in views if view.texts] == [(["a dog"], "query")]
    rows = [Row("a dog", "the sea"), Row("a cat", "the house")]
    asked: list[str] = []

    class Documents:
        def encode(self, texts: list[str], **_: Any) -> np.ndarray:
            asked.extend(texts)
            return model.encode(["a cat", "a dog"], role="query")  # the wrong way round

    assert not top1_right(model, rows, Documents())[WIDTH].any()  # type: ignore[arg-type]
    assert asked == ["the sea", "the house"]


def test_an_interrupted_run_is_resumed(config: TrainConfig, tmp_path: Path) -> None:
    static = replace(config, kept_layers=0, max_steps=8, checkpoint_every=4)
    whole = train(static)
    other = replace(static, out=tmp_path / "again")

    def stop(line: Report) -> None:
        if line.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(other, stop)
    resumed = train(other, resume=True)
    vectors = [encoder.encode(TEXTS, role="query") for encoder in (whole, resumed)]
    assert np.array_equal(*vectors)


@pytest.mark.parametrize("name", [name for name in PRESETS if "question" in name])
def test_the_base_is_the_teacher_unless_one_is_named(name: str) -> None:
    values: dict[str, Any] = {"train": ("x.tsv",), "out": "y", "base": "b", **preset(name)}
    assert TrainConfig(**values).teacher == "b"
    assert TrainConfig(**values, teacher="t").teacher == "t"


@pytest.mark.parametrize(
    "values, message",
    [
        ({"distillation_loss": "kl"}, "question_encoder learns no vectors by kl"),
        ({"objective": "contrastive"}, "needs objective distillation"),
        ({"kept_layers": 0, "question_encoder": False, "teacher": "t"}, "kept_layers 0 without"),
        ({"kept_layers": 0, "pooling": "mean"}, "kept_layers 0 leaves no network for pooling"),
        ({"kept_layers": 0, "adapter_rank": 2}, "no network for adapter_rank"),
        ({"kept_layers": 0, "frozen_embeddings": True}, "choose preset static-question-encoder"),
        ({"kept_layers": 0, "mlm_weight": 0.1}, "no network for mlm_weight"),
        ({"kept_layers": -1}, "kept_layers is -1: expected a whole number of at least 0"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    common = {"train": ("x.tsv",), "out": "y", "frozen_embeddings": False}
    settings = preset("question-encoder") | common | values
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**settings)


def _edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        write_json(folder / name, content)

    return edit


@pytest.mark.parametrize(
    "spoil, message",
    [
        (
            _edit("router_config.json", lambda c: c["structure"].pop("query")),
            "router_config.json has the routes document: expected query and document",
        ),
        (
            _edit("router_config.json", lambda c: c["parameters"].update(route_mappings={"x": 1})),
            "has the routes query, document, x: expected",
        ),
        (_edit("router_config.json", lambda c: c.pop("types")), "expected `types`, `structure`"),
        (
            _edit("router_config.json", lambda c: c["types"].update({STATIC: "os.x"})),
            "names the module os.x, which is not one of sentence-transformers",
        ),
        (
            _edit("router_config.json", lambda c: c["structure"].update(query=["../x"])
                  or c["types"].update({"../x": "sentence_transformers.models.StaticEmbedding"})),
            "points outside its folder",
        ),
        (
            _edit("modules.json", lambda m: m.append(
                {"path": "2", "type": "sentence_transformers.models.Dense"})),
            "has a Dense behind its StaticEmbedding",
        ),
    ],
)  # fmt: skip
def test_what_is_damaged(
    routed: Callable[[int], Path], spoil: Callable[[Path], None], message: str
) -> None:
    folder = routed(0)
    spoil(folder)
    with pytest.raises(ModelError, match=message):
        Encoder.load(folder, **EXACT)


def test_what_it_cannot_do(routed: Callable[[int], Path], base: Path, tmp_path: Path) -> None:
    folder = routed(1)
    with pytest.raises(ModelError, match=r"is a Router, .*: leave layers out"):
        Encoder.load(folder, layers=1)
    with pytest.raises(ModelError, match=r"is a Router, .*: leave layers out"):
        Encoder.load(folder, **EXACT).truncate(layers=1)
    model = Encoder.load(base, **EXACT).model
    narrow = Encoder.load(write_model2vec(tmp_path / "n", embeddings=np.ones((200, 8), "f4"))).model
    with pytest.raises(ModelError, match="questions 8 dimensions and documents 32: they cannot"):
        Encoder(replace(model, questions=narrow), "x")
