"""From rankings to the hits of a page: documents, the passage to show of each, `rerank`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from searchengine.backends import limits
from searchengine.backends.contract import Snapshot, Span
from searchengine.backends.listing import facet
from searchengine.backends.mode import Mode, weight_of
from searchengine.backends.synonyms import with_added
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.query.fusion import Fusion
from searchengine.query.hits import Hit, Hits
from searchengine.query.ranking import Ranked, Ranking
from searchengine.query.request import Query
from searchengine.query.snippets import word_counts


def hits(
    snapshot: Snapshot,
    query: Query,
    rankings: Sequence[Ranking],
    questions: Sequence[str] | None,
    vectors: Floats | None = None,
) -> list[Hits]:
    """The hits of several questions (None: vectors), with their documents.

    `vectors`: of the questions, (q, D); needed by the mode hybrid.
    """
    if questions is not None and query.mode != Mode.VECTOR:
        questions = [with_added(question, snapshot.settings) for question in questions]
    ranked = [each for ranking in rankings for each in ranking.documents]
    documents = iter(snapshot.documents([each.document for each in ranked]))
    facets = {name: facet(snapshot, name, query.where) for name in query.facets}
    passages = _passages_with_words(snapshot, ranked)
    ids = [each.passage for each in ranked if each.passage >= 0]
    ids += chain.from_iterable(passages.values())
    *_, starts, ends = (column.tolist() for column in snapshot.passages(np.array(ids, np.int64)))
    spans = dict(zip(ids, zip(starts, ends, strict=True), strict=True))
    answers = []
    for i, ranking in enumerate(rankings):
        question, chosen = questions[i] if questions else "", []
        shares: Mapping[int, float] | None = None
        if vectors is not None and query.mode == Mode.HYBRID:
            of_page = [passages.get(each.document, ()) for each in ranking.documents]
            shares = _cosine_shares(snapshot, of_page, vectors[i])
        for each in ranking.documents:
            limits.check()
            document, best = next(documents), each.passage
            if several := passages.get(each.document):
                best = several[0]
                if len(several) > 1:
                    near = None if shares is None else [shares[name] for name in several]
                    places = [spans[name] for name in several]
                    best = several[_passage(document.text, question, each, places, near)]
            start, end = spans.get(best, (0, len(document.text)))
            stored = document.key, document.title, document.text, document.metadata
            chosen.append(Hit(each.score, *stored, start, end, question, each.scores))
        answers.append(Hits(chosen, exact=ranking.exact, facets=facets))
    return answers


def reranked(answer: Hits, question: str, query: Query) -> Hits:
    """The page, once `query.rerank` has ordered the best candidates; the others stay behind them.

    `answer`: the hits of `query.before_rerank`. `question`: empty for a vector. Raises QueryError
    for what are no scores, and whatever the function raises.
    """
    if query.rerank is None or query.offset >= query.candidates or not answer:
        return answer
    candidates = answer[: query.candidates]
    scores = query.rerank(question, candidates[:])
    limits.check()
    try:
        numbers = np.asarray(scores).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, RuntimeError):
        numbers = np.zeros(0)
    if numbers.shape != (len(candidates),) or not np.isfinite(numbers).all():
        raise QueryError(
            f"rerank must return one finite number for each of {len(candidates)} hits, got "
            f"{scores!r:.80}"
        )
    ordered = [
        replace(
            hit, score=score, scores={**hit.scores, str(query.mode): hit.score, "rerank": score}
        )
        for hit, score in zip(candidates, numbers.tolist(), strict=True)
    ]
    ordered.sort(key=lambda hit: (-hit.score, hit.key))
    answer[:] = [*ordered, *answer[query.candidates :]][query.offset : query.depth]
    answer.exact = False
    return answer


def _passages_with_words(snapshot: Snapshot, ranked: Sequence[Ranked]) -> dict[int, list[int]]:
    """Document → its passages, where it has words of the question, and maybe several passages."""
    documents = [each.document for each in ranked if each.scores.get("text", 0.0) > 0]
    passages: dict[int, list[int]] = {document: [] for document in documents}
    if passages and snapshot.settings.get("passages") is not None:  # else they have one at most
        known = {each.document: each.passage for each in ranked if each.passage >= 0}
        stored = snapshot.passages(of=documents, known=known)
        for passage, document in zip(stored.ids.tolist(), stored.documents.tolist(), strict=True):
            passages[document].append(passage)
    return passages


def _cosine_shares(
    snapshot: Snapshot, passages: Sequence[Sequence[int]], vector: Floats
) -> Mapping[int, float] | None:
    """Passage → the part that its cosine would have in a fused score; of documents with several."""
    compared = [name for names in passages if len(names) > 1 for name in names]
    if not compared:
        return None
    fusion = Fusion(1.0, snapshot.unrelated.cosine(vector), weight_of(snapshot.settings))
    result = snapshot.cosines(vector, np.array(compared, np.int64))
    shares = fusion.score(result.scores[0].astype(float), 0.0)
    return dict(zip(result.rows[0].tolist(), shares.tolist(), strict=True))


def _passage(
    text: str,
    question: str,
    ranked: Ranked,
    spans: Sequence[Span],
    shares: Sequence[float] | None,
) -> int:
    """Which of several passages of a document its score chooses; the first of equals.

    A passage has its own cosine, and of what words added to the score of the document as much as
    it has of their weight, compared with the passage that has most. `shares`: the parts of the
    cosines in the score; None: words alone count.
    """
    near = [0.0] * len(spans) if shares is None else shares
    second, first = sorted(near)[-2:]
    words = 1.0 if shares is None else max(0.0, ranked.score - first)
    if first > second + words:  # whatever the words are
        return near.index(first)
    weights = word_counts(text, question, spans)
    most = max(weights) or 1.0
    sums = [share + words * weight / most for share, weight in zip(near, weights, strict=True)]
    return sums.index(max(sums))
