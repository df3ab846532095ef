"""How a collection ranks questions that name no mode."""

from numbers import Real
from typing import Any

from searchengine.backends.contract import Backend
from searchengine.backends.mode import CHOSEN, Mode
from searchengine.errors import QueryError


def set_default(
    collection: Backend, mode: Mode | str | None, weight: float | None, *, chosen: bool = True
) -> None:
    """Store the mode and the weight of the cosine, in one commit; None leaves one as it is.

    `chosen`: by a user, so that neither languages nor another encoder change the mode. Raises
    QueryError.
    """
    values: dict[str, Any] = {}
    if mode is not None:
        values["mode"] = _checked_mode(collection, mode)
    if weight is not None:
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= weight <= 1:
            raise QueryError(f"weight must be a number from 0 to 1, got {weight!r}")
        if collection.words is None:
            raise _no_words(collection, f"the weight {weight:g}")
        values["weight"] = float(weight)
    if not values:
        raise QueryError("set_default takes a mode, a weight or both, got neither")
    collection.configure(values | {CHOSEN: True if chosen else None})


def _checked_mode(collection: Backend, mode: Mode | str) -> Mode:
    modes = [each for each in Mode if each is not Mode.AUTO]
    if mode not in modes:
        raise QueryError(f"the default mode must be one of {', '.join(modes)}, got {mode!r}")
    if mode != Mode.VECTOR and collection.words is None:
        raise _no_words(collection, f"the mode {mode}")
    return Mode(mode)


def _no_words(collection: Backend, what: str) -> QueryError:
    return QueryError(
        f"{collection.path} has no index of words, which {what} needs; its mode is vector"
    )
