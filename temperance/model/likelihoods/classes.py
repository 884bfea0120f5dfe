"""What likelihoods of one class out of several share."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.errors import DataError, NetworkError
from temperance.core.outcomes import Classes, Outcome
from temperance.model.likelihoods.base import LearnedValues, Likelihood, diagonal

_FEW = 8  # classes up to which the softmax is faster with the classes apart in memory


def probabilities(outputs: Tensor) -> Tensor:
    """exp f_k / Σ exp f, of the last dimension. PyTorch's own softmax does rows one by one, which for two or three
    classes is six times slower on a CPU than doing all rows class by class."""
    if outputs.shape[-1] > _FEW or outputs.device.type != "cpu" or outputs.requires_grad or outputs.dim() < 2:
        return outputs.softmax(-1)
    apart = outputs.transpose(-1, -2).contiguous()
    apart = (apart - apart.amax(-2, keepdim=True)).exp()
    return (apart / apart.sum(-2, keepdim=True)).transpose(-1, -2)


def softmax_fisher(outputs: Tensor) -> Tensor:
    """diag(p) − p pᵀ: minus the second derivative of log Σ exp f."""
    p = outputs.softmax(-1)
    return diagonal(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def from_mean(outputs: Tensor) -> Tensor:
    """e_k − p for each class k, ... × B × C × C: row k is the slope of log p_k."""
    p = outputs.softmax(-1)
    return torch.eye(p.shape[-1], dtype=p.dtype, device=p.device) - p.unsqueeze(-2)


class ClassLikelihood(Likelihood):
    """One of C classes, from C logits f; y holds integers 0 … C−1. A new row has the class c with the probability
    p_c = exp(f_c) / Σ exp(f_j), unless a subclass says otherwise."""

    outcome: ClassVar[Outcome] = Classes()

    def labels_for(self, num_outputs: int) -> int:
        """How many labels y may have."""
        return num_outputs

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        name = type(self).__name__
        if y.is_floating_point() or y.is_complex():
            raise DataError(
                f"`y` must hold integer class labels for {name}; got dtype {y.dtype} and shape {tuple(y.shape)}. "
                "Use y.long()."
            )
        if y.dim() == 2 and y.shape[1] == 1:
            y = y.squeeze(1)
        if y.dim() != 1:
            raise DataError(f"`y` must have shape (rows,) for {name}; got {tuple(y.shape)}.")
        y = y.long()
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= self.labels_for(num_outputs):
            raise DataError(
                f"`y` must hold classes from 0 to {self.labels_for(num_outputs) - 1}, for the network has "
                f"{num_outputs} outputs; got labels from {low} to {high}."
            )
        return y

    def check_outputs(self, outputs: Tensor) -> None:
        """See :class:`Likelihood`."""
        super().check_outputs(outputs)
        if outputs.shape[-1] < 2:
            raise NetworkError(
                f"the network must have one output per class, at least 2, for {type(self).__name__}; got "
                f"{outputs.shape[-1]}. For two classes with a single output use Bernoulli."
            )

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Class probabilities."""
        return probabilities(outputs)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """p (1 − p): the variance of each class's indicator."""
        p = self.mean(outputs, learned)
        return p * (1 - p)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """−Σ p log p."""
        p = self.mean(outputs, learned)
        return -torch.special.xlogy(p, p).sum(-1)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """Labels."""
        p = self.mean(outputs, learned)
        return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=rng).view(outputs.shape[:-1])
