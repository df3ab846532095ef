"""A collection whose encoder can be improved by a linear map, for the tests of adapt."""

import random
from pathlib import Path
from typing import Any

import torch
from tiny_model import write_sentence_transformer
from transformers import AutoTokenizer, BertModel

TOPICS = "dog cat whale bird man woman child sea house tree car music".split()
NOISE = "the a on in under over near far".split()


def write_bag_of_words(folder: Path) -> Path:
    """A model whose vector is the mean of its words' random vectors; NOISE outweighs TOPICS."""
    write_sentence_transformer(folder)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    with torch.no_grad():
        for layer in model.encoder.layer:
            for dense in (layer.attention.output.dense, layer.output.dense):
                dense.weight.zero_()
                dense.bias.zero_()
        model.embeddings.position_embeddings.weight.zero_()
        model.embeddings.token_type_embeddings.weight.zero_()
    model.save_pretrained(folder)
    return folder


def write_axes(folder: Path) -> Path:
    """The same, each word of TOPICS and NOISE with an axis of its own."""
    model = BertModel.from_pretrained(write_bag_of_words(folder), add_pooling_layer=False)
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    with torch.no_grad():
        words = model.embeddings.word_embeddings.weight
        for axis, word in enumerate(TOPICS + NOISE):
            words[vocabulary[word]] = torch.eye(words.shape[1])[axis]
    model.save_pretrained(folder)
    return folder


def titled(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Documents of one sentence, mostly NOISE, each word more or less often; titles of TOPICS."""
    rng = random.Random(seed)
    rows = []
    for document in documents(count, seed):
        words = document["title"].split()
        for word in NOISE:
            words += [word] * rng.randrange(12)
        rng.shuffle(words)
        rows.append(document | {"text": " ".join(words)})
    return rows


def documents(count: int, seed: int = 0, titles: bool = True) -> list[dict[str, Any]]:
    """Documents about three topics each, in no other's combination, among many other words."""
    rng = random.Random(seed)
    topics: dict[frozenset[str], None] = {}
    while len(topics) < count:
        topics[frozenset(rng.sample(TOPICS, 3))] = None
    return [
        {
            "_id": str(i),
            "title": " ".join(rng.sample(sorted(about), 3)) if titles else "",
            "text": " ".join(_sentence(about, rng) for _ in range(3)),
        }
        for i, about in enumerate(topics)
    ]


def _sentence(about: frozenset[str], rng: random.Random) -> str:
    words = [*sorted(about), *rng.choices(NOISE, k=6)]
    rng.shuffle(words)
    return " ".join(words).capitalize() + "."
