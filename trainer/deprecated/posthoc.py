"""Moved to trainer.training.posthoc; this name works for one more release."""

import sys
import warnings

from trainer.training import posthoc

warnings.warn(f"{__name__} is now {posthoc.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = posthoc
