"""Moved to trainer.evaluation.labels; this name works for one more release."""

import sys
import warnings

from trainer.evaluation import labels

warnings.warn(f"{__name__} is now {labels.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = labels
