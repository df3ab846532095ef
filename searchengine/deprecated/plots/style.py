"""Moved to searchengine.report.plots.style; this name works for one more release."""

import sys
import warnings

from searchengine.report.plots import style

warnings.warn(f"{__name__} is now {style.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = style
