"""A posterior over a part of θ, in the coordinates of that part."""

from __future__ import annotations

from torch import nn

import temperance as tp
from temperance.model.priors import GaussianPrior
from temperance.posteriors import Pushforward
from temperance.posteriors.dropout import DropoutPosterior, MaskedDropout
from temperance.posteriors.laplace import LaplacePosterior
from tests.small import X, Y, real


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Linear(2, 1))


def test_the_target_of_the_part_has_what_the_posterior_over_it_chose():
    """A prior and a noise level found by evidence, and the network that its draws need."""
    target, part = real(two_layers()), real(two_layers(), subset="2")
    index, rest = target.places(target.names("2")), target.initial_theta()
    found = tp.fit(part, tp.Laplace(curvature=tp.Dense(), tune=None), (X, Y), progress=False).posterior
    prior, likelihood = GaussianPrior(0.2), tp.Normal(0.9)
    chosen = LaplacePosterior(found.mean, found.operator, found.terms, prior=prior, likelihood=likelihood)
    here, known = Pushforward(chosen, index, rest).inside(target)
    assert known is chosen
    assert here.prior is prior
    assert here.likelihood is likelihood
    dropping = DropoutPosterior(rest[index], ("1",))
    here, known = Pushforward(dropping, index, rest).inside(target)
    assert known is dropping
    assert isinstance(here.network[1], MaskedDropout)
    assert here.num_parameters == dropping.size
