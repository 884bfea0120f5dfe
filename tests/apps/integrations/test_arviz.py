"""``to_arviz``: the numbers are where ArviZ looks for them, and its statistics are right on them."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.judge import diagnose
from temperance.posteriors import Draws, Mixture

arviz_base = pytest.importorskip("arviz_base")
import xarray  # noqa: E402
from arviz_stats.base import array_stats  # noqa: E402

from temperance.apps.integrations.arviz import to_arviz  # noqa: E402

ROWS, NOISE = 30, 0.5


def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=rng, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.3
    return x, y + NOISE * torch.randn(ROWS, 1, generator=rng, dtype=torch.float64)


@pytest.fixture(scope="module")
def exact() -> tp.Fitted:
    """Four chains of NUTS on a linear model with Gaussian noise: its posterior is known."""
    target = tp.Target(nn.Linear(2, 1).double(), tp.Normal(scale=NOISE), tp.GaussianPrior(scale=1.0))
    method = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(), 150), every=2, last=200), 4)
    return tp.fit(target, method, data(), steps=150 + 401, seed=2)


@pytest.fixture(scope="module")
def langevin() -> tp.Fitted:
    x, y = data()
    labels = (y[:, 0] > 0).long()
    target = tp.Target(tp.nn.MLP(2, [3], 2), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    method = tp.Ensemble(tp.Collect(tp.SGHMC(lr=1e-3), burn=100, every=10), 2)
    return tp.fit(target, method, (x.float(), labels), steps=300, batch_size=5)


def chains(fitted: tp.Fitted) -> Tensor:
    return torch.stack([chain.theta for chain in diagnose.chains.chains_of(fitted.posterior)])


def test_the_posterior_goes_there_and_back(exact: tp.Fitted) -> None:
    tree = to_arviz(exact)
    theta, layout = chains(exact), exact.target.layout
    assert tree["posterior"]["weight"].dims[:2] == ("chain", "draw")
    assert tree["posterior"]["weight"].shape == (4, 200, 1, 2)
    stacked = np.concatenate([tree["posterior"][e.name].values.reshape(4, 200, -1) for e in layout.entries], -1)
    assert np.array_equal(stacked, theta.numpy())
    assert tree.attrs["inference_library"] == "temperance"
    file = io.BytesIO(bytes(tree["posterior"].to_dataset().to_netcdf(engine="scipy")))
    again = xarray.open_dataset(file, engine="scipy")
    assert np.array_equal(again["weight"].values, tree["posterior"]["weight"].values)


def test_rhat_and_ess_are_those_of_diagnose(exact: tp.Fitted) -> None:
    tree = to_arviz(exact)
    own = diagnose.weights(exact)
    for k in range(2):
        values = tree["posterior"]["weight"].values[:, :, 0, k]
        assert float(array_stats.rhat(values, chain_axis=0, draw_axis=1)) == pytest.approx(float(own.rhat[k]))
        assert float(array_stats.ess(values, chain_axis=0, draw_axis=1)) == pytest.approx(float(own.bulk_ess[k]))


def exact_loo() -> Tensor:
    """log p(y_i | all other rows), in closed form."""
    x, y = data()
    design = torch.cat([x, torch.ones(ROWS, 1, dtype=torch.float64)], 1)
    scores = []
    for i in range(ROWS):
        rest = [k for k in range(ROWS) if k != i]
        precision = design[rest].T @ design[rest] / NOISE**2 + torch.eye(3, dtype=torch.float64)
        mean = torch.linalg.solve(precision, design[rest].T @ y[rest] / NOISE**2)
        spread = (design[i] @ torch.linalg.solve(precision, design[i]) + NOISE**2).sqrt()
        scores.append(torch.distributions.Normal(design[i] @ mean, spread).log_prob(y[i]))
    return torch.cat(scores)


def test_loo_is_the_exact_one(exact: tp.Fitted) -> None:
    tree = to_arviz(exact, data())
    values = tree["log_likelihood"]["y"].values
    assert values.shape == (4, 200, ROWS)
    by_row = torch.tensor([float(array_stats.loo(values[:, :, i], chain_axis=0, draw_axis=1)[0]) for i in range(ROWS)])
    # log E over about 1000 draws, of weights whose relative spread is below one: an error of 0.03 each, at most.
    torch.testing.assert_close(by_row.double(), exact_loo(), atol=0.1, rtol=0)
    plain = torch.from_numpy(values).flatten(0, 1).logsumexp(0) - np.log(800)
    torch.testing.assert_close(plain, exact.predict(data()[0]).log_prob(data()[1]))
    assert float(exact_loo().sum() - plain.sum()) < -1.0  # loo is not the score of what was trained on


def test_arviz_itself_takes_it(exact: tp.Fitted) -> None:
    pytest.importorskip("xarray_einstats")
    import arviz_stats

    tree = to_arviz(exact, data())
    found = arviz_stats.loo(tree)
    assert found.elpd == pytest.approx(float(exact_loo().sum()), abs=0.3)
    own = diagnose.weights(exact)
    assert arviz_stats.rhat(tree)["weight"].values.ravel() == pytest.approx(own.rhat[:2].numpy())
    assert arviz_stats.ess(tree)["weight"].values.ravel() == pytest.approx(own.bulk_ess[:2].numpy())
    assert len(arviz_stats.summary(tree)) == 3


def test_transitions_belong_to_their_draws(exact: tp.Fitted) -> None:
    """The energy that was told of a transition is that of the draw it led to."""
    stats = to_arviz(exact, thin=7)["sample_stats"]
    theta = chains(exact)[:, ::7]
    energy = Engine(exact.target).energy(theta.flatten(0, 1), tp.data.Data(*data())).view(4, -1)
    np.testing.assert_allclose(stats["potential_energy"].values, energy.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(stats["lp"].values, -energy.detach().numpy(), rtol=1e-6)
    assert not stats["diverging"].values.any()
    assert (stats["n_steps"].values >= 1).all()
    assert ((stats["acceptance_rate"].values > 0) & (stats["acceptance_rate"].values <= 1)).all()


def test_predictions_are_the_predictive(exact: tp.Fitted) -> None:
    x, y = data()
    tree = to_arviz(exact, (x, y), x=x[:4], prior=200)
    assert np.array_equal(tree["observed_data"]["y"].values, y.numpy())
    drawn = torch.from_numpy(tree["posterior_predictive"]["y"].values).flatten(0, 1)
    assert drawn.shape == (800, ROWS, 1)
    predictive = exact.predict(x)
    error = (drawn.mean(0) - predictive.mean()).abs() / (predictive.std() / 800**0.5)
    assert float(error.max()) < 4.5
    torch.testing.assert_close(drawn.std(0), predictive.std(), rtol=4.5 / (2 * 800) ** 0.5, atol=0)
    assert tree["predictions"]["y"].shape == (4, 200, 4, 1)
    assert tree["prior"]["weight"].shape == (1, 200, 1, 2)
    assert tree["prior"]["weight"].values.std() == pytest.approx(1.0, abs=4.5 / (2 * 400) ** 0.5)
    assert tree["prior_predictive"]["y"].shape == (1, 200, ROWS, 1)


def test_classes_readings_names_and_thinning(langevin: tp.Fitted) -> None:
    x, y = data()
    tree = to_arviz(langevin, (x.float(), (y[:, 0] > 0).long()), names="*.weight", thin=2)
    weights = [e.name for e in langevin.target.layout.entries if e.name.endswith("weight")]
    assert sorted(tree["posterior"].data_vars) == sorted(weights)
    assert tree["log_likelihood"]["y"].shape == (2, 10, ROWS)
    assert tree["posterior_predictive"]["y"].shape == (2, 10, ROWS)
    assert "sample_stats" not in tree
    readings = tree["readings"]
    assert readings["kinetic"].dims == ("chain", "reading", "tensor")
    trace = diagnose.chains.chains_of(langevin.posterior)[1].trace
    assert np.array_equal(readings["kinetic"].values[1], trace.kinetic.numpy())
    assert "acceptance" not in readings
    assert list(readings["tensor"].values) == [e.name for e in langevin.target.layout.entries]


def test_posteriors_without_chains_and_bare_draws() -> None:
    x, y = data()
    target = tp.Target(nn.Linear(2, 1), tp.Normal(), tp.GaussianPrior(scale=1.0))
    fitted = tp.fit(target, tp.Variational(lr=1e-2), (x.float(), y.float()), epochs=3)
    tree = to_arviz(fitted, (x.float(), y.float()), draws=40)
    assert tree["posterior"]["likelihood.log_scale"].shape == (1, 40, 1)
    assert tree["log_likelihood"]["y"].shape == (1, 40, ROWS)
    uneven = Mixture((Draws(torch.zeros(4, 4)), Draws(torch.ones(6, 4))))
    assert to_arviz(uneven, target=target)["posterior"]["weight"].shape == (2, 4, 1, 2)


def test_errors(exact: tp.Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="`run` must be a Fitted"):
        to_arviz(torch.zeros(3))
    with pytest.raises(ArgumentError, match="`target`"):
        to_arviz(Draws(torch.zeros(3, 3)))
    with pytest.raises(ArgumentError, match="`names`"):
        to_arviz(exact, names="conv")
    with pytest.raises(ArgumentError, match="`thin`"):
        to_arviz(exact, thin=0)
    with pytest.raises(ArgumentError, match="`draws`"):
        to_arviz(exact, draws=10)
    with pytest.raises(ArgumentError, match="target's 3 parameters"):
        to_arviz(Draws(torch.zeros(3, 5)), target=exact.target)
    found = tp.sample(lambda t: -0.5 * t.square().sum(), torch.zeros(1), tp.NUTS(step_size=0.9), draws=5, warmup=5)
    with pytest.raises(ArgumentError, match="`data` must not be given"):
        to_arviz(found, data())
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r"temperance\[arviz\]"):
        to_arviz(exact)
