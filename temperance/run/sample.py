"""``sample``: draws from a log density of one's own, by any sampler of the library."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, check_whole, shown
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.core.seeds import check_seed
from temperance.data.data import Data
from temperance.engine.compiling import has_compiler
from temperance.engine.native.density import NativeDensity, Unknown
from temperance.engine.native.walk import NativeEnergy
from temperance.inference import Collect, Ensemble, Warmup
from temperance.inference.hamiltonian.kernel import HamiltonianSampler, SteppingKernel
from temperance.inference.langevin.sampler import Sampler
from temperance.judge import diagnose
from temperance.judge.diagnose.drawn import mixing_remarks
from temperance.posteriors import Chain
from temperance.posteriors.trace import Transitions
from temperance.run.density import DensityNetwork, LogDensity, target_of
from temperance.run.fit import fit
from temperance.run.fitted import Fitted

_SHOWN = 10  # coordinates in what is printed of draws
_GRADIENTS_OF_A_TREE = 15.0  # of NUTS, as a rule; it may take a thousand
_WORTH_WRITING = 2_000  # gradients from which machine code pays: half a millisecond is saved by each, a second spent
_PROBES = 8  # places around the starts, where a slope of zero is compared with the values
_WORTH_COMPILING = 30_000  # the same of torch.compile, which takes ten seconds and saves less


@dataclass(frozen=True, repr=False)
class Samples:
    """Draws of several chains. ``theta`` is chains × draws × P; ``fitted`` is the run they come from."""

    theta: Tensor = field(repr=False)
    fitted: Fitted = field(repr=False)

    def __repr__(self) -> str:
        """A line for each of the first coordinates; ``theta`` has the numbers."""
        chains, draws, size = self.theta.shape
        head = f"Samples: {chains} chains × {draws} draws of {size} numbers, {self.divergences} divergences"
        lines = [head, f"{'':>8}{'mean':>12}{'std':>12}{'5 %':>12}{'95 %':>12}{'mcse':>10}{'ess':>9}{'R-hat':>10}"]
        for k in range(min(size, _SHOWN)):
            own = self.theta[..., k].double()
            low, high = own.flatten().quantile(own.new_tensor([0.05, 0.95])).tolist()
            numbers = "".join(f"{v:>12.5g}" for v in (float(own.mean()), float(own.std()), low, high))
            rates = (float(diagnose.mcse(own)), float(diagnose.ess(own)), float(diagnose.rhat(own)))
            lines.append(f"{f'theta[{k}]':>8}{numbers}{rates[0]:>10.2g}{rates[1]:>9.0f}{rates[2]:>10.4g}")
        if size > _SHOWN:
            lines.append(f"  … and {size - _SHOWN} more")
        return "\n".join(lines)

    @property
    def chains(self) -> tuple[Chain, ...]:
        """One :class:`~temperance.posteriors.Draws` for each chain, with its trace."""
        return diagnose.chains.chains_of(self.fitted.posterior)

    @property
    def transitions(self) -> tuple[Transitions, ...]:
        """How each transition went, by chain: energies, acceptance, leapfrog steps, divergences."""
        traces = [chain.trace for chain in self.chains]
        return tuple(t.transitions for t in traces if t is not None and t.transitions is not None)

    @property
    def divergences(self) -> int:
        """Transitions that diverged, in all chains."""
        return sum(int(t.divergent.sum()) for t in self.transitions)

    def mean(self) -> Tensor:
        """The average draw, P."""
        return self.theta.flatten(0, 1).double().mean(0)

    def covariance(self) -> Tensor:
        """The draws' covariance, P × P."""
        return torch.cov(self.theta.flatten(0, 1).double().T).reshape(self.theta.shape[-1], -1)

    def mcse(self) -> Tensor:
        """The Monte-Carlo standard error of each mean, from the effective number of draws."""
        return torch.tensor([float(diagnose.mcse(self.theta[..., k])) for k in range(self.theta.shape[-1])])

    def rhat(self) -> Tensor:
        """R-hat of each coordinate."""
        return torch.tensor([float(diagnose.rhat(self.theta[..., k])) for k in range(self.theta.shape[-1])])

    def ess(self) -> Tensor:
        """Effective number of draws for each mean."""
        return torch.tensor([float(diagnose.ess(self.theta[..., k])) for k in range(self.theta.shape[-1])])


