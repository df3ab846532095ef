"""How well questions are answered: five kinds of collections, recorded hits, STS by prefix."""

from collections.abc import Sequence
from math import log2
from pathlib import Path

import pytest

from public.conftest import RECORDS, Figures, Judged, command
from public.judged_sets import SETS, JudgedSet, real

MODES = ("vector", "text", "hybrid")
KINDS = sorted(SETS.keys() - {"sample"})


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_a_kind_of_collection(kind: str, judged: Judged, figures: Figures) -> None:
    engine, data = judged(kind)
    for mode in MODES:
        answers = engine.search_batch([*data.questions.values()], mode=mode)
        ranked = [[hit.key for hit in hits] for hits in answers]
        figures.check("nDCG@10", f"{kind} {mode}", mean_ndcg(ranked, data))


@pytest.mark.parametrize("kind", ["sample", "abstracts"])
def test_recorded_questions_have_their_hits(kind: str, judged: Judged, figures: Figures) -> None:
    engine, data = judged(kind)
    asked = [*data.questions.items()][:25]
    if RECORDS:
        hits = {q: " ".join(hit.key for hit in engine.search(text)) for q, text in asked}
        figures.record("hits", kind, hits)
    noise = figures.tolerance("hits", kind)
    for question, text in asked:
        hits = engine.search(text, k=20)
        scores, order = {hit.key: hit.score for hit in hits}, [hit.key for hit in hits]
        recorded = figures.groups["hits"]["values"][kind][question].split()
        for key, now in zip(recorded, order[: len(recorded)], strict=True):
            same = key == now or (key in scores and abs(scores[key] - scores[now]) <= noise)
            assert same, f"{question}: {text}\nwas {recorded}\nis  {order[:10]}"


def test_similarity_of_sentences_by_prefix(tmp_path: Path, figures: Figures) -> None:
    with (real("sts") / "stsb_dev.tsv").open(encoding="utf-8") as file:
        lines = file.readlines()[:401]
    (tmp_path / "sts.tsv").write_text("".join(lines), encoding="utf-8")
    options = ("--encoder", "starter", "--prefixes", "384,128,64", "--runtime", "native")
    rows = command("evaluate", "sts", tmp_path / "sts.tsv", *options)
    assert [row["dim"] for row in rows] == [384, 128, 64]
    for row in rows:
        figures.check("Spearman", f"starter {row['dim']}", row["spearman"])


def mean_ndcg(ranked: Sequence[Sequence[str]], data: JudgedSet) -> float:
    """nDCG@10 with the grade as the gain, the mean over the questions."""
    total = 0.0
    for question, keys in zip(data.questions, ranked, strict=True):
        grades = data.grades[question]
        gains = [grades.get(key, 0) for key in keys[:10]]
        best = sorted(grades.values(), reverse=True)[:10]
        total += _discounted(gains) / _discounted(best)
    return total / len(data.questions)


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / log2(rank + 2) for rank, gain in enumerate(gains))
