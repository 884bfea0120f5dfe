"""What ``basins``, ``epistemic`` and ``valley`` are built on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import temperance as tp
from temperance.data.files import CACHE_VARIABLE, DATA_VARIABLE
from temperance.lab import Cell, Cells
from temperance.lab.experiment import Finished
from temperance.lab.experiments import basins, epistemic, valley
from temperance.lab.problems import Images, fit, make_network, make_prior


def finished(result, **params):
    return Finished(Cell.of(**params), result, 0.0)


# ---------------------------------------------------------------------- basins


def test_diversity_is_that_of_pairs():
    certain = torch.eye(3).unsqueeze(1).double()  # three members, one row, each sure of another class
    assert basins.diversity(certain) == {"diversity": 1.0, "disagreement": 1.0}
    assert basins.diversity(certain[:1]) == {"diversity": 0.0, "disagreement": 0.0}
    same = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).double().expand(5, 2, 2)
    assert basins.diversity(same)["diversity"] == pytest.approx(0.0)
    near = torch.stack([same[0], same[0] + torch.tensor([[-0.1, 0.1], [-0.3, 0.3]])])
    found = basins.diversity(near)
    assert found["diversity"] == pytest.approx(0.2)
    assert found["disagreement"] == pytest.approx(0.5)  # the second row changes sides


def test_diversity_of_many_members_looks_at_few_of_them():
    rng = torch.Generator().manual_seed(0)
    probs = torch.rand(300, 50, 4, generator=rng, dtype=torch.float64).softmax(-1)
    every = torch.stack([0.5 * (probs[i] - probs[j]).abs().sum(-1).mean() for i, j in ((0, 7), (3, 299), (100, 200))])
    assert basins.diversity(probs)["diversity"] == pytest.approx(float(every.mean()), rel=0.1)


def test_members_average_to_the_prediction():
    train, test = Images("digits", train=60, test=30).load(0)
    target = tp.Target(make_network("mlp-5x1", train, 0), tp.Categorical(), make_prior("normal-1"))
    for method in (tp.Ensemble(tp.MAP(lr=0.01), 3), tp.Laplace(tp.MAP(lr=0.01), tune=None)):
        predictive = fit(target, method, train, steps=20, batch_size=30).predict(test.x)
        average = torch.tensordot(predictive.weights.double(), basins.members(predictive), 1)
        assert torch.allclose(average, predictive.mean().double(), atol=1e-5)
        found = basins.measure(predictive, test.y)
        assert found["ce"] == pytest.approx(-float(predictive.log_prob(test.y).mean()), rel=1e-5)
        assert torch.allclose(torch.tensor(found["probs"]).sum(-1), torch.ones(30), atol=1e-4)


def test_the_best_of_several_is_chosen_by_the_other_seeds():
    values = {"a": {0: 0.0, 1: 5.0, 2: 5.0}, "b": {0: 4.0, 1: 4.0, 2: 4.0}}
    assert basins.best_of(values) == {0: 4.0, 1: 5.0, 2: 5.0}  # each seed's own smallest would be 0, 4, 4
    assert basins.best_of({"a": {0: 1.0}}) == {}


def test_the_slope_of_a_power_law_is_its_power():
    done = Cells(
        [
            finished({"diversity": (1 + seed) * n**-0.5}, part="collapse", method="HMC", rows=n, seed=seed)
            for n in (50, 100, 400)
            for seed in (0, 1)
        ]
    )
    assert list(basins.slope(done, (50, 100, 400), "HMC").values()) == pytest.approx([-0.5, -0.5])


def test_equal_compute_is_equal(monkeypatch):
    """Passes over the data, in gradients of a whole pass, of every method of the comparison."""
    quick = basins.PRESETS["quick"].settings
    settings = replace(quick, steps=20, length=1, warmup=28, cycles=5, time=0.1, truth_draws=8)
    passes = []

    def counted(target, method, data, **options):
        fitted = tp.fit(target, method, data, progress=False, **options)
        members = method.size if isinstance(method, tp.Ensemble) else 1
        if "steps" in options:
            passes.append(options["steps"] * options["batch_size"] * members / len(data))
        elif isinstance(method, tp.Collect):  # the short run of HMC
            draws = len(fitted.posterior.nodes())
            passes.append((settings.warmup + draws) * settings.length)
        return fitted

    monkeypatch.setattr(basins, "fit", counted)
    expected = settings.basins * settings.steps * settings.batch_size / settings.data.train
    for name in ("SWAG", "Ensemble", "cyclical SGHMC", "HMC"):
        passes.clear()
        found = basins.run(settings, Cell.of(part="compare", method=name, rows=settings.data.train, seed=0))
        assert max(passes) == pytest.approx(expected, abs=settings.length), name
        assert all(math.isfinite(found[f"{regime}_ce"]) for regime in basins.REGIMES)
        if name in basins.ONE:
            assert min(passes) == pytest.approx(expected / settings.basins)


def test_distance_to_the_truth_is_zero_for_itself():
    truth, other = [[0.9, 0.1], [0.2, 0.8]], [[0.4, 0.6], [0.2, 0.8]]
    done = Cells(
        [
            finished({"truth_probs": truth, "samples_probs": truth}, part="compare", method="HMC", seed=0),
            finished({"samples_probs": other}, part="compare", method="SWAG", seed=0),
        ]
    )
    found = basins.to_truth(done, "samples", ("HMC", "SWAG"))
    assert found == {"HMC": {0: 0.0}, "SWAG": {0: pytest.approx(0.25)}}
    assert basins.to_truth(done, "samples", ("SWAG",), "agreement") == {"SWAG": {0: 0.5}}


# ---------------------------------------------------------------------- epistemic


def test_the_stand_in_has_the_shape_of_the_published_data(monkeypatch, tmp_path):
    for variable in (DATA_VARIABLE, CACHE_VARIABLE):
        monkeypatch.setenv(variable, str(tmp_path))
    data, scale, published = epistemic.points()
    assert not published
    assert data.x.shape == data.y.shape == (120, 1)
    assert float(data.y.std()) == pytest.approx(1.0, rel=1e-4)
    assert 0.05 < scale < 0.5
    inside = [((data.x >= low - 1e-6) & (data.x <= high + 1e-6)).sum() for low, high in epistemic.CLUSTERS]
    assert [int(n) for n in inside] == [40, 40, 40]


def test_the_published_data_lie_in_the_same_clusters():
    data, scale, published = epistemic.points()
    if not published:
        pytest.skip("synth_reg_data.npz is not there")
    inside = [((data.x >= low - 1e-6) & (data.x <= high + 1e-6)).sum() for low, high in epistemic.CLUSTERS]
    assert [int(n) for n in inside] == [40, 40, 40]
    assert scale == pytest.approx(0.1537, rel=1e-3)


def test_regions_cover_the_grid_once():
    counts = torch.stack([epistemic.region(name) for name in epistemic.REGIONS]).sum(0)
    assert torch.equal(counts, torch.ones_like(counts))


def test_w1_of_shifted_and_scaled_gaussians():
    """W₁ between N(0, 1) and N(1, 1) is 1, between N(0, 1) and N(0, 4) it is √(2/π)."""
    places = len(epistemic.grid())
    normal = torch.special.ndtri(epistemic.LEVELS).unsqueeze(1).expand(-1, places)
    made = {"HMC": (normal, 1.0), "Ensemble": (normal + 1, 1.0), "SWAG": (2 * normal, 2.0)}
    done = Cells(
        [
            finished({"quantiles": q.tolist(), "std": [std] * places}, method=name, seed=0)
            for name, (q, std) in made.items()
        ]
    )
    shifted, scaled = (epistemic.distances(done, name) for name in ("Ensemble", "SWAG"))
    assert shifted["w1"][0] == pytest.approx(1.0)
    assert shifted["std"][0] == 0.0
    assert scaled["w1"][0] == pytest.approx(math.sqrt(2 / math.pi), rel=0.02)  # forty levels
    assert scaled["w1_between"][0] == pytest.approx(scaled["w1"][0])
    assert scaled["std"][0] == pytest.approx(1.0)


def test_hmc_finds_the_spread_of_a_bayesian_line(monkeypatch):
    """f = a x + b in closed form: the sd of f on the grid is that of the conjugate posterior."""
    settings = replace(epistemic.PRESETS["quick"].settings, warmup=100, draws=300, chains=4, time=1.0, noise=0.3)
    data, scale, _ = epistemic.points()
    monkeypatch.setattr(epistemic.tp.nn, "MLP", lambda *args: torch.nn.Linear(1, 1))
    found = epistemic.run(settings, Cell.of(method="HMC", seed=0))
    variance = torch.tensor([settings.gain**2, 1.0]).double()  # weight gain²/1, bias 1
    phi, new = (torch.cat([x, torch.ones_like(x)], 1).double() for x in (data.x, epistemic.grid()))
    precision = torch.diag(1 / variance) + phi.T @ phi / (settings.noise / scale) ** 2
    exact = (new @ torch.linalg.inv(precision) * new).sum(-1).sqrt()
    error = 1 / math.sqrt(2 * found["ess"])  # of a standard deviation, as a share
    assert ((torch.tensor(found["std"]) / exact).log().abs()).max() < 4 * error
    assert found["rhat"] < 1.05


def test_laplace_quantiles_are_gaussian():
    settings = epistemic.PRESETS["quick"].settings
    found = epistemic.run(settings, Cell.of(method="Laplace", seed=0))
    mean, std, levels = (torch.tensor(found[entry]).double() for entry in ("mean", "std", "quantiles"))
    assert torch.allclose(levels[0] + levels[-1], 2 * mean, atol=1e-4)
    wide = torch.special.ndtri(epistemic.LEVELS[-1])
    assert torch.allclose(levels[-1] - mean, wide * std, atol=1e-4)


# ---------------------------------------------------------------------- valley


def test_changes_are_to_the_nearer_end():
    first, middle, last = (torch.tensor([[p, 1 - p]]).double() for p in (0.9, 0.7, 0.4))
    found = valley.changes(first, middle, last, first)
    assert found["apart_middle"] == pytest.approx(0.2)
    assert found["apart_ends"] == pytest.approx(0.5)
    assert found["apart_further"] == 0.0
    assert (found["labels_middle"], found["labels_ends"]) == (0.0, 1.0)


def test_a_curve_of_the_quick_preset_lies_below_the_straight_line():
    settings = valley.PRESETS["quick"].settings
    found = valley.run(settings, Cell.of(prior="normal-1", bends=3, seed=0))
    assert found["train_straight"] > 0.1
    assert found["train_barrier"] < 0.3 * found["train_straight"]
    assert found["train_loss"][0] == pytest.approx(found["train_line"][0], rel=1e-4)
    assert found["changed"][0] == 0.0
    assert len(found["t"]) == settings.points
    ends = 0.5 * (found["test_loss"][0] + found["test_loss"][-1])
    assert found["ce_end"] == pytest.approx(ends, rel=1e-3)
    assert found["ce_two_ends"] <= found["ce_end"] + 1e-9  # Jensen


def test_log_loss_of_known_probabilities():
    probs = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double()
    assert valley.log_loss(probs, torch.tensor([0, 0])) == pytest.approx(0.5 * math.log(2))
    assert valley.log_loss(probs, torch.tensor([0, 1])) == pytest.approx(0.5 * (math.log(2) + 30 * math.log(10)))
