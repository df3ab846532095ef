"""A user's object as an encoder: what is wrong with it is said where it is passed in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.encoders.loading import load_given
from searchengine.errors import CollectionError, SearchEngineError


class Own:
    """The least that an encoder needs."""

    dim: Any = 2
    fingerprint: Any = "own"

    def encode(self, texts: Any, *, role: Any = None) -> Any:
        return [[1.0, float(len(text))] for text in texts]


def test_a_list_of_numbers_becomes_an_array() -> None:
    vectors = load_given(Own()).encode(["a", "bb"], role="document")
    np.testing.assert_array_equal(vectors, [[1, 1], [1, 2]])


def test_what_is_wrong_with_an_object_is_one_sentence() -> None:
    class WithoutRole(Own):
        def encode(self, texts: Any) -> Any:  # type: ignore[override]
            return texts

    class Wide(Own):
        dim = "2"

    class Nameless(Own):
        fingerprint = 5

    for own, message in (
        (WithoutRole(), "encode with the keyword role .*, got .*encode.*'texts'"),
        (Wide(), r"must have dim \(a whole number\).*, got dim='2'"),
        (Nameless(), r"fingerprint \(text.*got .*fingerprint=5"),
    ):
        with pytest.raises(CollectionError, match=message):
            load_given(own)


def test_other_settings_are_refused_when_a_collection_is_there(tmp_path: Path) -> None:
    path = tmp_path / "c"
    SearchEngine.open_or_create(path, Own(), {"prefix": 1}).close()
    options: Any
    for options, message in (
        ({"dim": 3}, "has vectors of 2 numbers, got dim=3"),
        ({"config": {"prefx": 8}}, "'prefx' is no field of an index config"),
        ({"config": {"prefix": 2}}, "has prefix 1, got 2"),
    ):
        with pytest.raises(SearchEngineError, match=message):
            SearchEngine.open_or_create(path, Own(), **options)
