"""Leapfrog steps of many chains at once: masses, phase space, and the motion along the energy's slope.

C chains are the rows of θ (C × P), each with a mass and a temperature of its own. Masses are kept by their inverse, the
(estimated) variances of θ: velocity = M⁻¹ p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.engine.energy import Energies


class Metric:
    """Masses of C chains by their inverse: C × P variances, or C × P × P covariances."""

    def __init__(self, inverse_mass: Tensor) -> None:
        self.inverse_mass = inverse_mass
        self.dense = inverse_mass.dim() == 3
        if self.dense:
            self.root = torch.linalg.cholesky(inverse_mass)
        else:
            self.root = inverse_mass.sqrt()

    def momenta(self, noise: Tensor) -> Tensor:
        """p ~ N(0, M) from standard normal numbers: with M⁻¹ = L Lᵀ, p = L⁻ᵀ z."""
        if not self.dense:
            return noise / self.root
        return torch.linalg.solve_triangular(self.root.mT, noise.unsqueeze(-1), upper=True).squeeze(-1)

    def velocity(self, momentum: Tensor) -> Tensor:
        """M⁻¹ p."""
        if not self.dense:
            return self.inverse_mass * momentum
        return torch.bmm(self.inverse_mass, momentum.unsqueeze(-1)).squeeze(-1)

    def rows(self, keep: Tensor) -> Metric:
        """That of some of the chains."""
        made = object.__new__(Metric)
        made.dense, made.inverse_mass, made.root = self.dense, self.inverse_mass[keep], self.root[keep]
        return made


class Phase(NamedTuple):
    """Places, momenta, and the slopes ∇U there: C × P each."""

    theta: Tensor
    momentum: Tensor
    gradient: Tensor

    def clone(self) -> Phase:
        """Copies."""
        return Phase(*(t.clone() for t in self))

    def rows(self, keep: Tensor) -> Phase:
        """Copies of some chains' rows."""
        return Phase(*(t[keep] for t in self))

    def put_(self, at: Tensor, part: Phase) -> None:
        """Write rows back, in place."""
        for whole, some in zip(self, part, strict=True):
            whole[at] = some


class Motion:
    """Leapfrog steps of some chains: p ← p − ½ ε ∇U/T;  θ ← θ + ε M⁻¹ p;  p ← p − ½ ε ∇U/T."""

    def __init__(self, energies: Energies, metric: Metric, inverse_temperature: Tensor) -> None:
        self.energies, self.metric, self.inverse_temperature = energies, metric, inverse_temperature
        self.gradients = 0

    def rows(self, keep: Tensor) -> Motion:
        """The flow of some of the chains."""
        return Motion(self.energies, self.metric.rows(keep), self.inverse_temperature[keep.cpu()])

    def kinetic(self, momentum: Tensor) -> Tensor:
        """½ pᵀ M⁻¹ p in float64."""
        return 0.5 * (momentum * self.metric.velocity(momentum)).sum(-1, dtype=torch.float64).cpu()

    def leap(self, phase: Phase, step: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
        """``count`` steps of size ``step`` (C, its sign the direction of time), in place; U and kinetic energy at the
        end, in float64."""
        native, beta = self.energies.native, self.inverse_temperature
        if native is not None and not self.metric.dense:
            energy, kinetic = torch.empty_like(step), torch.empty_like(step)
            native.leapfrog(*phase, step, self.metric.inverse_mass, beta, count, energy, kinetic)
            return energy, kinetic
        theta, momentum, gradient = phase
        kick = (step * beta).to(theta).unsqueeze(1)
        drift = step.to(theta).unsqueeze(1)
        momentum.addcmul_(gradient, kick, value=-0.5)
        energy = torch.empty(0)
        for k in range(count):
            theta.addcmul_(self.metric.velocity(momentum), drift)
            energy = self.energies(theta, gradient)
            momentum.addcmul_(gradient, kick, value=-1.0 if k + 1 < count else -0.5)
        return energy.cpu(), self.kinetic(momentum)


def uniforms(rngs: Sequence[torch.Generator], count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``count`` uniform numbers of each chain, C × count."""
    return np.stack([torch.rand(count, generator=rng, dtype=torch.float64).numpy() for rng in rngs])


def check_mass(mass: object) -> None:
    """A vector of positive numbers, or a positive definite matrix."""
    if not isinstance(mass, Tensor) or mass.dim() not in (1, 2) or (mass.dim() == 2 and mass.shape[0] != mass.shape[1]):
        got = tuple(mass.shape) if isinstance(mass, Tensor) else shown(mass)
        raise ArgumentError(f"`mass` must be a vector of P numbers or a P × P matrix; got {got}.")
    if not mass.is_floating_point():
        raise ArgumentError(f"`mass` must hold floating-point numbers; got {mass.dtype}. Write mass.float().")
    if mass.dim() == 1:
        if not bool((mass > 0).all()) or not bool(torch.isfinite(mass).all()):
            raise ArgumentError(f"`mass` must be positive and finite everywhere; got min {float(mass.min())}.")
        return
    if not torch.allclose(mass, mass.T, rtol=1e-5, atol=1e-8 * float(mass.abs().max())):
        raise ArgumentError("`mass` must be a symmetric matrix; got one that is not.")
    if int(torch.linalg.cholesky_ex(mass.double()).info) != 0:
        least = float(torch.linalg.eigvalsh(mass.double()).min())
        raise ArgumentError(f"`mass` must be positive definite; got a matrix whose least eigenvalue is {least:.3g}.")
