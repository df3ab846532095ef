"""Encoders measured by the search quality they give: several on the same questions, or a training.

train(config, measure=retrieval("scifact"))           # a folder in BEIR's layout
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from searchengine.corpus.documents import Document
from searchengine.corpus.files import beir_corpus, read_corpus
from searchengine.engine import Mode, SearchEngine, TextEncoder
from searchengine.errors import CorpusError, QueryError
from searchengine.measure.comparison import RetrievalRow, Setting
from searchengine.measure.judgements import Task, judged, plain_or_gzipped, read_beir
from searchengine.measure.retrieval import exact, measure, task
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.ranking import Qrels
from searchengine.trainer.training.step_judging import Measure

CHANCE = 0.05
"""The greatest p of a difference that counts as shown."""
SHORTLIST = 100
"""Documents that a prefix finds, to be scored at full width."""


@contextmanager
def encoded(
    documents: Iterable[Document],
    encoder: TextEncoder,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[SearchEngine]:
    """A collection of the documents, which is removed afterwards; arguments as SearchEngine's."""
    with (
        TemporaryDirectory(prefix="searchengine-") as scratch,
        SearchEngine.create(Path(scratch) / "collection", encoder, config) as engine,
    ):
        engine.add(documents, progress=progress)
        yield engine


@contextmanager
def by_encoders(
    encoders: Mapping[str, TextEncoder],
    documents: Callable[[], Iterable[Document]],
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    exclude_self: bool | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Iterator[tuple[SearchEngine, Task, list[Setting]]]:
    """Rank all documents at full width by each encoder, in a collection that is then removed.

    Within the block: a collection of the documents, the questions that were judged, and a setting
    for each encoder, in their order.

    Args:
        encoders: by the names of their settings; at least one.
        documents: gives the documents, once for each encoder.
        queries, qrels, exclude_self: as for evaluate.retrieval.task.
        progress: called with the name of an encoder and the number of documents just encoded.

    Raises QueryError for one encoder under two names, and what `add`, `task` and `exact` raise.
    """
    names: dict[str, str] = {}  # by fingerprint
    for name, encoder in encoders.items():
        if (other := names.setdefault(encoder.fingerprint, name)) != name:
            raise QueryError(f"{other} and {name} are the same encoder; name two that differ")
    settings: list[Setting] = []
    for i, (name, encoder) in enumerate(encoders.items(), start=1):
        with encoded(documents(), encoder, progress=_named(progress, name)) as engine:
            judged = task(engine, queries, qrels, exclude_self)
            settings.append(exact(engine, judged, name))
            if i == len(encoders):
                yield engine, judged, settings


def conclusion(row: RetrievalRow) -> str | None:
    """What the comparison of a row with its baseline shows, in a sentence; None: it has none.

    A difference is shown if p is at most CHANCE and the interval leaves 0 out.
    """
    if row.comparison is None or row.p is None:
        return None
    comparison = row.comparison
    p = "p < 0.001" if row.p < 0.001 else f"p = {row.p:.3f}"
    name, low, high = row.setting.name, comparison.low, comparison.high
    if row.p > CHANCE or low <= 0 <= high:
        ends = f" ({low:+.3f} to {high:+.3f})" if row.intervals else ""
        return (
            f"{name} and {row.baseline}: no difference beyond chance, "
            f"{comparison.difference:+.3f}{ends}, {p}"
        )
    better = "better" if comparison.difference > 0 else "worse"
    least, most = sorted((abs(low), abs(high)))
    ends = f" ({least:.3f}–{most:.3f})" if row.intervals else ""
    return f"{name} is {better} than {row.baseline} by {abs(comparison.difference):.3f}{ends}, {p}"


def _named(
    progress: Callable[[str, int], None] | None, name: str
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda documents, _: progress(name, documents)


def is_judged(path: Path) -> bool:
    """Whether a path names judged questions: a folder, or a file in a folder `qrels`."""
    return path.is_dir() or path.parent.name == "qrels"


def retrieval(path: str | Path) -> Measure:
    """The measure of a folder in BEIR's layout, or of a split: FOLDER/qrels/dev.tsv.

    Of a folder, the split `dev` counts, or the only one. Each time an encoder is measured, it
    encodes the whole corpus; the score of a prefix length is the nDCG@10 of search over it: the
    best SHORTLIST by the prefix, scored at full width. Raises CorpusError for a folder without
    corpus, questions or judgements, or with several splits and no `dev` among them.
    """
    path = Path(path)
    folder, split = (path, _split(path)) if path.is_dir() else (path.parent.parent, _name(path))
    corpus = beir_corpus(folder)
    if corpus is None:
        raise CorpusError(f"{folder}: the folder has no corpus.jsonl (.gz too)")
    queries, qrels = read_beir(folder, split)
    judged(queries, qrels)  # at least one question has judgements

    def scores(encoder: Encoder) -> Mapping[int, float]:
        shorter = encoder.matryoshka_dims[1:]
        with encoded(read_corpus(folder), encoder, {"structure": "flat"}) as engine:
            questions = task(engine, queries, qrels)
            # Exactly at full width, then by each prefix; what follows concerns collections.
            by_vector = measure(engine, questions, shorter, SHORTLIST, [Mode.VECTOR])
            settings = islice(by_vector, 1 + len(shorter))
            return {setting.dim or encoder.dim: setting.ndcg_10 for setting in settings}

    return Measure(f"nDCG@10 on {folder.resolve().name} ({split})", scores)


def _split(folder: Path) -> str:
    """The split `dev` of a folder, or the only one."""
    if plain_or_gzipped(folder / "qrels" / "dev.tsv"):
        return "dev"
    splits = sorted({_name(file) for file in (folder / "qrels").glob("*.tsv*")})
    if len(splits) > 1:
        raise CorpusError(
            f"{folder}: judgements for {', '.join(splits)}; name one to choose the step by, such "
            f"as {folder / 'qrels' / splits[0]}.tsv, and keep another to test with"
        )
    return splits[0] if splits else "dev"


def _name(file: Path) -> str:
    return file.name.split(".tsv")[0]
