"""Doing the next thing while this one is used."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
END = object()


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is made in a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, END)
        while (item := coming.result()) is not END:
            coming = thread.submit(next, items, END)
            yield item  # type: ignore[misc]
