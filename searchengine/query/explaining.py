"""Follow one document through the stages of a search, by the very functions that search.

Each stage is asked for the document's rank and score there. What loses it names the least option
that does not; with that option the search is followed again, until it finds the document.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from searchengine.backends import limits
from searchengine.backends.contract import Coarse, Ids, Passage, Snapshot, Span
from searchengine.backends.filters.parser import field_name, parse
from searchengine.backends.filters.sql import fields_of
from searchengine.backends.mode import Mode
from searchengine.indexer.arrays import Floats
from searchengine.query.explanation import Explanation, Stage
from searchengine.query.hits import Hits
from searchengine.query.nearest import labels, nearest, rows_of_part
from searchengine.query.paging import MAX_DEPTH, Ranked, Ranking
from searchengine.query.ranking import FUSED, hits, rank, reranked, scored_by_words, worded
from searchengine.query.request import Phrases, Query

_GROWTH = 4  # of the depth in which a document is sought
_MAX_TRIED = 4096  # candidates of a walk that is tried
_WORDLESS = "no word of the question"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and what reads it.

    Attributes:
        snapshot: the commit to search.
        question: the text; None for a vector.
        vector: in place of a text, (D,) float32.
        encode: the vector (1, D) of the question as a query reads it; None: there is no encoder.
        unread: the language of a text that the encoder of documents does not read; None: it reads
            it.
    """

    snapshot: Snapshot
    question: str | None
    vector: Floats | None
    encode: Callable[[Query], Floats] | None
    unread: Callable[[str], str | None]

    def encoded(self, query: Query) -> Floats:
        """The vector of the question (1, D), as a search encodes it."""
        if self.question is not None:
            assert self.encode is not None
            return self.encode(query)
        assert self.vector is not None
        return self.vector[None]


def explain(asked: Asked, query: Query, key: str) -> Explanation:
    """Why a search finds a document or not. `query`: with the mode to use."""
    document = asked.snapshot.store.ids_of([key]).get(key)
    if document is None:
        note = f"there is no document {key!r:.80}"
        return Explanation(key, (Stage("collection", False, note=note),), "collection")
    first = last = _Trace(asked, query, document).follow()
    settings: dict[str, Any] = {}
    while last.lost is not None:
        limits.check()
        if not last.way or settings.keys() & last.way.keys():
            settings, last = {}, first
            break
        settings |= last.way
        last = _Trace(asked, replace(query, **settings), document).follow()
    names = {stage.name for stage in first.stages}
    later = (stage for stage in last.stages if stage.name not in names)
    span: Span | tuple[None, None] = None, None
    if last.shown is not None and last.shown.passage.id >= 0:
        [[hit]] = last.shown_hits(Ranking([last.shown]))
        span = hit.start, hit.end
    return Explanation(
        key,
        (*first.stages, *later),
        first.lost,
        last.rank if last.lost is None else None,
        settings,
        *span,
    )


