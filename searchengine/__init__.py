"""Train, index, query and measure a coarse-to-fine semantic search engine."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document as Document
    from searchengine.encoders.functions import FunctionEncoder as FunctionEncoder
    from searchengine.encoders.http import HttpEncoder as HttpEncoder
    from searchengine.engine import Hit as Hit
    from searchengine.engine import Hits as Hits
    from searchengine.engine import SearchEngine as SearchEngine
    from searchengine.engine import Stats as Stats
    from searchengine.errors import SearchEngineError as SearchEngineError
    from searchengine.indexer.tuning.goal import Goal as Goal
    from searchengine.trainer.encoder import Encoder as Encoder
    from searchengine.trainer.training.loop import train as train
    from searchengine.trainer.training.train_config import TrainConfig as TrainConfig

__version__ = "1.0.0.dev0"
_MODULES = {
    "Document": "searchengine.corpus.documents",
    "Encoder": "searchengine.trainer.encoder",
    "FunctionEncoder": "searchengine.encoders.functions",
    "Goal": "searchengine.indexer.tuning.goal",
    "Hit": "searchengine.engine",
    "Hits": "searchengine.engine",
    "HttpEncoder": "searchengine.encoders.http",
    "SearchEngine": "searchengine.engine",
    "SearchEngineError": "searchengine.errors",
    "Stats": "searchengine.engine",
    "TrainConfig": "searchengine.trainer.training.train_config",
    "train": "searchengine.trainer.training.loop",
}
__all__ = [*_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Load a name's module when it is first needed, so that `import searchengine` stays light."""
    if name not in _MODULES:
        raise AttributeError(f"module 'searchengine' has no attribute {name!r}")
    if name == "train":
        from searchengine.trainer.errors import TRAINING, require

        require("train", "training", *TRAINING)
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*_MODULES, "__version__"]
