"""The engine: what it evaluates where a network is unusual."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine import Engine


class _WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X[:, :2].sin()


def unusual() -> tp.Target:
    return tp.Target(_WithUnused().double(), tp.Normal(scale=0.3), tp.GaussianPrior(1.0))


def test_gradients_of_a_parameter_that_no_output_depends_on_are_the_priors():
    target = unusual()
    data = target.prepare(tp.data.Data(X, Y))
    engine, batch = Engine(target, data), next(iter(data.full_pass()))
    theta = torch.randn(3, target.num_parameters, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together, alone = torch.ones_like(theta), torch.ones_like(theta)
    engine.gradients(theta, batch, together)
    for row, into in zip(theta, alone, strict=True):
        engine.gradient(row.clone(), batch, into)
    assert torch.allclose(together, alone)
    place = target.layout["unused.weight"]
    assert torch.allclose(together[:, place.start : place.stop], theta[:, place.start : place.stop] / 20)


@pytest.mark.parametrize(
    "method",
    [
        tp.Ensemble(tp.MAP(), 2),
        tp.SVGD(2),
        tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.01)), 2),
        tp.Curve(tp.MAP()),
        tp.On("unused", tp.Variational()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_methods_take_a_network_with_an_unused_parameter(method):
    fitted = tp.fit(unusual(), method, (X, Y), steps=6, progress=False)
    assert torch.isfinite(fitted.predict(X).mean()).all()


def test_old_weight_norm_is_refused_with_what_to_use():
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    with pytest.raises(tp.errors.NetworkError, match=r"parametrizations\.weight_norm"):
        tp.Target(old, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