@dataclass
class _Trace:
    """A document on its way through a search.

    Attributes:
        stages: those that have had it.
        lost: the stage that lost it; None: none has.
        way: the options with which that stage keeps it; empty: there are none.
        rank: its place in the search.
        shown: the document as it was ranked, with the passage that decides.
        row: the place of its best passage among those compared at full width, from 1; 0: unknown.
        ranked: its place in the search for `plain`, and that search.
        uncounted: whether its BM25 would suffice, and is not counted.
    """

    asked: Asked
    query: Query
    document: int
    stages: list[Stage] = field(default_factory=list)
    lost: str | None = None
    way: dict[str, Any] = field(default_factory=dict)
    rank: int | None = None
    shown: Ranked | None = None
    row: int = 0
    ranked: tuple[int | None, Ranking] = (None, Ranking(()))
    uncounted: bool = False

    def follow(self) -> "_Trace":
        """Ask the stages in their order, up to the one that loses it."""
        by_mode = {Mode.VECTOR: self._by_vector, Mode.TEXT: self._by_words}
        rank_it = by_mode.get(Mode(self.query.mode), self._by_both)
        if self._matches() and rank_it():
            self._options()
        return self

    # --------------------------------------------------------------------------------- the searches

    @cached_property
    def plain(self) -> Query:
        """The ranking without what groups or cuts it."""
        return replace(
            self.query,
            k=self.query.depth,
            offset=0,
            min_score=None,
            group_by=None,
        )

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The phrases that it must contain."""
        return () if self.asked.question is None else self.query.required(self.asked.question)

    def shown_hits(self, ranking: Ranking) -> list[Hits]:
        """The hits of a ranking, each with the passage that a search shows."""
        question = None if self.asked.question is None else [self.asked.question]
        vector = self.vector if self.query.mode == Mode.HYBRID else None
        return hits(self.asked.snapshot, self.query, [ranking], question, vector)

    @cached_property
    def passages(self) -> list[Passage]:
        """Its passages."""
        return self.asked.snapshot.store.passages_of([self.document])

    @cached_property
    def vector(self) -> Floats:
        """The vector of the question, (1, D)."""
        return self.asked.encoded(self.plain)

    def _search(self, query: Query) -> Ranking:
        question = None if self.asked.question is None else [self.asked.question]
        vectors = None if query.by_words else self.vector
        return rank(self.asked.snapshot, query, question, vectors)[0]

    def _place(self, ranking: Ranking) -> int | None:
        """Its rank in a ranking, from 1."""
        places = (
            place
            for place, ranked in enumerate(ranking.documents, 1)
            if ranked.passage.document == self.document
        )
        return next(places, None)

    def _ranked(self, query: Query, likely: int = 0) -> tuple[int | None, Ranking]:
        """Its rank in a search for as many documents as it takes, and that search.

        `likely`: how many these are, if it is known.
        """
        query = replace(query, k=max(query.k, likely))
        while True:
            ranking = self._search(query)
            place = self._place(ranking)
            if place is not None or len(ranking.documents) < query.k:
                return place, ranking
            query = replace(query, k=_GROWTH * query.k)

    # ----------------------------------------------------------------------------------- the stages

    def _lose(self, stage: Stage, **way: Any) -> bool:
        self.stages = [each for each in self.stages if each.name != stage.name]
        self.stages.append(replace(stage, passed=False))
        self.lost, self.way = stage.name, way
        return False

    def _lose_vector(self, stage: Stage, **way: Any) -> bool:
        """Lost by its cosine: does the encoder read the language at all?"""
        (document,) = self.asked.snapshot.store.documents([self.document])
        if (language := self.asked.unread(document.full_text)) is None:
            return self._lose(stage, **way)
        self._lose(stage)
        if self.asked.question is not None and self._word_rank()[0] is not None:
            way = self._text_mode()
        return self._lose(
            Stage("language", False, note=f"the encoder does not read {language}"), **way
        )

    def _text_mode(self) -> dict[str, Any]:
        without: dict[str, Any] = {"exact": False} if self.query.exact else {}
        return {"mode": str(Mode.TEXT), **without}

    def _matches(self) -> bool:
        """The filter and the required phrases."""
        snapshot, where = self.asked.snapshot, self.query.where
        if where is not None:
            if not snapshot.matches(self.document, where):
                note = f"{where} does not hold, the document has {self._values(where)}"
                return self._lose(Stage("filter", False, note=note), where=None)
            self.stages.append(Stage("filter", True))
        if self.required:
            if not snapshot.matches(self.document, None, self.required):
                quoted = " and ".join(f'"{text}"' for text in self.required)
                loose = replace(self.query, phrases=Phrases.SCORED)
                scored = loose.required(self.asked.question or "") != self.required
                way = {"phrases": str(Phrases.SCORED)} if scored else {}
                hint = "" if scored else "; ask without the + before it"
                note = f"the document does not contain {quoted}{hint}"
                return self._lose(Stage("phrases", False, note=note), **way)
            self.stages.append(Stage("phrases", True))
        return True

    def _values(self, where: str) -> str:
        """Its values of the fields of a filter."""
        (document,) = self.asked.snapshot.store.documents([self.document])
        shown = []
        for path in dict.fromkeys(fields_of(parse(where))):
            value: Any = {**document.metadata, "_id": document.key, "title": document.title}
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            named = field_name(path)
            shown.append(f"no {named}" if value is None else f"{named} = {value!r:.60}")
        return ", ".join(shown)

    def _word_rank(self) -> tuple[int | None, float | None]:
        """Its rank and BM25 by words; None: it has no word of the question."""
        query = replace(self.plain, **self._text_mode())
        count = FUSED
        while True:
            scored = scored_by_words(self.asked.snapshot, query, self.asked.question or "", count)
            for place, (document, score) in enumerate(scored, 1):
                if document == self.document:
                    return place, score
            if len(scored) < count:
                return None, None
            count *= _GROWTH

    def _by_words(self) -> bool:
        place, score = self._word_rank()
        note = f"it has {_WORDLESS}"
        if place is None:
            encodes = self.passages and self.asked.encode is not None
            way = {"mode": str(Mode.VECTOR)} if encodes else {}
            return self._lose(Stage("words", False, note=note), **way)
        note = f"rank {place:,} by words (score {score:.3f})"
        self.stages.append(Stage("words", True, place, score, self.plain.k, note))
        self.ranked = self._ranked(self.plain, place)
        return True

    def _by_vector(self) -> bool:
        if not self.passages:
            by_text = self.asked.question is not None and self._word_rank()[0] is not None
            way = self._text_mode() if by_text else {}
            return self._lose(Stage("vector", False, note="the document has no vector"), **way)
        if not self._compared():
            return False
        place, ranking = self.ranked = self._ranked(self.plain, self.row)
        score = None if place is None else ranking.documents[place - 1].score
        note = "" if place is None else f"rank {place:,} by full width (cosine {score:.3f})"
        self.stages.append(Stage("full_width", True, place, score, self.plain.k, note))
        return True

    def _compared(self, by_words: bool = False) -> bool:
        """Whether the coarse stage has it compared at full width. `by_words`: words have it too."""
        if self.plain.exact:
            return True
        base = self.query
        # Groups make it go further, and a least score makes it end.
        whole = replace(self.plain, k=base.depth, group_by=base.group_by, min_score=base.min_score)
        ranking = self._search(whole)
        snapshot, ids = self.asked.snapshot, np.array([each.id for each in self.passages])
        size = rows_of_part(snapshot, self.plain, ranking.parts - 1)
        where, found = self.plain.where, self._place(ranking) is not None
        self.row = next(iter(self._rows(size, ids)), -1) + 1
        coarse = snapshot.coarse(
            self.vector[0], ids, size, where, self.required, self.plain.shortlist
        )
        kept = [each for each in coarse.values() if each.kept]
        if len(coarse) < len(ids):  # compared without a coarse stage
            return True
        best = min(kept or coarse.values(), key=lambda each: each.rank)
        passed = bool(kept) or (found and not by_words)
        missed = best.walks and best.rank <= best.size and not best.narrowed
        note = f"rank {best.rank:,} by {best.width} dimensions"
        if not (passed or missed or best.narrowed):
            note += f", the shortlist holds {best.size:,}"
        listed = passed or missed or best.narrowed
        prefix = Stage("prefix", listed, best.rank, best.cosine, best.size, note)
        walk = [Stage("walk", True)] if best.walks else []
        if passed:
            self.stages += [prefix, *walk]
            return True
        funnel = Stage("funnel", False, limit=size, note=f"{note}, but the funnel keeps {size:,}")
        if by_words:
            missing = Stage("walk", False, limit=best.size) if missed else prefix
            self.stages.append(funnel if best.narrowed else missing)
            return False
        way = self._with_more_candidates(coarse)
        if best.narrowed:
            self.stages += [prefix, *walk]
            return self._lose_vector(funnel, **way)
        if not missed:
            return self._lose_vector(prefix, **way)
        self.stages.append(prefix)
        note = f"{note}, but the search for {best.size:,} candidates missed it"
        return self._lose_vector(Stage("walk", False, limit=best.size, note=note), **way)

    def _rows(self, shortlist: int, passages: Ids) -> list[int]:
        """The places of passages, from 0, among those that a search compares at full width."""
        result = self.asked.snapshot.search(
            self.vector,
            shortlist,
            shortlist=shortlist,
            where=self.plain.where,
            phrases=self.required,
        )
        places: list[int] = np.flatnonzero(np.isin(result.rows[0], passages)).tolist()
        return places

    def _with_more_candidates(self, coarse: dict[int, Coarse]) -> dict[str, Any]:
        """The least shortlist with which the search finds it, or, if none does, compares it.

        A passage that ranks too low by full width does not become better by a longer shortlist, so
        the least one is that of a passage.
        """
        best = int(
            self.asked.snapshot.cosines(self.vector[0], np.fromiter(coarse, np.int64)).rows[0, 0]
        )
        by_rank = sorted(coarse, key=lambda passage: coarse[passage].rank)
        if len(by_rank) > 1:
            for passage in by_rank:
                way = self._comparing(passage, coarse[passage])
                if self._place(self._search(replace(self.plain, **way))) is not None:
                    return way
        return self._comparing(best, coarse[best])

    def _comparing(self, passage: int, coarse: Coarse) -> dict[str, Any]:
        """The options with which the search compares a passage that the shortlist lacks.

        Where all prefixes are compared, it is its rank. A walk is tried with longer and longer
        shortlists, and then with shorter ones again; one that misses it with many is given up.
        """
        if not coarse.walks:
            return {"shortlist": coarse.rank}
        ids = np.array([passage])
        low, high = coarse.size, max(coarse.rank, coarse.size + 1)
        if coarse.narrowed:  # a shortlist that is named is compared whole
            low, high = 0, coarse.size
        while high <= max(_MAX_TRIED, _GROWTH * coarse.size) and not self._rows(high, ids):
            low, high = high, 2 * high
        if high > max(_MAX_TRIED, _GROWTH * coarse.size):
            if self.plain.mode == Mode.VECTOR:
                return {"exact": True, **({"shortlist": None} if self.plain.shortlist else {})}
            return {"shortlist": self.asked.snapshot.rows}
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._rows(middle, ids) else (middle, high)
        return {"shortlist": high}

    def _by_both(self) -> bool:
        place, bm25 = self._word_rank()
        in_words = place is not None and place <= FUSED
        note = f"it has {_WORDLESS}" if place is None else f"rank {place:,} by words"
        note += "" if in_words or place is None else f", and {FUSED} are fused"
        words = Stage("words", in_words, place, bm25, FUSED, note)
        if not self.passages:
            if not in_words:
                words = replace(words, note=f"the document has no vector, and {note}")
                return self._lose(words, **({} if place is None else self._text_mode()))
            self.stages.append(words)
        else:
            self.stages.append(words)
            if not self._compared(in_words) and not in_words:
                return False
        place, ranking = self.ranked = self._ranked(self.plain, self.row)
        if place is None:
            return self._lose(Stage("fusion", False, note="no part of the ranking has it"))
        ranked = ranking.documents[place - 1]
        if "vector" in ranked.scores:
            cosine = ranked.scores["vector"]
            by_vector = self._rank_in_part(ranking)
            self.stages.append(Stage("full_width", True, by_vector, cosine))
        note = f"rank {place:,} by both ({_scores(ranked)})"
        self.stages.append(Stage("fusion", True, place, ranked.score, self.plain.k, note))
        if bm25 is not None and not in_words:
            self.uncounted = self._would_suffice(ranking, ranked, bm25)
        return True

    def _rank_in_part(self, ranking: Ranking) -> int | None:
        """Its rank by vectors among the documents that were fused."""
        part = nearest(
            self.asked.snapshot,
            self.plain,
            self.vector,
            ranking.parts - 1,
            MAX_DEPTH,
            texts=self.required,
        )
        return self._place(Ranking(part[0].documents))

    def _would_suffice(self, ranking: Ranking, ranked: Ranked, bm25: float) -> bool:
        """Whether it would be found if its BM25 counted, though others are better by words."""
        question = self.asked.question or ""
        _, scoring = worded(self.asked.snapshot, self.plain, question, self.vector[0])
        score = scoring.score(ranked.scores.get("vector"), bm25)
        return sum(other.score > score for other in ranking.documents) < self.plain.k

    def _options(self) -> bool:
        """Groups, the least score and pages."""
        base, last = self.query, self.stages[-1]
        place, ranking = self.ranked
        if place is None:
            return self._lose(self.stages.pop())
        ranked = ranking.documents[place - 1]
        if base.group_by is not None:
            before = self._before_it_in_group(ranking, place)
            if before is not None:
                note = f"{before!r} has the same {base.group_by} and ranks higher"
                return self._lose(Stage("group", False, note=note), group_by=None)
            self.stages.append(Stage("group", True))
        if base.min_score is not None:
            stage = Stage("min_score", True, None, ranked.score, base.min_score)
            if ranked.score < base.min_score:
                note = f"its score {ranked.score:.6g} is below {base.min_score:.6g}"
                return self._lose(replace(stage, note=note), min_score=ranked.score)
            self.stages.append(stage)
        if base.group_by is not None or base.min_score is not None:
            place, ranking = self._ranked(replace(base, k=base.depth, offset=0))
            if place is None:
                return self._lose(self.stages.pop())
        self.shown = ranking.documents[place - 1]
        if base.rerank is not None and place <= base.candidates:
            last = self._by_rerank()
            self.stages.append(last)
        return self._cut(last.rank or place, last)

    def _by_rerank(self) -> Stage:
        """Its place among the candidates that `rerank` has ordered."""
        query = replace(self.query, k=self.query.candidates, offset=0)
        (found,) = self.shown_hits(self._search(query))
        ordered = reranked(found, self.asked.question or "", query)
        (key,) = self.asked.snapshot.store.keys_of([self.document])
        place, hit = next((i, hit) for i, hit in enumerate(ordered, 1) if hit.key == key)
        note = f"rank {place:,} by rerank ({hit.score:.3f})"
        return Stage("rerank", True, place, hit.score, self.query.depth, note)

    def _before_it_in_group(self, ranking: Ranking, place: int) -> str | None:
        """The key of the first document of its group, if that ranks before it."""
        store = self.asked.snapshot.store
        ids = [ranked.passage.document for ranked in ranking.documents[:place]]
        label, _ = labels(self.asked.snapshot, self.query)
        named = label(ids)
        first = next(each for each in ids if named[each] == named[self.document])
        return None if first == self.document else store.keys_of([first])[0]

    def _cut(self, place: int, last: Stage) -> bool:
        """The end of the page, and its beginning."""
        self.rank, query = place, self.query
        if place > query.depth:
            note = f"{last.note}, {query.depth:,} are shown"
            way = {"k": place - query.offset}
            lost = replace(last, note=note)
            if self.uncounted and last.name != "rerank":
                words = next(each for each in self.stages if each.name == "words")
                self._lose(lost)
                return self._lose(replace(words, note=f"{words.note}; {note}"), **way)
            by_vector = last.name not in ("words", "rerank")
            return (self._lose_vector if by_vector else self._lose)(lost, **way)
        if place <= query.offset:
            note = f"rank {place:,}, and the page begins at {query.offset + 1:,}"
            page = (place - 1) // query.k * query.k
            return self._lose(Stage("page", False, place, note=note), offset=page)
        return True


def _scores(ranked: Ranked) -> str:
    """The parts of a fused score."""
    names = {"vector": "cosine", "text": "words"}
    return ", ".join(f"{names[name]} {score:.3f}" for name, score in ranked.scores.items())
