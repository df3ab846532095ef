"""searchengine tune --qrels: the mode and the weight by judged questions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from searchengine.measure.fusing import FusionTuning


def tune_fusion(
    collection: Path | str,
    queries: Path,
    qrels: Path,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Choose and apply mode and weight, and print what they are worth."""
    from searchengine.cli.console import note, say, show_json, show_rows, steps
    from searchengine.engine import SearchEngine
    from searchengine.measure import fusing
    from searchengine.measure.judgements import read_qrels, read_queries
    from searchengine.measure.retrieval import ENCODING

    questions, judgements = read_queries(queries), read_qrels(qrels)
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine, steps() as report:

        def progress(step: str, done: int) -> None:
            report("Encoding" if step == ENCODING else "Ranking", done, len(questions))

        tuning = fusing.tune_fusion(engine, questions, judgements, progress=progress)
    for sentence in tuning.notes:
        note(f"Note: {sentence}")
    if as_json:
        show_json({"collection": str(collection), **tuning.as_dict()})
        return
    names = {
        "chosen": f"chosen: {_described(tuning.mode, tuning.weight)}",
        "default": f"before: {_described(tuning.before_mode, tuning.before_weight)}",
        "vector": "vectors alone",
        "text": "words alone",
    }
    rows = [{"ranking": names[name], "ndcg@10": f"{x:.3f}"} for name, x in tuning.ndcg_10.items()]
    show_rows(rows, f"{collection}, {tuning.held_out} held-out questions")
    say(_conclusion(collection, tuning))


def _described(mode: str, weight: float) -> str:
    return f"hybrid, weight {weight:g}" if mode == "hybrid" else mode


def _conclusion(collection: Path | str, tuning: "FusionTuning") -> str:
    """Say what happened, in one sentence."""
    chosen = _described(tuning.mode, tuning.weight)
    best = f"the best of {len(tuning.curve)} weights on {tuning.fitted} questions"
    if tuning.mode == tuning.before_mode and tuning.weight == tuning.before_weight:
        return f"{collection} stays as it is ({chosen}), which is {best}"
    compared = tuning.comparison
    p = "below 0.001" if compared.p < 0.001 else f"{compared.p:.3f}"
    held_out = (
        f"on {tuning.held_out} held-out ones {compared.difference:+.3f} nDCG@10 "
        f"(95 % interval {compared.low:+.3f} to {compared.high:+.3f}, p {p})"
    )
    if tuning.stored:
        return f"{collection} ranks by {chosen}, from now on: {best}; {held_out}"
    return f"{collection} was not changed: {chosen} is {best}, but {held_out}"
