"""Labels that are in the data because labellers agreed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, shown
from temperance.core.errors import ArgumentError
from temperance.model.likelihoods.base import LearnedValues, Likelihood
from temperance.model.likelihoods.categorical import Categorical
from temperance.model.likelihoods.classes import ClassLikelihood, from_mean, probabilities, softmax_fisher

_ONE = Categorical()


@dataclass(frozen=True, eq=False)
class CuratedLabels(ClassLikelihood):
    """Labels on which S = ``labellers`` agreed (Aitchison 2021). Each of S labellers says class c with probability
    p_c = softmax(f)_c, independently; a row is kept, with label y, if all say the same:

        log p(kept, y | f) = S log p_y,        log p(undecided | f) = log(1 − Σ_c p_c^S).

    That a row was kept is itself evidence: its class is plain to see. Training on kept rows alone is training
    ``Categorical()`` with ``likelihood_temperature`` 1/S, whatever the method: energies, gradients and curvature are
    the same. Then p_y^S does not sum to one over y, for what is missing belongs to rows that were never kept.

    Args:
        labellers: S.
        undecided: whether the data have the rows as well on which labellers disagreed, with the label C (the number
            of outputs). The C + 1 probabilities then sum to one.

    Predictions are p, averaged over θ, and ``evaluate`` scores test labels by log p_y as under ``Categorical()``; it
    takes no undecided rows. With undecided rows p tends to what one labeller says. Without them nothing speaks for
    doubt, and with many rows p tends to the distribution of a label that was kept, softmax(S f*) where f* are one
    labeller's logits: right for test labels that are curated likewise, too sure of a single labeller.

    >>> two = CuratedLabels(labellers=2, undecided=True)
    >>> two.log_prob(torch.zeros(3, 2), torch.tensor([0, 1, 2]), {}).exp()
    tensor([0.2500, 0.2500, 0.5000])
    >>> two.for_new_rows
    Categorical()
    """

    labellers: int
    undecided: bool = False

    def __post_init__(self) -> None:
        check_count(self.labellers, "labellers")
        check_flag(self.undecided, "undecided")
        if self.undecided and self.labellers == 1:
            raise ArgumentError(
                f"`labellers` must be at least 2 with undecided rows, for one labeller agrees with himself; got "
                f"{shown(self.labellers)}. Use Categorical()."
            )

    @property
    def normalised(self) -> bool:
        """With undecided rows; without them Σ_y p_y^S is the probability of being kept."""
        return self.undecided or self.labellers == 1

    @property
    def for_new_rows(self) -> Likelihood:
        """p."""
        return _ONE

    def labels_for(self, num_outputs: int) -> int:
        """One more, where there are undecided rows."""
        return num_outputs + self.undecided

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """S log p_y; log(1 − Σ p^S) of undecided rows."""
        if not self.undecided:
            return self.labellers * _ONE.log_prob(outputs, y, learned)
        classes = outputs.shape[-1]
        agreed = self.labellers * _ONE.log_prob(outputs, y.clamp(max=classes - 1), learned)
        return torch.where(y == classes, self._log_undecided(outputs), agreed)

    def _log_undecided(self, outputs: Tensor) -> Tensor:
        """log Σ_c p_c (1 − p_c) (1 + p_c + … + p_c^{S−2}), which is log(1 − Σ p^S) without a difference: where one
        class is nearly sure, its 1 − p is the sum of the others."""
        logs = outputs.log_softmax(-1)
        top = torch.zeros_like(logs, dtype=torch.bool).scatter_(-1, logs.argmax(-1, keepdim=True), True)
        others = logs.masked_fill(top, -torch.inf).logsumexp(-1, keepdim=True)
        p = logs.exp()
        rest = torch.where(top, others, torch.log1p(-torch.where(top, torch.zeros_like(p), p)))
        series = torch.ones_like(p)
        for _ in range(self.labellers - 2):
            series = 1 + p * series
        return (logs + rest + series.log()).logsumexp(-1)

    def negative_log_likelihood(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """S times the fused cross-entropy."""
        if self.undecided:
            return super().negative_log_likelihood(outputs, y, learned)
        return self.labellers * _ONE.negative_log_likelihood(outputs, y, learned)

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]] | None:
        """S (p − e_y), where all rows are decided."""
        if self.undecided:
            return None
        each, slope, found = _ONE.row_slopes(outputs, y, learned)
        return self.labellers * each, self.labellers * slope, found

    def score(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """S (e_y − p), where all rows are decided."""
        if self.undecided:
            return super().score(outputs, y, learned)
        return self.labellers * _ONE.score(outputs, y, learned)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """S (diag p − p pᵀ); of undecided rows ∇²Q / (1 − Q) + ∇Q ∇Qᵀ / (1 − Q)² with Q = Σ p^S, perhaps indefinite."""
        agreed = self.labellers * softmax_fisher(outputs)
        if not self.undecided:
            return agreed
        kept, slope, missing = self._kept(outputs)
        p, s = outputs.double().softmax(-1), self.labellers
        total = kept.sum(-1)[..., None, None]
        cross = kept.unsqueeze(-1) * p.unsqueeze(-2)
        square = p.unsqueeze(-1) * p.unsqueeze(-2)
        bend = s * (
            torch.diag_embed(s * kept - total.squeeze(-1) * p) - s * (cross + cross.mT) + (s + 1) * total * square
        )
        split = bend / missing + slope.unsqueeze(-1) * slope.unsqueeze(-2) / missing.square()
        return torch.where((y == outputs.shape[-1])[..., None, None], split.to(agreed), agreed)

    def _kept(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In float64: p^S, the gradient S (p^S − Q p) of Q = Σ p^S, and 1 − Q (with two dimensions more)."""
        wide = outputs.double()
        logs = wide.log_softmax(-1)
        kept = (self.labellers * logs).exp()
        slope = self.labellers * (kept - kept.sum(-1, keepdim=True) * logs.exp())
        return kept, slope, self._log_undecided(wide).exp()[..., None, None]

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """S (diag p − p pᵀ) of decided rows, whatever their label; with undecided rows the expectation over all C + 1
        answers, S² Σ_c p_c^S (e_c − p)(e_c − p)ᵀ + ∇Q ∇Qᵀ / (1 − Q)."""
        if not self.undecided:
            return self.labellers * softmax_fisher(outputs)
        kept, slope, missing = self._kept(outputs)
        apart = from_mean(outputs.double())
        made = self.labellers**2 * (apart.mT * kept.unsqueeze(-2)) @ apart
        return (made + slope.unsqueeze(-1) * slope.unsqueeze(-2) / missing).to(outputs.dtype)

    def fisher_draw(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """√S (e_y − p) with y ~ p, where all rows are decided."""
        if self.undecided:
            return super().fisher_draw(outputs, learned, rng)
        return self.labellers**0.5 * _ONE.fisher_draw(outputs, learned, rng)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """p; with undecided rows, C + 1 probabilities: to be kept with each label, or not."""
        if not self.undecided:
            return probabilities(outputs)
        kept = (self.labellers * outputs.log_softmax(-1)).exp()
        return torch.cat([kept, self._log_undecided(outputs).exp().unsqueeze(-1)], -1)
