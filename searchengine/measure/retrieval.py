"""Retrieval quality on judged questions, setting by setting.

A setting is a way to search: as users of the collection do, exactly, over one prefix length, at the
collection's operating point, by words, or by both. A folder of judged questions can also be the
measure of a training: nDCG@10 of the search over it.

train(config, measure=retrieval("scifact"))           # a folder in BEIR's layout
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.corpus.files import beir_corpus, read_corpus
from searchengine.engine import Document, Mode, SearchEngine, contract, in_folder
from searchengine.errors import CollectionError, CorpusError, QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building import Progress, silent
from searchengine.indexer.search.scoring import Allowed, SearchResult, nearest, scan, score_slack
from searchengine.indexer.segment import Segment
from searchengine.measure.judgements import (
    Qrels,
    Task,
    default_mode,
    judged,
    ranked,
    read_beir,
    splits,
)
from searchengine.measure.metrics import MAIN, per_question
from searchengine.measure.significance import EXACT, Setting
from searchengine.trainer.evaluation.intervals import Values

if TYPE_CHECKING:
    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.training.judging import Measure

CONFIGURED = "configured"
"""Name of the setting by vectors at the collection's operating point."""
DEPTH = 100
"""Ranks kept of a search, for recall@100 and average precision."""
SHORTLIST = 100
"""Documents that a prefix finds, to be scored at full width."""

_BATCH = 256  # questions whose documents are in memory with their texts


def batches(count: int, step: str, progress: Progress) -> Iterator[slice]:
    """Parts of `count` questions; each is reported when it is done."""
    for start in range(0, count, _BATCH):
        part = slice(start, min(start + _BATCH, count))
        yield part
        progress(step, part.stop - part.start, count)


def task(engine: SearchEngine, queries: Mapping[str, str], qrels: Qrels) -> Task:
    """The questions that have judgements. Raises CorpusError if none has."""
    questions = judged(queries, qrels)
    grades = {key: qrels[key] for key in questions}
    with engine.collection.reading() as snapshot:
        notes = [*_left_out(snapshot, queries, qrels, grades)]
        documents = _documents_among(snapshot, questions, grades)
    if documents:
        count = f"{len(documents):,}"
        notes.append(f"questions that are documents, left out of their own results: {count}")
    return Task(questions, grades, documents, tuple(notes))


def measure(
    engine: SearchEngine,
    task: Task,
    dims: Sequence[int] | None = (),
    shortlist: int = SHORTLIST,
    modes: Sequence[Mode | str] | None = None,
    progress: Progress = silent,
) -> Iterator[Setting]:
    """Measure the settings of each mode in turn; the questions are encoded once.

    Mode auto has one setting, the search of the collection's users: a search that names no mode. It
    is called "hybrid", "text" or "configured", as the collection stores, and is measured once.

    Mode vector has "exact" at full width, without a shortlist; one setting per prefix length, with
    its number as name; and "configured", at the collection's operating point. The shortlist of a
    prefix length is the exact ranking of the prefix over all segments, independent of the
    collection's structure, so that it measures the encoder and not the index. Modes "text" and
    "hybrid" have one setting each.

    Default modes are what users get, and by vectors, unless users search by words. `dims`: None for
    those of the encoder's training. Raises QueryError for an invalid prefix length or mode, and
    CollectionError if the collection is empty.
    """
    rows, texts = names(engine, dims, modes), list(task.queries.values())
    if not len(engine):
        raise CollectionError(f"{engine.collection.path} is empty; add documents before measuring")
    vectors: Floats | None = None
    for name in rows:
        mode = Mode(name) if name in (Mode.TEXT, Mode.HYBRID) else Mode.VECTOR
        if mode is Mode.VECTOR and vectors is None:
            parts = batches(len(texts), "Encoding", progress)
            vectors = np.concatenate([engine.encode(texts[part]) for part in parts])
        asked: Any = vectors if mode is Mode.VECTOR else texts
        dim = int(name) if name.isdecimal() else None
        dim = engine.encoder.load().dim if name == EXACT else dim
        kept = shortlist if name.isdecimal() else None
        if name == CONFIGURED:
            with engine.collection.reading() as snapshot:
                kept = snapshot.shortlist
        run, own = dict[str, Mapping[str, float]](), bool(task.documents)  # which are left out
        for part in batches(len(texts), f"Evaluating {name}", progress):
            if name.isdecimal():
                found = _by_prefix(engine, int(name), shortlist + own, asked[part])
            else:
                hits = engine.search_batch(asked[part], DEPTH + own, mode=mode, exact=name == EXACT)
                found = ([(hit.key, hit.score) for hit in each] for each in hits)
            for key, results in zip(task.keys[part], found, strict=True):
                best = ranked(pair for pair in results if not task.is_self(key, pair[0]))
                run[key] = dict(islice(best.items(), DEPTH))
        scores, default = per_question(run, task.keys, task.qrels), _name(default_mode(engine))
        yield Setting(name, run, scores, dim, kept, mode, name == default)


def names(
    engine: SearchEngine,
    dims: Sequence[int] | None = (),
    modes: Sequence[Mode | str] | None = None,
) -> list[str]:
    """The names of the settings that `measure` yields, in their order. Raises QueryError."""
    full = engine.collection.settings["encoder"]["dim"]
    if modes is None:
        by_words = default_mode(engine) is Mode.TEXT and not dims
        modes = (Mode.AUTO,) if by_words else (Mode.AUTO, Mode.VECTOR)
    if dims is None:  # the rows on a server cannot be ranked by another prefix
        here = Mode.VECTOR in modes and "://" not in str(engine.collection.path)
        dims = engine.encoder.load().matryoshka_dims if here else ()
    for dim in dims:
        if not 1 <= dim <= full:
            raise QueryError(f"a prefix must be between 1 and {full}, got {dim}")
    settings: list[str] = []
    for mode in modes:
        if mode not in list(Mode):
            raise QueryError(f"mode must be one of {', '.join(Mode)}, got {mode!r}")
        if mode == Mode.VECTOR:
            settings += [EXACT, *(str(dim) for dim in dims if dim != full), CONFIGURED]
        else:
            settings.append(_name(default_mode(engine) if mode == Mode.AUTO else Mode(mode)))
    return list(dict.fromkeys(settings))


