"""Encoders with a short name, and the prompts of published models whose folders name none.

docs/encoding.md has a table of these encoders: sizes, licences, published figures.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from searchengine.trainer.sources.multilingual import MULTILINGUAL

STARTER, LEAF = "starter", "leaf"
# Name → model of the hub and its commit. Packages carry the starter and the multilingual one too.
NAMES = {
    STARTER: "sentence-transformers/all-MiniLM-L6-v2@8b3219a92973c328a8e22fadcfa821b5dc75636a",
    LEAF: "MongoDB/mdbr-leaf-ir@2e46f5aac796e621d51f678c306a66ede4712ecb",
    "arctic-s": "Snowflake/snowflake-arctic-embed-s@d3c1d2d433dd0fdc8e9ca01331a5f225639e798f",
    "bge-small": "BAAI/bge-small-en-v1.5@5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
    "e5-small": "intfloat/e5-small-v2@dca8b1a9dae0d4575df2bf423a5edb485a431236",
    MULTILINGUAL: "intfloat/multilingual-e5-small@fd1525a9fd15316a2d503bf26ab031a61d056e98",
}

# Patterns of the names of models, in small letters and without the owner → the prompts that their
# cards name and their folders do not.
_E5 = {"query": "query: ", "document": "passage: "}
_NOMIC = {"query": "search_query: ", "document": "search_document: "}
_WEB = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
_PASSAGES = {"query": "Represent this sentence for searching relevant passages: "}
PUBLISHED: Mapping[str, Mapping[str, str]] = {
    r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?": _E5,
    r"multilingual-e5-large-instruct|e5-mistral-7b-instruct": {"query": f"{_WEB} "},
    r"qwen3-embedding-(0\.6|4|8)b": {"query": _WEB},
    r"bge-(small|base|large)-en(-v1\.5)?|mxbai-embed-large-v1|uae-large-v1": _PASSAGES,
    r"bge-(small|base|large)-zh(-v1\.5)?": {"query": "为这个句子生成表示以用于检索相关文章："},
    r"snowflake-arctic-embed-(xs|s|m|l|m-long|m-v1\.5)|mdbr-leaf-ir": _PASSAGES,
    r"snowflake-arctic-embed-[ml]-v2\.0": {"query": "query: "},
    r"nomic-embed-text-(v1|v1\.5|v2-moe)|modernbert-embed-base": _NOMIC,
}


def published_prompts(folder: Path) -> Mapping[str, str]:
    """The prompts that a published model wants, where its folder does not name them; or {}.

    A model is known by the name of its folder, or of the model that the hub's cache stores there.
    """
    place = folder.resolve()
    name = place.name
    if place.parent.name == "snapshots":  # models--OWNER--NAME/snapshots/COMMIT
        name = place.parent.parent.name.rpartition("--")[2]
    return next((p for pattern, p in PUBLISHED.items() if re.fullmatch(pattern, name.lower())), {})
