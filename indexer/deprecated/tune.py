"""Moved to indexer.tuning.tune; this name works for one more release."""

import sys
import warnings

from indexer.tuning import tune

warnings.warn(f"{__name__} is now {tune.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = tune
