"""From a checked request to hits: rank documents by vectors, words or both, then fetch them."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache

import numpy as np

from searchengine.backends import limits
from searchengine.backends.contract import Place, Snapshot, Span, WordScores
from searchengine.backends.folder.documents.synonyms import with_added
from searchengine.backends.listing import facet
from searchengine.backends.mode import Mode, weight_of
from searchengine.corpus.documents import Document
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.query import fusion
from searchengine.query.hits import Hit, Hits
from searchengine.query.nearest import Nearest, cosines_of, labels, nearest
from searchengine.query.paging import (
    MAX_DEPTH,
    Part,
    Ranked,
    Ranking,
    distinct,
    in_parts,
)
from searchengine.query.request import Query
from searchengine.query.snippets import word_counts, word_weights

FUSED = 100
"""Documents of the ranking by words that are fused with that by vectors, however many are shown:
else the scores, and so the order, would depend on the page."""


def rank(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str] | None,
    vectors: Floats | None,
    *,
    without: Set[int] = frozenset(),
) -> list[Ranking]:
    """The rankings for several questions: the documents to show.

    Args:
        snapshot: the commit to search.
        query: the options.
        questions: texts; needed by the modes text and hybrid.
        vectors: (q, D) float32; needed by the modes vector and hybrid.
        without: documents to leave out, in the mode vector.
    """
    if query.mode == Mode.VECTOR:
        assert vectors is not None
        part, count = _by_vector(snapshot, query, vectors, without), len(vectors)
    elif query.by_words:
        assert questions is not None
        part, count = _by_text(snapshot, query, questions), len(questions)
    else:
        assert questions is not None and vectors is not None
        part, count = _by_both(snapshot, query, questions, vectors), len(questions)
    if query.min_score is not None:
        part = _above(part, query.min_score)
    rankings = in_parts(part, count, min(query.depth, MAX_DEPTH), labels(snapshot, query)[0])
    if not query.offset:
        return rankings
    return [replace(ranking, documents=ranking.documents[query.offset :]) for ranking in rankings]


def _by_vector(snapshot: Snapshot, query: Query, vectors: Floats, without: Set[int]) -> Part:
    """The documents nearest to every vector."""

    def part(positions: Sequence[int], number: int, depth: int) -> list[Ranking]:
        matches = nearest(snapshot, query, vectors[positions], number, depth, without=without)
        return [Ranking(match.documents, match.exact, match.last) for match in matches]

    return part


def _by_text(snapshot: Snapshot, query: Query, questions: Sequence[str]) -> Part:
    """The best documents by BM25, each with its first passage.

    `hits` chooses the passage with most words of the question, once it has the texts.
    """

    def ranking(question: str, depth: int) -> Ranking:
        best = scored_by_words(snapshot, query, question, depth)
        first = _first_passages(snapshot, best)
        return Ranking(
            [
                Ranked(score, Place(first.get(document, -1), document), {"text": score})
                for document, score in best
            ]
        )

    return lambda positions, _, depth: [ranking(questions[i], depth) for i in positions]


def _first_passages(snapshot: Snapshot, scored: WordScores) -> Mapping[int, int]:
    """Document → its first passage, of those that have one."""
    others = [document for document, _ in scored if document not in scored.first]
    if not others:
        return scored.first
    passages = reversed(snapshot.passages_of(others, {}).items())
    return {**scored.first, **{document: passage for passage, document in passages}}


def scored_by_words(snapshot: Snapshot, query: Query, question: str, depth: int) -> WordScores:
    """The `depth` best documents by BM25."""
    label, _ = labels(snapshot, query)
    count = depth if query.group_by is None else 4 * depth
    while True:
        limits.check()
        scored = snapshot.by_words(
            question,
            count,
            query.where,
            required=query.required(question),
        )
        named = label(document for document, _ in scored)
        best = distinct(scored, (named[document] for document, _ in scored), depth)
        if len(best) == depth or len(scored) < count:
            return WordScores(best, scored.most, scored.scale, scored.first)
        count *= 4


def _by_both(snapshot: Snapshot, query: Query, questions: Sequence[str], vectors: Floats) -> Part:
    """Both rankings fused, see query.fusion."""
    ungrouped = replace(query, group_by=None)
    lowest: dict[int, float] = {}

    @cache
    def by_words(i: int) -> tuple[WordScores, fusion.Fusion]:
        return worded(snapshot, ungrouped, questions[i], vectors[i])

    def part(positions: Sequence[int], number: int, depth: int) -> list[Ranking]:
        rankings: dict[int, Ranking] = {}
        enough = depth if query.group_by is None else MAX_DEPTH
        for texts, group in _by_phrases(query, questions, positions):
            # Of a group, only its nearest document and those with words can be the best.
            parts = nearest(snapshot, query, vectors[group], number, depth, texts=texts)
            for i, by_vector in zip(group, parts, strict=True):
                limits.check()
                scored, scoring = by_words(i)
                fused = _fused(snapshot, by_vector, scored, scoring, vectors[i], enough)
                if by_vector.last and len(fused.documents) < depth and len(scored) == FUSED:
                    fused = _with_all_by_words(snapshot, ungrouped, questions[i], fused, scoring)
                most = lowest.get(i, np.inf) if number else np.inf
                fused = _at_most(fused, most)
                lowest[i] = fused.documents[-1].score if fused.documents else most
                rankings[i] = _grouped(snapshot, query, fused)
        return [rankings[i] for i in positions]

    return part


def worded(
    snapshot: Snapshot, query: Query, question: str, vector: Floats
) -> tuple[WordScores, fusion.Fusion]:
    """The best documents by words, with their BM25, and what fuses it with cosines.

    `vector`: of the question, (D,).
    """
    scored = scored_by_words(snapshot, query, question, FUSED)
    weight = weight_of(snapshot.settings)
    return scored, fusion.Fusion(scored.scale, snapshot.unrelated.cosine(vector), weight)


def rank_by_weights(
    snapshot: Snapshot,
    questions: Sequence[str],
    vectors: Floats,
    weights: Sequence[float],
    depth: int,
) -> list[dict[float, list[str]]]:
    """For each question: weight of the cosine → keys; see SearchEngine.rank_by_weights."""
    query, ranked = Query(depth, mode=Mode.HYBRID), []
    for question, vector in zip(questions, vectors, strict=True):
        required = query.required(question)
        (match,) = nearest(snapshot, query, vector[None], 0, depth, texts=required)
        scored, scoring = worded(snapshot, query, question, vector)
        cosines, _ = _with_words(snapshot, match, scored, vector)
        bm25 = dict(scored)
        alone = {0.0: list(bm25), 1.0: [found.passage.document for found in match.documents]}
        ranked.append(
            {
                weight: (
                    alone[weight]
                    if weight in alone
                    else [i for i, _ in replace(scoring, weight=weight).all(cosines, bm25)]
                )[:depth]
                for weight in weights
            }
        )
    ids = list({i for orders in ranked for order in orders.values() for i in order})
    keys = dict(zip(ids, snapshot.store.keys_of(ids), strict=True))
    return [
        {weight: [keys[i] for i in order] for weight, order in orders.items()} for orders in ranked
    ]


def _by_phrases(
    query: Query, questions: Sequence[str], positions: Sequence[int]
) -> Iterable[tuple[tuple[str, ...], list[int]]]:
    """The phrases that documents must contain, and the questions that require them."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in positions:
        groups.setdefault(query.required(questions[i]), []).append(i)
    return groups.items()


