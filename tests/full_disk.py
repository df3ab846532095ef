"""Every command that writes, on a disk that fills (tests/small_disk.py).

python tests/full_disk.py                              # every command, 20 points each
python tests/full_disk.py --only export train --points 5
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

from pending import leave_pending
from small_disk import Case, campaign, missing
from watched_folder import Looks

from searchengine import SearchEngine
from searchengine.ingest import folder_sync

_DOCUMENTS, _ADDED, _NOTES, _WIDTH = 480, 60, 20, 32
_MODEL, _OTHER = "../sources/model", "../sources/other"
_TRAINING = ["--base", _MODEL, "--out", "trained", "--epochs", "1", "--batch-size", "16"]


def damage(disk: Path) -> None:
    """Cut the vectors of every segment short."""
    for file in (disk / "c" / "segments").glob("*/vectors.faiss"):
        file.write_bytes(file.read_bytes()[:100])


@contextmanager
def one_look() -> Iterator[None]:
    """`watch` ends by Ctrl-C when the collection is in step, and fails where it would try again."""

    def end(in_step: bool) -> bool:
        if in_step:
            raise KeyboardInterrupt
        raise SystemExit(1)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(folder_sync, "RECENT", 0))  # else none is settled
        looks = Looks(lambda: None, end)
        stack.enter_context(mock.patch.object(folder_sync, "Watcher", lambda *_: looks))
        yield


_KEPT, _MORE = [_DOCUMENTS], [_DOCUMENTS, _DOCUMENTS + _ADDED]
_FILES = [_DOCUMENTS, _DOCUMENTS + _NOTES]
_EXPORTED = [f"exported/{name}" for name in ("documents.jsonl", "vectors.npy", "passages.jsonl")]
CASES = {
    "export": Case(["export", "c", "out"], ["c"], _KEPT),
    "backup": Case(["backup", "c", "out"], ["c"], _KEPT),
    "copy": Case(["copy", "c", "out"], ["c"], _KEPT),
    "optimize": Case(["optimize", "c"], ["c"], _KEPT),
    "optimize --field": Case(["optimize", "c", "--field", "n"], ["c"], _KEPT),
    "tune": Case(
        ["tune", "c", "--queries", "questions.txt", "--target-recall", "0.9"],
        ["c", "questions.txt"],
        _KEPT,
    ),
    "update": Case(["update", "c", "7", f"more={'x' * 50_000}"], ["c"], _KEPT),
    "delete": Case(["delete", "c", "--where", "n < 100"], ["c"], [_DOCUMENTS, _DOCUMENTS - 100]),
    "index": Case(["index", "more.jsonl", "c"], ["c", "more.jsonl"], _MORE),
    "index --prune": Case(["index", "notes", "c", "--prune"], ["c", "notes"], _FILES),
    "index --watch": Case(
        ["index", "notes", "c", "--watch"],
        ["c", "notes"],
        _FILES,
        around=one_look,
        sentence="Error: |.*; trying again$",
    ),
    "index an export": Case(
        ["index", _EXPORTED[0], "new", "--vectors", _EXPORTED[1], "--passages-from", _EXPORTED[2]],
        ["exported"],
    ),
    "create": Case(["index", "more.jsonl", "new", "--encoder", _MODEL], ["more.jsonl"]),
    "encode": Case(["encode", "more.jsonl", "out", "--encoder", _MODEL], ["more.jsonl"]),
    "reindex": Case(["reindex", "c", "--encoder", _OTHER], ["c"], _KEPT),
    "reindex --question": Case(["reindex", "c", "--encoder", _OTHER, "-q", "x"], ["c"], _KEPT),
    "reindex, the second step": Case(["reindex", "c"], ["pending>c"], _KEPT),
    "reindex --discard": Case(["reindex", "c", "--discard"], ["pending>c"], _KEPT),
    "verify": Case(["verify", "c"], ["c"], _KEPT),
    "repair": Case(["repair", "c"], ["c"], _KEPT, damage, repairs=True),
    "train": Case(["train", "pairs.tsv", *_TRAINING], ["pairs.tsv"]),
    "mine": Case(["mine", "pairs.tsv", "--out", "mined.jsonl", "--encoder", _MODEL], ["pairs.tsv"]),
    "bench": Case(
        ["bench", "c", "--queries", "questions.txt", "--out", "report", "--repeats", "1"],
        ["c", "questions.txt"],
        _KEPT,
    ),
}


def prepare(folder: Path) -> None:
    """Two encoders, documents, questions, pairs, and a collection of two segments."""
    import numpy as np
    from tiny_model import WORDS, write_sentence_transformer

    write_sentence_transformer(folder / "model", matryoshka_dims=[32, 16, 8])
    cls = {"word_embedding_dimension": _WIDTH, "pooling_mode_cls_token": True}
    write_sentence_transformer(folder / "other", pooling=cls)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(_DOCUMENTS + _ADDED + 200)]
    documents = [
        {"_id": str(i), "title": text[: text.find(" ", 8)], "text": f"{text.capitalize()}.", "n": i}
        for i, text in enumerate(texts)
    ]
    lines = [json.dumps(each) + "\n" for each in documents]
    (folder / "more.jsonl").write_text("".join(lines[_DOCUMENTS : _DOCUMENTS + _ADDED]))
    (folder / "questions.txt").write_text("\n".join(texts[-200:]))
    pairs = map("\t".join, pairwise(texts[:200]))
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")
    with SearchEngine.create(folder / "c", folder / "model") as engine:
        engine.add(documents[:400])
        engine.add(documents[400:_DOCUMENTS])
        engine.export(folder / "exported")
    shutil.copytree(folder / "c", folder / "pending")
    with SearchEngine.open(folder / "pending") as engine:
        leave_pending(engine, folder / "other")
    (folder / "notes").mkdir()
    for i, text in enumerate(texts[-_NOTES:]):
        (folder / "notes" / f"{i}.txt").write_text(text)


def main() -> int:
    """Run a campaign and print what it found."""
    parser = argparse.ArgumentParser(description="Commands on a disk that fills.")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--points", type=int, default=20)
    options = parser.parse_args()
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    import pytest
    from conftest import use_small_grid

    os.environ["SEARCHENGINE_RUNTIME"] = "torch"
    with pytest.MonkeyPatch.context() as patch:
        use_small_grid(patch)
        found = campaign({name: CASES[name] for name in options.only}, prepare, options.points)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    return 1 if any(each["problems"] for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
