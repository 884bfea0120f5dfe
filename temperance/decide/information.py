"""What labels would tell, in nats: of rows together, of a row about predictions elsewhere, and greedy batches of rows.

For classes everything is exact given the members. After labels y_B of some rows the belief in member s is
w_s(y_B) ∝ w_s Π_b p_s(y_b | x_b), so by the chain rule the information of one row more is

    I(y_i; θ | y_B) = E_{y_B} H[Σ_s w_s(y_B) p_s(y_i)] − Σ_s w_s H[p_s(y_i)].

The expectation runs over all labels y_B while there are few, and over draws of them beyond that.

For real targets the members' means are taken as jointly Gaussian with their covariance K, and the noise as Gaussian
with its average variance σ²: I(y_B; θ) = ½ log det(I + K_BB / σ²), exact for a linear model with Gaussian noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, generator
from temperance.decide.members import (
    JointMoments,
    check_predictive,
    check_same_draws,
    joint_moments,
    member_probabilities,
)
from temperance.predict import CategoryPredictive, Predictive

_CELLS = 2**22  # numbers held at once
CONFIGURATIONS = 4096


@dataclass(frozen=True)
class Selection:
    """Rows chosen, in order, and what each was worth when it was chosen (nats for information, else its score)."""

    rows: Tensor
    gains: Tensor

    @property
    def total(self) -> float:
        """The sum of the gains: of a batch by information, what its labels tell together."""
        return float(self.gains.sum())


def check_rows(rows: Any, length: int, argument: str) -> Tensor:
    """Row numbers, or a mask, of ``length`` rows."""
    made = torch.as_tensor(list(rows) if isinstance(rows, range) else rows).cpu()
    if made.dtype == torch.bool and made.shape == (length,):
        made = made.nonzero().flatten()
    if made.dim() != 1 or made.is_floating_point() or made.dtype == torch.bool or len(made) == 0:
        raise ArgumentError(f"`{argument}` must be row numbers or a mask of {length} rows; got {shown(rows)}.")
    if int(made.min()) < 0 or int(made.max()) >= length:
        raise ArgumentError(
            f"`{argument}` must be rows from 0 to {length - 1}; got {int(made.min())} to {int(made.max())}."
        )
    return made.long()


def _entropy(p: Tensor) -> Tensor:
    return -torch.special.xlogy(p, p).sum(-1)


class _Labels:
    """The labels that some rows may have: how probable each outcome is, and the belief in members after it."""

    def __init__(self, probs: Tensor, weights: Tensor, limit: int, seed: int) -> None:
        self.probs, self.weights, self.limit, self.seed = probs, weights, limit, seed
        self.share = weights.new_ones(1)
        self.belief = weights.unsqueeze(0)  # outcomes × S
        self.rows: list[int] = []
        self.member: Tensor | None = None  # of drawn outcomes, the member that drew them
        self.aleatoric = torch.einsum("s,sn->n", weights, _entropy(probs))

    def gains(self) -> Tensor:
        """I(y_i; θ | labels so far) of every row."""
        _, rows, classes = self.probs.shape
        step = max(1, _CELLS // (len(self.share) * classes))
        found = []
        for low in range(0, rows, step):
            part = self.probs[:, low : low + step]
            predicted = (self.belief @ part.reshape(len(part), -1)).view(len(self.share), -1, classes)
            found.append(torch.einsum("m,mn->n", self.share, _entropy(predicted)))
        return (torch.cat(found) - self.aleatoric).clamp(min=0.0)

    def add(self, row: int) -> None:
        """Let the label of one more row be known."""
        self.rows.append(row)
        if self.member is None and len(self.share) * self.probs.shape[-1] > self.limit:
            self._draw()
        elif self.member is None:
            joint = self.belief.unsqueeze(-1) * self.probs[:, row]  # outcomes × S × classes
            mass = joint.sum(1)
            share = (self.share.unsqueeze(-1) * mass).flatten()
            belief = (joint / mass.unsqueeze(1).clamp(min=1e-300)).transpose(1, 2).flatten(0, 1)
            self.share, self.belief = share[share > 0], belief[share > 0]
        else:
            self._see(row)

    def _draw(self) -> None:
        """From all outcomes to draws of them, of the rows so far: a member, and labels that it gives."""
        rng = generator(self.seed, "labels", device=self.weights.device)
        self.rng = rng
        self.member = torch.multinomial(self.weights, self.limit, replacement=True, generator=rng)
        self.share = self.weights.new_full((self.limit,), 1.0 / self.limit)
        self.belief = self.weights.expand(self.limit, -1)
        for row in self.rows:
            self._see(row)

    def _see(self, row: int) -> None:
        assert self.member is not None
        label = torch.multinomial(self.probs[self.member, row], 1, generator=self.rng).squeeze(1)
        belief = self.belief * self.probs[:, row].T[label]
        self.belief = belief / belief.sum(1, keepdim=True)


class _Values:
    """The same for real targets: the covariance of the means, whitened by the noise, as labels become known."""

    def __init__(self, moments: JointMoments) -> None:
        self.factor = moments.whitened()
        self.own = self.factor @ self.factor.mT  # rows × D × D: of each row, given the labels so far
        self.removed = self.factor.new_zeros(*self.factor.shape[:2], 0)

    def gains(self) -> Tensor:
        """½ log det(I + own)."""
        eye = torch.eye(self.own.shape[-1]).to(self.own)
        return 0.5 * torch.linalg.slogdet(eye + self.own).logabsdet.clamp(min=0.0)

    def add(self, row: int) -> None:
        """Condition on one more row: a block of a Cholesky factorisation."""
        between = self.factor @ self.factor[row].T - self.removed @ self.removed[row].T
        eye = torch.eye(self.own.shape[-1]).to(self.own)
        lower = torch.linalg.cholesky(eye + self.own[row])
        column = torch.linalg.solve_triangular(lower, between.mT, upper=False).mT
        self.own = self.own - column @ column.mT
        self.removed = torch.cat([self.removed, column], dim=-1)


def _process(predictive: Predictive, configurations: int, seed: int) -> _Labels | _Values:
    check_seed(seed)
    if isinstance(check_predictive(predictive), CategoryPredictive):
        return _Labels(*member_probabilities(predictive), check_count(configurations, "configurations"), seed)
    return _Values(joint_moments(predictive))


def batch_bald(predictive: Predictive, k: int, *, configurations: int = CONFIGURATIONS, seed: int = 0) -> Selection:
    """k rows whose labels together tell most of θ, chosen greedily (within 1 − 1/e of the best batch).

    For classes this is BatchBALD (Kirsch et al. 2019): I(y_1, …, y_k; θ), over all labels of the rows chosen so far
    while there are at most ``configurations``, and over so many draws of them beyond. For real targets it is the greedy
    determinant ½ log det(I + K / σ²). A row like one that is chosen already is worth less, so batches are diverse,
    which the k best by :func:`bald` are not. It costs k × configurations × draws × rows × classes: choose from some
    thousands of rows.

    >>> import temperance as tp
    >>> from temperance.posteriors import Draws
    >>> target = tp.Target(torch.nn.Linear(2, 2, bias=False), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> theta = torch.tensor([[a, b, -a, -b] for a in (40.0, -40.0) for b in (9.0, -9.0)])
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> batch_bald(tp.Fitted(target, Draws(theta), None).predict(x), 2).rows  # not the first and its duplicate
    tensor([0, 2])
    """
    made = _process(predictive, configurations, seed)
    if check_count(k, "k") > len(predictive):
        raise ArgumentError(f"`k` must be at most the {len(predictive)} rows there are; got {k}.")
    rows: list[int] = []
    gains: list[float] = []
    for _ in range(k):
        gain = made.gains()
        if rows:
            gain[torch.tensor(rows)] = -torch.inf
        best = int(gain.argmax())
        rows.append(best)
        gains.append(float(gain[best]))
        if len(rows) < k:
            made.add(best)
    return Selection(torch.tensor(rows), torch.tensor(gains, dtype=torch.float64))


def joint_information(
    predictive: Predictive, rows: Any = None, *, configurations: int = CONFIGURATIONS, seed: int = 0
) -> float:
    """I(y_B; θ): what the labels of ``rows`` (all, unless given) tell of θ together, in nats; for an experiment yet to
    be made, its expected information gain.

    By the chain rule, exact for classes while there are at most ``configurations`` outcomes and by draws of labels
    beyond; for real targets ½ log det(I + K / σ²).
    """
    made = _process(predictive, configurations, seed)
    chosen = check_rows(range(len(predictive)) if rows is None else rows, len(predictive), "rows")
    total = 0.0
    for row in chosen.tolist():
        total += float(made.gains()[row])
        made.add(row)
    return total


def epig(predictive: Predictive, targets: Any) -> Tensor:
    """Expected predictive information gain (Bickford Smith et al. 2023): what the label of each row tells about the
    labels y* of inputs that matter, on average over them, E_{x*} I(y; y* | x, x*).

    Unlike :func:`bald` it does not ask about oddities that no prediction of interest depends on. For classes it is
    exact given the members; for real targets −½ log det(I − ρρᵀ) of Gaussians with the members' covariance and noise.

    Args:
        predictive: of the rows to choose from.
        targets: the inputs that matter: a predictive of the same draws (one ``Fitted``, one seed), or row numbers of
            ``predictive``.
    """
    made = check_predictive(predictive)
    if isinstance(targets, Predictive):
        check_same_draws(made, targets, "targets")
        other: Tensor | None = None
    else:
        other = check_rows(targets, len(made), "targets")
    if isinstance(made, CategoryPredictive):
        probs, weights = member_probabilities(made)
        towards = member_probabilities(targets)[0] if other is None else probs[:, other]
        return _class_epig(probs, towards, weights)
    moments = joint_moments(made, by_draws=other is None)
    return _value_epig(moments, joint_moments(targets, by_draws=True) if other is None else moments.at(other))


def _class_epig(probs: Tensor, towards: Tensor, weights: Tensor) -> Tensor:
    """Mean over targets of KL(p(y, y*) ‖ p(y) p(y*))."""
    members, rows, classes = probs.shape
    there = towards.reshape(members, -1)
    weighted = weights.unsqueeze(-1) * there
    entropy_there = _entropy((weights @ there).view(-1, classes)).mean()
    step = max(1, _CELLS // (classes * there.shape[1]))
    found = []
    for low in range(0, rows, step):
        here = probs[:, low : low + step]
        joint = torch.einsum("snc,sm->ncm", here, weighted)
        together = -torch.special.xlogy(joint, joint).sum((1, 2)) / towards.shape[1]
        found.append(_entropy(torch.einsum("s,snc->nc", weights, here)) + entropy_there - together)
    return torch.cat(found).clamp(min=0.0)


def _value_epig(here: JointMoments, there: JointMoments) -> Tensor:
    def root(moments: JointMoments) -> Tensor:
        """L⁻¹ F with L Lᵀ = F Fᵀ + noise: the factor of the correlation between labels."""
        total = moments.factor @ moments.factor.mT + torch.diag_embed(moments.noise)
        return torch.linalg.solve_triangular(torch.linalg.cholesky(total), moments.factor, upper=False)

    first, second = root(here), root(there)
    rows, outputs, _ = first.shape
    step = max(1, _CELLS // (len(second) * outputs * outputs))
    found = []
    for low in range(0, rows, step):
        rho = torch.einsum("nik,mjk->nmij", first[low : low + step], second)
        left = torch.eye(outputs).to(rho) - rho @ rho.mT
        found.append(-0.5 * torch.linalg.slogdet(left).logabsdet.mean(1))
    return torch.cat(found).clamp(min=0.0)
