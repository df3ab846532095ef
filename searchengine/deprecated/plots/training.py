"""Moved to searchengine.report.plots.training; this name works for one more release."""

import sys
import warnings

from searchengine.report.plots import training

warnings.warn(f"{__name__} is now {training.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = training
