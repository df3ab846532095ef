"""Modules that take seconds to import, imported by the one test process that uses them."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Lazy:
    """A module that is imported when one of its names is first used.

    What pytest looks for in every object of a test file, while it collects, imports nothing.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "_mock_name" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    """Skips a test where this package is not installed."""
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"the extra `{extra}` is not installed")
