"""Moved to searchengine.evaluate.retrieval; this name works for one more release."""

import sys
import warnings

from searchengine.evaluate import retrieval

warnings.warn(f"{__name__} is now {retrieval.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = retrieval
