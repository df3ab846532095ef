"""Moved to trainer.training.loop; this name works for one more release."""

import sys
import warnings

from trainer.training import loop

warnings.warn(f"{__name__} is now {loop.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = loop
