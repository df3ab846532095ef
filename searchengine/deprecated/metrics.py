"""Moved to searchengine.evaluate.metrics; this name works for one more release."""

import sys
import warnings

from searchengine.evaluate import metrics

warnings.warn(f"{__name__} is now {metrics.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = metrics
