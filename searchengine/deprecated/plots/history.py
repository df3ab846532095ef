"""Moved to searchengine.report.plots.history; this name works for one more release."""

import sys
import warnings

from searchengine.report.plots import history

warnings.warn(f"{__name__} is now {history.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = history
