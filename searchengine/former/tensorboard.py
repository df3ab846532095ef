"""Moved to searchengine.cli.tensorboard; this name works for one more release."""

import sys
import warnings

from searchengine.cli import tensorboard

warnings.warn(f"{__name__} is now {tensorboard.__name__}", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = tensorboard