def sample(
    log_density: LogDensity,
    start: Tensor | Sequence[float],
    method: Sampler,
    *,
    draws: int = 1000,
    chains: int = 4,
    warmup: int = 1000,
    every: int = 1,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    compile: bool | None = None,
    progress: bool | None = None,
) -> Samples:
    """Draws from p(θ) ∝ exp(``log_density``(θ)).

    Args:
        log_density: a function from a vector of P numbers to one number, in differentiable torch operations. It is
            evaluated for all chains at once where ``torch.func.vmap`` can, else for one after the other. −∞ says that
            a place is impossible; a trajectory that runs into it is rejected and counts as diverged, as does one that
            comes where the function raises (a Cholesky factor that does not exist), which is counted and said.
        start: a vector, where all chains begin, or a matrix with a row for each. Its dtype is that of the draws.
        method: ``NUTS()``, ``HMC(length=20)``, ``Warmup(NUTS(), 500, mass="dense")``, or any other sampler. A kernel
            without a step size is warmed up.
        draws: of each chain.
        chains: how many.
        warmup: transitions that tune a kernel without a step size; steps thrown away, for any other sampler.
        every: steps between draws.
        seed: decides everything random.
        checkpoint: a folder; the run is saved there as it goes, and goes on from there.
        compile: make machine code of the density and its gradient: up to a hundred times faster, once it is there,
            which takes about a second and a C compiler. ``None``: where the run is long enough to gain by it. What
            cannot be written in C (an ``if`` on values, eigenvalues, matrices of hundreds of rows) is left to
            ``torch.compile``, or runs as it is, and that is said.
        progress: show a progress bar; ``None`` shows it on a terminal.

    >>> import temperance as tp
    >>> found = sample(lambda theta: -0.5 * (theta - 3.0).square().sum(), torch.zeros(2), tp.NUTS(), draws=500)
    >>> found.theta.shape, bool((found.mean() - 3.0).abs().max() < 0.2)
    (torch.Size([4, 500, 2]), True)
    """
    if not callable(log_density):
        raise ArgumentError(f"`log_density` must be a function from a vector to a number; got {shown(log_density)}.")
    if not isinstance(method, Sampler):
        raise ArgumentError(f"`method` must be a sampler such as NUTS(); got {shown(method)}.")
    for name, value in (("draws", draws), ("chains", chains), ("every", every)):
        check_count(value, name)
    check_whole(warmup, "warmup", "a number of steps")
    check_flag(compile, "compile", optional=True)
    begin = _starts(start, chains)
    _check_finite_at(log_density, begin)
    flat = _check_slope(log_density, begin) if method.facts().cost.gradients_per_step else None
    native, told = None, None
    if compile is not False and isinstance(method, HamiltonianSampler):  # others take their gradients as networks do
        gradients = _gradients(method, burn_steps(method, warmup) + draws * every)
        if compile or gradients >= _WORTH_WRITING:
            native, told = _machine_code(log_density, begin, bool(compile) or gradients >= _WORTH_COMPILING)
    by_torch = told is not None and has_compiler()
    network = DensityNetwork(log_density, begin[0], native, chains if by_torch else None)
    target = target_of(network)
    if told is not None:
        warnings.warn(told, TemperanceWarning, stacklevel=2)
    if isinstance(method, SteppingKernel) and method.step_size is None:
        method = Warmup(method, warmup)
    burn = burn_steps(method, warmup)
    run = Ensemble(
        Collect(method, burn=burn, every=every),
        chains,
        batched=True if isinstance(method, HamiltonianSampler) else None,
    )
    nothing = Data(torch.zeros(1, 1, dtype=begin.dtype), torch.zeros(1, 1, dtype=begin.dtype))
    fitted = fit(
        target,
        run,
        nothing,
        steps=burn + draws * every,
        start=begin,
        seed=check_seed(seed),
        checkpoint=checkpoint,
        progress=progress,
    )
    if told is not None:
        fitted.info.remarks.append(told)
    found = [chain.theta for chain in diagnose.chains.chains_of(fitted.posterior)]
    shortest = min(map(len, found))  # a second Ctrl-C stops at once, where some chains may have a draw more than others
    theta = torch.stack([own[:shortest] for own in found])
    remarks = [] if flat is None else [flat]
    remarks += [network.failures.remark()] if network.failures.count else []
    for remark in (*remarks, *mixing_remarks(theta)):
        fitted.info.remarks.append(remark)
        warnings.warn(remark, TemperanceWarning, stacklevel=2)
    return Samples(theta, fitted)


