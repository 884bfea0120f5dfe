"""Doublings of the no-U-turn sampler in C, for networks whose energy is in C: a trajectory grows without returning to
Python at each leapfrog step, and chains grow on all cores without waiting for each other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.engine.native.build import c_function
from temperance.engine.native.mlp import NativeMLP

WALKING, TURNED, DIVERGED = range(3)

_ARGUMENTS = (*[ctypes.c_void_p] * 12, *[ctypes.c_int64] * 3, ctypes.c_int)

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Told:
    """What became of each chain's doubling: U of the leaf chosen, log of the sum of weights, sum of the chances of
    acceptance, leapfrog steps, and how it ended."""

    energy: Numbers
    weight: Numbers
    chances: Numbers
    leapfrogs: Numbers
    end: Numbers


def native_doubling(native: NativeMLP | None) -> Callable[..., Told] | None:
    """The function that doubles, ``None`` where it has to be done in Python.

    It takes θ, p and ∇U of the ends that grow (C × P, changed in place), room for the chosen θ and ∇U and for the sum
    of momenta, the inverse masses, each chain's (step, 1/T, H at the start), 2^depth uniform numbers of each, and the
    depth.
    """
    if native is None or not native.gaussian_prior:
        return None
    name = "float" if native.dtype == torch.float32 else "double"
    function = c_function(f"temperance_mlp_stretch_{name}", _ARGUMENTS, "mlp.c")
    if function is None:
        return None

    def double(
        theta: Tensor,
        momentum: Tensor,
        gradient: Tensor,
        chosen: Tensor,
        chosen_gradient: Tensor,
        total: Tensor,
        inverse_mass: Tensor,
        given: Numbers,
        luck: Numbers,
        depth: int,
    ) -> Told:
        chains = len(theta)
        vectors = (theta, momentum, gradient, chosen, chosen_gradient, total)
        halves = torch.empty(chains, 2 * max(1, depth), native.size, dtype=native.dtype)
        given, luck = np.ascontiguousarray(given), np.ascontiguousarray(luck)
        told = np.empty((chains, 5))
        masses = inverse_mass.contiguous()
        plan, threads = native.plan(chains)
        function(
            plan, *(t.data_ptr() for t in vectors), halves.data_ptr(), masses.data_ptr(), given.ctypes.data,
            told.ctypes.data, luck.ctypes.data, luck.shape[1], depth, chains, threads,
        )  # fmt: skip
        energy, weight, chances = told[:, :3].T
        return Told(energy, weight, chances, told[:, 3].astype(np.int64), told[:, 4].astype(np.int64))

    return double
