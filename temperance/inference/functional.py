"""``FunctionalLaplace``: the Laplace approximation seen as a Gaussian process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.curvature.approximate import prior_curvature
from temperance.curvature.sweep import Sweep
from temperance.data.data import Batch, Data
from temperance.data.sources import map_tensors
from temperance.errors import ArgumentError
from temperance.inference.base import Cost, Exactness, Inference, Info, NeedsData, Stackable
from temperance.inference.laplace import Laplace, LaplaceState
from temperance.posteriors import Point, Posterior, Process
from temperance.posteriors.base import check_count
from temperance.seeds import check_seed, generator
from temperance.target import Target


@dataclass(frozen=True, eq=False)
class FunctionalLaplace(Inference[LaplaceState], Stackable):
    """A Gaussian process over functions, with the kernel of the network linearised at its mode,

        k(x, x') = J(x) Λ_prior⁻¹ J(x')ᵀ,

    conditioned on ``size`` rows of the data (all of them for ``None``): then it is the predictive of ``Laplace`` with
    ``Dense()``, at a cost that grows with rows times outputs and not with parameters squared.

    Args:
        base: how the mode is found; ``None`` takes ``start``, or the target's network as it is.
        size: how many rows, chosen at random by ``seed``.

    >>> import temperance as tp
    >>> FunctionalLaplace(tp.MAP(lr=1e-2), size=100).size
    100
    """

    exact: ClassVar[Exactness] = Exactness.APPROXIMATE

    base: Inference[Any] | None = None
    size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size is not None:
            check_count(self.size, "size")
        check_seed(self.seed)
        self._inner()

    def _inner(self) -> Laplace:
        """Finds the mode as a Laplace does."""
        return Laplace(self.base)

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the base does."""
        return self._inner().reads

    @property
    def default_steps(self) -> int | None:  # type: ignore[override]
        """As the base has it; without one, none."""
        return self._inner().default_steps

    @property
    def streams(self) -> int:
        """As the base has it."""
        return self._inner().streams

    @property
    def needs_held_out(self) -> bool:
        """As the base does."""
        return self._inner().needs_held_out

    def check_run(self, steps: int) -> None:
        """As the base does."""
        self._inner().check_run(steps)

    def keep_in(self, state: LaplaceState, folder: Path) -> None:
        """As the base does."""
        self._inner().keep_in(state, folder)

    def cost(self) -> Cost:
        """A step is the base's."""
        return self._inner().cost()

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> LaplaceState:
        """See :class:`Inference`."""
        return self._inner().init(target, theta, rng)

    def step(self, target: Target, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        """A step of the base."""
        return self._inner().step(target, state, batch)

    def posterior(self, target: Target, state: LaplaceState, data: Data | None) -> Posterior:
        """A :class:`Process`."""
        if data is None:
            raise NeedsData("a functional Laplace approximation needs the data.")
        theta, buffers = self._inner().point(target, state, data)
        return self._process(target, theta, buffers, data)

    def _process(self, target: Target, theta: Tensor, buffers: dict[str, Tensor], data: Data) -> Process:
        prior = prior_curvature(target, theta)
        if prior.mean is None or not bool((prior.precision > 0).all()):
            raise ArgumentError("`prior` must be Gaussian with independent weights for FunctionalLaplace.")
        chosen = data
        if self.size is not None and self.size < len(data):
            order = torch.randperm(len(data), generator=generator(self.seed, "functional"))
            chosen = data.subset(order[: self.size].sort().values)
        sweep = Sweep(target, theta, buffers, chosen)
        roots, inputs = [], []
        for batch in sweep.batches("kernel"):
            roots.append(torch.stack(list(batch.cotangents), dim=-1))
            inputs.append(map_tensors(lambda t: t.clone(), batch.x))
        return Process(
            theta.clone(),
            prior.precision,
            _joined(inputs),
            torch.cat(roots),
            target.temperature,
            {name: value.clone() for name, value in buffers.items()},
        )

    # ------------------------------------------------------------------ all members of an ensemble at once

    def can_stack(self, target: Target) -> bool:
        """As the base can."""
        return self._inner().can_stack(target)

    def init_stack(self, target: Target, theta: Tensor, rngs: Sequence[torch.Generator]) -> Any:
        """See :class:`Stackable`."""
        return self._inner().init_stack(target, theta, rngs)

    def step_stack(self, target: Target, state: Any, batch: Batch) -> tuple[Any, Info]:
        """See :class:`Stackable`."""
        return self._inner().step_stack(target, state, batch)

    def posteriors_stack(self, target: Target, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """A process around each member."""
        assert isinstance(self.base, Stackable)
        if data is None:
            raise NeedsData("a functional Laplace approximation needs the data.")
        made = []
        for point in self.base.posteriors_stack(target, state, data):
            assert isinstance(point, Point)
            made.append(self._process(target, point.theta, point.buffers, data))
        return tuple(made)


def _joined(parts: list[Any]) -> Any:
    """Inputs of several batches as one."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {name: torch.cat([part[name] for part in parts]) for name in first}
    return tuple(torch.cat([part[k] for part in parts]) for k in range(len(first)))
