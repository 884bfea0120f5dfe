"""The action with the least expected cost, a* = argmin_a E[cost(a, y) | x, D].

Classes need a matrix of costs, actions × classes; an action "abstain" is a row like any other. Real targets need a
loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_level, real, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed
from temperance.decide.members import check_predictive, class_probabilities
from temperance.predict import CategoryPredictive, Predictive, ValuePredictive

_GRID, _REFINEMENTS = 65, 3


@dataclass(frozen=True)
class Decision:
    """``action`` per row (a row of the cost matrix, or a number per output), and its expected ``cost``."""

    action: Tensor
    cost: Tensor


class Loss(Value, ABC):
    """What an action costs when y comes true, ``loss(action, y)``, and which action is best in expectation."""

    @abstractmethod
    def __call__(self, action: Tensor, y: Tensor) -> Tensor:
        """The loss, elementwise."""

    @abstractmethod
    def best(self, predictive: ValuePredictive, draws: Tensor) -> Tensor:
        """argmin_a E loss(a, y), rows × outputs."""

    def expected(self, predictive: ValuePredictive, draws: Tensor, action: Tensor) -> Tensor:
        """E loss(action, y): the average over draws of y, unless it is known."""
        return self(action, draws).mean(0)


@dataclass(frozen=True, eq=False)
class SquaredLoss(Loss):
    """(a − y)²: the mean is best and costs the variance.

    >>> SquaredLoss()(torch.tensor(1.0), torch.tensor(3.0))
    tensor(4.)
    """

    def __call__(self, action: Tensor, y: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return (action - y).square()

    def best(self, predictive: ValuePredictive, draws: Tensor) -> Tensor:
        """The mean."""
        return predictive.mean()

    def expected(self, predictive: ValuePredictive, draws: Tensor, action: Tensor) -> Tensor:
        """The variance."""
        return predictive.variance()


@dataclass(frozen=True, eq=False)
class AbsoluteLoss(Loss):
    """|a − y|: the median is best.

    >>> AbsoluteLoss()(torch.tensor(1.0), torch.tensor(3.0))
    tensor(2.)
    """

    def __call__(self, action: Tensor, y: Tensor) -> Tensor:
        """See :class:`Loss`."""
        return (action - y).abs()

    def best(self, predictive: ValuePredictive, draws: Tensor) -> Tensor:
        """The median."""
        return predictive.quantile(0.5)


@dataclass(frozen=True, eq=False)
class PinballLoss(Loss):
    """``level`` (y − a) where y is above, (1 − ``level``) (a − y) where it is below: the quantile is best. Where
    running out of stock is nine times as dear as having too much, it is ``PinballLoss(0.9)``.

    >>> PinballLoss(0.9)(torch.tensor(1.0), torch.tensor([3.0, 0.0]))
    tensor([1.8000, 0.1000])
    """

    level: float

    def __post_init__(self) -> None:
        check_level(self.level)

    def __call__(self, action: Tensor, y: Tensor) -> Tensor:
        """See :class:`Loss`."""
        over = y - action
        return torch.maximum(self.level * over, (self.level - 1) * over)

    def best(self, predictive: ValuePredictive, draws: Tensor) -> Tensor:
        """The quantile."""
        return predictive.quantile(self.level)


@dataclass(frozen=True, eq=False)
class LinexLoss(Loss):
    """exp(s (a − y)) − s (a − y) − 1: for s > 0 too large an action costs exponentially, too small a one linearly.

    The best action is −log E[exp(−s y)] / s: closed for Gaussian noise and counts, where E exp(−s y) of each member is;
    it costs s (E y − a). Student's noise has no such moment and is refused.

    >>> LinexLoss(1.0)(torch.tensor(1.0), torch.tensor(1.0))
    tensor(0.)
    """

    shape: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(real(self.shape)) or self.shape == 0:
            raise ArgumentError(f"`shape` must be a finite number other than zero; got {shown(self.shape)}.")

    def __call__(self, action: Tensor, y: Tensor) -> Tensor:
        """See :class:`Loss`."""
        d = self.shape * (action - y)
        return d.exp() - d - 1

    def best(self, predictive: ValuePredictive, draws: Tensor) -> Tensor:
        """−log E[exp(−s y)] / s."""
        s, numbers = self.shape, predictive.numbers
        if not numbers.exponential_moments():
            raise ArgumentError("LinexLoss needs E exp(−s y), which is infinite under Student's noise.")
        log_weights = predictive.weights.double().log().view(-1, 1, 1)
        parts = []
        for _, outputs, learned in predictive.source.blocks():
            each = numbers.log_exponential_moment(outputs, learned, -s)
            if each is None:
                return -((-s * draws.double()).logsumexp(0) - math.log(len(draws))).to(draws.dtype) / s
            parts.append((each + log_weights).logsumexp(0))
        return (-torch.cat(parts) / s).to(draws.dtype)

    def expected(self, predictive: ValuePredictive, draws: Tensor, action: Tensor) -> Tensor:
        """s (E y − a), at the best action."""
        return self.shape * (predictive.mean() - action)


def with_abstention(cost: Any, price: float) -> Tensor:
    """``cost`` with one more action that costs ``price`` whatever is true: ask a human, do another test.

    >>> with_abstention([[0.0, 1.0], [1.0, 0.0]], 0.2)
    tensor([[0.0000, 1.0000],
            [1.0000, 0.0000],
            [0.2000, 0.2000]])
    """
    matrix = _matrix(cost)
    if not math.isfinite(real(price)):
        raise ArgumentError(f"`price` must be a finite number; got {shown(price)}.")
    return torch.cat([matrix, torch.full_like(matrix[:1], float(price))])


def bayes_action(
    predictive: Predictive,
    cost: Any,
    *,
    candidates: Any = None,
    samples: int = 2000,
    seed: int = 0,
) -> Decision:
    """The action with the least expected cost under the predictive, and that cost, for each row.

    Args:
        predictive: what ``fitted.predict(x)`` gives.
        cost: of classes (and of one yes/no label: no, yes), a matrix actions × classes. Of real targets and counts, a
            loss such as ``PinballLoss(0.9)``, or any function loss(action, y) of two tensors, elementwise.
        candidates: actions among which a function is minimised; unless given, a grid over the draws of y that is made
            finer three times around its best point.
        samples: draws of y, for expected costs that are not known in closed form.
        seed: of these draws.

    >>> import temperance as tp
    >>> from temperance.posteriors import Draws
    >>> target = tp.Target(torch.nn.Linear(1, 2, bias=False), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> fair = tp.Fitted(target, Draws(torch.zeros(1, 2)), None).predict(torch.ones(1, 1))
    >>> bayes_action(fair, [[0.0, 10.0], [1.0, 0.0], [0.3, 0.3]])  # treat? do not? do a test for 0.3?
    Decision(action=tensor([2]), cost=tensor([0.3000]))
    """
    check_count(samples, "samples")
    check_seed(seed)
    made = check_predictive(predictive)
    if isinstance(made, CategoryPredictive):
        if callable(cost):
            raise ArgumentError("`cost` must be a matrix, actions × classes, for classes; got a function.")
        probs, matrix = class_probabilities(made), _matrix(cost)
        if matrix.shape[1] != probs.shape[1]:
            raise ArgumentError(
                f"`cost` must have a column for each of {probs.shape[1]} classes; got shape {tuple(matrix.shape)}."
            )
        least = (probs @ matrix.to(probs).T).min(dim=1)
        return Decision(least.indices, least.values)
    assert isinstance(made, ValuePredictive)
    if not callable(cost):
        raise ArgumentError(
            f"`cost` must be a loss such as SquaredLoss(), or a function, for real targets; got {shown(cost)}."
        )
    draws = made.sample(check_count(samples, "samples"), seed)
    if isinstance(cost, Loss) and candidates is None:
        action = cost.best(made, draws)
        return Decision(action, cost.expected(made, draws, action))
    return _search(cost, draws, candidates)


def _matrix(cost: Any) -> Tensor:
    try:
        made = torch.as_tensor(cost, dtype=torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"`cost` must be a matrix of numbers, actions × classes; got {shown(cost)}.") from error
    if made.dim() != 2 or made.numel() == 0 or not bool(torch.isfinite(made).all()):
        raise ArgumentError(f"`cost` must be a finite matrix, actions × classes; got shape {tuple(made.shape)}.")
    return made


def _search(loss: Callable[[Tensor, Tensor], Tensor], draws: Tensor, candidates: Any) -> Decision:
    """Minimise the average over draws: among candidates, or on a grid that is made finer."""
    if candidates is not None:
        given = torch.as_tensor(candidates, dtype=draws.dtype, device=draws.device).reshape(-1)
        if len(given) == 0:
            raise ArgumentError("`candidates` must hold at least one action; got none.")
        return _least(loss, draws, given.view(-1, *([1] * (draws.dim() - 1))).expand(-1, *draws.shape[1:]))
    low, high = draws.amin(0), draws.amax(0)
    steps = torch.linspace(0, 1, _GRID, dtype=draws.dtype, device=draws.device).view(-1, *([1] * (draws.dim() - 1)))
    for _ in range(_REFINEMENTS + 1):
        found = _least(loss, draws, low + steps * (high - low))
        width = (high - low) / (_GRID - 1)
        low, high = found.action - width, found.action + width
    return found


def _least(loss: Callable[[Tensor, Tensor], Tensor], draws: Tensor, actions: Tensor) -> Decision:
    costs = []
    for action in actions:
        each = torch.as_tensor(loss(action.unsqueeze(0), draws))
        if each.shape != draws.shape:
            raise ArgumentError(
                f"`cost` must work elementwise, on actions of shape {tuple(action.unsqueeze(0).shape)} and draws of y "
                f"{tuple(draws.shape)}; got {tuple(each.shape)}."
            )
        costs.append(each.mean(0))
    least = torch.stack(costs).min(dim=0)
    return Decision(actions.gather(0, least.indices.unsqueeze(0))[0], least.values)
