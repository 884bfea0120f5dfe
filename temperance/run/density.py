"""A log density of the user's in the place of network, data and prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Reals
from temperance.engine.compiling import Compiled
from temperance.engine.energy import Energies, OwnEnergies
from temperance.engine.native.walk import NativeEnergy
from temperance.model.likelihoods.base import LearnedValues, Likelihood
from temperance.model.priors.base import BoundPrior, Density, Prior, span
from temperance.model.target import Target
from temperance.model.theta import Entry, Layout

LogDensity = Callable[[Tensor], Tensor]


def density_target(log_density: LogDensity, start: Tensor) -> Target:
    """A user's log density in the place of network, data and prior: U(θ) = −log p(θ)."""
    return target_of(DensityNetwork(log_density, start))


def target_of(network: DensityNetwork) -> Target:
    """The target whose energy is the network's own."""
    return Target(network, _Itself(), _Flat())


_IMPOSSIBLE = (ArithmeticError, ValueError, torch.linalg.LinAlgError)


@dataclass
class Failures:
    """Places where the log density raised; one count for all copies of the target."""

    count: int = 0
    last: str = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> Failures:
        return self

    def add(self, error: Exception) -> None:
        """One more."""
        self.count += 1
        self.last = f"{type(error).__name__}: {error}"

    def remark(self) -> str:
        """What to say of them."""
        return (
            f"`log_density` raised at {self.count} trial places, which were taken as impossible (the last time, "
            f"{self.last.splitlines()[0][:200]}). Return -inf there to say so yourself."
        )


class DensityEnergies(Energies):
    """−log p of all chains: without the detour through a network."""

    def __init__(
        self,
        log_density: LogDensity,
        size: int,
        failures: Failures,
        native: NativeEnergy | None = None,
        rows: int | None = None,
    ) -> None:
        self.native = native
        self.prior = BoundPrior([(slice(0, size), _FlatDensity())])
        self.function = log_density
        self.failures = failures
        self.proven = False
        self.rows = rows
        self.compiled = None if rows is None else Compiled(self._value_and_slope)
        self.together: Callable[[Tensor], Tensor] | None = torch.func.vmap(self.function, randomness="error")

    def __call__(self, theta: Tensor, grad: Tensor | None = None) -> Tensor:
        """See :class:`Energies`."""
        if self.native is not None:
            return super().__call__(theta, grad)
        if grad is not None and self.compiled is not None and self.proven and len(theta) <= (self.rows or 0):
            found = self._at_once(theta, grad)
            if found is not None:
                return found
        with torch.set_grad_enabled(grad is not None):
            leaf = theta.detach().requires_grad_(grad is not None)
            values = self._values(leaf)
            if grad is not None:
                found = None
                if values.requires_grad:
                    (found,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
                grad.copy_(torch.zeros_like(leaf) if found is None else found.neg())
        return -values.detach().double()

    def _at_once(self, theta: Tensor, grad: Tensor) -> Tensor | None:
        """By machine code, made for a certain number of rows: fewer are filled up. ``None`` where it raises, at a place
        that is impossible, as the plain function does there."""
        count = len(theta)
        full = theta if count == self.rows else torch.cat([theta, theta[-1:].expand((self.rows or 0) - count, -1)])
        assert self.compiled is not None
        try:
            values, slope = self.compiled(full.detach())
        except _IMPOSSIBLE:
            return None
        grad.copy_(slope[:count].neg())
        return -values[:count].double()

    def _value_and_slope(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        assert self.together is not None
        together = self.together

        def total(rows: Tensor) -> tuple[Tensor, Tensor]:
            values = together(rows)
            return values.sum(), values

        slope, values = torch.func.grad(total, has_aux=True)(theta)
        return values, slope

    def _values(self, theta: Tensor) -> Tensor:
        if self.together is not None:
            try:
                values = self.together(theta)
            except _IMPOSSIBLE:  # at one of the places; the loop below finds which
                pass
            except Exception:  # whatever stops vmap, the loop below decides; a true error is raised there
                if self.proven:  # not vmap, then
                    raise
                self.together = None
            else:
                self.proven = True
                return values
        return torch.stack([self._value(row) for row in theta])

    def _value(self, row: Tensor) -> Tensor:
        """log p at one place; −∞ where it cannot be computed, as where a matrix is not positive definite."""
        try:
            return self.function(row)
        except _IMPOSSIBLE as error:
            self.failures.add(error)
            return row.new_full((), -torch.inf)


class DensityNetwork(OwnEnergies):
    """θ itself as a module, whose energies are those of the log density."""

    def __init__(
        self,
        log_density: LogDensity,
        start: Tensor,
        native: NativeEnergy | None = None,
        compiled_rows: int | None = None,
    ) -> None:
        super().__init__()
        self.native, self.compiled_rows = native, compiled_rows
        self.theta = nn.Parameter(start.clone())
        self._log_density = log_density
        self.failures = Failures()
        self._energies: DensityEnergies | None = None

    def own_energies(self) -> Energies:
        """−log p, made once for each working copy."""
        if self._energies is None:
            size = self.theta.numel()
            self._energies = DensityEnergies(self._log_density, size, self.failures, self.native, self.compiled_rows)
        return self._energies

    def forward(self, x: Tensor) -> Tensor:
        """The log density, once for each row."""
        return self._log_density(self.theta).reshape(1, 1).expand(x.shape[0], 1)


@dataclass(frozen=True, eq=False)
class _Itself(Likelihood):
    """The outputs are log densities already."""

    outcome = Reals()

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return y

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return outputs[..., 0]

    def _none(self, *_: object) -> Tensor:
        raise ArgumentError("a log density has no predictions: look at `.theta`.")

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return self._none()

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return self._none()

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return self._none()

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return self._none()

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return self._none()

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        return self._none()


@dataclass(frozen=True, eq=False)
class _Flat(Prior):
    """No prior: the log density is all there is."""

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        return [(span(entries), _FlatDensity())]


class _FlatDensity(Density):
    def log_density(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def score(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def add_score(self, theta: Tensor, grad: Tensor, factor: float) -> None:
        return

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        raise ArgumentError("a log density has no prior to draw from.")

    def to(self, device: torch.device, dtype: torch.dtype) -> Density:
        return self
