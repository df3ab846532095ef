"""A folder of judged questions as the measure of a training: nDCG@10 of the search over it.

train(config, measure=retrieval("scifact"))           # a folder in BEIR's layout
"""

import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from searchengine.corpus.files import beir_corpus, read_corpus
from searchengine.engine import Mode, SearchEngine
from searchengine.errors import CorpusError
from searchengine.measure.comparison import MAIN
from searchengine.measure.judgements import judged, plain_or_gzipped, read_beir
from searchengine.measure.retrieval import measure, task
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.intervals import Values
from searchengine.trainer.training.judging import Measure

SHORTLIST = 100
"""Documents that a prefix finds, to be scored at full width."""


def is_judged(path: Path) -> bool:
    """Whether a path names judged questions: a folder, or a file in a folder `qrels`."""
    return path.is_dir() or path.parent.name == "qrels"


def retrieval(path: str | Path) -> Measure:
    """The measure of a folder in BEIR's layout, or of a split: FOLDER/qrels/dev.tsv.

    Of a folder, the split `dev` counts, or the only one. Each time an encoder is measured, it
    encodes the whole corpus; the value of a question by a prefix length is the nDCG@10 of search
    over it: the best SHORTLIST by the rotated prefix, scored at full width. Raises CorpusError for
    a folder without corpus, questions or judgements, or with several splits and no `dev` in it.
    """
    path = Path(path)
    folder, split = (path, _split(path)) if path.is_dir() else (path.parent.parent, _name(path))
    corpus = beir_corpus(folder)
    if corpus is None:
        raise CorpusError(f"{folder}: the folder has no corpus.jsonl (.gz too)")
    queries, qrels = read_beir(folder, split)
    judged(queries, qrels)  # at least one question has judgements

    def values(encoder: Encoder, dims: Sequence[int]) -> dict[int, Values]:
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
