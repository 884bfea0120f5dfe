"""``On``: a method for a part of the network; the rest stays where it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch, Data
from temperance.inference.base import Cost, Exactness, Inference, Info
from temperance.inference.curvature.laplace import Laplace
from temperance.inference.curvature.subsets import Subnetwork
from temperance.model.priors.base import RestrictedPrior
from temperance.model.target import Target
from temperance.model.theta import Selector, Subset, selected
from temperance.posteriors import Posterior, Pushforward


@dataclass
class OnState:
    """The method's own state, θ as it was at the start, and the smaller target that the method works on."""

    inner: Any
    start: Tensor
    target: Target | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class On(Inference[OnState]):
    """``method`` over the parameters that ``subset`` names; all others stay as ``start`` has them.

    A ``Laplace`` with a base is an exception that saves a second fit: its base trains the whole network, and only the
    curvature is that of the subset.

    Args:
        subset: ``last_layer``, ``biases``, a name, prefix or pattern, several of them, or a predicate; for a
            ``Laplace`` also ``LargestVariance(k)`` or ``LargestMagnitude(k)``.
        method: any method.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> method = tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=1e-2), tp.Dense()))
    >>> tp.fit(target, method, train, epochs=20).posterior.operator.rank
    51
    """

    subset: Subset | Subnetwork
    method: Inference[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.method, Inference):
            raise ArgumentError(f"`method` must be a method such as Laplace(...); got {self.method!r}.")
        if not (isinstance(self.subset, str | tuple | list | Selector | Subnetwork) or callable(self.subset)):
            raise ArgumentError(f"`subset` must name parameters, e.g. last_layer or 'head'; got {self.subset!r}.")
        if isinstance(self.subset, Subnetwork) and not isinstance(self.method, Laplace):
            raise ArgumentError("`subset`: single weights are for Laplace only; name parameters for other methods.")
        if isinstance(self.method, Laplace):
            if self.method.on is not None:
                raise ArgumentError("`method` is a Laplace that has its own `on`; give one of the two.")
            object.__setattr__(self, "_laplace", replace(self.method, on=self.subset))

    @property
    def _inner(self) -> Inference[Any]:
        found: Inference[Any] = getattr(self, "_laplace", self.method)
        return found

    @property
    def exact(self) -> Exactness:  # type: ignore[override]
        """Not over all of θ."""
        return Exactness.APPROXIMATE

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the method does."""
        return self.method.reads

    @property
    def default_steps(self) -> int | None:  # type: ignore[override]
        """As the method has it."""
        return self.method.default_steps

    @property
    def streams(self) -> int:
        """As the method has it."""
        return self.method.streams

    @property
    def needs_held_out(self) -> bool:
        """As the method does."""
        return self.method.needs_held_out

    @property
    def alone(self) -> bool:
        """As the method is."""
        return self.method.alone

    def check_run(self, steps: int) -> None:
        """As the method does."""
        self.method.check_run(steps)

    def keep_in(self, state: OnState, folder: Path) -> None:
        """As the method does."""
        self._inner.keep_in(state.inner, folder)

    def remarks(self, state: OnState) -> list[str]:
        """As the method does."""
        return self._inner.remarks(state.inner)

    def cost(self) -> Cost:
        """That of the method, of a shorter θ, and the θ that the rest stays at."""
        each = self.method.cost()
        return each if isinstance(self.method, Laplace) else Cost(each.gradients_per_step, each.copies_of_theta + 1)

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> OnState:
        """See :class:`Inference`."""
        if isinstance(self._inner, Laplace):
            return OnState(self._inner.init(target, theta, rng), torch.zeros(0))
        start = target.initial_theta() if theta is None else theta
        if start.dim() != 1:
            raise ArgumentError(f"`start` must be a vector for On; got a matrix of shape {tuple(start.shape)}.")
        made = OnState(None, start.clone())
        smaller = self._target(target, made)
        made.inner = self._inner.init(smaller, smaller.initial_theta(), rng)
        return made

    def _names(self, target: Target) -> list[str]:
        inside = {e.name for e in target.layout.network_entries}
        assert not isinstance(self.subset, Subnetwork)
        found = [name for name, _ in selected(target.network, self.subset) if name in inside]
        if not found:
            raise ArgumentError(f"`subset` must name parameters that are random in the target; got {self.subset!r}.")
        return found

    def _index(self, target: Target, names: list[str]) -> Tensor:
        """Places in θ of the random numbers, what the likelihood learns included."""
        chosen = set(names)
        entries = [e for e in target.layout.entries if e.name in chosen or e.role == "likelihood"]
        return torch.cat([torch.arange(e.start, e.stop) for e in entries])

    def _target(self, target: Target, state: OnState) -> Target:
        if state.target is None:
            names = self._names(target)
            target.workspace.attach(state.start, None)
            made = Target(
                target.network,
                target.likelihood,
                RestrictedPrior.of(target.bound_prior, target.layout, names),
                target.temperature,
                likelihood_temperature=target.likelihood_temperature,
                subset=names,
                freeze_batch_norm=target.workspace.freeze_batch_norm,
            )
            target.workspace.detach()
            made.workspace.example = target.workspace.example
            made.workspace.learned_start = {
                e.name: state.start[e.start : e.stop].clone() for e in target.layout.entries if e.role == "likelihood"
            }
            state.target = made
        return state.target

    def step(self, target: Target, state: OnState, batch: Batch) -> tuple[OnState, Info]:
        """A step of the method."""
        here = target if isinstance(self._inner, Laplace) else self._target(target, state)
        state.inner, info = self._inner.step(here, state.inner, batch)
        return state, info

    def posterior(self, target: Target, state: OnState, data: Data | None) -> Posterior:
        """A :class:`Pushforward`; of a Laplace, its own posterior with zero variance elsewhere."""
        if isinstance(self._inner, Laplace):
            return self._inner.posterior(target, state.inner, data)
        found = self._inner.posterior(self._target(target, state), state.inner, data)
        return Pushforward(found, self._index(target, self._names(target)), state.start.clone())
