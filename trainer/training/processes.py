"""Several processes that train as one: texts are divided, vectors and gradients combined.

Each process encodes its part of a batch's texts, and computes the loss of all their vectors. The
gradients are those of one process with the whole batch (as in CLIP and SimCSE, whose negatives are
gathered too): each takes those of its own vectors back through its network, and they are added up.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

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

    def mine(self, n: int, rank: int | None = None) -> slice:
        """Which of n rows are of this process, or of another; their numbers differ by 1 at most."""
        rank = self.rank if rank is None else rank
        return slice(n * rank // self.count, n * (rank + 1) // self.count)

    def gather(self, rows: Tensor, n: int) -> Tensor:
        """All n rows, in order, of this process's (L, mine(n), D): (L, n, D).

        Every process computes the loss of all rows; the gradients that flow back are those of this
        process's own rows, from the sum of all processes' losses.
        """
        if self.count == 1:
            return rows
        parts = [self.mine(n, rank) for rank in range(self.count)]
        longest = -(-n // self.count)  # the processes exchange tensors of one shape
        padded = rows.new_zeros(len(rows), longest, rows.shape[-1])
        padded[:, : rows.shape[1]] = rows.detach()
        gathered = [torch.empty_like(padded) for _ in parts]
        dist.all_gather(gathered, padded)
        own = rows * 1.0
        if own.requires_grad:
            own.register_hook(lambda gradient: gradient * self.count)  # type: ignore[no-untyped-call]
        gathered[self.rank] = own
        whole = [x[:, : part.stop - part.start] for x, part in zip(gathered, parts, strict=True)]
        return torch.cat(whole, dim=1)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Every gradient becomes the sum over the processes, in one exchange."""
        if self.count == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:  # a process without such rows; all must take part
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat)
        vector_to_parameters(flat, gradients)

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
