"""From a checked request to hits: rank documents by vectors, words or both, then fetch them."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest

import numpy as np

from indexer.arrays import Floats
from searchengine.backends.contract import Snapshot
from searchengine.corpus.documents import Document
from searchengine.errors import QueryError
from searchengine.query import fusion
from searchengine.query.diversity import mmr
from searchengine.query.hits import Hit, Hits, ordered_by
from searchengine.query.paging import FIRST, Label, Ranked, Ranking, in_parts
from searchengine.query.request import Query
from searchengine.query.snippets import best_passage
from searchengine.storage.documents import lexical
from searchengine.storage.documents.listing import facet
from searchengine.storage.documents.questions import phrases
from searchengine.storage.documents.tables import Passage
from searchengine.storage.mode import Mode

FUSED = 100
"""Documents of the ranking by words that are fused with that by vectors, however many are shown:
else the scores, and so the order, would depend on the page."""
_DEEPEST = 1 << 40  # SQLite's integers end at 2⁶³
_MIN_DIVERSE = 50  # candidates for diversity; 4 k if that is more


def rank(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str] | None,
    vectors: Floats | None,
    *,
    without: int | None = None,
) -> list[Ranking]:
    """The rankings for several questions: the documents to show.

    Args:
        snapshot: the commit to search.
        query: the options.
        questions: texts; needed by the modes text and hybrid.
        vectors: (q, D) float32; needed by the modes vector and hybrid.
        without: a document to leave out; only by vectors.
    """

    count = len(vectors if vectors is not None else questions or ())

    def search(positions: Sequence[int], depth: int) -> list[Ranking]:
        if len(positions) == count:
            return _ranked(snapshot, query, questions, vectors, depth, without)
        texts = None if questions is None else [questions[i] for i in positions]
        rows = None if vectors is None else vectors[positions]
        return _ranked(snapshot, query, texts, rows, depth, without)

    if query.exact:  # the order of all documents, whatever the depth
        rankings = search(range(count), query.depth)
    else:
        rankings = in_parts(search, count, query.depth, _label(snapshot, query)[0])
    shown = slice(query.offset, query.depth)
    if shown == slice(0, FIRST):
        return rankings
    return [replace(each, documents=each.documents[shown]) for each in rankings]


def _ranked(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str] | None,
    vectors: Floats | None,
    count: int,
    without: int | None,
) -> list[Ranking]:
    """The best `count` documents of several questions, at one depth of search."""
    depth = max(_MIN_DIVERSE, 4 * count) if query.diversity else count
    depth = min(depth, _DEEPEST)
    if query.mode == Mode.VECTOR:
        assert vectors is not None
        rankings = _by_vector(snapshot, query, vectors, depth, without)
    elif query.by_words:
        assert questions is not None
        rankings = [_by_text(snapshot, query, question, depth) for question in questions]
    else:
        assert questions is not None and vectors is not None
        rankings = [Ranking(())] * len(questions)
        for texts, group in _by_phrases(questions):
            asked = [questions[i] for i in group]
            ranked = _by_both(snapshot, query, asked, vectors[group], depth, texts)
            for i, ranking in zip(group, ranked, strict=True):
                rankings[i] = ranking
    if query.min_score is not None:
        rankings = [_above(ranking, query.min_score) for ranking in rankings]
    if query.diversity:
        rankings = [_diverse(snapshot, query, ranking, count) for ranking in rankings]
    return rankings


def nearest_to(snapshot: Snapshot, query: Query, key: str) -> list[Ranking]:
    """The ranking by similarity to a stored document (the mean of its passages), without itself.

    Raises QueryError for an unknown key, and for options that need a question.
    """
    if query.mode != Mode.VECTOR:
        raise QueryError(f"similar needs the mode vector, got {query.mode}; leave mode out")
    if query.layers is not None:
        raise QueryError("similar encodes nothing; leave layers out")
    if query.as_you_type:
        raise QueryError("similar takes no question; leave as_you_type out")
    if query.cross_encoder is not None:
        raise QueryError("similar takes no question; leave cross_encoder out")
    document = snapshot.store.ids_of([key]).get(key)
    if document is None:
        raise QueryError(f"{snapshot.path} has no document {key!r}")
    passages = snapshot.store.passages_of([document])
    if not passages:
        raise QueryError(
            f"the document {key!r} has no vector; search for its words instead: mode='text'"
        )
    vectors = snapshot.vectors(np.array([passage.id for passage in passages]))
    return rank(snapshot, query, None, vectors.mean(axis=0, keepdims=True), without=document)


def _by_phrases(questions: Sequence[str]) -> Iterable[tuple[tuple[str, ...], list[int]]]:
    """The phrases that documents must contain, and the questions that have them in quotes."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, question in enumerate(questions):
        groups.setdefault(phrases(question), []).append(i)
    return groups.items()


