"""Several processes that train as one: texts are divided, vectors and gradients combined.

Each process encodes its part of a batch's texts, and computes the loss of all their vectors. The
gradients are those of one process with the whole batch (as in CLIP and SimCSE, whose negatives are
gathered too): each takes those of its own vectors back through its network, and they are added up.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.runtimes.torch_runtime import pick_device

# The others wait while the first process evaluates: torch's 10 minutes on GPUs are too few.
LONGEST_WAIT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Processes:
    """The rank of this process among `count`; a single one needs no process group."""

    rank: int = 0
    count: int = 1

    @property
    def main(self) -> bool:
        """Whether this process judges, reports and writes."""
        return self.rank == 0

    def mine(self, n: int) -> slice:
        """Which of n rows are of this process; the numbers of two differ by 1 at most."""
        return slice(n * self.rank // self.count, n * (self.rank + 1) // self.count)

    def gather(self, rows: Tensor, n: int) -> Tensor:
        """All n rows, in order, of this process's (L, mine(n), D): (L, n, D).

        Every process computes the loss of all rows; the gradients that flow back are those of this
        process's own rows, from the sum of all processes' losses.
        """
        if self.count == 1:
            return rows
        whole = rows.new_zeros(len(rows), n, rows.shape[-1])
        whole[:, self.mine(n)] = rows.detach()
        dist.all_reduce(whole)
        own = rows * 1.0
        if own.requires_grad:  # torch's own gather with gradients is deprecated
            own.register_hook(lambda gradient: gradient * self.count)  # type: ignore[no-untyped-call]
        whole[:, self.mine(n)] = own
        return whole

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Every gradient becomes the sum over the processes, in one exchange."""
        if self.count == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # a process without such rows; all must take part
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat)
        vector_to_parameters(flat, gradients)

    def add(self, value: float, device: torch.device) -> float:
        """The sum of a number over the processes."""
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total)

    def share(self, module: torch.nn.Module) -> None:
        """Give all processes the weights of the first one."""
        for weight in module.state_dict().values() if self.count > 1 else ():
            dist.broadcast(weight, 0)


def connect() -> tuple[Processes, torch.device]:
    """The processes that torchrun started, connected, and the device of this one.

    NCCL has each GPU serve one process; gloo connects those that share one or have none. Raises
    ConfigError if they cannot connect.
    """
    count, device = int(os.environ.get("WORLD_SIZE", "1")), pick_device(None)
    if count == 1:
        return Processes(), device
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if gpus:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo"
        try:
            dist.init_process_group(backend, timeout=LONGEST_WAIT)
        except ValueError as error:
            raise ConfigError(
                f"{count} processes cannot connect: start them with torchrun"
            ) from error
    return Processes(launched_rank(), count), device


def launched_rank() -> int:
    """The rank from torchrun, before there is a process group; 0 alone."""
    return int(os.environ.get("RANK", "0"))
