"""Rankings → hits: documents are fetched, and shown by their best passage."""

from collections.abc import Sequence

from searchengine.corpus.documents import Document
from searchengine.query.ranking import Ranking
from searchengine.query.results import Hit, Hits
from searchengine.query.snippets import best_passage
from searchengine.storage.documents.store import Passage
from searchengine.storage.snapshot import Snapshot


def hits(
    snapshot: Snapshot,
    rankings: Sequence[Ranking],
    questions: Sequence[str] | None,
    *,
    by_words: bool = False,
) -> list[Hits]:
    """The hits of some questions (None: vectors), each at most `k`.

    `by_words`: the ranking knows no passages; those with most words of the question are shown.
    """
    ids = [found.passage.document for ranking in rankings for found in ranking.found]
    documents = iter(snapshot.store.documents(ids))
    several: dict[int, list[Passage]] = {}
    if by_words:
        for passage in snapshot.store.passages_of(set(ids)):
            several.setdefault(passage.document, []).append(passage)

    def hit(score: float, passage: Passage, document: Document, question: str) -> Hit:
        start, end = passage.start, passage.end
        if by_words and len(several[passage.document]) > 1:
            spans = [(each.start, each.end) for each in several[passage.document]]
            start, end = best_passage(document.text, question, spans)
        return Hit(
            score, document.key, document.title, document.text, document.metadata,
            start, end, question,
        )  # fmt: skip

    return [
        Hits(
            (hit(found.score, found.passage, next(documents), question) for found in ranking.found),
            proven=ranking.proven,
            read=ranking.read,
        )
        for ranking, question in zip(rankings, questions or [""] * len(rankings), strict=True)
    ]
