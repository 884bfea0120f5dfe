"""Chains that walk along the slope of an energy that is known in C: energies and slopes, leapfrog steps, and whole
trajectories of the no-U-turn sampler and of microcanonical dynamics, without returning to Python in between and on all
cores."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError

_POINTER, _INT, _COUNT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_ENERGIES = (_POINTER, _POINTER, _POINTER, _POINTER, _COUNT, _INT)
_LEAPFROG = (*[_POINTER] * 6, _COUNT, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _INT)
_NUTS = (*[_POINTER] * 9, *[_COUNT] * 2, _INT)
_MICROCANONICAL = (*[_POINTER] * 6, ctypes.c_double, *[_POINTER] * 2, *[_COUNT] * 3, _INT)
_VECTORS = 13  # of a trajectory, and two for each doubling

Numbers = np.ndarray[Any, Any]
Found = Callable[[str, tuple[Any, ...]], Callable[..., None] | None]


class Walks(NamedTuple):
    """The functions of ``walk.c`` in a library, for one precision."""

    energies: Callable[..., None]
    leapfrog: Callable[..., None]
    nuts: Callable[..., None]
    microcanonical: Callable[..., None]

    @classmethod
    def of(cls, found: Found, dtype: torch.dtype) -> Walks | None:
        """As ``found`` gives them by name and types of arguments; ``None`` if it has none."""
        name = "float" if dtype == torch.float32 else "double"
        wanted = (
            ("energies", _ENERGIES),
            ("leapfrog", _LEAPFROG),
            ("nuts", _NUTS),
            ("microcanonical", _MICROCANONICAL),
        )
        made = [found(f"temperance_{what}_{name}", arguments) for what, arguments in wanted]
        return cls(*(f for f in made if f is not None)) if all(made) else None


@dataclass(frozen=True)
class Told:
    """What became of each chain's transition: U where it ended, the sum of the chances of acceptance on the way,
    leapfrog steps, whether it diverged, and whether that was where U is infinite or no number."""

    energy: Numbers
    chances: Numbers
    leapfrogs: Numbers
    divergent: Numbers
    edge: Numbers


class NativeEnergy:
    """U(θ) and ∇U(θ) of C chains of P numbers, on a CPU. ``plan`` describes the problem to C, and has the field
    ``scratch``: memory of ``scratch_size`` numbers for each thread.
    Its memory is shared by its calls: not for two Python threads at once."""

    complete: bool = True
    """Whether all of U is in C, so that trajectories can be walked there."""

    def __init__(
        self, walks: Walks, plan: ctypes.Structure, dtype: torch.dtype, size: int, scratch_size: int, threads: int = 64
    ) -> None:
        self.walks, self.dtype, self.size = walks, dtype, size
        self._plan, self._plan_place = plan, ctypes.addressof(plan)
        self._scratch_size, self._scratch_count, self._most_threads = scratch_size, 0, threads
        self._scratch = torch.zeros(0, dtype=dtype)

    def energies(self, theta: Tensor, grad: Tensor | None, energy: Tensor, threads: int | None = None) -> None:
        """Write U at each row of ``theta`` (C × P) into ``energy`` (C, float64) and, if given, ∇U into ``grad``."""
        chains = len(theta)
        shape, numbers = (chains, self.size), (chains,)
        self._check("theta", theta, shape, self.dtype)
        self._check("energy", energy, numbers, torch.float64)
        place = None
        if grad is not None:
            self._check("grad", grad, shape, self.dtype)
            place = grad.data_ptr()
        used = self._threads(threads, chains)
        self.walks.energies(self._plan_place, theta.data_ptr(), place, energy.data_ptr(), chains, used)

    def potentials(self, theta: Tensor, energy: Tensor, threads: int | None = None) -> None:
        """Write U at each row of ``theta`` into ``energy``, without the gradient."""
        self.energies(theta, None, energy, threads)

    def leapfrog(
        self,
        theta: Tensor,
        momentum: Tensor,
        grad: Tensor,
        step: Tensor,
        inverse_mass: Tensor,
        inverse_temperature: Tensor,
        steps: int,
        energy: Tensor,
        kinetic: Tensor,
        threads: int | None = None,
    ) -> None:
        """``steps`` leapfrog steps of each chain, in place, from ``grad`` = ∇U(θ):

            p ← p − ½ε∇U(θ)/T,   θ ← θ + ε M⁻¹ p,   p ← p − ½ε∇U(θ)/T

        ``step`` holds ε of each chain, negative to go backwards; ``inverse_mass`` is M⁻¹, P or C × P;
        ``inverse_temperature`` is 1/T. At the end ``energy`` is U(θ), ``kinetic`` ½pᵀM⁻¹p and ``grad`` ∇U(θ).
        """
        chains = len(theta)
        shape, numbers = (chains, self.size), (chains,)
        each = inverse_mass.dim() == 2
        for name, tensor in (("theta", theta), ("momentum", momentum), ("grad", grad)):
            self._check(name, tensor, shape, self.dtype)
        self._check("inverse_mass", inverse_mass, shape if each else shape[1:], self.dtype)
        for name, tensor in (
            ("step", step), ("inverse_temperature", inverse_temperature), ("energy", energy), ("kinetic", kinetic)
        ):  # fmt: skip
            self._check(name, tensor, numbers, torch.float64)
        if steps < 1:
            raise ArgumentError(f"`steps` must be at least 1; got {steps}.")
        if not self.complete:
            self._walk_here(theta, momentum, grad, step, inverse_mass, inverse_temperature, steps, energy, threads)
            kinetic.copy_(0.5 * (momentum.double().square() * inverse_mass).sum(-1))
            return
        self.walks.leapfrog(
            self._plan_place, theta.data_ptr(), momentum.data_ptr(), grad.data_ptr(), step.data_ptr(),
            inverse_mass.data_ptr(), self.size if each else 0, inverse_temperature.data_ptr(), steps,
            energy.data_ptr(), kinetic.data_ptr(), chains, self._threads(threads, chains),
        )  # fmt: skip

    def _walk_here(
        self,
        theta: Tensor,
        momentum: Tensor,
        grad: Tensor,
        step: Tensor,
        inverse_mass: Tensor,
        inverse_temperature: Tensor,
        steps: int,
        energy: Tensor,
        threads: int | None,
    ) -> None:
        """The moves in PyTorch, where a part of U is."""
        kick = (step * inverse_temperature).to(self.dtype).unsqueeze(-1)
        move = step.to(self.dtype).unsqueeze(-1) * inverse_mass
        momentum.addcmul_(grad, kick, value=-0.5)
        for done in range(1, steps + 1):
            theta.addcmul_(move, momentum)
            self.energies(theta, grad, energy, threads)
            momentum.addcmul_(grad, kick, value=-1.0 if done < steps else -0.5)

    def nuts(
        self,
        theta: Tensor,
        momentum: Tensor,
        grad: Tensor,
        inverse_mass: Tensor,
        given: Numbers,
        keys: Numbers,
        most: int,
    ) -> Told:
        """A transition of the no-U-turn sampler, of at most ``most`` doublings, for each chain: θ and ∇U (C × P) become
        those of the draw. ``given`` holds (step, 1/T, U) of each, C × 3, and ``keys`` what its random numbers are made
        of."""
        chains = len(theta)
        for name, tensor in (("theta", theta), ("momentum", momentum), ("grad", grad), ("inverse_mass", inverse_mass)):
            self._check(name, tensor, (chains, self.size), self.dtype)
        room = torch.empty(chains, _VECTORS + 2 * most, self.size, dtype=self.dtype)
        given, keys, told = np.ascontiguousarray(given), np.ascontiguousarray(keys), np.empty((chains, 4))
        self.walks.nuts(
            self._plan_place, theta.data_ptr(), momentum.data_ptr(), grad.data_ptr(), inverse_mass.data_ptr(),
            room.data_ptr(), given.ctypes.data, keys.ctypes.data, told.ctypes.data, most, chains,
            self._threads(None, chains),
        )  # fmt: skip
        return Told(told[:, 0], told[:, 1], told[:, 2].astype(np.int64), told[:, 3] != 0, told[:, 3] == 2)

    def microcanonical(
        self,
        theta: Tensor,
        direction: Tensor,
        grad: Tensor,
        root: Tensor,
        noise: Tensor,
        forget: float,
        given: Numbers,
        length: int,
    ) -> tuple[Numbers, Numbers]:
        """``length`` steps of microcanonical dynamics of each chain, in place: θ, the unit vector ``direction`` and ∇U
        (C × P), with ``root`` = M^{-1/2}. ``given`` holds the distance of a step and 1/T of each, C × 2. Of
        ``noise``, C × K × P, ``forget`` times a row is added to the direction after each of the first K steps. U at the
        end, and what the kinetic energy gained on the way."""
        chains = len(theta)
        for name, tensor in (("theta", theta), ("direction", direction), ("grad", grad), ("root", root)):
            self._check(name, tensor, (chains, self.size), self.dtype)
        noises = noise.shape[1]
        self._check("noise", noise, (chains, noises, self.size), self.dtype)
        if not 0 <= noises <= length:
            raise ArgumentError(f"`noise` must have a row for each of `length` = {length} steps at most; got {noises}.")
        given, told = np.ascontiguousarray(given), np.empty((chains, 2))
        self.walks.microcanonical(
            self._plan_place, theta.data_ptr(), direction.data_ptr(), grad.data_ptr(), root.data_ptr(),
            noise.data_ptr(), forget, given.ctypes.data, told.ctypes.data, noises, length, chains,
            self._threads(None, chains),
        )  # fmt: skip
        return told[:, 0].copy(), told[:, 1].copy()

    def _threads(self, threads: int | None, chains: int) -> int:
        """How many to use, and scratch memory for each."""
        wanted = min(torch.get_num_threads(), self._most_threads) if threads is None else threads
        used = max(1, min(chains, wanted))
        if used > self._scratch_count:
            self._scratch = torch.zeros(used * self._scratch_size, dtype=self.dtype)
            self._scratch_count, self._plan.scratch = used, self._scratch.data_ptr()
        return used

    @staticmethod
    def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.is_cuda:
            raise ArgumentError(
                f"`{name}` must be a contiguous tensor of shape {shape} and {dtype} on the CPU; got "
                f"{tuple(tensor.shape)} and {tensor.dtype} on {tensor.device}."
            )

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # nothing in it changes
