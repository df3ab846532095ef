"""From rankings to the hits of a page: documents, the passage to show of each, `rerank`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf

import numpy as np

from searchengine.backends import limits
from searchengine.backends.contract import Snapshot, Span
from searchengine.backends.listing import facet
from searchengine.backends.mode import Mode, weight_of
from searchengine.backends.synonyms import with_added
from searchengine.errors import QueryError
from searchengine.query.hits import Hit, Hits
from searchengine.query.ranking import Fusion, Part, Ranking
from searchengine.query.request import Query, Question
from searchengine.query.snippets import word_counts


def hits(
    snapshot: Snapshot, query: Query, questions: Sequence[Question], rankings: Sequence[Ranking]
) -> list[Hits]:
    """The hits of several questions, with their documents."""
    every = Part(*map(np.concatenate, zip(*[ranking.part for ranking in rankings], strict=True)))
    documents = iter(snapshot.store.documents(every.documents.tolist()))
    facets = {name: facet(snapshot.store, name, query.where) for name in query.facets}
    passages = _passages_with_words(snapshot, every)
    ids = every.passages[every.passages >= 0].tolist()
    ids += chain.from_iterable(passages.values())
    *_, starts, ends = (column.tolist() for column in snapshot.passages(np.array(ids, np.int64)))
    spans = dict(zip(ids, zip(starts, ends, strict=True), strict=True))
    answers = []
    for question, (part, exact) in zip(questions, rankings, strict=True):
        text, near, answer = question.text, None, Hits(exact=exact, facets=facets)
        if query.mode != Mode.VECTOR:
            text = with_added(text, snapshot.settings)
        if query.mode == Mode.HYBRID:
            near = _cosine_shares(snapshot, question, map(passages.get, part.documents.tolist()))
        for name, passage, score, cosine, bm25 in zip(*map(np.ndarray.tolist, part), strict=True):
            document, best, scores = next(documents), passage, dict[str, float]()
            if cosine > -inf:
                scores["vector"] = cosine
            if bm25 < inf:
                scores["text"] = bm25
            if name in passages and (several := passages[name]):
                places = [spans[each] for each in several]
                shares = None if near is None else [near.get(each, 0.0) for each in several]
                best = several[_passage(document.text, text, score, places, shares)]
            start, end = spans[best] if best in spans else (0, len(document.text))
            stored = document.key, document.title, document.text, document.metadata
            answer.append(Hit(score, *stored, start, end, text, scores))
        answers.append(answer)
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


def _passages_with_words(snapshot: Snapshot, part: Part) -> dict[int, list[int]]:
    """Document → its passages, where it has words of the question, and maybe several passages."""
    worded = part.take(part.bm25 > 0)
    passages: dict[int, list[int]] = {document: [] for document in worded.documents.tolist()}
    if passages and snapshot.cuts:
        best = worded.take(worded.passages >= 0)
        known = dict(zip(best.documents.tolist(), best.passages.tolist(), strict=True))
        for passage, document in snapshot.passages_of([*passages], known).items():
            passages[document].append(passage)
    return passages


def _cosine_shares(
    snapshot: Snapshot, question: Question, passages: Iterable[Sequence[int] | None]
) -> Mapping[int, float]:
    """Passage → the part that its cosine would have in a fused score; of documents with several."""
    compared = [name for names in passages if names and len(names) > 1 for name in names]
    if not compared or question.vector is None:
        return {}
    unrelated, weight = snapshot.unrelated.cosine(question.vector), weight_of(snapshot.settings)
    result = snapshot.cosines(question.vector, np.array(compared, np.int64))
    shares = Fusion(1.0, unrelated, weight).score(result.scores[0].astype(float), 0.0)
    return dict(zip(result.rows[0].tolist(), shares.tolist(), strict=True))


def _passage(
    text: str, question: str, score: float, spans: Sequence[Span], shares: Sequence[float] | None
) -> int:
    """Which of several passages of a document its score chooses; the first of equals.

    A passage has its own cosine, and of what words added to the score of the document as much as
    it has of their weight, compared with the passage that has most. `shares`: the parts of the
    cosines in the score; None: words alone count.
    """
    if len(spans) == 1:
        return 0
    limits.check()
    near = [0.0] * len(spans) if shares is None else shares
    second, first = sorted(near)[-2:]
    words = 1.0 if shares is None else max(0.0, score - first)
    if first > second + words:  # whatever the words are
        return near.index(first)
    weights = word_counts(text, question, spans)
    most = max(weights) or 1.0
    sums = [share + words * weight / most for share, weight in zip(near, weights, strict=True)]
    return sums.index(max(sums))
