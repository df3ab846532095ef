"""Moved to searchengine.report.plots.vectors; this name works for one more release."""

import sys
import warnings

from searchengine.report.plots import vectors

warnings.warn(f"{__name__} is now {vectors.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = vectors
