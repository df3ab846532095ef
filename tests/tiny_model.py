"""A sentence-transformers folder small enough to build in a test: 2 layers, 32 wide, random."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    Qwen3Config,
    Qwen3Model,
)

# Two layers of 32 gain nothing from threads, and lose much to them on a busy machine.
torch.set_num_threads(1)

WORDS = (
    "a the dog cat whale bird man woman child sleeps runs eats sings plays sits near far red blue "
    "green big small old new on in under over sea house tree car music two three slowly fast not"
).split()
_LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
PIECES = [*WORDS, *(c for c in _LETTERS if c not in WORDS), *(f"##{c}" for c in _LETTERS)]
WIDTH = 32


def small_decoder(**changes: Any) -> Any:
    """A random network of the shape of Qwen3-Embedding, with rotary positions."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=120,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **changes,
    )
    return Qwen3Model(config)


def write_plain(folder: Path, seed: int = 0) -> Path:
    """A plain transformers folder: network and tokenizer, no pooling."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=48).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=48,
        initializer_range=0.3,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def write_sentence_transformer(
    folder: Path, pooling: dict[str, Any] | None = None, **model_config: Any
) -> Path:
    """The same with modules.json. pooling: the Pooling module's config; default mean."""
    write_plain(folder)
    config = pooling or {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    write_modules(folder, [("Pooling", config, {}), ("Normalize", {}, {})])
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", model_config)
    return folder


def static_tokenizer() -> Tokenizer:
    """Splits into words and characters; its post-processor adds the special tokens of BERT."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES]
    tokenizer = Tokenizer(WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding()
    return tokenizer


def static_table(width: int = WIDTH, seed: int = 0) -> NDArray[np.float32]:
    """A random vector for each token of `static_tokenizer`, (tokens, width)."""
    size = static_tokenizer().get_vocab_size()
    return np.random.default_rng(seed).standard_normal((size, width)).astype(np.float32)


def write_model2vec(folder: Path, modules: bool = True, **tensors: NDArray[Any]) -> Path:
    """A Model2Vec folder as its save_pretrained writes it; without modules.json as once.

    tensors: `embeddings`, by default `static_table`; perhaps `weights` and `mapping`.
    """
    folder.mkdir(parents=True)
    save_file({"embeddings": static_table(), **tensors}, folder / "model.safetensors")
    static_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}
    write_json(folder / "config.json", config)
    if modules:
        kinds = {"StaticEmbedding": ".", "Normalize": "1_Normalize"}
        prefix = "sentence_transformers.models."
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": prefix + kind}
            for i, (kind, path) in enumerate(kinds.items())
        ]
        write_json(folder / "modules.json", listed)
    return folder


def write_bert(folder: Path, kind: str = "bert", seed: int = 0, **config: Any) -> Path:
    """A plain folder of a network that the native kernel runs: 2 layers, 64 wide, 2 heads.

    kind: "bert", "roberta" or "xlm-roberta". config: other entries of its config.json.
    """
    write_plain(folder)
    sizes = {
        "vocab_size": BertConfig.from_pretrained(folder).vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 48,
        "pad_token_id": 0,
        "initializer_range": 0.1,
    }
    torch.manual_seed(seed)
    network = AutoModel.from_config(AutoConfig.for_model(kind, **{**sizes, **config}))
    network.pooler = None
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if name.endswith(("bias", "LayerNorm.weight")):
                tensor += torch.randn_like(tensor) / 8
    network.save_pretrained(folder)
    return folder


def write_modules(
    folder: Path, modules: Sequence[tuple[str, dict[str, Any], dict[str, torch.Tensor]]] = ()
) -> Path:
    """modules.json of a network's folder. modules: class, config and tensors of those behind it."""
    listed = [("Transformer", "")]
    for i, (kind, config, tensors) in enumerate(modules, 1):
        place = folder / f"{i}_{kind}"
        place.mkdir()
        write_json(place / "config.json", config)
        if tensors:
            save_torch(tensors, place / "model.safetensors")
        listed.append((kind, place.name))
    prefix = "sentence_transformers.models."
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": prefix + kind}
            for i, (kind, path) in enumerate(listed)
        ],
    )
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_cross_encoder(folder: Path, seed: int = 0, labels: int = 1) -> Path:
    """A sequence classifier of the same size; its outputs are random."""
    write_plain(folder, seed)
    config = BertConfig.from_pretrained(folder, num_labels=labels)
    torch.manual_seed(seed)
    network = BertForSequenceClassification(config)
    network.classifier.weight.data *= 2  # scores that differ
    network.save_pretrained(folder)
    return folder
