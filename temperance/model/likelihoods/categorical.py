"""Classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from temperance.core.errors import DataError
from temperance.core.outcomes import Labels, Outcome
from temperance.model.likelihoods.base import LearnedValues, Likelihood, check_real_targets, diagonal, diagonal_columns
from temperance.model.likelihoods.classes import ClassLikelihood, softmax_fisher


@dataclass(frozen=True, eq=False)
class Categorical(ClassLikelihood):
    """One of C classes: p(y = c | f) = exp(f_c) / Σ exp(f_j). The network gives C logits; y holds integers 0 … C−1.

    y may also hold rows of C class probabilities, where annotators disagree or labels are smoothed: log p is then
    Σ_c y_c log p(c | f), its expectation over the class, and everything else follows from it.

    Label smoothing by an amount a is such a target: ``y = (1 - a) * torch.nn.functional.one_hot(y, C) + a / C``. It is
    no model of labels that are sometimes wrong; :class:`~temperance.NoisyLabels` is one.

    The Hessian in the logits, diag(p) − p pᵀ, does not depend on y, so it equals the Fisher information.

    >>> Categorical().log_prob(torch.zeros(1, 2), torch.tensor([[0.3, 0.7]]), {})
    tensor([-0.6931])
    >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2]), {})
    tensor([-1.3863])
    """

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        if y.is_floating_point() and y.dim() == 2 and y.shape[1] == num_outputs:
            return _class_shares(y, dtype)
        if y.is_floating_point() or y.is_complex():
            raise DataError(
                f"`y` must hold integer class labels for Categorical, or rows of {num_outputs} class probabilities; "
                f"got dtype {y.dtype} and shape {tuple(y.shape)}. Use y.long()."
            )
        return super().prepare(y, num_outputs, dtype)

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """f_y − log Σ exp f; of class probabilities, its expectation."""
        if y.is_floating_point():
            return (y * outputs.log_softmax(-1)).sum(-1)
        index = y.expand(outputs.shape[:-1]).unsqueeze(-1)
        return outputs.log_softmax(-1).gather(-1, index).squeeze(-1)

    def negative_log_likelihood(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The fused cross-entropy, summed."""
        if outputs.dim() == 2:
            return F.cross_entropy(outputs, y, reduction="sum")
        return super().negative_log_likelihood(outputs, y, learned)

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """p − e_y in the logits; of class probabilities, p − y."""
        logs = outputs.log_softmax(-1)
        slope = logs.exp()
        if y.is_floating_point():
            return -(y * logs).sum(-1), slope - y, {}
        index = y.unsqueeze(-1)
        slope.scatter_add_(-1, index, slope.new_full((), -1.0).expand(index.shape))
        return -logs.gather(-1, index).squeeze(-1), slope, {}

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """diag(p) − p pᵀ."""
        return softmax_fisher(outputs)

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """√p_k (e_k − p)."""
        p = outputs.softmax(-1)
        for k in range(p.shape[-1]):
            column = -p
            column[..., k] += 1
            yield column * p[..., k : k + 1].sqrt()

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """p v − p (pᵀ v)."""
        p = outputs.softmax(-1)
        return p * (v - (p * v).sum(-1, keepdim=True))

    def score(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """e_y − p; of class probabilities, y − p."""
        made = -outputs.softmax(-1)
        if y.is_floating_point():
            return made + y
        return made.scatter_add_(-1, y.unsqueeze(-1), torch.ones_like(made[..., :1]))

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The same."""
        return self.fisher(outputs, learned)


def _class_shares(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of class probabilities, checked."""
    total = y.double().sum(-1)
    if not bool((y >= 0).all()) or not bool(((total - 1).abs() < 1e-4).all()):
        worst = float(total[(total - 1).abs().argmax()])
        raise DataError(
            "`y` must hold class probabilities, from 0 on and summing to 1 in each row, for Categorical with targets "
            f"of a column a class; got values from {float(y.min()):.3g} to {float(y.max()):.3g} and a row with sum "
            f"{worst:.4g}."
        )
    return (y.double() / total.unsqueeze(-1)).to(dtype)


@dataclass(frozen=True, eq=False)
class Bernoulli(Likelihood):
    """Yes or no, for one or several labels: p(y_k = 1 | f) = 1 / (1 + exp(−f_k)), independently over k.

    The network gives one logit per label; y holds zeros and ones, of shape (rows,) or (rows, labels).

    >>> Bernoulli().log_prob(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]]), {})
    tensor([-2.0794])
    """

    outcome: ClassVar[Outcome] = Labels()

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        made = check_real_targets(y, num_outputs, dtype, "Bernoulli")
        if not bool(((made == 0) | (made == 1)).all()):
            raise DataError(
                f"`y` must hold zeros and ones for Bernoulli; got values from {float(made.min())} to "
                f"{float(made.max())}."
            )
        return made

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_k y f − log(1 + eᶠ)."""
        return (y * outputs - F.softplus(outputs)).sum(-1)

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """p − y in the logits."""
        return (F.softplus(outputs) - y * outputs).sum(-1), outputs.sigmoid() - y, {}

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """diag(p (1 − p))."""
        return diagonal(self.variance(outputs, learned))

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """Of a diagonal."""
        return diagonal_columns(self.variance(outputs, learned))

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """Of a diagonal."""
        return self.variance(outputs, learned) * v

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The same: it does not depend on y."""
        return self.fisher(outputs, learned)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """p(y_k = 1)."""
        return outputs.sigmoid()

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """p (1 − p)."""
        p = outputs.sigmoid()
        return p * (1 - p)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_k −p log p − (1−p) log(1−p)."""
        return (F.softplus(outputs) - outputs * outputs.sigmoid()).sum(-1)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """Zeros and ones."""
        return torch.bernoulli(outputs.sigmoid(), generator=rng)
