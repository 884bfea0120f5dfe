"""``NUTS``: Hamiltonian Monte Carlo that finds the length of each trajectory by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import is_whole, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import spawn
from temperance.engine.native.walk import NativeEnergy
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.hamiltonian.kernel import DIVERGENCE, HamiltonianState, Numbers, SteppingKernel, Transition
from temperance.inference.hamiltonian.motion import Metric, Motion, Phase


@dataclass(frozen=True, eq=False)
class NUTS(SteppingKernel):
    """The no-U-turn sampler (Hoffman & Gelman, 2014), with multinomial draws and the generalised criterion (Betancourt,
    2017). From a place and a fresh momentum a trajectory of leapfrog steps is doubled, forwards or backwards in time at
    random, until it turns: with ρ = Σ p over a stretch, less half its ends', it turns when

        p_leftᵀ M⁻¹ ρ ≤ 0   or   p_rightᵀ M⁻¹ ρ ≤ 0,

    for the whole or for any of its balanced halves (then the last doubling is thrown away). The draw is a point z of
    the trajectory with probability ∝ exp(−H(z)), taken on the way: within a doubling by weight, between the old and
    the new half with probability min(1, w_new / w_old). exp(−U/T) is exactly stationary.

    The tree is walked in a loop, and chains walk side by side: those that have turned leave the group, the others go
    on without waiting for them to be evaluated.

    Args:
        step_size: ε; ``None`` leaves it to :class:`Warmup`.
        max_depth: doublings at most, so 2^max_depth − 1 gradients a step.
        mass: M, a vector of P numbers or a P × P matrix; :class:`Warmup` finds one.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = tp.Collect(tp.Warmup(NUTS(), 200), last=200)
    >>> fitted = tp.fit(target, method, (x, 2 * x + 1))
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "trajectories that double until they turn: multinomial, generalised U-turn",
        MethodFamily.HAMILTONIAN,
        papers=(
            "Hoffman & Gelman, The no-U-turn sampler, JMLR 2014",
            "Betancourt, A conceptual introduction to Hamiltonian Monte Carlo, 2017",
        ),
        exact="any energy, any step",
        cost="at most 2^`max_depth` − 1 gradients; within a step 34 copies",
        recipes=(
            Recipe(
                "nuts",
                "Ensemble(Collect(Warmup(NUTS(max_depth=8), 300), last=300), 4)",
                "exact draws, four chains: for a few hundred rows",
            ),
        ),
    )

    step_size: float | None = None
    max_depth: int = 10
    mass: Tensor | None = None

    def __post_init__(self) -> None:
        self._check()
        depth = self.max_depth
        if not is_whole(depth, 1) or depth > 20:
            raise ArgumentError(f"`max_depth` must be an integer from 1 to 20; got {shown(depth)}.")

    def gradients(self) -> float:
        """At most 2^max_depth − 1 gradients; within a step, about 2 · max_depth + 14 more copies of θ."""
        return 2**self.max_depth - 1

    def transition(self, flow: Motion, state: HamiltonianState) -> Transition:
        """Double until every chain has turned: in C where the energy is, all chains side by side elsewhere."""
        keys = np.array([spawn(rng) for rng in state.rngs], dtype=np.uint64)
        state.chain.moved = True
        native = flow.energies.native
        if native is not None and native.complete and not flow.metric.dense:
            return _in_c(native, flow, state, keys, self.max_depth)
        group = _Group(flow, state, keys)
        for depth in range(self.max_depth):
            group.double(depth)
            if not len(group.who):
                break
        group.leave(np.ones(len(group.who), dtype=bool))
        return Transition(group.chances / np.maximum(1, group.leapfrogs), group.divergent, group.leapfrogs, group.edge)


def _in_c(native: NativeEnergy, flow: Motion, state: HamiltonianState, keys: Numbers, most: int) -> Transition:
    metric = flow.metric
    given = torch.stack([state.step_size, flow.inverse_temperature, state.energy], dim=1).numpy()
    momentum = metric.momenta(state.chain.noise)
    told = native.nuts(state.chain.theta, momentum, state.gradient, metric.inverse_mass.contiguous(), given, keys, most)
    state.energy.copy_(torch.from_numpy(told.energy))
    return Transition(told.chances / np.maximum(1, told.leapfrogs), told.divergent, told.leapfrogs, told.edge)