def _name(mode: Mode) -> str:
    """The name of the setting that searches as users do, in this mode."""
    return CONFIGURED if mode is Mode.VECTOR else str(mode)


def _left_out(
    snapshot: contract.Snapshot, queries: Mapping[str, str], qrels: Qrels, judged: Qrels
) -> Iterator[str]:
    """Describe ignored questions and judgements, and relevant documents that are missing."""
    if unjudged := len(queries) - len(judged):
        yield f"questions without a judgement, left out: {unjudged:,}"
    if unasked := len(qrels) - len(judged):
        yield f"judged questions that are not among the questions, left out: {unasked:,}"
    relevant = [name for grades in judged.values() for name, grade in grades.items() if grade > 0]
    stored = snapshot.known(relevant)
    if missing := sum(name not in stored for name in relevant):
        yield (
            "relevant documents that the collection does not have, which count as not found: "
            f"{missing:,} of {len(relevant):,}"
        )


def _documents_among(
    snapshot: contract.Snapshot, questions: Mapping[str, str], judged: Qrels
) -> frozenset[str]:
    """The questions that are a document of the same key, and are not judged relevant to it.

    Equal keys do not suffice: two files with line numbers as keys share many.
    """

    def words(text: str) -> str:
        return f" {' '.join(text.split())} "

    ids = (state.id for state in snapshot.known(questions).values())
    return frozenset(
        row.key
        for row in snapshot.documents(ids)
        if words(questions[row.key]) in words(Document.stored(*row).full_text)
        and judged[row.key].get(row.key, 0) <= 0
    )


def _by_prefix(
    engine: SearchEngine, dim: int, size: int, vectors: Floats
) -> Iterator[Iterable[tuple[str, float]]]:
    """The documents of the `size` passages that are nearest to questions (q, D) by a prefix.

    Each has the full-width score of its best passage.
    """

    def near(_: Any, segment: Segment, live: Allowed | None) -> SearchResult:
        prefixes = segment.prefixes(replace(segment.config, prefix=dim))
        shortlist = partial(nearest, prefixes, within=live)
        available = segment.rows if live is None else live.size
        queries, slack = prefixes.of(vectors), score_slack(dim)
        return scan(shortlist, prefixes, queries, size, available, slack)

    with in_folder(engine.collection).reading() as snapshot:
        # One shortlist over all segments: separate ones would depend on their number.
        for vector, rows in zip(vectors, snapshot.search_segments(near, size).rows, strict=True):
            best = snapshot.cosines(vector, rows[rows >= 0])
            documents = snapshot.documents(snapshot.documents_of(best.rows[0]), texts=False)
            yield zip([each.key for each in documents], best.scores[0].tolist(), strict=True)


def is_judged(path: Path) -> bool:
    """Whether a path names judged questions: a folder, or a file in a folder `qrels`."""
    return path.is_dir() or path.parent.name == "qrels"


def retrieval(path: str | Path) -> "Measure":
    """The measure of a folder in BEIR's layout, or of a split: FOLDER/qrels/dev.tsv.

    Of a folder, the split `dev` counts, or the only one. Each time an encoder is measured, it
    encodes the whole corpus; the value of a question by a prefix length is the nDCG@10 of search
    over it: the best SHORTLIST by the rotated prefix, scored at full width. Raises CorpusError for
    a folder without corpus, questions or judgements, or with several splits and no `dev` in it.
    """
    from searchengine.trainer.training.judging import Measure  # needs the extra `train`

    path = Path(path)
    folder, split = path, "dev"
    if not path.is_dir():
        folder, split = path.parent.parent, path.name.split(".tsv")[0]
    elif (names := splits(path)) and "dev" not in names:
        split, *others = names
        if others:
            raise CorpusError(
                f"{folder}: judgements for {', '.join(names)}; name one to choose the step by, "
                f"such as {folder / 'qrels' / split}.tsv, and keep another to test with"
            )
    corpus = beir_corpus(folder)
    if corpus is None:
        raise CorpusError(f"{folder} must have corpus.jsonl or corpus.jsonl.gz")
    queries, qrels = read_beir(folder, split)
    judged(queries, qrels)  # at least one question has judgements

    def values(encoder: "Encoder", dims: Sequence[int]) -> dict[int, Values]:
        shorter = [dim for dim in dims if dim < encoder.dim]
        with (
            TemporaryDirectory(prefix="searchengine-") as scratch,
            SearchEngine.create(Path(scratch) / "index", encoder, {"structure": "flat"}) as engine,
        ):
            engine.add(read_corpus(folder))
            questions = task(engine, queries, qrels)
            # Exactly at full width, then by each prefix; what follows concerns collections.
            by_vector = measure(engine, questions, shorter, SHORTLIST, [Mode.VECTOR])
            settings = islice(by_vector, 1 + len(shorter))
            return {setting.dim or encoder.dim: setting.scores[MAIN] for setting in settings}

    digest = hashlib.sha256(repr((queries, qrels, corpus.stat().st_size)).encode()).hexdigest()
    return Measure(f"nDCG@10 on {folder.resolve().name} ({split})", values, digest=digest)
