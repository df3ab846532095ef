"""Moved to searchengine.evaluate.mining; this name works for one more release."""

import sys
import warnings

from searchengine.evaluate import mining

warnings.warn(f"{__name__} is now {mining.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = mining
