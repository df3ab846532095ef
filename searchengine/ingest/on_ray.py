"""Parts as tasks of a Ray cluster.

Ray starts a task again, on another machine, when the machine or process that runs it is lost. A
task returns a few hundred bytes, which are kept by this process, so nothing else can be lost.
"""

import logging
import os
import socket
from collections.abc import Generator, Sequence
from typing import Any

from searchengine.corpus.parts import Part
from searchengine.errors import SearchEngineError, ServerError
from searchengine.ingest.bulk import Result, Work, encode_part
from searchengine.trainer.errors import install_line

RETRIES = 10
"""How often a part is encoded again after its machine or process was lost."""
_CONNECT = 10  # seconds
_WAITING = 1000  # tasks submitted at a time: Ray starts those that have room


def encode_on_ray(work: Work, parts: Sequence[Part], cpus: float) -> Generator[Result]:
    """Encode parts on the cluster of RAY_ADDRESS, a running one of this machine, or a new one.

    Each task takes `cpus` processors, and a GPU if the runtime's device is one.

    Raises ImportError, ServerError (a part was lost too often, or no machine is large enough), and
    what encode_part raises.
    """
    ray = import_ray()
    is_ours = not ray.is_initialized()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if is_ours:
        check_reachable(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _unreachable(str(error)) from error
    try:
        device = "" if work.runtime is None else work.runtime.device or ""
        needs = {"CPU": cpus, "GPU": 1 if device.startswith("cuda") else 0}
        _check_room(ray, needs)
        options = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "max_retries": RETRIES}
        yield from _run(ray, ray.remote(**options)(_task), work, parts)
    finally:
        if is_ours:
            ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise ServerError unless something answers at HOST:PORT; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto" and the like
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(f"{address}: {error}") from error


def _unreachable(reason: str) -> ServerError:
    return ServerError(
        f"Ray cannot be reached ({reason}); correct RAY_ADDRESS, or start Ray: ray start --head"
    )


def _task(work: Work, part: Part) -> Result | Exception:
    """As encode_part; what concerns the user is returned, so that it is raised as it is."""
    try:
        return encode_part(work, part)
    except (SearchEngineError, OSError, ImportError) as error:
        return error


def _run(ray: Any, task: Any, work: Work, parts: Sequence[Part]) -> Generator[Result]:
    shared = ray.put(work)
    following = iter(parts)
    running: dict[Any, Part] = {}
    try:
        while True:
            while len(running) < _WAITING and (part := next(following, None)) is not None:
                running[task.remote(shared, part)] = part
            if not running:
                return
            (reference, *_), _ = ray.wait(list(running))
            yield _result(ray, reference, running.pop(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _result(ray: Any, reference: Any, part: Part) -> Result:
    try:
        result = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # a fault of this program
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise ServerError(
            f"{part} could not be encoded: its machine or process was lost {RETRIES + 1} times "
            f"({reason}); run the same command again, with fewer tasks on a machine if its memory "
            "was full"
        ) from error
    if isinstance(result, Exception):
        raise result
    assert isinstance(result, Result)
    return result


def _check_room(ray: Any, needs: dict[str, float]) -> None:
    """Raise ServerError if no machine has what a task needs: Ray would wait for one forever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(m.get(name, 0) >= n for name, n in needs.items()) for m in machines):
        wanted = " and ".join(f"{n:g} {name}" for name, n in needs.items() if n)
        raise ServerError(f"no machine of the Ray cluster has {wanted} for a task; add one")


def import_ray() -> Any:
    """The module ray. Raises ImportError with the line that installs it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"encoding on a Ray cluster needs ray: {install_line('ray')}") from error
    return ray