def burn_steps(method: Sampler, warmup: int) -> int:
    """Steps before the first that counts: those of the method's own warm-up, where it has one."""
    settling = method.facts().settling
    return warmup if settling is None else settling


def _gradients(method: Sampler, steps: int) -> float:
    """About how many a chain will take."""
    return steps * min(method.facts().cost.gradients_per_step, _GRADIENTS_OF_A_TREE)


def _machine_code(log_density: LogDensity, begin: Tensor, tell: bool) -> tuple[NativeEnergy | None, str | None]:
    """The density in C; or what to say, if it is worth saying, where that cannot be."""
    try:
        return NativeDensity.of(log_density, begin), None
    except Unknown as reason:
        slower = (
            f"`log_density` could not be made into machine code ({reason}); the run goes on without it, and slower. "
            "What can be: elementwise operations, sums, products and indexing of tensors, factors of small matrices. "
            "compile=False says nothing."
        )
        return None, slower if tell else None


def _starts(start: Any, chains: int) -> Tensor:
    try:
        given = torch.as_tensor(start).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"`start` must be a vector of numbers, or a row for each chain; got {shown(start)}."
        ) from error
    if not given.is_floating_point():
        given = given.to(torch.get_default_dtype())
    if given.dim() == 1 and len(given):
        given = given.expand(chains, -1)
    if given.dim() != 2 or given.shape[0] != chains or not given.shape[1]:
        raise ArgumentError(
            f"`start` must be a vector, or a matrix with a row for each of the {chains} chains; got shape "
            f"{tuple(given.shape)}."
        )
    if not bool(torch.isfinite(given).all()):
        raise ArgumentError("`start` must be finite; got NaN or infinity.")
    return given.clone()


def _check_finite_at(log_density: LogDensity, starts: Tensor) -> None:
    """One number, and a finite one, at every start."""
    for k, start in enumerate(starts):
        try:
            value = log_density(start.clone())
        except RuntimeError as error:
            if "dtype" not in str(error):
                raise
            raise ArgumentError(
                f"`start` must have the dtype that `log_density` computes in; got {start.dtype} (the function said: "
                f"{str(error).splitlines()[0]}). Write start.double(), or bring data to the dtype of its argument."
            ) from error
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ArgumentError(f"`log_density` must return a tensor of one number, of shape (); got {got}.")
        if not bool(torch.isfinite(value)):
            raise ArgumentError(
                f"`log_density` must be finite where the chains start; got {float(value)} for chain {k + 1}."
            )


def _check_slope(log_density: LogDensity, starts: Tensor) -> str | None:
    """A sampler that follows the slope needs one. Refuse a function whose value is cut off from its argument, and say
    where it is a step function; a density that is truly flat has the slope that it says."""
    slopes = [_slope(log_density, start) for start in starts]
    if any(slope is not None and bool((slope != 0).any()) for slope in slopes):
        return None
    rng = torch.Generator().manual_seed(0)
    for width in (1e-3, 0.1, 1.0, 3.0):
        values = []
        for k in range(_PROBES):
            noise = torch.randn(starts.shape[1], generator=rng, dtype=torch.float64).to(starts)
            place = starts[k % len(starts)] + width * noise
            try:
                slope, value = _slope(log_density, place), float(log_density(place))
            except (ArithmeticError, ValueError, RuntimeError):  # an impossible place
                continue
            if slope is not None and bool((slope != 0).any()):
                return None  # the starts were at the top
            if math.isfinite(value):
                values.append(value)
        if len(set(values)) > 1:
            break
    else:
        return None
    if all(slope is None for slope in slopes):
        raise ArgumentError(
            "`log_density` must be differentiable in its argument, whose slope the sampler follows; got a value that "
            "is cut off from it: it changes with θ, and no gradient leads back. Look for .detach(), .item(), .data, "
            "torch.no_grad(), torch.tensor(...) of values, or NumPy, and write it in torch operations."
        )
    return (
        "`log_density` has a gradient of zero wherever it was looked at, though its values differ: the sampler follows "
        "no slope and walks at random. Look for torch.round, floor, sign or comparisons, which pass no gradient on."
    )


def _slope(log_density: LogDensity, place: Tensor) -> Tensor | None:
    """The gradient; ``None`` if the value does not lead back to its argument."""
    leaf = place.clone().requires_grad_()
    with torch.enable_grad():
        value = log_density(leaf)
        if not value.requires_grad:
            return None
        (found,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return found