def _fused(
    snapshot: Snapshot,
    by_vector: Nearest,
    scored: WordScores,
    scoring: fusion.Fusion,
    vector: Floats,
    depth: int,
) -> Ranking:
    """A part of the documents by vectors, and the best by words: the first `depth` of them, or all.

    Without those that documents of the next part may exceed: these have no word that counts, and at
    most the last cosine of this part.
    """
    cosines, passages = _with_words(snapshot, by_vector, scored, vector)
    bm25, lowest = dict(scored), (-np.inf, -np.inf)
    if not by_vector.last:
        lowest = scoring.score(float(by_vector.cosines[-1]), 0.0), float(by_vector.cosines[-1])
    documents = [
        Ranked(
            score,
            passages.get(document) or Place(-1, document),
            _parts(cosines.get(document), bm25.get(document)),
        )
        for document, score in scoring.all(cosines, bm25)[:depth]
        if (score, cosines.get(document, -np.inf)) >= lowest
    ]
    return Ranking(documents, last=by_vector.last)


def _at_most(ranking: Ranking, most: float) -> Ranking:
    """With scores that fall: a document that a part before missed has at most its last score."""
    documents = []
    for ranked in ranking.documents:
        most = min(most, ranked.score)
        documents.append(ranked if ranked.score == most else ranked._replace(score=most))
    return replace(ranking, documents=documents)