def fortunes(keys: Numbers, first: int, count: int) -> Numbers:
    """Uniform numbers ``first`` and following of each key, C × count, strictly between 0 and 1: SplitMix64, as in C."""
    with np.errstate(over="ignore"):
        z = keys[:, None] + np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    found: Numbers = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return found


class _Group:
    """Chains that still walk. ``who`` are their rows in the state; vectors have a row for each of them, scalars are
    NumPy arrays. Ends of the trajectory are (θ, p, ∇U) at its left and at its right."""

    def __init__(self, flow: Motion, state: HamiltonianState, keys: Numbers) -> None:
        self.flow, self.state, self.keys = flow, state, keys
        count = len(state.rngs)
        self.who = np.arange(count)
        momentum = flow.metric.momenta(state.chain.noise)
        self.left = Phase(state.chain.theta, momentum, state.gradient).clone()
        self.right = self.left
        self.sum = momentum.clone()
        self.chosen = [state.chain.theta.clone(), state.gradient.clone()]
        self.energy = state.energy.numpy().copy()
        self.beta = flow.inverse_temperature.numpy()
        self.start = self.beta * self.energy + flow.kinetic(momentum).numpy()
        self.weight = np.zeros(count)  # log Σ exp(H_start − H) over the trajectory
        self.step = state.step_size.clone()
        self.chances = np.zeros(count)
        self.leapfrogs = np.zeros(count, dtype=np.int64)
        self.divergent = np.zeros(count, dtype=bool)
        self.edge = np.zeros(count, dtype=bool)  # of these, where U was no finite number

    def double(self, depth: int) -> None:
        """Add 2^depth leaves at one end of each chain's trajectory; chains that have turned leave."""
        luck = fortunes(self.keys[self.who], 2 * depth + 2**depth - 1, 2 + 2**depth)
        forward = torch.from_numpy(luck[:, 0] < 0.5)
        pick = forward.to(self.sum.device).unsqueeze(1)
        new = _Stretch(self, either(pick, self.right, self.left), forward)
        new.grow_all(depth, luck[:, 2:])
        stopped = ~new.walking
        take = ~stopped & (np.log(luck[:, 1]) < new.weight - self.weight)
        self._choose(take, new)
        self.weight = np.logaddexp(self.weight, new.weight)
        self.left, self.right = either(pick, self.left, new.end), either(pick, new.end, self.right)
        self.sum = self.sum + new.sum
        turned = turning(self.flow.metric, self.left.momentum, self.right.momentum, self.sum)
        self.leave(stopped | turned)

    def _choose(self, take: Numbers, new: _Stretch) -> None:
        if take.any():
            where = torch.from_numpy(take).to(self.sum.device).unsqueeze(1)
            self.chosen = [torch.where(where, b, a) for a, b in zip(self.chosen, new.chosen, strict=True)]
            self.energy = np.where(take, new.energy, self.energy)

    def leave(self, done: Numbers) -> None:
        """Write down where these chains have arrived; the others go on."""
        if not done.any():
            return
        state = self.state
        rows = torch.from_numpy(self.who[done])
        at, out = rows.to(self.sum.device), torch.from_numpy(done).to(self.sum.device)
        state.chain.theta[at] = self.chosen[0][out]
        state.gradient[at] = self.chosen[1][out]
        state.energy[rows] = torch.from_numpy(self.energy[done])
        on = ~done
        keep = ~out
        self.who, self.energy, self.weight = self.who[on], self.energy[on], self.weight[on]
        self.beta, self.start, self.step = self.beta[on], self.start[on], self.step[torch.from_numpy(on)]
        if len(self.who):
            self.left, self.right = self.left.rows(keep), self.right.rows(keep)
            self.chosen, self.sum = [t[keep] for t in self.chosen], self.sum[keep]
            self.flow = self.flow.rows(keep)


