"""Synonyms: groups of words and short texts that a search by words takes for each other.

The setting of a collection has one group a line, separated by commas.
"""

import re
from collections.abc import Iterable
from typing import Any

from searchengine.corpus.analyzer import runs
from searchengine.errors import QueryError

SETTING = "synonyms"
"""The setting of a collection, a text as `stored` writes it."""
MAX_GROUPS, MAX_SYNONYMS, MAX_WORDS, MAX_LETTERS = 10_000, 50, 8, 200
"""Maximum groups, synonyms of a group, and words and characters of a synonym."""
_FORBIDDEN = re.compile("[\ud800-\udfff]|,|=>")


def stored(groups: Iterable[Iterable[str]]) -> str:
    """Groups as the setting of a collection. Raises QueryError."""
    checked = [*map(_checked, _listed(groups, "synonyms must be a list of groups"))]
    if len(checked) > MAX_GROUPS:
        raise QueryError(f"synonyms must be at most {MAX_GROUPS:,} groups, got {len(checked):,}")
    return "\n".join(", ".join(group) for group in checked)


def _listed(values: Any, rule: str) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise QueryError(f"{rule}, got {values!r:.80}")
    return values


def _checked(group: Iterable[str]) -> tuple[str, ...]:
    synonyms: dict[str, str] = {}
    for synonym in _listed(group, "a group of synonyms must be a list of texts"):
        text = " ".join(synonym.split()) if isinstance(synonym, str) else ""
        fits = 1 <= len(runs(text)) <= MAX_WORDS and len(text) <= MAX_LETTERS
        if not fits or _FORBIDDEN.search(text):  # all of a group stand for each other: no =>
            raise QueryError(
                f"a synonym must be text of 1 to {MAX_WORDS} words and at most {MAX_LETTERS} "
                f"characters in UTF-8, without commas and =>, got {synonym!r:.80}"
            )
        synonyms.setdefault(text.casefold(), text)
    if not 2 <= len(synonyms) <= MAX_SYNONYMS:
        listed = f"{len(synonyms)}: {', '.join(synonyms.values())!r:.80}"
        raise QueryError(f"a group must have 2 to {MAX_SYNONYMS} different synonyms, got {listed}")
    return tuple(synonyms.values())