def _with_words(
    snapshot: Snapshot, by_vector: Nearest, scored: WordScores, vector: Floats
) -> tuple[dict[int, float], dict[int, Place]]:
    """The cosine and the best passage of documents by vectors, and of those by words."""
    passages = {ranked.passage.document: ranked.passage for ranked in by_vector.documents}
    cosines = {ranked.passage.document: ranked.score for ranked in by_vector.documents}
    others = [document for document, _ in scored if document not in passages]
    found = cosines_of(snapshot, others, scored.first, vector, by_vector)
    for document, (cosine, passage) in found.items():
        cosines[document], passages[document] = cosine, passage
    return cosines, passages


def _with_all_by_words(
    snapshot: Snapshot, query: Query, question: str, fused: Ranking, scoring: fusion.Fusion
) -> Ranking:
    """Documents without a vector that are not among the best by words, after all others."""
    seen = {ranked.passage.document for ranked in fused.documents}
    more = [
        Ranked(scoring.score(None, score), Place(-1, document), {"text": score})
        for document, score in scored_by_words(snapshot, query, question, MAX_DEPTH)
        if document not in seen
    ]
    return replace(fused, documents=[*fused.documents, *more])


def _grouped(snapshot: Snapshot, query: Query, ranking: Ranking) -> Ranking:
    """The first document of every group."""
    if query.group_by is None:
        return ranking
    label, _ = labels(snapshot, query)
    documents = ranking.documents
    named = label(ranked.passage.document for ranked in documents)
    names = (named[ranked.passage.document] for ranked in documents)
    best = distinct(documents, names, len(documents))
    return replace(ranking, documents=best)


def _parts(cosine: float | None, bm25: float | None) -> dict[str, float]:
    """The parts of a document's score: its cosine, if it has one, and BM25, or 0."""
    text = {"text": 0.0 if bm25 is None else bm25}
    return text if cosine is None else {"vector": cosine, **text}


