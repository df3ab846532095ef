"""The size of the contract: what a new backend must offer."""

from searchengine.backends.contract import Backend, Snapshot

MOST = 26
"""Members of both classes. A function that needs one more is first written with these."""


def members(kind: type) -> set[str]:
    """The public attributes, properties and methods that a class declares."""
    return {name for name in {*vars(kind), *kind.__annotations__} if not name.startswith("_")}


def test_the_contract_is_two_small_classes() -> None:
    assert len(members(Snapshot)) + len(members(Backend)) <= MOST
