"""Moved to searchengine.cli.training.display; this name works for one more release."""

import sys
import warnings

from searchengine.cli.training import display

warnings.warn(f"{__name__} is now {display.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = display
