"""Several processes that train as one: rows are divided, candidates and gradients combined.

Each process encodes its rows of a batch; every anchor is compared with the candidates of all.
The gradients are those of one process with the whole batch (as in CLIP and SimCSE, whose negatives
are gathered too), because the gathering passes gradients back to where a vector came from.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather

# The others wait while the first process evaluates: torch's 10 minutes on GPUs are too few.
LONGEST_WAIT = timedelta(days=1)


class Processes:
    """The rank of this process among `count`; a single one needs no process group."""

    def __init__(self, rank: int = 0, count: int = 1):
        self.rank = rank
        self.count = count

    @property
    def main(self) -> bool:
        """Whether this process judges, reports and writes."""
        return self.rank == 0

    def sizes(self, n: int) -> list[int]:
        """Numbers of rows, of n, for each process in order; they differ by 1 at most."""
        return [n // self.count + (rank < n % self.count) for rank in range(self.count)]

    def parts(self, n: int) -> list[slice]:
        """Which of n rows are of each process."""
        ends = list(itertools.accumulate(self.sizes(n), initial=0))
        return [slice(start, end) for start, end in itertools.pairwise(ends)]

    def mine(self, n: int) -> slice:
        """Which of n rows are of this process."""
        return self.parts(n)[self.rank]

    def gather(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """The rows of all processes in order, (…, Σ sizes, D); gradients flow back to each.

        rows: (…, sizes[rank], D).
        """
        if self.count == 1:
            return rows
        longest = max(sizes)  # the processes exchange tensors of one shape
        padded = torch.nn.functional.pad(rows, (0, 0, 0, longest - rows.shape[-2]))
        gathered = all_gather(padded.contiguous())  # type: ignore[no-untyped-call]
        return torch.cat([x[..., :n, :] for x, n in zip(gathered, sizes, strict=True)], dim=-2)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Every gradient becomes the sum over the processes, in one exchange."""
        if self.count == 1:
            return
        trainable = [p for p in parameters if p.requires_grad]
        for parameter in trainable:  # a process without rows of a kind has none; all must take part
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([_grad(p).reshape(-1) for p in trainable])
        dist.all_reduce(flat)
        start = 0
        for parameter in trainable:
            n = parameter.numel()
            _grad(parameter).copy_(flat[start : start + n].view_as(parameter))
            start += n

    def add(self, value: float, device: Any) -> float:
        """The sum of a number over the processes."""
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total)

    def share(self, module: torch.nn.Module) -> None:
        """Give all processes the weights of the first one."""
        if self.count > 1:
            for weight in module.state_dict().values():
                dist.broadcast(weight, 0)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            dist.barrier()


def _grad(parameter: torch.nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def group_options() -> dict[str, Any]:
    """How to connect the processes, as arguments of torch.distributed.init_process_group.

    NCCL has each GPU serve one process; gloo connects those that share one.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    shared = 0 < torch.cuda.device_count() < local
    return {"timeout": LONGEST_WAIT} | ({"backend": "gloo"} if shared else {})


def launched_count() -> int:
    """How many processes torchrun or accelerate started; 1 alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_rank() -> int:
    """The rank from torchrun or accelerate, before there is a process group; 0 alone."""
    return int(os.environ.get("RANK", "0"))
