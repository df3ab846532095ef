"""Model folders of the shapes of the named encoders, as the model hub has them.

Their layers are those of trained networks of the same sizes, so that channels that stand out are as
large: of the starter's 6 layers, and of the 12 of `multilingual`. A token has the row of the same
piece there, or any.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from tokenizers.trainers import UnigramTrainer

from searchengine.trainer.sources.source import multilingual_folder, starter_folder

WIDTH, INNER, HEADS, POSITIONS = 384, 1536, 12, 512
QUERY = "Represent this sentence for searching relevant passages: "
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
PIECES = 8000
# Name → layers, pooling, width of the Dense, prompts in the folder, kind of tokenizer.
SHAPES: dict[str, tuple[int, str, int | None, dict[str, str], str]] = {
    "leaf": (6, "mean", 768, {"query": QUERY, "document": ""}, "WordPiece"),
    "arctic-s": (12, "cls", None, {"query": QUERY}, "WordPiece"),
    "bge-small": (12, "cls", None, {}, "WordPiece"),
    "e5-small": (12, "mean", None, {}, "WordPiece"),
    "multilingual": (12, "mean", None, {}, "Unigram"),
}


def write_shape(folder: Path, name: str, texts: Sequence[str], part: int = 1) -> Path:
    """The folder of a named encoder.

    texts: to train its tokenizer on, where it is of Unigram. part: of how many layers it has one.
    """
    layers, pooling, dense, prompts, kind = SHAPES[name]
    random = np.random.default_rng(0)
    source = starter_folder() if layers == 6 else multilingual_folder()
    layers //= part
    kept = ("embeddings.", *(f"encoder.layer.{layer}." for layer in range(layers)))
    stored = load_file(source / "model.safetensors").items()
    weights = {key: t.astype(np.float32) for key, t in stored if key.startswith(kept)}
    folder.mkdir(parents=True)
    if kind == "WordPiece":
        for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            (folder / file).write_bytes((starter_folder() / file).read_bytes())
    else:
        _write_unigram(folder, texts)
    words = weights["embeddings.word_embeddings.weight"][_rows(folder, source, random)]
    weights["embeddings.word_embeddings.weight"] = words
    weights.pop("embeddings.position_ids", None)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": len(words),
    }
    _write(folder / "config.json", config)
    modules: list[tuple[str, dict[str, Any]]] = [
        ("Transformer", {}),
        (
            "Pooling",
            {
                "word_embedding_dimension": WIDTH,
                "pooling_mode_cls_token": pooling == "cls",
                "pooling_mode_mean_tokens": pooling == "mean",
            },
        ),
    ]
    if dense is not None:
        linear = {"in_features": WIDTH, "out_features": dense, "bias": True}
        identity = "torch.nn.modules.linear.Identity"
        modules.append(("Dense", {**linear, "activation_function": identity}))
    modules.append(("Normalize", {}))
    listed = []
    for i, (module, settings) in enumerate(modules):
        path = f"{i}_{module}" if i else ""
        kind = f"sentence_transformers.models.{module}"
        listed.append({"idx": i, "name": f"{i}", "path": path, "type": kind})
        if i:
            (folder / path).mkdir()
            _write(folder / path / "config.json", settings)
        if module == "Dense":
            matrix = random.standard_normal((dense, WIDTH), np.float32) / WIDTH**0.5
            bias = random.standard_normal(dense, np.float32) / 100
            tensors = {"linear.weight": matrix, "linear.bias": bias}
            save_file(tensors, folder / path / "model.safetensors", {"format": "pt"})
    _write(folder / "modules.json", listed)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    if prompts:
        _write(folder / "config_sentence_transformers.json", {"prompts": prompts})
    return folder


def _rows(folder: Path, source: Path, random: np.random.Generator) -> NDArray[np.int64]:
    """The row of the source's table for each token of the folder's tokenizer."""
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    pieces = Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab()
    rows = random.integers(0, len(pieces), max(tokens.values()) + 1)
    for token, number in tokens.items():
        names = (token, f"▁{token}", token.removeprefix("##"))
        rows[number] = next((pieces[name] for name in names if name in pieces), rows[number])
    return rows


def _write_unigram(folder: Path, texts: Sequence[str]) -> None:
    """A tokenizer as that of XLM-R, trained on texts."""
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    trainer = UnigramTrainer(
        vocab_size=PIECES, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIALS, strict=False)),
        "cls_token": "<s>",
        "sep_token": "</s>",
        "mask_token": "<mask>",
    }
    _write(folder / "tokenizer_config.json", config)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
