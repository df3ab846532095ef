"""Moved to indexer.arrays; this name works for one more release."""

import sys
import warnings

from indexer import arrays

warnings.warn(f"{__name__} is now {arrays.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = arrays
