"""Temperatures of a sampler: is the simulated system as hot as the posterior it is to draw from?

Under p(θ, m) ∝ exp(−U(θ)/T − mᵀM⁻¹m/(2T)), for a tensor of d numbers,

    kinetic          T̂_K = mᵀM⁻¹m / d,      d·T̂_K / T ~ χ²_d
    configurational  T̂_C = ⟨θ, ∇U(θ)⟩ / d,   E[T̂_C] = T      (integration by parts; the prior must be proper)

Everything here is given in units of the temperature that was in force: one is right. Readings of noise-free
exploration (temperature 0) are left out. Means over time carry a standard error that counts correlated readings as
less (:func:`temperance.judge.diagnose.mcse`).

Reference: Wenzel et al., "How good is the Bayes posterior in deep neural networks really?", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import scipy
import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, check_level, check_positive, check_whole
from temperance.core.errors import ArgumentError
from temperance.judge.diagnose.chains import Run, stack_chains, unpack
from temperance.judge.diagnose.mixing import ess, mcse
from temperance.model.target import Target
from temperance.posteriors import Trace

Traced: TypeAlias = Run | Trace
"""A run whose chains have a trace, or a trace alone (then with its ``target``, for names and sizes)."""


@dataclass(frozen=True, eq=False)
class Temperatures:
    """Readings of a temperature, in units of the temperature in force.

    Attributes:
        what: which temperature, in words.
        names: of the E tensors of θ.
        sizes: how many numbers each has.
        readings: C chains × R readings × E tensors.
        step: at which step of the run the readings of the first chain were taken (or which draw), R.
        inside: for each tensor, the share of readings inside the χ² interval; kinetic temperatures only.
        level: the level of that interval.
    """

    what: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    readings: Tensor
    step: Tensor
    inside: Tensor | None = None
    level: float | None = None

    @cached_property
    def network(self) -> Tensor:
        """The temperature of the whole of θ, C × R: tensors count by their sizes."""
        sizes = torch.tensor(self.sizes, dtype=torch.float64)
        return self.readings @ (sizes / sizes.sum())

    @cached_property
    def mean(self) -> Tensor:
        """Of each tensor, over time and chains."""
        return self.readings.mean((0, 1))

    @cached_property
    def error(self) -> Tensor:
        """The standard error of :attr:`mean`; NaN for fewer than four readings."""
        return mcse(self.readings)

    @cached_property
    def effective(self) -> Tensor:
        """How many independent readings of each tensor there are."""
        return ess(self.readings)

    @property
    def network_mean(self) -> float:
        """Of the whole of θ."""
        return float(self.network.mean())

    @property
    def network_error(self) -> float:
        """The standard error of :attr:`network_mean`."""
        return float(mcse(self.network))

    @property
    def inside_share(self) -> float:
        """The share of all readings of all tensors inside the χ² interval."""
        return float("nan") if self.inside is None else float(self.inside.mean())

    @property
    def worst(self) -> str:
        """The name of the tensor farthest from one."""
        return self.names[int((self.mean - 1).abs().argmax())]

    def __str__(self) -> str:
        width = max(len("whole network"), *(len(name) for name in self.names))
        chains, count = self.readings.shape[:2]
        shares = (
            [""] * len(self.names) if self.inside is None else [f"   {s:4.0%} inside" for s in self.inside.tolist()]
        )
        head = f"{self.what} temperature over the one in force, {chains} chains × {count} readings"
        if self.inside is not None:
            head += f"; χ² interval of {self.level:.0%}"
        rows = zip(self.names, self.sizes, self.mean.tolist(), self.error.tolist(), shares, strict=True)
        lines = [f"  {n:<{width}} {size:>9}  {mean:7.3f} ± {error:.3f}{share}" for n, size, mean, error, share in rows]
        whole = "" if self.inside is None else f"   {self.inside_share:4.0%} inside"
        total = (
            f"  {'whole network':<{width}} {sum(self.sizes):>9}  {self.network_mean:7.3f} ± {self.network_error:.3f}"
        )
        return "\n".join([head, *lines, total + whole])


def kinetic_interval(size: int, temperature: float = 1.0, level: float = 0.99) -> tuple[float, float]:
    """Where a reading of the kinetic temperature of ``size`` numbers lies with probability ``level``:

        (T/d) F⁻¹((1−level)/2)  to  (T/d) F⁻¹((1+level)/2),      F the distribution function of χ²_d

    >>> [round(end, 4) for end in kinetic_interval(1000)]
    [0.8886, 1.1189]
    """
    check_count(size, "size")
    check_positive(temperature, "temperature")
    _check_level(level)
    low, high = (scipy.stats.chi2.ppf((1 + sign * level) / 2, size) for sign in (-1, 1))
    return temperature * float(low) / size, temperature * float(high) / size


def kinetic(
    run: Traced,
    *,
    target: Target | None = None,
    corrected: bool = False,
    level: float = 0.99,
    after: int = 0,
    max_pace: float | None = None,
) -> Temperatures:
    """Kinetic temperatures along a run, of each tensor and of the whole.

    Symplectic Euler does not leave m ~ N(0, T·M) as it is: on U = k θ²/2, with time step h and momentum factor β,

        Var m = T / ((1+β)/2 − h²k/4),

    which is above T by the factor 2/(1+β) however small the step: 11 % for β = 0.8, 1 % for 0.98. The trace knows this
    factor; ``corrected`` divides by it, so that what is left above one is due to the step (h²k) and to the noise of
    minibatch gradients. BAOAB has no such factor.

    ``level`` is that of the χ² interval; ``after`` leaves out earlier steps (a burn-in), ``max_pace`` all readings
    taken at a larger pace (cyclical time stepping: the check passes at the slow ends of cycles, where draws are taken,
    long before it does at full pace).
    """
    _check_level(level)
    check_flag(corrected, "corrected")
    names, sizes, traces = _traces(run, target)
    if any(bool(trace.kinetic.isnan().all()) for trace in traces):
        raise ArgumentError("`run` must come from a sampler with momenta (SGHMC, BAOAB); its trace has none.")
    kept = [_kept(trace, after, max_pace) for trace in traces]
    readings = stack_chains(
        [
            _ratio(t.kinetic, t.temperature, t.kinetic_bias if corrected else None)[k]
            for t, k in zip(traces, kept, strict=True)
        ]
    )
    ends = torch.tensor([kinetic_interval(size, 1.0, level) for size in sizes], dtype=torch.float64)
    inside = ((readings >= ends[:, 0]) & (readings <= ends[:, 1])).double().mean((0, 1))
    step = traces[0].step[kept[0]][-readings.shape[1] :]
    return Temperatures("kinetic", names, sizes, readings, step, inside, level)


def configurational(
    run: Traced, *, target: Target | None = None, after: int = 0, max_pace: float | None = None
) -> Temperatures:
    """Configurational temperatures along a run, ⟨θ, N∇G̃(θ)⟩/d on the batch of the step, of each tensor and the whole.

    A single reading is noisy and may well be negative: the mean over time is what to look at. Directions that the data
    do not determine are slow, so that in large networks it stays below one for long.
    """
    names, sizes, traces = _traces(run, target)
    kept = [_kept(trace, after, max_pace) for trace in traces]
    readings = stack_chains([_ratio(t.configurational, t.temperature)[k] for t, k in zip(traces, kept, strict=True)])
    return Temperatures("configurational", names, sizes, readings, traces[0].step[kept[0]][-readings.shape[1] :])


def _traces(run: Traced, target: Target | None) -> tuple[tuple[str, ...], tuple[int, ...], Sequence[Trace]]:
    traces: list[Trace] = []
    if isinstance(run, Trace):
        if target is None:
            raise ArgumentError("`target` must be given with a Trace, for the names and sizes of its tensors.")
        traces.append(run)
    else:
        target, chains = unpack(run, target)
        traces += [chain.trace for chain in chains if chain.trace is not None]
        if len(traces) < len(chains):
            raise ArgumentError("`run` must hold draws with a trace; those of a loop of one's own have none.")
    entries = target.layout.entries
    if traces[0].kinetic.shape[-1] != len(entries):
        raise ArgumentError(
            f"`run` must have readings of the target's {len(entries)} tensors; got {traces[0].kinetic.shape[-1]}."
        )
    return tuple(e.name for e in entries), tuple(e.size for e in entries), traces


def _kept(trace: Trace, after: int, max_pace: float | None) -> Tensor:
    """Which readings count."""
    check_whole(after, "after", "a number of steps")
    if max_pace is not None:
        check_positive(max_pace, "max_pace")
    kept = (trace.temperature > 0) & (trace.step >= after)
    if max_pace is not None:
        kept = kept & (trace.pace <= max_pace)
    if not bool(kept.any()):
        raise ArgumentError(f"`after` {after} must leave readings at a positive temperature; it leaves none.")
    return kept.cpu()


def _ratio(values: Tensor, temperature: Tensor, bias: Tensor | None = None) -> Tensor:
    scale = temperature if bias is None else temperature * bias
    return (values.double() / scale.double().unsqueeze(-1)).cpu()


def _check_level(level: object) -> None:
    check_level(level)
