"""``Curve``: two modes, and a path of low loss from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_level
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError, NetworkError, NumericalError
from temperance.core.seeds import spawn
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference import optimisers
from temperance.inference.base import Cost, Facts, Inference, Info, Starts, Wrapper, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.points.map import MAP, MAPState
from temperance.inference.wrappers.ensemble import Ensemble
from temperance.inference.wrappers.parts import check_same_length, first_part, second_part, split_run
from temperance.posteriors.base import centre_of
from temperance.posteriors.curve import CurvePosterior, bernstein


@dataclass
class CurveState(WrapperState):
    """The two runs that look for the ends, while they last; the ends (2 × P); the points between (bends × P) with their
    optimiser; the generator of t. ``given`` says that the ends were there from the start."""

    ends: Tensor
    bends: MAPState
    rng: torch.Generator
    given: bool
    point: Tensor = field(metadata=SCRATCH)
    slope: Tensor = field(metadata=SCRATCH)
    total_steps: int | None = None


@dataclass(frozen=True, eq=False)
class Curve(Wrapper):
    """Mode connectivity (Garipov et al., 2018): two modes θ₀ and θ₁, and between them a Bézier curve

        θ(t) = Σₖ bₖ(t) pₖ,    bₖ(t) = C(n, k) tᵏ (1 − t)ⁿ⁻ᵏ,    p₀ = θ₀,  pₙ = θ₁,    n = bends + 1.

    In the first part of the run the ends are trained, each from a fresh start and on an order of the data of its own.
    They then stay, and the points between, which begin evenly spaced on the straight line, descend the average loss
    along the curve: a step draws t ~ U(0, 1) and follows

        ∇_{pₖ} G̃(θ(t)) = bₖ(t) ∇G̃(θ(t)).

    With ``fit(..., start=matrix)``, the two rows of which are modes that were trained before, the whole run trains the
    curve.

    Args:
        base: how the ends are trained; its optimiser, learning rate, schedule and clipping serve for the curve too.
        bends: control points between the ends.
        ends: the fraction of the run that trains the ends.

    The posterior is a :class:`~temperance.posteriors.curve.CurvePosterior`: any place on the curve, t uniform.
    :func:`temperance.judge.diagnose.loss_along.loss_along` measures the loss along it.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> fitted = tp.fit(target, Curve(tp.MAP(lr=1e-2)), train, epochs=20)
    >>> fitted.posterior.points.shape
    torch.Size([3, 131])
    """

    card: ClassVar[Card] = Card(
        "a Bézier curve between two modes",
        MethodFamily.WRAPPERS,
        papers=("Garipov et al., Loss surfaces, mode connectivity, and fast ensembling of DNNs, NeurIPS 2018",),
        cost="1 gradient once the ends are trained",
        shown=("Curve(MAP())",),
    )

    base: Inference[Any] = field(default_factory=MAP)
    bends: int = 1
    ends: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.bends, "bends")
        check_level(self.ends, "ends")

    def check_base(self, base: Inference[Any]) -> None:
        """It must descend to a mode, one gradient a step."""
        if not isinstance(base, MAP):
            refuse(
                self,
                base,
                f"ends and curve are trained by descending a loss, and {type(base).__name__} finds no mode",
                "Curve(MAP(lr=1e-3))",
            )
        if base.patience is not None:
            raise ArgumentError("`base` must not stop early (`patience`): the ends and the curve share one run.")
        if optimisers.needs_closure(base.optimizer):
            refuse(
                self,
                base,
                f"the curve takes one gradient a step, and {base.optimizer.__name__} searches along lines",
                "Curve(MAP(lr=1e-3)), with Adam or SGD",
            )

    def facts(self) -> Facts:
        """An order of the data and a gradient for each end (the curve follows the first); the ends and points between
        with their optimisers, the ends as they stay, the place on the curve and its gradient."""
        each = self.base.facts().cost
        cost = Cost(2 * each.gradients_per_step, (2 + self.bends) * each.copies_of_theta + 4)
        return Facts(gives=CurvePosterior, cost=cost, streams=2)

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """One curve at a time."""
        return False

    def check_run(self, steps: int) -> None:
        """There must be a step for the ends and one for the curve."""
        split_run(steps, self.ends)

    @property
    def _pair(self) -> Ensemble:
        return Ensemble(self.base, 2)

    @property
    def _walker(self) -> MAP:
        assert isinstance(self.base, MAP)
        return self.base

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> CurveState:
        """See :class:`Inference`. Ends that were given, 2 × P, stay; else they are trained, each from fresh weights."""
        (rng,), theta = rngs, starts.given
        refuse_moving_buffers(engine, "Curve")
        like = engine.target.initial_theta()
        if theta is not None and (len(theta) != 2 or torch.equal(theta[0], theta[1])):
            raise ArgumentError(
                f"`start` must be two different trained modes for Curve, a matrix 2 × {len(like)}; got shape "
                f"{tuple(theta.shape)}{' of equal rows' if len(theta) == 2 else ''}."
            )
        own = torch.Generator()
        own.manual_seed(spawn(rng))
        state = CurveState(
            base=self._pair.init(engine, Starts(), [rng]) if theta is None else None,
            ends=like.new_zeros(2, len(like)) if theta is None else theta.clone(),
            bends=self._walker.begin(engine, like.new_zeros(self.bends, len(like))),
            rng=own,
            given=theta is not None,
            point=torch.zeros_like(like),
            slope=torch.zeros_like(like),
        )
        if state.given:
            self._lay_out(state)
        return state

    def _lay_out(self, state: CurveState) -> None:
        """Begin with the bends on the straight line."""
        start, stop = state.ends
        for k, row in enumerate(state.bends.theta, start=1):
            row.copy_(torch.lerp(start, stop, k / (self.bends + 1)))

    def step(self, engine: Engine, state: CurveState, batch: Batch) -> tuple[CurveState, Info]:
        """A step of both ends, or of the points between."""
        check_same_length(state.total_steps, batch.total_steps)
        state.total_steps = batch.total_steps
        first = 0 if state.given else split_run(batch.total_steps, self.ends)
        if batch.step >= first:
            return self._bend(engine, state, second_part(batch, first).stream(0))
        assert state.base is not None
        state.base, info = self._pair.step(engine, state.base, first_part(batch, first))
        if info.status.ok and batch.step + 1 == first:
            (found,) = self._pair.posteriors(engine, state.base, None)
            for row, (_, end) in zip(state.ends, found.parts(), strict=True):
                row.copy_(centre_of(end).mean)
            state.base = None
            self._lay_out(state)
        return state, info

    def _bend(self, engine: Engine, state: CurveState, batch: Batch) -> tuple[CurveState, Info]:
        bends = state.bends
        t = torch.rand((), generator=state.rng, dtype=torch.float64)
        weights = bernstein(t, self.bends + 1).to(state.ends)
        with torch.no_grad():
            state.point.copy_(weights[1:-1] @ bends.theta)
            state.point.add_(weights[0] * state.ends[0]).add_(weights[-1] * state.ends[1])
        loss = float(engine.gradient(state.point, batch, state.slope, bends.buffers))
        status = self._walker.judge(bends, loss, state.slope)
        if status.ok:
            optimisers.clip_(state.slope, self._walker.clip)
            torch.mul(weights[1:-1].unsqueeze(1), state.slope, out=bends.grad)
            bends.optimizer.step()
            self._walker.schedule(bends, batch)
        return state, Info(loss, status)

    def posteriors(self, engine: Engine, state: CurveState, data: Data | None) -> tuple[CurvePosterior, ...]:
        """A :class:`~temperance.posteriors.curve.CurvePosterior`."""
        if state.base is not None:
            raise NumericalError(
                "there is no curve yet: the run ended while its ends were trained. After an interruption, call fit "
                "again with the same checkpoint."
            )
        return (CurvePosterior(torch.cat([state.ends[:1], state.bends.theta.detach(), state.ends[1:]])),)

    def keep_in(self, state: CurveState, folder: Path) -> None:
        """Nothing here grows with the run."""

    def remarks(self, state: CurveState) -> list[str]:
        """None."""
        return []


# ---------------------------------------------------------------------- runs of two parts


def refuse_moving_buffers(engine: Engine, method: str) -> None:
    """Running statistics belong to one setting of the weights; between settings there are none."""
    names = engine.target.batch_norm_names() or sorted(engine.target.moving)
    if names:
        raise NetworkError(
            f"{method} needs a network without batch norm or other buffers that move in training, but {names[0]!r} "
            "does: between two settings of the weights nobody knows its statistics. Use "
            "temperance.nn.FilterResponseNorm or nn.GroupNorm, or Target(..., freeze_batch_norm=True)."
        )
