"""Moved to searchengine.cli.training_display; this name works for one more release."""

import sys
import warnings

from searchengine.cli import training_display

warnings.warn(f"{__name__} is now {training_display.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = training_display
