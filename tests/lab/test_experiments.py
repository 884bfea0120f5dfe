"""The experiments: their settings, the numbers they are built on, and their quick presets."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

import temperance as tp
from temperance.apps.cli import main
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.lab import Cell, Cells, run_experiment
from temperance.lab.experiment import Finished
from temperance.lab.experiments import (
    NAMES,
    all_experiments,
    dirty_likelihood,
    find_experiment,
    liberty_hmc,
    prior_predictive,
    universality,
    well_specified,
)
from temperance.lab.folder import settings_from
from temperance.lab.problems import Augment, Images, fit, make_network
from temperance.lab.runner import list_cells
from temperance.lab.sampling import Chain
from temperance.lab.sweep import best_temperature, cold_gap
from tests.lab.fake import FakeSettings


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_three_presets_and_cells_of_their_own(name):
    experiment = find_experiment(name)
    assert list(experiment.presets) == ["quick", "standard", "paper"]
    assert experiment.presets["quick"].minutes < 1
    longest = 240 if name in ("defaults", "cold-imdb") else 10  # a yardstick, and a paper's own network: not in minutes
    assert 2 <= experiment.presets["standard"].minutes <= longest
    for preset in experiment.presets.values():
        assert len(list_cells(experiment, preset.settings)) >= 3
        there = json.loads(json.dumps(dataclasses.asdict(preset.settings)))
        assert settings_from(type(preset.settings), there) == preset.settings
        assert preset.settings.seeds >= 3


def test_list_names_every_experiment(capsys):
    assert main(["lab", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)


def check_quick(name, out, workers=1):
    outcome = run_experiment(find_experiment(name), "quick", out, workers=workers, console=Console(quiet=True))
    assert outcome.ok, [f.error for f in outcome.failed]
    results = json.loads((out / "results.json").read_text())
    assert results["problems"] == []
    assert results["figures"]
    assert all((out / "figures" / figure).stat().st_size > 5000 for figure in results["figures"])
    assert results["claims"]
    assert all("–" not in claim["measured"] for claim in results["claims"]), results["claims"]
    return {claim["text"]: claim["holds"] for claim in results["claims"]}


def test_quick_prior_predictive(tmp_path):
    verdicts = check_quick("prior-predictive", tmp_path)
    assert verdicts["The collapse grows with depth"] is True
    assert verdicts["A prior scaled by fan-in collapses less"] is True


def test_quick_universality(tmp_path):
    verdicts = check_quick("universality", tmp_path)
    assert verdicts["With two hidden layers the error of the predictive CDF falls with width"] is True
    assert verdicts["One hidden layer does not get there"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("prior-predictive", "diagnostics", "universality")]
)
def test_quick(name, tmp_path):
    check_quick(name, tmp_path, workers=2)


@pytest.mark.slow
def test_quick_diagnostics_tells_the_broken_runs(tmp_path):
    verdicts = check_quick("diagnostics", tmp_path, workers=2)
    right = [holds for text, holds in verdicts.items() if text.startswith("The verdict")]
    assert right == [True, True, True]


# ---------------------------------------------------------------------- what they are built on


def test_the_closed_form_of_the_linear_model():
    known = {0.01: 0.793765, 0.1: 0.795118, 0.3: 0.797539, 0.5: 0.799236, 1.0: 0.800853, 2.0: 0.796041, 5.0: 0.752129}
    for temperature, value in known.items():  # protocols A.8.1
        assert well_specified.closed_form(temperature)[0] == pytest.approx(value, abs=1e-6)


def test_problems_of_the_well_specified_experiment_are_draws_of_its_model():
    settings = well_specified.WellSettings(rows=4000, test_rows=4000)
    data, _, probs, start = well_specified.problem(settings, 3)
    share = torch.bincount(data.y, minlength=3) / 4000
    assert torch.allclose(share.double(), probs.mean(0), atol=0.05)  # labels come from the softmax of the true network
    again = well_specified.problem(settings, 3)
    assert torch.equal(again[0].x, data.x)
    assert torch.equal(again[3], start)
    assert not torch.equal(well_specified.problem(settings, 4)[3], start)


@pytest.mark.parametrize("prior", ["normal", "normal-fan-in", "laplace"])
def test_second_moments_follow_the_closed_form(prior):
    x = torch.rand(20, 12, generator=torch.Generator().manual_seed(0))
    target = tp.Target(tp.nn.MLP(12, [15, 15], 5), tp.Categorical(), prior_predictive.PRIORS[prior][1])
    theta = target.sample_prior(4000, torch.Generator().manual_seed(1))
    measured = prior_predictive.moments(target.layout.unflatten(theta), x)
    expected = prior_predictive.closed_form(prior, x, 15, 2)
    assert measured == pytest.approx(expected, rel=0.1)
    assert expected[2] / expected[1] == pytest.approx(
        1 + 1 / expected[1] if "fan-in" in prior else 7.5 + 1 / expected[1]
    )


def test_only_the_clean_gradient_is_unbiased():
    train, _ = Images("digits", train=120).load(0)
    found = {}
    for switch in dirty_likelihood.SWITCHES:
        target = tp.Target(make_network(f"mlp-20x1{switch}", train, 0), tp.Categorical(), tp.GaussianPrior(1.0))
        found[switch] = dirty_likelihood.gradient_bias(target, train, 50, 4)  # 50, 50 and 20 rows
    assert found[""] < 1e-5
    assert all(bias > 0.02 for switch, bias in found.items() if switch)


def ar1(covariance, size, rate, rng):
    """Draws of N(0, covariance) that forget by ``rate`` a step, one for each parameter."""
    noise = rng.multivariate_normal(np.zeros(len(covariance)), covariance, size)
    made = np.empty_like(noise)
    made[0] = noise[0]
    for t in range(1, size):
        made[t] = rate * made[t - 1] + np.sqrt(1 - rate**2) * noise[t]
    return made


def banded(size, rho):
    return rho ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))  # log det = (size − 1) log(1 − ρ²)


def test_the_kl_error_and_its_bias_in_closed_form():
    rng = np.random.default_rng(0)
    truth = -0.5 * 29 * math.log(1 - 0.5**2)
    raw = [liberty_hmc.kl_error(rng.multivariate_normal(np.zeros(30), banded(30, 0.5), 100)) for _ in range(200)]
    error = np.std(raw) / math.sqrt(200)
    assert np.mean(raw) - liberty_hmc.wishart_bias(30, 99) == pytest.approx(truth, abs=4 * error)
    assert liberty_hmc.wishart_bias(30, 99) > 20 * error  # without the correction it would be plainly wrong
    assert math.isnan(liberty_hmc.kl_error(rng.standard_normal((30, 30))))
    exact = np.linalg.cholesky([[1, 0.8], [0.8, 1]]) @ np.array([[1, 1, -1, -1], [1, -1, 1, -1]])
    assert liberty_hmc.kl_error(exact.T) == pytest.approx(0.5108256238)  # protocols B.4


def test_shifted_draws_correct_for_a_chain_that_forgets_slowly():
    rng = np.random.default_rng(1)
    truth, settings = -0.5 * 29 * math.log(1 - 0.5**2) / 30, liberty_hmc.LibertySettings(shifts=5, points=50, repeats=1)
    found = [liberty_hmc.errors(settings, ar1(banded(30, 0.5), 300, 0.7, rng), seed) for seed in range(20)]
    corrected, naive = (np.array([f[entry] for f in found]) for entry in ("kl", "kl_independent"))
    assert corrected.mean() == pytest.approx(truth, abs=4 * corrected.std() / math.sqrt(20))
    assert naive.mean() - truth > 10 * naive.std() / math.sqrt(20)  # taking the draws as independent is not enough
    assert 60 < np.mean([f["effective"] for f in found]) < 150
    nothing = [liberty_hmc.errors(settings, ar1(np.eye(30), 300, 0.7, rng), seed) for seed in range(20)]
    for entry in ("kl", "w"):
        values = np.array([f[entry] for f in nothing])
        assert abs(values.mean()) < 4 * values.std() / math.sqrt(20)


def test_shifting_keeps_each_series_and_unties_them():
    theta = np.repeat(np.arange(50.0)[:, None], 8, axis=1)
    made = liberty_hmc.shift(theta, np.random.default_rng(0))
    assert all(np.array_equal(np.sort(column), np.arange(50.0)) for column in made.T)
    assert all(set(np.diff(column) % 50) == {1.0} for column in made.T)
    assert len({column[0] for column in made.T}) > 4


def test_wasserstein_error_is_that_of_gaussians():
    """W₂ between N(0, Σ) and its diagonal, Σ = [[1, .8], [.8, 1]], is √.42229 (protocols B.4); from it goes what two
    samples of one distribution are apart."""
    rng = np.random.default_rng(0)
    theta, other = (rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 500) for _ in range(2))
    found = liberty_hmc.wasserstein_error(theta, np.arange(500), 3, rng)
    noise = liberty_hmc.assignment_distance(theta, other)
    assert noise < 0.35
    assert abs(found - (math.sqrt(0.4222912360) - noise)) < noise
    corners = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T.astype(float)  # R is I exactly
    assert liberty_hmc.wasserstein_error(corners, np.arange(8), 2, rng) == pytest.approx(0.0, abs=1e-9)
    a = rng.standard_normal((40, 3))
    assert liberty_hmc.assignment_distance(a, a[rng.permutation(40)]) == pytest.approx(0.0, abs=1e-6)
    assert liberty_hmc.assignment_distance(a, a + np.array([3.0, 0.0, 4.0])) == pytest.approx(5.0)


def test_one_mode_is_the_heavier_of_two():
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((600, 12))
    theta[:200, 3] += 9.0
    kept, parts = liberty_hmc.one_mode(theta[rng.permutation(600)], 3, 4, 0)
    assert parts == 2
    assert 395 <= kept.sum() <= 405
    kept, parts = liberty_hmc.one_mode(rng.standard_normal((600, 12)), 3, 4, 0)
    assert parts == 1
    assert kept.all()


def test_the_sampler_of_liberty_finds_the_posterior_of_a_linear_model():
    """Logistic regression on two moons, whose posterior is nearly Gaussian: its mean is near the mode, and its spread
    near that of the curvature there."""
    settings = dataclasses.replace(liberty_hmc.PRESETS["quick"].settings, rows=100, draws=250, trajectory=1.5)
    train, _ = liberty_hmc.moons(settings, 0)
    target = tp.Target(torch.nn.Linear(2, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    best = fit(target, tp.Laplace(tp.MAP(lr=0.05), tp.Dense(), tune=None), train, steps=400, batch_size=100)
    fitted = liberty_hmc.sample_posterior(settings, target, train, 0)
    theta = fitted.posterior.theta.double()
    assert 0.6 < float(fitted.posterior.trace.transitions.acceptance.mean()) < 1.0
    assert 0.05 < float(fitted.posterior.trace.transitions.step_size[0]) < 3.0
    spread = best.posterior.covariance().double().diagonal().sqrt()
    assert ((theta.mean(0) - best.posterior.mean.double()) / spread).abs().max() < 0.5
    assert (theta.std(0) / spread).log().abs().max() < 0.3


def test_the_network_of_universality_is_its_construction():
    settings = universality.PRESETS["quick"].settings
    network, mean, noise = universality.build(settings, 16, 3)
    assert int((noise > 0).sum()) == 1
    target = tp.Target(network, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    posterior = universality.as_posterior(mean, noise, 1e-6)
    theta = posterior.sample(500, seed=0)
    z = (theta - mean)[:, noise > 0].squeeze(1)
    x = torch.linspace(-1, 1, 5).double()
    made = Engine(target).outputs(theta, x.unsqueeze(1)).squeeze(-1)
    wanted = universality.quantile(torch.special.ndtr(z).unsqueeze(1), x)
    assert ((made - wanted).abs() * universality.density(wanted, x)).mean() < 0.1
    level = universality.levels(1000).unsqueeze(1)
    perfect = universality.quantile(level, x)
    assert universality.kolmogorov(perfect, x).max() < 1e-3
    assert universality.kolmogorov(perfect + 0.1, x).min() > 0.04


def test_augmentation_moves_images_while_training_only():
    torch.manual_seed(0)
    layer = Augment((1, 8, 8))
    x = torch.rand(500, 64)
    moved = layer.train()(x)
    assert moved.shape == x.shape
    assert torch.equal(layer.eval()(x), x)
    same = (moved == x).all(1).float().mean()
    assert same == pytest.approx(1 / 18, abs=0.04)  # nine shifts, flipped or not
    images, shifted = x.view(-1, 8, 8), moved.view(-1, 8, 8)
    down = [k for k in range(500) if torch.equal(shifted[k, 1:], images[k, :-1])]
    assert down
    assert float(shifted[down[0], 0].abs().sum()) == 0.0  # zeros move in
    with pytest.raises(ArgumentError, match="only be augmented on images"):
        Augment(None)


@pytest.mark.parametrize(
    "name", ["mlp-7x2", "mlp-7x2-bn", "mlp-7x2-dropout", "mlp-7x2-augmented", "cnn", "cnn-bn", "cnn-dropout-augmented"]
)
def test_networks_by_name(name):
    train, test = Images("digits", train=50).load(0)
    network = make_network(name, train, 3)
    assert network(test.x[:4]).shape == (4, 10)
    again = make_network(name, train, 3)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", ["mlp", "cnn-frn", "resnet20-dropout", "vgg"])
def test_networks_that_do_not_exist(name):
    train, _ = Images("digits", train=50).load(0)
    with pytest.raises(ArgumentError, match="`network` must be"):
        make_network(name, train, 0)


def test_rows_differ_by_seed_and_the_test_set_does_not():
    images = Images("digits", train=100, test=50)
    (a, test), (b, same) = images.load(0), images.load(1)
    assert (len(a), len(test)) == (100, 50)
    assert not torch.equal(a.x, b.x)
    assert torch.equal(test.x, same.x)
    assert torch.equal(images.load(0)[0].x, a.x)


def test_a_chain_gives_a_draw_for_each_cycle():
    train, _ = Images("digits", train=100).load(0)
    target = tp.Target(make_network("mlp-5x1", train, 0), tp.Categorical(), tp.GaussianPrior(1.0))
    for preconditioned in (True, False):
        chain = Chain(0.01, 0.9, 50, start=20, cycle=15, cycles=4, preconditioned=preconditioned)
        fitted = fit(target, chain.method(), train, steps=chain.steps, batch_size=50)
        assert len(fitted.posterior.nodes()) == 4


def test_the_gap_is_not_made_by_picking_the_smallest():
    rng = torch.Generator().manual_seed(0)
    grid = (0.001, 0.01, 0.1, 0.3, 1.0)
    noise = torch.randn(len(grid), 400, generator=rng).tolist()
    done = Cells(
        [
            Finished(Cell.of(temperature=t, seed=seed), {"ce": noise[k][seed]}, 0.0)
            for k, t in enumerate(grid)
            for seed in range(400)
        ]
    )
    gaps = list(cold_gap(done, grid).values())
    assert abs(sum(gaps) / len(gaps)) < 0.2  # picking each seed's own smallest would give 1.03
    assert len(gaps) == 400


def test_the_gap_finds_a_colder_temperature_that_is_better():
    ce = {0.01: 1.5, 0.1: 1.0, 1.0: 1.2, 3.0: 0.5}
    done = Cells(
        [
            Finished(Cell.of(temperature=t, seed=seed), {"ce": value + 0.01 * seed}, 0.0)
            for t, value in ce.items()
            for seed in range(3)
        ]
    )
    assert list(cold_gap(done, tuple(ce)).values()) == pytest.approx([0.2] * 3)
    assert best_temperature(done, tuple(ce)) == 3.0
    assert math.isclose(best_temperature(done, (0.01, 0.1)), 0.1)


def test_names_are_those_of_the_modules():
    assert [experiment.name for experiment in all_experiments()] == list(NAMES)
    assert FakeSettings().all_seeds() == range(3)