def _above(part: Part, score: float) -> Part:
    """The documents of each part with at least this score; a part ends at the first below it."""

    def above(positions: Sequence[int], number: int, depth: int) -> list[Ranking]:
        rankings = []
        for ranking in part(positions, number, depth):
            documents = [ranked for ranked in ranking.documents if ranked.score >= score]
            last = ranking.last or len(documents) < len(ranking.documents)
            rankings.append(replace(ranking, documents=documents, last=last))
        return rankings

    return above


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
    places = [ranked.passage for ranking in rankings for ranked in ranking.documents]
    documents = iter(snapshot.store.documents(place.document for place in places))
    facets = {name: facet(snapshot.store, name, query.where) for name in query.facets}
    passages = _passages_to_choose(snapshot, rankings)
    ids = {place.id for place in places if place.id >= 0}.union(*passages.values())
    spans = dict(zip(ids, snapshot.spans_of(list(ids)), strict=True))

    def hit(
        ranked: Ranked, document: Document, question: str, shares: Mapping[int, float] | None
    ) -> Hit:
        limits.check()
        best, choice = ranked.passage.id, passages.get(ranked.passage.document, ())
        if choice:
            best = _passage(document.text, question, ranked, {i: spans[i] for i in choice}, shares)
        start, end = spans.get(best, (0, len(document.text)))
        return Hit(
            ranked.score, document.key, document.title, document.text, document.metadata,
            start, end, question, ranked.scores,
        )  # fmt: skip

    def present(ranking: Ranking, question: str, vector: Floats | None) -> Hits:
        shares = None
        if vector is not None and query.mode == Mode.HYBRID:
            found = (ranked.passage.document for ranked in ranking.documents)
            compared = [passage for name in found for passage in passages.get(name, ())]
            shares = _cosine_shares(snapshot, compared, vector)
        chosen = [hit(ranked, next(documents), question, shares) for ranked in ranking.documents]
        return Hits(chosen, exact=ranking.exact, facets=facets)

    texts = questions or [""] * len(rankings)
    encoded: Iterable[Floats | None] = [None] * len(rankings) if vectors is None else vectors
    return [present(*each) for each in zip(rankings, texts, encoded, strict=True)]


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
    except (TypeError, ValueError, RuntimeError) as error:
        raise QueryError(f"rerank must return numbers, got {scores!r:.80}") from error
    if numbers.shape != (len(candidates),):
        raise QueryError(
            f"rerank must return one number for each of {len(candidates)} hits, got an array of "
            f"shape {numbers.shape}"
        )
    if not np.isfinite(numbers).all():
        raise QueryError(f"rerank must return finite numbers, got {scores!r:.80}")
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


def _passages_to_choose(snapshot: Snapshot, rankings: Sequence[Ranking]) -> Mapping[int, list[int]]:
    """Document → its passages, of those that have several and words of the question."""
    known = {
        ranked.passage.document: ranked.passage.id
        for ranking in rankings
        for ranked in ranking.documents
        if ranked.passage.id >= 0 and ranked.scores.get("text", 0.0) > 0
    }
    passages: dict[int, list[int]] = {}
    for passage, document in snapshot.passages_of(list(known), known).items() if known else ():
        passages.setdefault(document, []).append(passage)
    return {document: several for document, several in passages.items() if len(several) > 1}


def _cosine_shares(
    snapshot: Snapshot, passages: Sequence[int], vector: Floats
) -> Mapping[int, float]:
    """Passage → the part that its cosine would have in a fused score."""
    if not passages:
        return {}
    unrelated = snapshot.unrelated.cosine(vector)
    scoring = fusion.Fusion(1.0, unrelated, weight_of(snapshot.settings))
    result = snapshot.cosines(vector, np.array(passages, np.int64))
    pairs = zip(result.rows[0].tolist(), result.scores[0].tolist(), strict=True)
    return {passage: scoring.score(cosine, 0.0) for passage, cosine in pairs}


def _passage(
    text: str,
    question: str,
    ranked: Ranked,
    spans: Mapping[int, Span],
    shares: Mapping[int, float] | None,
) -> int:
    """The passage of a document that its score chooses; the first of equals.

    A passage has its own cosine, and of what words added to the score of the document as much as
    it has of their weight, compared with the passage that has most. `shares`: the parts of the
    cosines in the score; None: words alone count.
    """
    near = dict.fromkeys(spans, 0.0) if shares is None else {i: shares[i] for i in spans}
    first, second = sorted(near.values(), reverse=True)[:2]
    weigh, words = word_weights, 1.0
    if shares is not None:
        weigh, words = word_counts, max(0.0, ranked.score - first)
    if first > second + words:  # whatever the words are
        return max(near, key=near.__getitem__)
    weights = dict(zip(spans, weigh(text, question, [*spans.values()]), strict=True))
    most = max(weights.values()) or 1.0
    return max(near, key=lambda passage: near[passage] + words * weights[passage] / most)