def _by_vector(
    snapshot: Snapshot,
    query: Query,
    vectors: Floats,
    depth: int,
    without: int | None = None,
    texts: tuple[str, ...] = (),
) -> list[Ranking]:
    """The `depth` best documents for every vector, each by its best passage."""
    if not snapshot.rows:
        return [Ranking((), exact=True)] * len(vectors)
    label, several = _label(snapshot, query)
    rankings = [Ranking(())] * len(vectors)
    pending, depth = np.arange(len(vectors)), min(depth, snapshot.rows)
    count = (2 * depth if several else depth) + (without is not None)
    while pending.size:
        result = snapshot.search(
            vectors[pending],
            count,
            shortlist=query.shortlist,
            where=query.where,
            phrases=texts,
            exact=query.exact,
        )
        valid = result.rows >= 0
        passages = snapshot.store.passages(result.rows[valid])
        labels = label({passage.document for passage in passages})
        ends = np.cumsum(valid.sum(axis=1))
        short = []
        for i, (end, inside) in enumerate(zip(ends, valid, strict=True)):
            ranked = passages[end - inside.sum() : end]
            nearest = {passage.document: passage for passage in reversed(ranked)}
            # Stored rows are rounded, so a computed cosine can exceed 1 slightly. The order stays
            # that of the computed scores.
            cosines = result.scores[i][inside].clip(-1, 1)
            scored = [
                (passage.document, float(score))
                for passage, score in zip(ranked, cosines, strict=True)
                if passage.document != without
            ]
            best = _distinct(scored, labels, depth)
            documents = [
                Ranked(score, nearest[document], {"vector": score}) for document, score in best
            ]
            share = None if result.read is None else float(result.read[i] / max(1, snapshot.rows))
            rankings[pending[i]] = Ranking(documents, result.exact, share)
            short.append(len(documents) < depth and bool(inside.all()) and inside.size >= count)
        pending, count = pending[np.array(short)], 4 * count
    return rankings


def _by_text(snapshot: Snapshot, query: Query, question: str, depth: int) -> Ranking:
    """The `depth` best documents by BM25, each with its first passage.

    `hits` chooses the passage with most words of the question, once it has the texts.
    """
    best = _scored_by_words(snapshot, query, question, depth)
    passages = snapshot.store.passages_of(document for document, _ in best)
    first = {passage.document: passage for passage in reversed(passages)}
    return Ranking(
        [
            Ranked(score, first.get(document, _whole(document)), {"text": score})
            for document, score in best
        ]
    )


def _scored_by_words(snapshot: Snapshot, query: Query, question: str, depth: int) -> lexical.Scored:
    """The `depth` best documents by BM25."""
    label, _ = _label(snapshot, query)
    count = depth if query.group_by is None else 4 * depth
    while True:
        scored = snapshot.by_words(question, count, query.where, as_you_type=query.as_you_type)
        labels = label(document for document, _ in scored)
        best = _distinct(scored, labels, depth)
        if len(best) == depth or len(scored) < count:
            return best
        count *= 4


