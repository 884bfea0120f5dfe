"""``MCLMC``: microcanonical dynamics, which keep their speed where Hamiltonian ones slow down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag
from temperance.core.errors import ArgumentError
from temperance.engine.native import fill_rows_
from temperance.inference.base import Exactness
from temperance.inference.card import Card, MethodFamily
from temperance.inference.hamiltonian.kernel import (
    HamiltonianState,
    SteppingKernel,
    Transition,
    check_jitter,
    divergence_remarks,
    jittered,
    judge_gain,
    settle_,
)
from temperance.inference.hamiltonian.motion import Motion, uniforms

_AT_ONCE = 2**20  # random numbers of a chain
_STRAY = 0.1  # of a chain's trajectories, whose divergence is not told where none is judged


@dataclass(frozen=True, eq=False)
class MCLMC(SteppingKernel):
    """Microcanonical Monte Carlo (Robnik et al., 2023; Ver Steeg & Galstyan, 2021). The velocity is a unit vector u
    that the slope turns, and never slows down. With x = M^{1/2} θ, g = ∇_x U/T, e = −g/‖g‖, d dimensions and a step ε
    (in units in which the speed is √d, as that of HMC is on average):

        B:  δ = ½ ε √d ‖g‖ / (d − 1);   u ← [u + e (sinh δ + e·u (cosh δ − 1))] / (cosh δ + e·u sinh δ)
        A:  x ← x + ε √d u

    A trajectory is ``length`` steps BAB from a direction drawn uniformly. Its end is accepted with probability
    min(1, exp(−W)), W = ΔU/T + (d − 1) Σ log(cosh δ + e·u sinh δ) summed over all B, which makes exp(−U/T) exactly
    stationary. With ``adjusted=False`` all is accepted and u is refreshed a little at each step instead,
    u ← (u + ν z)/‖u + ν z‖, ν = √((e^{2/length} − 1)/d): faster, with a bias that vanishes with the step.

    Args:
        step_size: ε; ``None`` leaves it to :class:`Warmup`.
        length: steps of a trajectory (``adjusted=False``: until the direction is forgotten, and between places).
        adjusted: whether to accept or reject.
        jitter: each trajectory's ε is drawn from ε (1 ± jitter).
        mass: M, a vector of P numbers; :class:`Warmup` finds one.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = tp.Collect(tp.Warmup(MCLMC(length=8), 200), last=200)
    >>> tp.fit(target, method, (x, 2 * x + 1)).predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "a velocity that turns and never slows (microcanonical), Metropolis-adjusted",
        MethodFamily.HAMILTONIAN,
        papers=(
            "Robnik et al., Microcanonical Hamiltonian Monte Carlo, JMLR 2023",
            "Ver Steeg & Galstyan, Hamiltonian dynamics with non-Newtonian momentum for rapid sampling, NeurIPS 2021",
        ),
        exact="any energy, any step",
        cost="`length` gradients",
    )

    step_size: float | None = None
    length: int = 16
    adjusted: bool = True
    jitter: float = 0.2
    mass: Tensor | None = None

    def __post_init__(self) -> None:
        self._check()
        check_count(self.length, "length")
        check_flag(self.adjusted, "adjusted")
        if self.mass is not None and self.mass.dim() != 1:
            raise ArgumentError(f"`mass` must be a vector for MCLMC; got shape {tuple(self.mass.shape)}.")
        check_jitter(self.jitter)

    def exactness(self) -> Exactness:
        """With the Metropolis decision; without, as the step vanishes."""
        return Exactness.POSTERIOR if self.adjusted else Exactness.APPROXIMATE

    def gradients(self) -> float:
        """A gradient for each step."""
        return self.length

    def remarks(self, state: HamiltonianState) -> list[str]:
        """A chain that diverges says so. Without the decision draws are off by more than a stray trajectory, which is
        dropped: one in ten of a chain is no news."""
        return divergence_remarks(state, 0.0 if self.adjusted else _STRAY)

    def transition(self, flow: Motion, state: HamiltonianState) -> Transition:
        """A trajectory, and its decision if there is one."""
        luck = uniforms(state.rngs, 2)
        walk = _Walk(flow, state, jittered(state.step_size, self.jitter, luck[:, 0]))
        walk.go(self.length, forgetful=not self.adjusted)
        chance, divergent = judge_gain(walk.work().numpy())
        taken = torch.from_numpy(luck[:, 1] < chance if self.adjusted else ~divergent)
        settle_(state, taken, walk.theta, walk.gradient, walk.energy)
        edge = divergent & ~np.isfinite(
            walk.energy.numpy()
        )  # its speed is given, so nothing else takes U beyond numbers
        return Transition(chance, divergent, np.full(len(chance), self.length), edge)

    def one_step_gain(self, flow: Motion, state: HamiltonianState, step: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        walk = _Walk(flow, state, step)
        walk.step()
        return walk.work()


class _Walk:
    """A trajectory under way, of all chains."""

    def __init__(self, flow: Motion, state: HamiltonianState, step: Tensor) -> None:
        if flow.metric.dense:
            raise ArgumentError("`mass` must be 'diagonal' or 'none' for MCLMC; got 'dense'.")
        self.dimension = state.chain.theta.shape[1]
        if self.dimension < 2:
            raise ArgumentError("MCLMC needs at least two parameters: the direction of one cannot turn; got 1.")
        self.flow, self.state = flow, state
        self.theta, self.gradient = state.chain.theta.clone(), state.gradient.clone()
        self.energy = state.energy
        self.kinetic = torch.zeros_like(step)
        noise = state.chain.noise
        self.direction = noise / torch.linalg.vector_norm(noise, dim=1, keepdim=True)
        self.pace = step * math.sqrt(self.dimension)
        self.ahead = self.pace.to(noise).unsqueeze(1) * flow.metric.root

    def go(self, length: int, forgetful: bool) -> None:
        """``length`` steps; with ``forgetful`` a little of the direction is lost after each but the last."""
        forget = math.sqrt(math.expm1(2.0 / length) / self.dimension)
        most = max(1, _AT_ONCE // self.dimension) if forgetful else length
        for first in range(0, length, most):
            count = min(most, length - first)
            lost = min(count, length - 1 - first) if forgetful else 0
            noise = self.direction.new_empty(len(self.direction), lost, self.dimension)
            if lost:
                fill_rows_(noise, self.state.chain.streams)
            self._go_on(count, noise, forget)

    def _go_on(self, count: int, noise: Tensor, forget: float) -> None:
        """In C where the energy is."""
        native = self.flow.energies.native
        if native is not None and native.complete:
            given = torch.stack([self.pace, self.flow.inverse_temperature], dim=1).numpy()
            root = self.flow.metric.root.contiguous()
            energy, gained = native.microcanonical(
                self.theta, self.direction, self.gradient, root, noise, forget, given, count
            )
            self.energy = torch.from_numpy(energy)
            self.kinetic += torch.from_numpy(gained)
            return
        for k in range(count):
            self.step()
            if k < noise.shape[1]:
                mixed = self.direction + forget * noise[:, k]
                self.direction = mixed / torch.linalg.vector_norm(mixed, dim=1, keepdim=True)

    def step(self) -> None:
        """BAB."""
        self._turn()
        self.theta.addcmul_(self.direction, self.ahead)
        self.energy = self.flow.energies(self.theta, self.gradient).cpu()
        self._turn()

    def _turn(self) -> None:
        slope = self.flow.metric.root * self.gradient * self.flow.inverse_temperature.to(self.gradient).unsqueeze(1)
        size = torch.linalg.vector_norm(slope, dim=1, keepdim=True)
        down = -slope / size.clamp(min=torch.finfo(size.dtype).tiny)
        along = (down * self.direction).sum(1, keepdim=True)
        delta = 0.5 * self.pace.unsqueeze(1) * size.double().cpu() / (self.dimension - 1)
        fade = (-delta).exp()  # numerator and denominator times 2 exp(−δ): nothing overflows
        left, cosine = fade.to(slope), along.double().cpu()
        turned = 2 * left * self.direction + down * ((1 - left) * (1 + left + along * (1 - left)))
        self.direction = turned / torch.linalg.vector_norm(turned, dim=1, keepdim=True)
        grown = delta - math.log(2.0) + torch.log(1 + fade**2 + cosine * (1 - fade**2))
        self.kinetic += (self.dimension - 1) * grown.squeeze(1)

    def work(self) -> Tensor:
        """W: zero for the true flow."""
        return self.flow.inverse_temperature * (self.energy - self.state.energy) + self.kinetic
