"""Moved to trainer.evaluation.mteb; this name works for one more release."""

import sys
import warnings

from trainer.evaluation import mteb

warnings.warn(f"{__name__} is now {mteb.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = mteb