def _by_both(
    snapshot: Snapshot,
    query: Query,
    questions: Sequence[str],
    vectors: Floats,
    depth: int,
    texts: tuple[str, ...],
) -> list[Ranking]:
    """Both rankings fused, see query.fusion; repeated with more documents if there are too few
    groups. `texts`: phrases of all these questions."""
    label, _ = _label(snapshot, query)
    ungrouped = replace(query, group_by=None)
    rankings = [Ranking(())] * len(questions)
    by_words = [dict(_scored_by_words(snapshot, ungrouped, each, FUSED)) for each in questions]
    pending, count = list(range(len(questions))), depth
    while pending:
        short = []
        rankings_by_vector = _by_vector(snapshot, ungrouped, vectors[pending], count, texts=texts)
        for i, near in zip(pending, rankings_by_vector, strict=True):
            bm25 = by_words[i]
            nearest = {ranked.passage.document: ranked.passage for ranked in near.documents}
            cosines = {ranked.passage.document: ranked.score for ranked in near.documents}
            ends = len(nearest) < count  # all documents with vectors are there
            others = [each for each in bm25 if each not in nearest]
            rounds: Iterable[Sequence[int]] = [others]
            if query.group_by is None and len(cosines) >= depth:
                rounds = _promising(others, cosines, bm25, depth)
            for some in rounds:
                for document, (cosine, passage) in _nearest(snapshot, some, vectors[i]).items():
                    cosines[document], nearest[document] = cosine, passage
            fused = fusion.weighted(cosines, bm25)
            best = _distinct(fused, label(document for document, _ in fused), depth)
            if len(best) < depth and ends and len(bm25) == FUSED:
                # Then come documents that have no vector and are not among the best by words.
                highest = max(bm25.values())
                for document, score in _scored_by_words(snapshot, query, questions[i], depth):
                    if document not in cosines and document not in bm25:
                        bm25[document] = score
                        fused.append((document, fusion.sum_of(0.0, score / highest)))
                best = _distinct(fused, label(document for document, _ in fused), depth)
            rankings[i] = Ranking(
                [
                    Ranked(
                        score,
                        nearest.get(document) or _whole(document),
                        _parts(cosines.get(document), bm25.get(document)),
                    )
                    for document, score in best
                ]
            )
            if len(best) < depth and not ends:
                short.append(i)
        pending, count = short, 4 * count
    return rankings


def _promising(
    others: Sequence[int], cosines: Mapping[int, float], bm25: Mapping[int, float], depth: int
) -> Iterator[Sequence[int]]:
    """Of documents found by words alone, best first, those that may be among the `depth` best.

    Their cosine is at most the lowest of those that were found by vectors. In two rounds: once
    `cosines` has those of the first, few of the rest remain.
    """
    lowest, highest = max(0.0, min(cosines.values())), max(bm25.values(), default=1.0)

    def bound(document: int) -> float:
        return fusion.sum_of(lowest, bm25[document] / highest)

    def least() -> float:
        known = [fusion.sum_of(each, bm25.get(i, 0.0) / highest) for i, each in cosines.items()]
        return nlargest(depth, known)[-1]

    for first, end in ((0, 2 * depth), (2 * depth, len(others))):
        # Bounds fall, so their negatives rise.
        enough = bisect_right(others, -least(), key=lambda document: -bound(document))
        yield others[first : min(end, enough)]


def _parts(cosine: float | None, bm25: float | None) -> dict[str, float]:
    """What the score of a document found by vectors, words or both is made of."""
    parts = {"vector": cosine, "text": bm25}
    return {name: score for name, score in parts.items() if score is not None}


def _above(ranking: Ranking, score: float) -> Ranking:
    """The ranked documents with at least this score."""
    kept = [ranked for ranked in ranking.documents if ranked.score >= score]
    return replace(ranking, documents=kept)


