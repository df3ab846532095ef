"""Labels from vectors: one linear layer over a unit vector or any trained prefix of it.

The layer is shared by all prefixes (MRL-E in Kusupati et al., arXiv 2205.13147): a prefix uses the
first columns. Vectors are scaled to length √d, so that their values are near 1 at every width.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.model.modules import prefix

# Of the fit: the usual inverse strength of L2 on unit vectors, and the most steps of L-BFGS.
C, ITERATIONS = 10.0, 100


class Classifier(nn.Module):
    """labels: the names of the classes, in the order of the logits."""

    def __init__(self, dim: int, labels: Sequence[str], seed: int = 0):
        super().__init__()
        self.labels = tuple(labels)
        self.linear = nn.Linear(dim, len(self.labels))
        nn.init.normal_(self.linear.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.linear.bias)

    def fit(self, vectors: Tensor, labels: Sequence[str], weights: Mapping[int, float]) -> None:
        """Become the logistic regression of labels on vectors (n, D), by L-BFGS.

        weights: of the cross-entropy over each prefix length; one layer fits them all. The L2
        penalty is that of scikit-learn's C on unit vectors.
        """
        place = {label: i for i, label in enumerate(self.labels)}
        x = vectors.to(self.linear.weight)
        targets = torch.tensor([place[label] for label in labels], device=x.device)
        total = sum(weights.values())
        penalty = x.shape[1] / (2 * C * len(x))  # the weights are √D smaller than for unit vectors
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        solver = torch.optim.LBFGS(
            self.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            solver.zero_grad()
            terms = [
                weight * nn.functional.cross_entropy(self(x, dim), targets)
                for dim, weight in weights.items()
            ]
            value = torch.stack(terms).sum() / total + penalty * self.linear.weight.square().sum()
            torch.autograd.backward(value)
            return value

        solver.step(loss)  # type: ignore[no-untyped-call]
        solver.zero_grad()

    def forward(self, vectors: Tensor, dim: int | None = None) -> Tensor:
        """Logits (n, labels) of the first `dim` dimensions of vectors (n, D), of all by default."""
        dim = vectors.shape[-1] if dim is None else dim
        unit = prefix(vectors, dim) * math.sqrt(dim)
        return nn.functional.linear(unit, self.linear.weight[:, :dim], self.linear.bias)
