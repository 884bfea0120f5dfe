"""``Thermal``: steps that set themselves, by the heat that they bring in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_level, check_part
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.inference.card import Card, MethodFamily
from temperance.model.theta import Layout

_ROUND = 20  # steps after which steps are looked at again
_FIRST = 0.1  # of the step that the gradients' noise allows, to begin with: away from the start gradients grow
_FIRST_RATE = 1e-3  # ℓ of a tensor at first, at most: of all rows at an optimum there is no noise that would say
_MOST_RATE = 1.0  # ℓ of a tensor, however small its gradients are
_GROWTH = 2.0  # of the squared step, at most, from round to round
_RETREAT = 10.0  # by which squared steps fall where the chain has left all bounds
_RECOVERY = 1.5  # by which a bound that was found too hot is eased in a round that is not
_RETREATS = 50  # after which a chain that leaves is given up
_DECAYS, _EPSILON = (0.9, 0.99), 1e-8  # of Adam, on the way down
_REACH, _SLOWEST, _FASTEST = 3.0, 5e-3, 2e-2  # how far a weight can go on it, at least, and the learning rates for it
_BLOWN_UP = 100.0  # times the loss at the start (or one nat): the chain has left


@dataclass(frozen=True, eq=False)
class Thermal(Value):
    """One step for each tensor, as large as its thermometer allows, in place of a learning rate.

    Noise of minibatch gradients and the error of the discretisation both heat a chain, in proportion to the squared
    step: with σ_s² the mean square of a tensor's gradients ∇G̃ over batches and elements, its kinetic temperature is

        T_s / T = 1 + a h_s² N² σ_s² / T + O(h_s² k),      a = 1 / (2 (1 − β)) for SGHMC.

    Heat says nothing about a chain that is still on its way down, so where no start is given (``fit(..., start=...)``,
    :class:`~temperance.WarmStart`) the first ``descent`` of the run goes down by Adam, at a learning rate that falls
    from 0.005 (up to 0.02 in short runs) to nothing. For the next ``share`` of the run, while nothing is kept yet, h_s
    is set to what makes the second term ``excess``; every 20 steps the temperature itself is read, and the bound on a
    tensor that is hotter is lowered. So a learned noise, whose gradients are those of all rows at once, never shares a
    step with weights. A chain that leaves all bounds goes back to where it began, with smaller steps. Afterwards steps
    stay as they were on average in the second half of this time, so the law that is sampled does not move.

    Args:
        excess: of the temperature, that the gradients' noise may cause.
        share: of the run (of what :class:`~temperance.WarmStart` leaves of it), in which steps are found.
        descent: of the run, in which the chain goes down before that; 0 where it is known to begin near a mode.

    >>> Thermal(excess=0.01).share
    0.25
    """

    card: ClassVar[Card] = Card(
        "one step for each tensor, as large as its temperature allows",
        MethodFamily.LANGEVIN,
        papers=("Wenzel et al., How good is the Bayes posterior in deep neural networks really?, ICML 2020",),
    )

    excess: float = 0.03
    share: float = 0.25
    descent: float = 0.25

    def __post_init__(self) -> None:
        check_level(self.excess, "excess")
        check_level(self.share, "share")
        check_part(self.descent, "descent")
        if self.share + self.descent >= 1.0:
            raise ArgumentError(
                f"`share` and `descent` must leave some of the run for sampling; got {self.share} and {self.descent}."
            )


@dataclass
class Settling:
    """What is known while steps are looked for: by member and tensor, sums over the steps of a round of g² and of
    v² / s² (means over a tensor's elements), the bounds on s² that temperatures have set, sums of log s² over rounds of
    the second half; where the chains began; how many steps and rounds there were, and how often a chain left. On the
    way down, Adam's second moment and how many steps it has made; after it, at which part of the run the search began.
    """

    home: Tensor
    squares: Tensor
    kinetic: Tensor
    bound: Tensor
    logs: Tensor
    steps: int = 0
    rounds: int = 0
    retreats: int = 0
    moment: Tensor | None = None
    descended: int = 0
    began: float = 0.0

    @classmethod
    def begin(cls, theta: Tensor, layout: Layout, descends: bool) -> Settling:
        """Before the first step."""
        zeros = torch.zeros(len(theta), len(layout.entries), dtype=torch.float64)
        bound = torch.full_like(zeros, math.inf)
        moment = torch.zeros_like(theta) if descends else None
        return cls(theta.detach().clone(), zeros, zeros.clone(), bound, zeros.clone(), moment=moment)

    def descend(self, theta: Tensor, grad: Tensor, first_moment: Tensor, part: float, steps: float) -> None:
        """One step of Adam; ``part``: how much of the way down lies behind, from 0 to 1, of so many ``steps``."""
        assert self.moment is not None
        self.descended += 1
        one, two = _DECAYS
        first_moment.mul_(one).add_(grad, alpha=1 - one)
        self.moment.mul_(two).addcmul_(grad, grad, value=1 - two)
        fast = min(_FASTEST, max(_SLOWEST, 2 * _REACH / max(1.0, steps)))  # a cosine goes half of it on average
        rate = fast * 0.5 * (1 + math.cos(math.pi * part)) / 2**self.retreats
        size = (self.moment / (1 - two**self.descended)).sqrt_().add_(_EPSILON)
        theta.addcdiv_(first_moment, size, value=-rate / (1 - one**self.descended))

    def climb_back(self, theta: Tensor, first_moment: Tensor) -> None:
        """On the way down a number became infinite: from the start again, half as fast."""
        assert self.moment is not None
        theta.copy_(self.home)
        for moment in (first_moment, self.moment):
            moment.zero_()
        self.descended, self.retreats = 0, self.retreats + 1

    def arrive(self, theta: Tensor, first_moment: Tensor, progress: float) -> None:
        """Here, near a mode, the search begins."""
        self.home = theta.detach().clone()
        first_moment.zero_()
        self.moment, self.retreats, self.began = None, 0, progress

    @property
    def given_up(self) -> bool:
        """Whether the chain leaves however small its steps are, or where it begins is no place for one."""
        here = self.descended == 0 if self.moment is not None else self.steps < _ROUND
        return (here and self.retreats == 0) or self.retreats >= _RETREATS

    @property
    def stands_still(self) -> bool:
        """In the first round, which only looks."""
        return self.steps < _ROUND

    def has_left(self, loss: float, first: float) -> bool:
        """Whether a loss is beyond all bounds."""
        return not math.isfinite(loss) or loss - first > _BLOWN_UP * (abs(first) + 1.0)

    def look(self, squares: Tensor, kinetic: Tensor) -> bool:
        """Take in one step; whether it was the last of a round."""
        self.squares += squares
        self.kinetic += kinetic
        self.steps += 1
        return self.steps % _ROUND == 0

    def retreat(self, present: Tensor | None) -> None:
        """The chain goes back to where it began."""
        if present is not None:
            self.bound = torch.minimum(self.bound, present.square() / _RETREAT)
        self.squares.zero_()
        self.kinetic.zero_()
        self.steps -= self.steps % _ROUND
        self.retreats += 1

    def choose(
        self, rule: Thermal, present: Tensor | None, heating: float, temperature: float, bias: float, sizes: Tensor,
        memory: float, later: bool,
    ) -> Tensor:  # fmt: skip
        """s of each tensor for the next round. ``heating``: a h² N² at s = 1; ``memory``: β; ``later``: whether this is
        the second half of the search."""
        allowed = self._allowed(rule, heating, temperature, _ROUND)
        if present is None:
            found = self._at_first(allowed)
        else:
            hot = self.kinetic / _ROUND / (temperature * bias) - 1.0
            worth = max(1.0, _ROUND * (1 - memory) / (1 + memory))  # independent looks at a velocity in a round
            noise = 3.0 * (2.0 / (sizes * worth)).sqrt()
            now = present.square()
            too_hot = hot > 2.0 * rule.excess + noise
            lowered = torch.minimum(self.bound, now * (rule.excess / hot.clamp(min=1e-9)).clamp(min=0.25))
            self.bound = torch.where(too_hot, lowered, self.bound * _RECOVERY)
            found = torch.minimum(torch.minimum(allowed, self.bound), _GROWTH * now)
        self.squares.zero_()
        self.kinetic.zero_()
        if later:
            self.logs += found.log()
            self.rounds += 1
        return found.sqrt()

    def _allowed(self, rule: Thermal, heating: float, temperature: float, steps: int) -> Tensor:
        """s² at which the noise of the gradients seen in so many steps heats by ``excess``."""
        wanted = rule.excess * temperature / (heating * (self.squares / steps)).clamp(min=1e-300)
        return wanted.clamp(max=_MOST_RATE)

    @staticmethod
    def _at_first(allowed: Tensor) -> Tensor:
        return (_FIRST * allowed).clamp(max=_FIRST_RATE)

    def settled(self, rule: Thermal, present: Tensor | None, heating: float, temperature: float) -> Tensor:
        """s of each tensor from now on: the mean of its logarithm over rounds; in a run too short for any, what the
        last round has, or the first steps allow."""
        if self.rounds:
            return (0.5 * self.logs / self.rounds).exp()
        if present is not None:
            return present
        return self._at_first(self._allowed(rule, heating, temperature, max(1, self.steps))).sqrt()