def _diverse(snapshot: Snapshot, query: Query, ranking: Ranking, count: int) -> Ranking:
    """The best `count` candidates by maximal marginal relevance."""
    if not ranking.documents:
        return ranking
    relevance = np.array([ranked.score for ranked in ranking.documents], np.float32)
    if query.mode != Mode.VECTOR:  # not cosines: scale to 0 … 1
        relevance = (relevance - relevance.min()) / (np.ptp(relevance) or 1)
    ids = np.array([ranked.passage.id for ranked in ranking.documents])
    vectors = np.zeros((len(ids), snapshot.settings["encoder"]["dim"]), np.float32)
    if (ids >= 0).any():  # a document without a vector resembles no other
        vectors[ids >= 0] = snapshot.vectors(ids[ids >= 0])
    chosen = mmr(relevance, vectors, min(count, len(relevance)), query.diversity)
    return Ranking([ranking.documents[i] for i in chosen])


def _whole(document: int) -> Passage:
    """In place of a passage, for a document without vectors; its text is not known yet."""
    return Passage(-1, document, 0, 0)


def _label(snapshot: Snapshot, query: Query) -> tuple[Label, bool]:
    """The labels of documents, and whether several passages may have one label."""
    if query.group_by is None:
        return lambda documents: {i: i for i in documents}, snapshot.cuts
    field = query.group_by
    return lambda documents: snapshot.store.values(documents, field), True


def _distinct(scored: lexical.Scored, labels: Mapping[int, Hashable], limit: int) -> lexical.Scored:
    """The first document of every label, at most `limit`."""
    first: dict[Hashable, tuple[int, float]] = {}
    for document, score in scored:
        if len(first) == limit:
            break
        first.setdefault(labels[document], (document, score))
    return list(first.values())


def _nearest(
    snapshot: Snapshot, documents: Iterable[int], vector: Floats
) -> Mapping[int, tuple[float, Passage]]:
    """Documents with vectors: the highest cosine to a vector (D,), and the passage that has it."""
    passages = {passage.id: passage for passage in snapshot.store.passages_of(documents)}
    if not passages:
        return {}
    found = snapshot.cosines(vector, np.fromiter(passages, np.int64, len(passages)))
    best: dict[int, tuple[float, Passage]] = {}
    cosines = found.scores[0].clip(-1, 1).tolist()
    for row, cosine in zip(found.rows[0].tolist(), cosines, strict=True):
        passage = passages[row]
        best.setdefault(passage.document, (cosine, passage))
    return best


def hits(
    snapshot: Snapshot,
    query: Query,
    rankings: Sequence[Ranking],
    questions: Sequence[str] | None,
) -> list[Hits]:
    """The hits of several questions (None: vectors), with their documents."""
    ids = [ranked.passage.document for ranking in rankings for ranked in ranking.documents]
    documents = iter(snapshot.store.documents(ids))
    facets = {name: facet(snapshot.store, name, query.where) for name in query.facets}
    several: dict[int, list[Passage]] = {}
    if query.by_words:  # the ranking chose no passages: take those with most words of the question
        for passage in snapshot.store.passages_of(set(ids)):
            several.setdefault(passage.document, []).append(passage)

    def hit(ranked: Ranked, document: Document, question: str) -> Hit:
        passage = ranked.passage
        start, end = passage.start, passage.end
        if passage.id < 0:
            start, end = 0, len(document.text)
        elif query.by_words and len(several[passage.document]) > 1:
            spans = [(other.start, other.end) for other in several[passage.document]]
            start, end = best_passage(document.text, question, spans)
        return Hit(
            ranked.score, document.key, document.title, document.text, document.metadata,
            start, end, question, ranked.scores,
        )  # fmt: skip

    def present(ranking: Ranking, question: str) -> Hits:
        chosen = [hit(ranked, next(documents), question) for ranked in ranking.documents]
        if query.sort_by is not None:
            chosen = ordered_by(chosen, query.sort_by)
        return Hits(chosen, exact=ranking.exact, read=ranking.read, facets=facets)

    return [
        present(ranking, question)
        for ranking, question in zip(rankings, questions or [""] * len(rankings), strict=True)
    ]
