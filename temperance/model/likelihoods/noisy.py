"""Labels of which some are wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.model.likelihoods.base import LearnedParameter, LearnedValues
from temperance.model.likelihoods.classes import ClassLikelihood, from_mean, probabilities, softmax_fisher

LOGIT_RATE = "likelihood.logit_rate"


@dataclass(frozen=True, eq=False)
class NoisyLabels(ClassLikelihood):
    """Labels of which a share ε = ``rate`` was replaced by a class picked at random (perhaps the right one):

        p(y = c | f) = (1 − ε) softmax(f)_c + ε / C.

    A row that the network is sure to be mislabelled pulls no longer: the slope is w (e_y − p) with the probability
    w = (1 − ε) p_y / p(y | f) that the label is genuine. Label smoothing, which has the same optimum for each row by
    itself, pulls on.

    ``rate=None`` (the default) learns logit ε with the network, N(−2, 1) beforehand (2 % to 50 % in 95 of 100 cases).
    Laplace methods leave aside what ε has in common with the weights.

    Predictions are of labels as they are observed, noise included, for these are what ``evaluate``, calibration and
    conformal sets are given. The likeliest class is that of the clean label too; :meth:`clean` gives its probability.

    >>> NoisyLabels(rate=0.2).log_prob(torch.tensor([[100.0, 0.0]]), torch.tensor([1]), {}).exp()
    tensor([0.1000])
    >>> NoisyLabels(rate=0.2).clean(torch.tensor([[0.7, 0.3]]))
    tensor([[0.7500, 0.2500]])
    """

    closed_links: ClassVar[bool] = False

    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_level(self.rate, "rate")

    def learned_parameters(self) -> tuple[LearnedParameter, ...]:
        """logit ε, if it is not given."""
        return () if self.rate is not None else (LearnedParameter(LOGIT_RATE, (1,), -2.0, -2.0, 1.0),)

    def _logit(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """logit ε, broadcastable to ... × B × C."""
        if self.rate is not None:
            return outputs.new_tensor(math.log(self.rate / (1 - self.rate)))
        return learned[LOGIT_RATE].unsqueeze(-1)

    def _logs(self, outputs: Tensor, learned: LearnedValues) -> tuple[Tensor, Tensor]:
        """log((1 − ε) p), and log p of the observed label, ... × B × C each."""
        logit = self._logit(outputs, learned)
        genuine = outputs.log_softmax(-1) + torch.nn.functional.logsigmoid(-logit)
        wrong = torch.nn.functional.logsigmoid(logit) - math.log(outputs.shape[-1])
        return genuine, torch.logaddexp(genuine, wrong.expand_as(genuine))

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """log((1 − ε) p_y + ε / C)."""
        _, observed = self._logs(outputs, learned)
        return observed.gather(-1, y.expand(observed.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """w (p − e_y) in the logits; w − (1 − ε) in logit ε."""
        genuine, observed = self._logs(outputs, learned)
        index = y.expand(observed.shape[:-1]).unsqueeze(-1)
        loss = -observed.gather(-1, index)
        share = (genuine.gather(-1, index) + loss).exp()
        slope = outputs.softmax(-1) * share
        slope = slope.scatter_add(-1, index, -share)
        if self.rate is not None:
            return loss.squeeze(-1), slope, {}
        return loss.squeeze(-1), slope, {LOGIT_RATE: share - self._logit(outputs, learned).neg().sigmoid()}

    def score(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """w (e_y − p)."""
        return -self.row_slopes(outputs, y, learned)[1]

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """w (diag p − p pᵀ) − w (1 − w) (e_y − p)(e_y − p)ᵀ: indefinite where the label is in doubt."""
        genuine, observed = self._logs(outputs, learned)
        index = y.expand(observed.shape[:-1]).unsqueeze(-1)
        share = (genuine - observed).exp().gather(-1, index).unsqueeze(-1)
        one = torch.zeros_like(outputs).scatter(-1, index, 1.0) - outputs.softmax(-1)
        return share * softmax_fisher(outputs) - share * (1 - share) * one.unsqueeze(-1) * one.unsqueeze(-2)

    def _roots(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """√p(k) w_k (e_k − p) for each class k, ... × B × C × C."""
        genuine, observed = self._logs(outputs, learned)
        return (genuine - 0.5 * observed).exp().unsqueeze(-1) * from_mean(outputs)

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_k p(k) w_k² (e_k − p)(e_k − p)ᵀ."""
        roots = self._roots(outputs, learned)
        return roots.mT @ roots

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """√p(k) w_k (e_k − p)."""
        yield from self._roots(outputs, learned).unbind(-2)

    def learned_fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Σ over rows and classes of (∂ p(k) / ∂ logit ε)² / p(k), ∂ p(k) / ∂ε being 1/C − p_k."""
        rate = self._logit(outputs, learned).sigmoid()
        slope = rate * (1 - rate) * (1 / outputs.shape[-1] - outputs.softmax(-1))
        return (slope.square() / self.mean(outputs, learned)).sum().view(1, 1)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Probabilities of the observed label."""
        rate = self._logit(outputs, learned).sigmoid()
        return (1 - rate) * probabilities(outputs) + rate / outputs.shape[-1]

    def clean(self, probs: Tensor, rate: float | None = None) -> Tensor:
        """Probabilities of the clean label from those of the observed one (``predict(x).probs``), (q − ε/C) / (1 − ε).
        Where the rate is learned, say which to take: ε of a point, or its average over draws."""
        share = check_level(self.rate if rate is None else rate, "rate")
        return ((probs - share / probs.shape[-1]) / (1 - share)).clamp(0.0, 1.0)
