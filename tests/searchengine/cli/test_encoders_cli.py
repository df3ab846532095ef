"""searchengine evaluate retrieval --encoder A --encoder B: its table, its JSON, what it refuses."""

import json
from pathlib import Path

import pytest
from command_line import run, run_json
from tiny_model import WIDTH, WORDS, write_sentence_transformer

COUNT = 40
FP32 = ("--precision", "fp32")  # the choice of auto may differ from run to run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder, whose questions are the last three words of a document, and two models."""
    folder = tmp_path_factory.mktemp("encoders")
    texts = [" ".join(WORDS[(3 * i + 7 * j) % len(WORDS)] for j in range(6)) for i in range(COUNT)]
    write_jsonl(folder / "corpus.jsonl", "d", texts)
    write_jsonl(folder / "queries.jsonl", "q", [text.split(" ", 3)[3] for text in texts])
    (folder / "qrels").mkdir()
    lines = [f"q{i}\td{i}\t1" for i in range(COUNT)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines))
    write_sentence_transformer(folder / "mean")
    first = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    write_sentence_transformer(folder / "first", first)
    return folder


def write_jsonl(path: Path, prefix: str, texts: list[str]) -> None:
    records = [{"_id": f"{prefix}{i}", "text": text} for i, text in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, records)))


def compared(folder: Path) -> list[str | Path]:
    models = [part for name in ("mean", "first") for part in ("--encoder", folder / name)]
    return ["evaluate", "retrieval", "--beir", folder, *models, *FP32]


def test_rows_are_those_of_their_runs(folder: Path, tmp_path: Path) -> None:
    """The JSON has the metrics and the comparison that `evaluate runs` computes of the rankings."""
    rows = run_json(*compared(folder), "--run-out", tmp_path / "runs", "--worst", "2")
    assert [row["encoder"] for row in rows] == [str(folder / "mean"), str(folder / "first")]
    assert [(row["setting"], row["dim"], row["questions"]) for row in rows] == [
        ("mean", WIDTH, COUNT),
        ("first", WIDTH, COUNT),
    ]
    runs = [tmp_path / "runs" / f"{row['setting']}.run" for row in rows]
    again = run_json("evaluate", "runs", *runs, "--qrels", folder / "qrels" / "test.tsv")
    first, second = rows
    assert (first["baseline"], first["conclusion"], first["worst"]) == (None, None, None)
    assert second["baseline"] == "mean" and len(second["worst"]) == 2
    for row, same in zip(rows, again, strict=True):
        for metric in ("ndcg@10", "recall@100", "mrr@10", "map", "intervals"):
            assert row[metric] == same[metric]
    for field in ("difference", "difference_interval", "p", "p_uncorrected"):
        assert second[field] == again[1][field]
    assert second["difference"] == pytest.approx(second["ndcg@10"] - first["ndcg@10"])
    assert abs(second["difference"]) > 0.01


def test_the_table_answers_first(folder: Path) -> None:
    done = run(*compared(folder), "--baseline", folder / "first", "--worst", "1", "--of", "mean")
    assert done.returncode == 0, done.stderr
    answer, title, *table = done.stdout.splitlines()
    assert answer.startswith("mean ") and "first" in answer and " p " in answer
    assert title.strip() == f"{folder}, {COUNT} questions"
    assert table[1].split() == "┃ encoder ┃ ndcg@10 ┃ difference ┃ p ┃".split()
    assert max(map(len, table[:7])) <= 80
    assert "mean against first: the questions that lost most" in done.stdout
    assert "difference: in nDCG@10, to first; p: paired randomisation test" in done.stderr
    alone = run("evaluate", "retrieval", "--beir", folder, "--encoder", folder / "mean")
    assert alone.returncode == 0 and "difference" not in alone.stdout + alone.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--beir .", "name a COLLECTION, or an --encoder for the documents of --beir FOLDER"),
        ("--beir . --encoder mean --encoder mean", "mean is given twice; name another"),
        ("--beir . --encoder mean --encoder ./mean", "are the same encoder; name two that"),
        ("c.index --beir . --encoder mean --encoder first", "a collection has one encoder"),
        ("--beir . --encoder mean --encoder gone", "gone"),
        ("--queries q --qrels t --encoder mean", "needs --beir FOLDER, whose documents"),
        ("--beir qrels --encoder mean", "has no corpus.jsonl (.gz too), whose documents"),
        ("--beir . --encoder mean --mode text", "--mode needs a COLLECTION; without one"),
        ("--beir . --encoder mean --prefixes 8", "--prefixes needs a COLLECTION"),
        ("--beir . --encoder mean --plots p", "--plots needs a COLLECTION"),
        ("--beir . --encoder mean --worst 1", "--worst needs a second encoder"),
        ("--beir . --encoder mean --baseline x", "no row is called 'x'; rows: mean"),
        (
            "--beir . --encoder mean --encoder first --worst 1 --of mean",
            "--of mean is the baseline itself",
        ),
        (
            "--beir . --encoder mean --encoder qrels/../mean --run-out r",
            "is no name of a file; give folders whose last parts differ",
        ),
    ],
)
def test_what_is_refused(folder: Path, arguments: str, message: str) -> None:
    done = run("evaluate", "retrieval", *arguments.split(), cwd=folder)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr.splitlines()[-1]
