"""What is encoded and when: passages that fit, updates, encoders that lack something."""

from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from cut_documents import DOCUMENTS, EXACT, Words, keys

from searchengine import SearchEngine
from searchengine.errors import CollectionError
from searchengine.ingest.passages import BATCH, PassageConfig


def new_calls(engine: SearchEngine) -> list[list[str]]:
    """The calls of the encoder since the last time."""
    calls: list[list[str]] = engine.encoder.load().calls  # type: ignore[attr-defined]
    found = list(calls)
    calls.clear()
    return found


# ---------------------------------------------------------------------------------- what is encoded


def test_an_update_replaces_all_passages(engine: SearchEngine) -> None:
    new_calls(engine)
    summary = engine.add([{**DOCUMENTS[0], "text": "sixsix sixsix a sixsix sixsix"}])
    assert (summary.added, summary.changed) == (0, 1)
    assert new_calls(engine) == [["sixsix sixsix a sixsix", "sixsix"]]
    assert (engine.stats().passages, engine.stats().tombstones) == (6, 3)
    assert (keys(engine.search("sixsix", 1)), keys(engine.search("bb", 1))) == (["long"], ["near"])
    assert "long" not in keys(engine.search("bb ccc", mode="text"))
    engine.optimize()
    assert (engine.stats().passages, engine.stats().tombstones) == (6, 0)
    assert engine.search("sixsix", 1)[0].passage in ("sixsix", "sixsix sixsix a sixsix")
    engine.verify()


def test_unchanged_documents_are_not_encoded(engine: SearchEngine) -> None:
    new_calls(engine)
    updated = {**DOCUMENTS[0], "n": 99}
    summary = engine.add([updated, *DOCUMENTS[1:], {"_id": "new", "text": "a"}])
    assert (summary.added, summary.metadata_updated, summary.unchanged) == (1, 1, 4)
    assert new_calls(engine) == [["a"]]
    assert [hit.passage for hit in engine.search("ccc", 1, where="n = 99")] == ["ccc ccc ccc ccc"]


def test_a_huge_document_is_encoded_in_blocks_that_fit(tmp_path: Path) -> None:
    words = ["a" * (n % 16 + 1) for n in range(120_000)]
    text = " ".join(words)
    assert len(text) > 1_000_000
    encoder = Words(32)
    with SearchEngine.create(tmp_path / "c", encoder, EXACT) as engine:
        engine.add([{"_id": "small", "text": "bb"}, {"_id": "huge", "text": text}])
        sizes = [len(texts) for texts in encoder.calls]
        assert max(sizes) == BATCH < sum(sizes) == engine.stats().passages
        assert len(sizes) == -(-sum(sizes) // BATCH)
        assert keys(engine.search("bb")) == ["small", "huge"]
        assert keys(engine.search("bb", mode="hybrid")) == ["small", "huge"]
        (hit,) = engine.similar("small")
        assert len(hit.passage.split()) <= 32 and hit.text[hit.start : hit.end] == hit.passage


def test_whole_documents_where_that_is_wished(tmp_path: Path) -> None:
    class Long(Words):
        """Truncates, as encoders do."""

        def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> Any:
            return super().encode([" ".join(text.split()[:4]) for text in texts], role=role)

    with SearchEngine.create(tmp_path / "c", Long(), EXACT, passages=False) as engine:
        engine.add(DOCUMENTS)
        assert (engine.stats().cut, engine.stats().passages) == (None, 5)
        (hit,) = engine.search("a", 1)
        assert (hit.key, hit.passage) == ("long", hit.text)


def test_own_size_of_passages(tmp_path: Path) -> None:
    cut = PassageConfig(2)
    with SearchEngine.create(tmp_path / "c", Words(), EXACT, passages=cut) as engine:
        engine.add(DOCUMENTS[:1])
        assert engine.stats().cut == {"tokens": 2}
        assert new_calls(engine) == [["a a", "a a", "bb bb", "bb bb", "ccc ccc", "ccc ccc"]]
    with SearchEngine.open(tmp_path / "c", Words()) as engine:  # goes on as it was made
        engine.add([{"_id": "x", "text": "dddd dddd dddd dddd"}])
        assert new_calls(engine) == [["dddd dddd", "dddd dddd"]]


# --------------------------------------------------------------------- encoders without a tokenizer


def test_without_a_tokenizer_documents_are_whole_unless_cuts_are_asked_for(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths(), EXACT) as engine:
        engine.add(DOCUMENTS)
        assert (engine.stats().cut, engine.stats().passages) == (None, 5)
    with pytest.raises(CollectionError, match="needs token_spans and room"):
        SearchEngine.create(tmp_path / "d", WordLengths(), EXACT, passages=PassageConfig(8))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("passages", [None, 1, 0, "yes", {"tokens": 3}])
def test_passages_are_yes_no_or_a_size(tmp_path: Path, passages: Any) -> None:
    with pytest.raises(CollectionError, match="passages must be True, False or a PassageConfig"):
        SearchEngine.create(tmp_path / "c", Words(), EXACT, passages=passages)


def test_opened_without_a_tokenizer_it_is_searched_and_not_added_to(
    engine: SearchEngine, tmp_path: Path
) -> None:
    with SearchEngine.open(tmp_path / "c", WordLengths()) as other:
        assert other.search("bb") == engine.search("bb")
        assert other.search("bb", mode="hybrid") == engine.search("bb", mode="hybrid")
        assert len(other.similar("long")) == 4
        with pytest.raises(CollectionError, match="needs token_spans and room"):
            other.add([{"_id": "x", "text": "x"}])
        assert other.delete(["far"]) == 1
    assert engine.add([{"_id": "x", "text": "x"}]).added == 1
