"""Modules that take seconds to import, imported by the one test process that uses them."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Lazy:
    """A module that is imported when one of its public names is first asked for.

    pytest asks every name of a test file for `_mock_name` and `__wrapped__` while it collects.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    """Skips a test where this package is not installed."""
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"the extra `{extra}` is not installed")
