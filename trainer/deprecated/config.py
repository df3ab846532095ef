"""Moved to trainer.training.config; this name works for one more release."""

import sys
import warnings

from trainer.training import config

warnings.warn(f"{__name__} is now {config.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = config
