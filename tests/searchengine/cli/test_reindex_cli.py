"""The command that changes the encoder of a collection, as a user runs it."""

from pathlib import Path

from command_line import run, run_json
from scenarios import leave_pending
from tiny_model import WIDTH, write_sentence_transformer

from searchengine import SearchEngine


def test_a_pending_reindex_is_finished_or_discarded(tmp_path: Path) -> None:
    first, path = write_sentence_transformer(tmp_path / "first"), tmp_path / "c.index"
    cls = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    second = write_sentence_transformer(tmp_path / "second", pooling=cls)
    with SearchEngine.create(path, first) as engine:
        engine.add({"_id": f"d{i}", "text": f"the {word} sleeps"} for i, word in enumerate("abc"))
        before = engine.stats().fingerprint
    assert run_json("reindex", path, "--discard")["discarded"] is False
    for ended in ("discarded", "finished"):
        with SearchEngine.open(path) as engine:
            leave_pending(engine, second)
        info = run_json("info", path)
        assert info["fingerprint"] == before
        assert [line.split(":")[0] for line in info["pending"]] == [f"reindex by {second}"]
        if ended == "discarded":
            assert "the pending reindex was discarded" in run("reindex", path, "--discard").stderr
    done = run("reindex", path, "--encoder", second)
    assert done.returncode == 0, done.stderr
    assert f"3 documents as 3 passages encoded by {second}" in done.stderr
    after = run_json("info", path)
    assert after["fingerprint"] != before and after["pending"] == []
    assert len(run_json("search", path, "who sleeps")["hits"]) == 3
    for options, message in (
        ((), "name the encoder to change to: --encoder PATH"),
        (("--discard", "--passages", "0"), "does not go with --discard"),
        (("--discard", "--runtime", "auto"), "does not go with --discard"),
    ):
        refused = run("reindex", path, *options)
        assert refused.returncode == 2 and message in refused.stderr