class _Stretch:
    """The leaves that a doubling adds, walked one after the other, with the momenta and sums that the balanced halves
    begin with: leaf n closes as many of them as n has trailing ones in binary."""

    def __init__(self, group: _Group, end: Phase, forward: Tensor) -> None:
        self.group, self.end = group, end
        self.step = torch.where(forward, group.step, -group.step)
        self.sum = torch.zeros_like(group.sum)
        self.chosen = [end.theta, end.gradient]
        count = len(group.who)
        self.energy = np.full(count, np.nan)
        self.weight = np.full(count, -np.inf)
        self.walking = np.ones(count, dtype=bool)
        self.begun: dict[int, tuple[Tensor, Tensor]] = {}

    def grow_all(self, depth: int, luck: Numbers) -> None:
        """2^depth leaves, or until no chain walks on."""
        for leaf in range(2**depth):
            self.grow(leaf, luck[:, leaf])
            if not self.walking.any():
                break

    def grow(self, leaf: int, luck: Numbers) -> None:
        """One leapfrog step of the chains that have neither turned nor diverged."""
        group, flow = self.group, self.group.flow
        everyone = bool(self.walking.all())
        if everyone:
            energy, kinetic = flow.leap(self.end, self.step)
            potential, motion = energy.numpy(), kinetic.numpy()
        else:
            potential, motion = self._leap_some(flow)
        walking = self.walking.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            gain = group.beta * potential + motion - group.start
            diverged = walking & ~(gain <= DIVERGENCE)
            weight = np.where(walking & ~diverged, -gain, -np.inf)
            chance = np.where(walking & ~diverged, np.exp(np.minimum(0.0, -gain)), 0.0)
        who = group.who
        group.chances[who] += chance
        group.leapfrogs[who] += walking
        group.divergent[who] |= diverged
        group.edge[who] |= diverged & ~np.isfinite(potential)
        self.walking &= ~diverged
        self.weight = np.logaddexp(self.weight, weight)
        with np.errstate(invalid="ignore"):
            take = self.walking & (np.log(luck) < weight - self.weight)
        self._choose(take, potential, leaf == 0 and bool(take.all()))
        self.sum += self.end.momentum
        self._look_back(leaf)

    def _leap_some(self, flow: Motion) -> tuple[Numbers, Numbers]:
        going = torch.from_numpy(self.walking)
        rows = going.to(self.sum.device)
        part = self.end.rows(rows)
        energy, kinetic = flow.rows(rows).leap(part, self.step[going])
        self.end.put_(rows, part)
        potential, motion = np.full(len(self.walking), np.nan), np.full(len(self.walking), np.nan)
        potential[self.walking], motion[self.walking] = energy.numpy(), kinetic.numpy()
        return potential, motion

    def _choose(self, take: Numbers, potential: Numbers, first: bool) -> None:
        if first:
            self.chosen = [self.end.theta.clone(), self.end.gradient.clone()]
            self.energy = potential.copy()
        elif take.any():
            where = torch.from_numpy(take).to(self.sum.device).unsqueeze(1)
            self.chosen = [
                torch.where(where, self.end[0], self.chosen[0]),
                torch.where(where, self.end[2], self.chosen[1]),
            ]
            self.energy = np.where(take, potential, self.energy)

    def _look_back(self, leaf: int) -> None:
        """An even leaf begins halves, an odd one closes them: has any of these turned?"""
        momentum, place = self.end.momentum, (leaf >> 1).bit_count()
        if leaf % 2 == 0:
            self.begun[place] = (momentum.clone(), self.sum - momentum)
            return
        closed = (leaf ^ (leaf + 1)).bit_length() - 1  # trailing ones
        for k in range(place, place - closed, -1):
            first, before = self.begun[k]
            self.walking &= ~turning(self.group.flow.metric, first, momentum, self.sum - before)
            if not self.walking.any():
                return


def either(pick: Tensor, one: Phase, other: Phase) -> Phase:
    """Rows of ``one`` where ``pick`` says so, else of ``other``."""
    return Phase(*(torch.where(pick, a, b) for a, b in zip(one, other, strict=True)))


def turning(metric: Metric, left: Tensor, right: Tensor, total: Tensor) -> Numbers:
    """Whether a stretch with these end momenta and this sum of momenta has begun to turn."""
    ahead = metric.velocity(total - 0.5 * (left + right))
    one, two = (left * ahead).sum(-1), (right * ahead).sum(-1)
    found: Numbers = torch.minimum(one, two).le(0).cpu().numpy()
    return found
