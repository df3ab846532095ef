"""Moved to searchengine.evaluate.judgements; this name works for one more release."""

import sys
import warnings

from searchengine.evaluate import judgements

warnings.warn(f"{__name__} is now {judgements.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = judgements
