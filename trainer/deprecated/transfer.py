"""Moved to trainer.evaluation.transfer; this name works for one more release."""

import sys
import warnings

from trainer.evaluation import transfer

warnings.warn(f"{__name__} is now {transfer.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = transfer
