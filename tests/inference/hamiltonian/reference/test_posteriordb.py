"""NUTS against the reference draws of posteriordb, from rough starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import temperance as tp
from temperance.core.seeds import generator
from temperance.judge import diagnose

from .posteriordb import (
    DATA,
    Model,
    autoregression,
    blr,
    eight_schools,
    kidscore_interaction,
    mixture,
    reference,
)

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"needs the folder posteriordb in {DATA.parent} (set TEMPERANCE_DATA)"
)

MODELS: dict[str, Callable[[], Model]] = {
    "eight_schools-eight_schools_noncentered": eight_schools,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "sblrc-blr": blr,
    "low_dim_gauss_mix-low_dim_gauss_mix": mixture,
    "arK-arK": autoregression,
}

# The table of means in the project's protocols: parameter, the mean as printed; (name, 2) is the mean square.
PRINTED: dict[str, dict[Any, str]] = {
    "eight_schools-eight_schools_noncentered": {
        "mu": "4.4105",
        "tau": "3.6021",
        "theta[1]": "6.1505",
        ("mu", 2): "30.403",
        ("tau", 2): "23.204",
    },
    "sblrc-blr": {
        **{f"beta[{k}]": v for k, v in enumerate(("0.99965", ".99873", ".99820", ".99884", ".99859"), 1)},
        "sigma": "1.04229",
        ("sigma", 2): "1.09225",
    },
    "kidiq-kidscore_interaction": {
        **{f"beta[{k}]": v for k, v in enumerate(("-11.359", "51.033", ".96741", "-.48159"), 1)},
        "sigma": "17.981",
    },
    "arK-arK": {
        "alpha": "-.00072",
        **{f"beta[{k}]": v for k, v in enumerate((".6922", ".4390", ".1058", "-.0354", "-.3015"), 1)},
        "sigma": ".15057",
    },
    "low_dim_gauss_mix-low_dim_gauss_mix": {
        "mu[1]": "-2.73351",
        "mu[2]": "2.86983",
        "sigma[1]": "1.02807",
        "sigma[2]": "1.02382",
        "theta": ".62155",
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_table_of_means_is_that_of_the_files(name: str) -> None:
    names = MODELS[name]().names
    draws = reference(name, names)
    for key, printed in PRINTED[name].items():
        parameter, power = key if isinstance(key, tuple) else (key, 1)
        found = float((draws[..., names.index(parameter)] ** power).mean())
        digits = len(printed.split(".")[1])
        assert abs(found - float(printed)) <= 0.51 * 10.0**-digits, (key, found)


@pytest.mark.parametrize("name", MODELS)
def test_log_density_is_that_of_the_reference_draws(name: str) -> None:
    """Under p, E ∇log p = 0 and E θ_i ∂_j log p = −δ_ij (Stein): no sampler is asked."""
    model = MODELS[name]()
    theta = model.unconstrain(reference(name, model.names)[:, ::4].flatten(0, 1))
    assert torch.allclose(model.unconstrain(model.constrain(theta)), theta, rtol=1e-8, atol=1e-8)
    slope = torch.func.vmap(torch.func.grad(model.log_density), chunk_size=500)(theta)
    products = torch.einsum("ni,nj->nij", theta - theta.mean(0), slope) + torch.eye(model.size, dtype=torch.float64)
    quantities = torch.cat([slope, products.flatten(1)], 1)
    off = quantities.mean(0) / (quantities.std(0) / math.sqrt(len(theta)))
    assert float(off.abs().max()) < 5.0


def _agrees(name: str, model: Model, method: Any, draws: int, chains: int, last: float = 0.0) -> None:
    """Starts are uniform in [−2, 2], the last coordinate in that around ``last``."""
    begin = 4 * torch.rand(chains, model.size, generator=generator(7, name), dtype=torch.float64) - 2
    begin[:, -1] += last
    found = tp.sample(model.log_density, begin, method, draws=draws, chains=chains, seed=1, progress=False)
    assert found.divergences <= 0.002 * chains * draws
    ours, theirs = model.constrain(found.theta), reference(name, model.names)
    for k, parameter in enumerate(model.names):
        assert float(diagnose.rhat(ours[..., k])) < 1.01, parameter
        for power in (1, 2):
            one, two = ours[..., k] ** power, theirs[..., k] ** power
            error = math.hypot(float(diagnose.mcse(one)), float(diagnose.mcse(two)))
            off = (float(one.mean()) - float(two.mean())) / error
            assert abs(off) < 4.0, f"{parameter} to the {power}: {off:.1f} standard errors off"
            assert float(one.std()) == pytest.approx(float(two.std()), rel=0.25)


@pytest.mark.filterwarnings("ignore:.*transitions diverged")
def test_eight_schools() -> None:
    method = tp.Warmup(tp.NUTS(max_depth=8), 200, accept=0.9)
    _agrees("eight_schools-eight_schools_noncentered", eight_schools(), method, 250, 16)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param("sblrc-blr", blr, marks=pytest.mark.slow),
        pytest.param("kidiq-kidscore_interaction", kidscore_interaction, marks=pytest.mark.slow),
    ],
)
def test_regressions(name: str, model: Callable[[], Model]) -> None:
    """Starts are a hundred and a thousand standard deviations away."""
    _agrees(name, model(), tp.Warmup(tp.NUTS(max_depth=8), 200), 300, 8, last=4.0)


@pytest.mark.slow
def test_mixture() -> None:
    _agrees("low_dim_gauss_mix-low_dim_gauss_mix", mixture(), tp.Warmup(tp.NUTS(max_depth=8), 300), 400, 8)


@pytest.mark.slow
def test_autoregression() -> None:
    _agrees("arK-arK", autoregression(), tp.Warmup(tp.NUTS(max_depth=8), 400, mass="dense"), 400, 8)


@pytest.mark.slow
def test_regression_in_its_own_coordinates() -> None:
    """β of very different scales, 99 % correlated: dense masses find them."""
    method = tp.Warmup(tp.NUTS(), 500, mass="dense")
    _agrees("kidiq-kidscore_interaction", kidscore_interaction(rotated=False), method, 400, 8, last=4.0)
    _agrees("sblrc-blr", blr(rotated=False), method, 400, 8, last=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", [tp.HMC(length=12), tp.MCLMC(length=8)], ids=["HMC", "MCLMC"])
def test_other_kernels(method: Any) -> None:
    _agrees("kidiq-kidscore_interaction", kidscore_interaction(), tp.Warmup(method, 400), 800, 16, last=4.0)
    _agrees("sblrc-blr", blr(), tp.Warmup(method, 400), 800, 16, last=4.0)
