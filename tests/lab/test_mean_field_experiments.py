"""What ``in-between``, ``liberty-iris``, ``liberty-heatmaps`` and ``liberty-swag`` are built on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.lab import Cell, Cells
from temperance.lab.experiment import Finished
from temperance.lab.experiments import in_between, liberty_heatmaps, liberty_iris, liberty_swag

# ---------------------------------------------------------------------- in-between


def test_ratio_and_bound_of_known_variances():
    x = in_between.grid().squeeze(1)
    found = in_between.numbers(x, torch.where((x > -0.69) & (x < 0.49), 9.0, 1.0))
    assert found["ratio"] == pytest.approx(3.0)
    assert found["bound"] == pytest.approx(4.5)
    assert in_between.numbers(x, 1 + x**2)["ratio"] < 1


def test_no_single_hidden_layer_of_independent_weights_exceeds_the_bound():
    x = in_between.grid()
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        mean, spread = (torch.randn(3, 20, generator=rng) for _ in range(2))
        noise = torch.randn(4000, 3, 20, generator=rng)
        a, b, c = (mean + spread * noise).unbind(1)
        f = (torch.relu(a.unsqueeze(1) * x + b.unsqueeze(1)) * c.unsqueeze(1)).sum(-1)
        assert in_between.numbers(x.squeeze(1), f.var(0))["bound"] < 1.1
    tied = torch.relu(0.6 - x.abs()).T * torch.randn(4000, 1, generator=rng)  # a bump: weights that know of each other
    assert in_between.numbers(x.squeeze(1), tied.var(0) + 0.01)["bound"] > 5


def test_the_data_lie_in_the_two_clusters():
    data = in_between.clusters(in_between.BetweenSettings(rows=100), 3)
    left, right = in_between.CLUSTERS
    inside = [((data.x >= low) & (data.x <= high)).sum() for low, high in (left, right)]
    assert [int(n) for n in inside] == [50, 50]
    residual = data.y - in_between.truth(data.x)
    assert float(residual.std()) == pytest.approx(0.1, rel=0.25)


def test_half_as_long_is_half_as_long(monkeypatch):
    steps = []

    def fit(target, method, data, **options):
        steps.append(options["steps"])
        return tp.fit(target, method, data, progress=False, **options)

    monkeypatch.setattr(in_between, "fit", fit)
    settings = replace(in_between.PRESETS["quick"].settings, steps=10)
    for arm in (in_between.MEAN_FIELD, in_between.HALF):
        found = in_between.run(settings, Cell.of(arm=arm, depth=1, seed=0))
        assert len(found["std"]) == len(in_between.grid())
    assert steps == [10, 5]


# ---------------------------------------------------------------------- liberty-iris


def test_irises_are_split_anew_for_each_restart():
    settings = liberty_iris.IrisSettings()
    (train, test), (other, _) = (liberty_iris.irises(settings, seed) for seed in (0, 1))
    assert (len(train), len(test)) == (100, 50)
    assert train.x.dtype == torch.float64
    assert not torch.equal(train.x, other.x)
    assert set(test.y.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("depth", "weights"), [(1, 35), (2, 55), (4, 95)])
def test_networks_have_the_paper_s_sizes(depth, weights):
    settings = liberty_iris.IrisSettings(steps=2, elbo_draws=5, predict_draws=5)
    places = {f: Cell.of(family=f, depth=depth, share=1.0, seed=0) for f in ("full", "diagonal")}
    found = {f: liberty_iris.run(settings, cell) for f, cell in places.items()}
    assert found["full"]["parameters"] == found["diagonal"]["parameters"] == weights
    assert all(math.isfinite(found[f][entry]) for f in found for entry in ("ce", "elbo", "accuracy"))


def test_gains_are_taken_restart_by_restart():
    settings = liberty_iris.IrisSettings(depths=(1, 2))
    done = Cells(
        [
            Finished(Cell.of(family=f, depth=d, share=1.0, seed=s), {"ce": s + (f == "diagonal") * 0.1 / d}, 0.0)
            for f in ("full", "diagonal")
            for d in (1, 2)
            for s in range(4)
        ]
    )
    found = liberty_iris.gains(settings, done, "ce")
    assert found[1].mean == pytest.approx(0.1)
    assert found[2].mean == pytest.approx(0.05)
    assert found[1].error == pytest.approx(0.0, abs=1e-12)


# ---------------------------------------------------------------------- liberty-heatmaps


def test_independent_entries_are_at_the_floor():
    values = torch.randn(2000, 36, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = liberty_heatmaps.correlation(values)
    assert liberty_heatmaps.size(found) == pytest.approx(liberty_heatmaps.floor(2000), rel=0.1)
    shared = values + values[:, :1]
    assert liberty_heatmaps.size(liberty_heatmaps.correlation(shared)) > 10 * liberty_heatmaps.floor(2000)


def test_pairs_that_share_neither_row_nor_column():
    pairs = liberty_heatmaps.apart(3, 9)
    assert int(pairs.sum()) == 9 * 4
    assert not pairs[0, 1]  # the same row
    assert not pairs[0, 3]  # the same column
    assert pairs[0, 4]


def test_draws_of_a_linear_network_agree_with_the_closed_form():
    settings = replace(liberty_heatmaps.PRESETS["quick"].settings, width=5, block=3, steps=5, draws=20000)
    train, test = liberty_heatmaps.small_images(settings, 0)
    network = liberty_heatmaps.make_network(settings, train, liberty_heatmaps.LINEAR, 3, 0)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Variational(tp.MeanField(), initial_scale=0.3)
    fitted = tp.fit(target, method, train, steps=5, progress=False)
    single, product = liberty_heatmaps.entries(settings, fitted, test, 0)
    exact = liberty_heatmaps.exact_correlation(settings, fitted, test)
    assert float((liberty_heatmaps.correlation(product) - exact).abs().max()) < 5 / math.sqrt(20000)
    assert liberty_heatmaps.size(exact) > 5 * liberty_heatmaps.size(liberty_heatmaps.correlation(single))


# ---------------------------------------------------------------------- liberty-swag


def test_both_gaussians_are_those_of_two_fits():
    x, y = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    torch.manual_seed(0)
    network = tp.nn.PreResNet(8, 1, 3, nn.BatchNorm2d, widths=(2, 2, 4))
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    base = tp.MAP(lr=0.05, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    options = {"start": 0.25, "every": 1, "lr": 0.02, "draws": 2}

    def go(method):
        return tp.fit(target, method, (x, y), epochs=4, batch_size=10, seed=1, progress=False).posterior

    low, diagonal = go(liberty_swag.TwoGaussians(base, rank=3, **options)).components
    for found, rank in ((low, 3), (diagonal, 0)):
        alone = go(tp.SWAG(base, rank=rank, **options))
        assert torch.equal(found.mean, alone.mean)
        assert torch.equal(found.inner.operator.diagonal(), alone.inner.operator.diagonal())
        assert all(torch.equal(found.statistics[name], alone.statistics[name]) for name in alone.statistics)
    assert isinstance(diagonal.inner.operator, tp.linalg.DiagonalCovariance)
    assert isinstance(low.inner.operator, tp.linalg.LowRankCovariance)


def test_images_are_small_and_standardised():
    settings = liberty_swag.PRESETS["quick"].settings
    train, test = liberty_swag.small_images(settings, 0)
    assert train.x.shape == (200, 1, 8, 8)
    assert test.x.shape == (100, 1, 8, 8)
    assert float(train.x.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(train.x.std()) == pytest.approx(1.0, abs=1e-3)


def test_the_paper_preset_names_the_file_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path))
    monkeypatch.setenv("TEMPERANCE_CACHE", str(tmp_path))
    settings = liberty_swag.PRESETS["paper"].settings
    assert settings.data.name == "cifar100"
    with pytest.raises(tp.errors.MissingDataSetError) as caught:
        liberty_swag.small_images(settings, 0)
    assert "cifar-100-binary.tar.gz" in str(caught.value).splitlines()[-1]
