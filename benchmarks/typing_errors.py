"""What typing errors cost, and what their replacement wins back: nDCG@10 by words, and by default.

    python benchmarks/typing_errors.py                    # test questions
    python benchmarks/typing_errors.py --training         # those that the defaults were chosen on

The rarest word of each question, of those that documents have, gets one edit at random: a letter is
inserted, dropped or replaced, or two neighbours are swapped. A word is four letters or more between
spaces and marks: names with digits or hyphens, and abbreviations, are never replaced, and not
edited. Documents are indexed with the defaults of the library, by the starter encoder.
"""

import random
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np
from hybrid import ndcg
from record import DATA, record

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.measure.judgements import read_qrels, read_queries

SETS = {
    "scifact": ("beir/scifact", "train", "test"),
    "nfcorpus": ("beir/nfcorpus", "dev", "test"),
    "cranfield": ("beir/cranfield", None, "test"),
    "xquad es": ("xquad/es", "test", "test"),
    "xquad ru": ("xquad/ru", "test", "test"),
}
"""Set → its folder, the split for choices, and that for figures; of xquad, every other question."""
WORD = re.compile(r"(?<![\w-])[^\W\d_]{4,}(?![\w-])")


@click.command()
@DATA
@click.option("--training", is_flag=True, help="The questions that the defaults were chosen on.")
@click.option("--seeds", default=3, show_default=True, help="Errors in each question.")
@click.option("--sets", default=",".join(SETS), show_default=True)
@click.option("--work", type=click.Path(path_type=Path), help="Folder to keep collections in.")
def main(data: Path, training: bool, seeds: int, sets: str, work: Path | None) -> None:
    """Ask each question as it is and with errors, with and without replacement."""
    figures: dict[str, Any] = {}
    for name in sets.split(","):
        folder, chosen_on, test = SETS[name]
        split = chosen_on if training else test
        if split is None:
            continue
        keys, questions, qrels = judged(data / folder, split, training)
        with opened(data / folder, work) as engine:
            figures[name] = measure(engine, keys, questions, qrels, seeds)
            click.echo(f"{name}: {figures[name]}")
    record(f"typing errors{', training' if training else ''}", figures)


def judged(folder: Path, split: str, training: bool) -> tuple[list[str], list[str], Any]:
    """The keys and texts of the judged questions, and the judgements."""
    qrels = read_qrels(folder / "qrels" / f"{split}.tsv")
    queries = read_queries(folder / "queries.jsonl.gz").items()
    pairs = [(key, text) for key, text in queries if key in qrels]
    if "xquad" in folder.parts:
        pairs = pairs[0 if training else 1 :: 2]
    return [key for key, _ in pairs], [text for _, text in pairs], qrels


class opened:
    """The collection of a folder, indexed if it is not in `work`."""

    def __init__(self, folder: Path, work: Path | None) -> None:
        self._scratch = tempfile.TemporaryDirectory() if work is None else nullcontext(str(work))
        self._folder = folder

    def __enter__(self) -> SearchEngine:
        path = Path(self._scratch.__enter__()) / f"{self._folder.name}.index"
        if not path.exists():
            with SearchEngine.create(path) as engine:
                engine.add(read_corpus(self._folder, on_bad=lambda _: None))
        self._engine = SearchEngine.open(path)
        return self._engine

    def __exit__(self, *error: Any) -> None:
        self._engine.close()
        self._scratch.__exit__(*error)


def measure(
    engine: SearchEngine, keys: Sequence[str], questions: Sequence[str], qrels: Any, seeds: int
) -> dict[str, Any]:
    """nDCG@10 by mode, and the share of what errors cost that the replacement wins back."""
    counts = document_counts(f"{document.title} {document.text}" for document in engine.documents())
    rows: dict[str, Any] = {}
    for mode in dict.fromkeys(("text", str(engine.default_mode))):

        def score(asked: Sequence[str], replace: bool, mode: str = mode) -> float:
            batch = engine.search_batch(asked, 10, mode=mode, typo_tolerance=replace)
            return ndcg(keys, [[hit.key for hit in hits] for hits in batch], qrels)

        clean = score(questions, False)
        broken, back = [], []
        for seed in range(seeds):
            choose = random.Random(seed)
            changed = [with_error(question, counts, choose) for question in questions]
            broken.append(score(changed, False))
            back.append(score(changed, True))
        won = [(b - a) / (clean - a) for a, b in zip(broken, back, strict=True)]
        figures = {
            "no errors": clean,
            "no errors, replaced": score(questions, True),
            "errors": np.mean(broken),
            "errors, replaced": np.mean(back),
            "won back": np.mean(won),
            "won back, least": min(won),
        }
        rows[mode] = {name: round(float(value), 4) for name, value in figures.items()}
    return rows


def document_counts(texts: Any) -> dict[str, int]:
    """How many documents have each word, in lower case."""
    counts: dict[str, int] = {}
    for text in texts:
        for word in {match.group().lower() for match in WORD.finditer(text)}:
            counts[word] = counts.get(word, 0) + 1
    return counts


def with_error(question: str, counts: Mapping[str, int], choose: random.Random) -> str:
    """A question with an edit in its rarest word; as it is if documents have none of its words."""
    words = [
        match
        for match in WORD.finditer(question)
        if match.group().lower() in counts and match.group()[1:].islower()
    ]
    if not words:
        return question
    rarest = min(words, key=lambda match: (counts[match.group().lower()], match.start()))
    new = edited(rarest.group(), choose)
    return question[: rarest.start()] + new + question[rarest.end() :]


def edited(word: str, choose: random.Random) -> str:
    """A word with one edit, by letters of its script."""
    cyrillic = word[0] > "\u0400"
    alphabet = "абвгдежзийклмнопрстуфхцчшщъыьэюя" if cyrillic else "abcdefghijklmnopqrstuvwxyz"
    capital, word = word[0].isupper(), word.lower()
    while True:
        place, kind = choose.randrange(len(word)), choose.randrange(4)
        letter, begin, rest = choose.choice(alphabet), word[:place], word[place:]
        swapped = begin + rest[1:2] + rest[:1] + rest[2:]
        new = (begin + rest[1:], begin + letter + rest, begin + letter + rest[1:], swapped)[kind]
        if new != word:
            return new.capitalize() if capital else new


if __name__ == "__main__":
    main()
