"""Moved to trainer.runtimes.config; this name works for one more release."""

import sys
import warnings

from trainer.runtimes import config

warnings.warn(f"{__name__} is now {config.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = config
