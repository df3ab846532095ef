"""How good vectors are: similarity judgements, geometry, labels, mteb."""

from searchengine.trainer.evaluation.sts import averages, read_task, sts_tasks

__all__ = ["averages", "read_task", "sts_tasks"]
