"""An encoder judged by mteb, the Massive Text Embedding Benchmark, for every prefix length.

On mteb's own tasks, which it fetches, and on local data. Muennighoff et al., arXiv
2210.07316. mteb asks for vectors and scores them; what it is given is the encoder's own, cut and
scaled to length one as the index does it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError, install_line
from searchengine.trainer.evaluation.sts import (
    STS_COLUMNS,
    OnBatch,
    Remembered,
    Role,
    StsTask,
    prefix_lengths,
    unit_prefix,
)

try:
    import mteb
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction
except ModuleNotFoundError as error:
    raise ImportError(f"evaluating with mteb needs {error.name}: {install_line('mteb')}") from error

SPLIT, SUBSET = "test", "default"
_UNKNOWN = "und-Zyyy"  # the language of data that does not say it: undetermined, in some script


@dataclass(frozen=True, slots=True)
class MtebRow:
    """The result of mteb for one task and one prefix length.

    score: of `metric`, the task's main one, as mteb gives it; mostly a fraction.
    """

    task: str
    type: str
    dim: int
    metric: str
    score: float


def _local_task(kind: Any, name: str, type_name: str, score: str, data: Any) -> Any:
    """One of mteb's kinds of task with data of our own."""
    metadata = mteb.TaskMetadata(
        name=name,
        type=type_name,
        main_score=score,
        description="Local data.",
        dataset={"path": "local", "revision": "local"},
        eval_langs=[_UNKNOWN],
        eval_splits=[SPLIT],
    )
    task = type("LocalTask", (kind,), {"metadata": metadata})()
    task.dataset = {SUBSET: {SPLIT: data}}
    task.data_loaded = True
    return task


def sts_task(task: StsTask) -> Any:
    """Scored pairs as a task for `evaluate`. Raises DataError if there are fewer than two."""
    if len(task.pairs) < 2:
        raise DataError(f"{task.name}: {len(task.pairs)} scored pairs: expected at least 2")
    pairs = Dataset.from_list([dict(zip(STS_COLUMNS, pair, strict=True)) for pair in task.pairs])
    return _local_task(AbsTaskSTS, task.name, "STS", "cosine_spearman", pairs)


def retrieval_task(
    name: str,
    corpus: Iterable[tuple[str, str, str]],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
) -> Any:
    """Judged questions as a task for `evaluate`.

    Args:
        name: what the task is called.
        corpus: (key, title, text) of every document; read as title, a space, text.
        queries: question by key; of them those that are judged are asked.
        qrels: grade by question and document.

    Raises:
        DataError: there is no document, or no question is judged.
    """
    documents = [dict(zip(("id", "title", "text"), document, strict=True)) for document in corpus]
    judged = [{"id": key, "text": text} for key, text in queries.items() if key in qrels]
    if not documents or not judged:
        what = "no question has a judgement" if documents else "there are no documents"
        raise DataError(f"{name}: {what}; are all files of one data set?")
    data = {
        "corpus": Dataset.from_list(documents),
        "queries": Dataset.from_list(judged),
        "relevant_docs": {query["id"]: dict(qrels[query["id"]]) for query in judged},
        "top_ranked": None,
    }
    return _local_task(AbsTaskRetrieval, name, "Retrieval", "ndcg_at_10", data)


def own_task(name: str) -> Any:
    """One of mteb's tasks, its data loaded, for which it uses the network or what it kept.

    Raises ConfigError for a task that there is not, or one of more than texts; DataError if its
    data cannot be had.
    """
    try:
        task = mteb.get_task(name)
    except KeyError as error:
        raise ConfigError(f"mteb has no task {name} ({error.args[0]})") from error
    if list(task.metadata.modalities) != ["text"]:
        raise ConfigError(f"{name} is about {', '.join(task.metadata.modalities)}, expected text")
    try:
        task.load_data()
    except Exception as error:  # of the network, its client, or the file that came
        raise DataError(
            f"the data of {name} cannot be had ({type(error).__name__}: {error}); mteb fetches it "
            "from the network, or put it here and name the files: --retrieval, --sts"
        ) from error
    return task


def evaluate(
    encoder: Encoder,
    tasks: Iterable[Any],
    dims: Sequence[int] | None = None,
    out: Path | None = None,
    on_batch: OnBatch | None = None,
) -> Iterator[MtebRow]:
    """One row a task and prefix length, as soon as it is known.

    Args:
        encoder: what is judged. Every text of a task is encoded once, whatever the lengths.
        tasks: of `sts_task`, `retrieval_task` and `own_task`.
        dims: prefix lengths; by default the encoder's `matryoshka_dims`.
        out: a folder for all that mteb says of a result, laid out as it lays them out itself.
        on_batch: gets the number of texts encoded.

    Raises ConfigError for a length the vectors do not have.
    """
    chosen = prefix_lengths(encoder, encoder.dim, dims)
    for task in tasks:
        known = Remembered(encoder)
        for dim in chosen:
            model = _Prefix(encoder, dim, known, on_batch)
            results = mteb.evaluate(
                model,
                task,
                cache=None,  # it would go by the name of a task, and take old results for new
                co2_tracker=False,
                show_progress_bar=False,
            )
            (result,) = results.task_results
            if out is not None:
                mteb.ResultCache(out).save_to_cache(result, model.mteb_model_meta)
            about = task.metadata
            yield MtebRow(about.name, about.type, dim, about.main_score, float(result.get_score()))


class _Prefix:
    """An encoder's prefixes as a model of mteb's: its EncoderProtocol."""

    def __init__(
        self, encoder: Encoder, dim: int, known: Remembered, on_batch: OnBatch | None
    ) -> None:
        """known: the encoder, remembering vectors: prefixes differ in what is cut off alone."""
        self._encoder, self._dim = encoder, dim
        self._known, self._on_batch = known, on_batch

    @property
    def mteb_model_meta(self) -> Any:
        """The names that results are stored under: source, fingerprint, and the prefix if any."""
        source, dim = self._encoder.source, self._dim
        # mteb's names are "organisation/name", as on the hub.
        on_hub = source.count("/") == 1 and not Path(source).exists()
        return ModelMeta.create_empty(
            {
                "name": source if on_hub else f"local/{Path(source).name}",
                "revision": self._encoder.fingerprint,
                "embed_dim": dim,
                "max_tokens": self._encoder.max_tokens,
                "similarity_fn_name": ScoringFunction.COSINE,
                "experiment_kwargs": None if dim == self._encoder.dim else {"prefix": dim},
            }
        )

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """Unit rows (n, dim) of batches of texts."""
        texts = [text for batch in inputs for text in batch["text"]]
        role: Role | None = None if prompt_type is None else prompt_type.value
        vectors = self._known.encode(texts, role=role, on_batch=self._on_batch)
        return unit_prefix(vectors, self._dim)

    def similarity(self, a: Any, b: Any) -> Any:
        """Cosines (n, m) of unit rows."""
        return a @ b.T

    def similarity_pairwise(self, a: Any, b: Any) -> Any:
        """Cosines (n,) of unit rows, one with one."""
        return (a * b).sum(-1)
