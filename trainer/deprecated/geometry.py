"""Moved to trainer.evaluation.geometry; this name works for one more release."""

import sys
import warnings

from trainer.evaluation import geometry

warnings.warn(f"{__name__} is now {geometry.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = geometry
