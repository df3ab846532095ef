"""Moved to searchengine.report.compare; this name works for one more release."""

import sys
import warnings

from searchengine.report import compare

warnings.warn(f"{__name__} is now {compare.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = compare
