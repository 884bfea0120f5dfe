"""What a prior over weights says about functions, before any data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories
from temperance.core.seeds import check_seed, generator
from temperance.engine.engine import Engine
from temperance.model.priors import Prior
from temperance.model.priors.base import Density
from temperance.model.target import Target
from temperance.model.theta import Layout
from temperance.nn import MLP
from temperance.posteriors import Draws
from temperance.predict import predict


@dataclass(frozen=True, eq=False)
class PriorPredictive:
    """How draws from the prior spread inputs over classes.

    Attributes:
        shares: E_x p(y | x, θ) of each draw θ, draws × classes.
        max_share: the share of each draw's largest class.
        entropy: the entropy of each draw's shares in nats; at most log C.
    """

    shares: Tensor
    max_share: Tensor
    entropy: Tensor

    @property
    def mean_max_share(self) -> float:
        """1 where each draw puts all inputs into one class, 1/C where each spreads them evenly."""
        return float(self.max_share.mean())

    @property
    def mean_entropy(self) -> float:
        """0 where each draw puts all inputs into one class, log C where each spreads them evenly."""
        return float(self.entropy.mean())

    def __str__(self) -> str:
        draws, classes = self.shares.shape
        return (
            f"prior predictive of {draws} draws over {classes} classes: the largest class has "
            f"{self.mean_max_share:.0%} of the inputs on average (even: {1 / classes:.0%}); entropy "
            f"{self.mean_entropy:.3f} of at most {math.log(classes):.3f} nats"
        )


def prior_predictive(target: Target, x: Any, draws: int = 100, seed: int = 0) -> PriorPredictive:
    """The class marginals E_x p(y | x, θ) at the rows ``x`` for ``draws`` draws θ from the prior.

    A prior of scale 1 on every weight of a wide and deep network puts nearly all inputs into one class, a different one
    in each draw; one scaled by fan-in does not.

    >>> import temperance as tp
    >>> target = tp.Target(tp.nn.MLP(5, [50, 50, 50], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    >>> even = target.with_prior(tp.GaussianPrior(tp.FanIn(gain=0.5, bias=0.1)))
    >>> prior_predictive(target, x).mean_max_share > prior_predictive(even, x).mean_max_share + 0.2
    True
    """
    outcome = target.likelihood.outcome
    if not isinstance(outcome, Categories):
        raise ArgumentError(f"`target` must have classes: Categorical or Bernoulli; got {shown(target.likelihood)}.")
    rng = generator(check_seed(seed), "prior predictive", device=target.device)
    theta = target.sample_prior(check_count(draws, "draws"), rng)
    found = predict(Engine(target), Draws(theta), x)
    total: Tensor | None = None
    with torch.no_grad():
        for _, outputs, learned in found.source.blocks():
            part = found.likelihood.mean(outputs, learned).double().sum(1)
            total = part if total is None else total + part
    assert total is not None
    shares = total / len(found)
    if not outcome.exclusive:
        if shares.shape[1] > 1:
            raise ArgumentError(f"`target` must have one label under Bernoulli; got {shares.shape[1]}.")
        shares = torch.cat([1 - shares, shares], 1)
    return PriorPredictive(shares, shares.max(1).values, -torch.special.xlogy(shares, shares).sum(1))


def relu_variance_growth(prior: Prior, network: Layout | Sequence[int]) -> tuple[float, ...]:
    """The factor σ_w²·fan_in/2 by which each layer after a ReLU multiplies the variance of pre-activations, in closed
    form: for z ~ N(0, q), E[relu(z)²] = q/2, and a unit sums fan_in of these with weights of variance σ_w² (biases add
    to it, and are left out here). With σ_w = 1 it is fan_in/2 and the product explodes with depth; He's scale gives 1.

    ``network`` is a layout, whose weights are taken in their order (the first sees inputs, not a ReLU, and is left
    out), or the widths of a fully connected network.

    >>> from temperance.model.priors import FanIn, GaussianPrior
    >>> relu_variance_growth(GaussianPrior(1.0), [784, 100, 200, 10])
    (50.0, 100.0)
    >>> [round(factor, 6) for factor in relu_variance_growth(GaussianPrior(FanIn(gain=2**0.5)), [784, 100, 200, 10])]
    [1.0, 1.0]
    """
    if not isinstance(network, Layout):
        widths = list(network)
        if len(widths) < 2:
            raise ArgumentError(
                f"`network` must be a layout or two or more widths, inputs and outputs; got {shown(network)}."
            )
        network = Layout.of(MLP(widths[0], widths[1:-1], widths[-1]))
    variance = torch.zeros(network.network_size, dtype=torch.float64)
    for piece, density in prior.densities(network, network.network_entries):
        variance[piece] = torch.as_tensor(_variance(density), dtype=torch.float64)
    layers = [entry for entry in network.network_entries if entry.fan_in]
    return tuple(float(variance[e.start : e.stop].mean()) * e.fan_in / 2 for e in layers[1:])


def _variance(density: Density) -> float | Tensor:
    """Var w of one weight, with a mean of zero."""
    found = density.moments()
    if found is None:
        raise ArgumentError(f"`prior` must be made of Gaussian, Laplace or Student-t priors; got {shown(density)}.")
    mean, variance = found
    if bool(torch.as_tensor(mean).ne(0).any()):
        raise ArgumentError(f"`prior` must have mean 0 for the closed form to hold; got {shown(mean)}.")
    return variance
