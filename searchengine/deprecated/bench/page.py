"""Moved to searchengine.report.page; this name works for one more release."""

import sys
import warnings

from searchengine.report import page

warnings.warn(f"{__name__} is now {page.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = page
