"""Which chains a run is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from temperance.core.checks import check_instance
from temperance.core.errors import ArgumentError
from temperance.model.target import Target
from temperance.posteriors import Chain, Draws, Mixture, Posterior
from temperance.run.fitted import Fitted

Run: TypeAlias = Fitted | Draws | Mixture
"""What can be diagnosed: the result of ``fit``, or draws of one's own, one :class:`Draws` for each chain."""


def unpack(run: Run, target: Target | None = None) -> tuple[Target, tuple[Chain, ...]]:
    """The target, and the chains: a :class:`Draws` is one, a :class:`Mixture` of them as many as it has components.

    >>> from temperance import Categorical, GaussianPrior, Target
    >>> target = Target(torch.nn.Linear(1, 2), Categorical(), GaussianPrior(1.0))
    >>> len(unpack(Mixture((Draws(torch.zeros(3, 4)), Draws(torch.ones(3, 4)))), target)[1])
    2
    """
    check_instance(target, "target", Target, "a temperance Target", optional=True)
    posterior: Posterior
    if isinstance(run, Fitted):
        posterior, target = run.posterior, run.target if target is None else target
    else:
        check_instance(run, "run", Posterior, "what `fit` returned, Draws, or a Mixture with one for each chain")
        posterior = run
    if target is None:
        raise ArgumentError("`target` must be given where `run` is not what `fit` returned; got None.")
    parts = [part for _, part in posterior.parts()]
    parts = [part for part in parts if not part.single] or parts  # a point beside a chain is where it began
    found = [part.inside(target) for part in parts]  # of a part of θ: in the coordinates of that part
    chains = tuple(chain for _, part in found for chain in chains_of(part))
    target = found[0][0]
    assert target is not None
    if chains[0].size != target.layout.size:
        raise ArgumentError(
            f"`run` must hold draws of the target's {target.layout.size} parameters; got {chains[0].size}."
        )
    return target, chains


def chains_of(posterior: Posterior) -> tuple[Chain, ...]:
    """The chains inside, mixtures of mixtures included. The point that a chain began at, and that is kept beside it
    (:class:`~temperance.WarmStart`), is none."""
    found = [part for _, part in posterior.parts()]
    if any(isinstance(part, Chain) for part in found):
        found = [part for part in found if not part.single]
    other = [part for part in found if not isinstance(part, Chain)]
    if other:
        raise ArgumentError(
            "`run` must hold draws of a sampler: a Fitted, Draws, or a Mixture with one Draws for each chain; got "
            f"{type(other[0]).__name__}."
        )
    return tuple(part for part in found if isinstance(part, Chain))


def stack_chains(chains: Sequence[Tensor]) -> Tensor:
    """Series of chains, stacked; where they differ in length, the last of each."""
    shortest = min(len(chain) for chain in chains)
    return torch.stack([chain[len(chain) - shortest :] for chain in chains])


def evenly(total: int, wanted: int) -> Tensor:
    """At most ``wanted`` numbers from 0 to ``total`` − 1, evenly spaced, both ends included.

    >>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return torch.arange(total) if total <= wanted else torch.linspace(0, total - 1, wanted).round().long()
