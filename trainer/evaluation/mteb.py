"""An encoder judged by tasks of mteb, for every prefix length.

The Massive Text Embedding Benchmark: Muennighoff et al., arXiv 2210.07316. It fetches the data and
scores the encoder's vectors, cut and scaled to length one as the index does it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError, install_line
from searchengine.trainer.evaluation.sts import OnBatch, Rows, prefix_lengths, unit_prefix

try:
    import mteb
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ScoringFunction
except ModuleNotFoundError as error:
    raise ImportError(f"evaluating with mteb needs {error.name}: {install_line('mteb')}") from error


@dataclass(frozen=True, slots=True)
class MtebRow:
    """The result of mteb for one task and one prefix length: of its main metric."""

    task: str
    type: str
    dim: int
    metric: str
    score: float


def load_task(name: str) -> Any:
    """One of mteb's tasks, with its data. Raises ConfigError (unknown) and DataError (no data)."""
    try:
        task = mteb.get_task(name)
    except KeyError as error:
        raise ConfigError(f"mteb has no task {name} ({error.args[0]})") from error
    try:
        task.load_data()
    except Exception as error:  # of the network, its client, or the file that came
        raise DataError(
            f"the data of {name} cannot be had ({type(error).__name__}: {error}); mteb fetches it "
            "from the network. Files of your own: evaluate retrieval, evaluate sts"
        ) from error
    return task


def evaluate(
    encoder: Encoder,
    tasks: Iterable[Any],
    dims: Sequence[int] | None = None,
    on_batch: OnBatch | None = None,
) -> Iterator[MtebRow]:
    """Yield one row per task and prefix length, as soon as it is measured.

    tasks: as `load_task` returns them; every text of one is encoded once. dims, and errors: as for
    `prefix_lengths`.
    """
    chosen = prefix_lengths(encoder, encoder.dim, dims)
    for task in tasks:
        known: dict[tuple[str | None, str], Rows] = {}
        for dim in chosen:
            model = _Prefix(encoder, dim, known, on_batch)
            # Its cache would go by the name of a task, and take old results for new ones.
            (result,) = mteb.evaluate(
                model, task, cache=None, co2_tracker=False, show_progress_bar=False
            ).task_results
            about = task.metadata
            yield MtebRow(about.name, about.type, dim, about.main_score, float(result.get_score()))


class _Prefix(AbsEncoder):  # type: ignore[misc]
    """An encoder's prefixes as a model of mteb's. known: (role, text) → vector, of full width."""

    def __init__(
        self,
        encoder: Encoder,
        dim: int,
        known: dict[tuple[str | None, str], Rows],
        on_batch: OnBatch | None,
    ) -> None:
        self._encoder, self._dim, self._known, self._on_batch = encoder, dim, known, on_batch
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": "local/model", "similarity_fn_name": ScoringFunction.COSINE}
        )

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any
    ) -> Any:
        """Unit rows (n, dim) of batches of texts."""
        role = None if prompt_type is None else prompt_type.value
        keys = [(role, text) for batch in inputs for text in batch["text"]]
        if fresh := [key for key in dict.fromkeys(keys) if key not in self._known]:
            texts = [text for _, text in fresh]
            vectors = self._encoder.encode(texts, role=role, on_batch=self._on_batch)
            self._known.update(zip(fresh, vectors, strict=True))
        return unit_prefix(np.stack([self._known[key] for key in keys]), self._dim)
