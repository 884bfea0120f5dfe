"""Plots: each returns its axes, draws the data it should, and refuses what it cannot draw."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from temperance import (
    Bernoulli,
    Categorical,
    Dense,
    GaussianPrior,
    HeteroscedasticNormal,
    Laplace,
    Normal,
    Poisson,
    Target,
    plot,
    scores,
)
from temperance.core.errors import ArgumentError
from temperance.judge.diagnose import PathLoss
from temperance.linalg import DenseCovariance
from temperance.posteriors import Draws, Gaussian, Mixture, Point
from temperance.predict.calibrated import from_outputs
from temperance.run.fit import fit
from temperance.run.fitted import Fitted, RunInfo
from temperance.show.plot.calibration import consistency_band, observed_coverage
from temperance.show.plot.style import MOST_POINTS


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def _calibrated(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of three classes, and labels drawn from them."""
    rng = torch.Generator().manual_seed(seed)
    probs = torch.softmax(2 * torch.randn(rows, 3, generator=rng, dtype=torch.float64), -1)
    return probs, torch.multinomial(probs, 1, generator=rng)[:, 0]


def _labelled(ax: Axes) -> None:
    assert isinstance(ax, Axes)
    assert ax.get_title()
    assert ax.get_xlabel()


# ---------------------------------------------------------------------- reliability


def test_reliability_draws_the_curve_and_its_counts() -> None:
    probs, y = _calibrated(400, 0)
    given = plt.subplots()[1]
    ax = plot.reliability(probs, y, given, bins=10)
    assert ax is given
    _labelled(ax)
    curve = scores.reliability_curve(probs, y, 10)
    np.testing.assert_allclose(ax.lines[-1].get_xydata(), np.c_[curve.confidence, curve.accuracy])
    assert [text.get_text() for text in ax.texts] == [str(n) for n in curve.count]
    low, high = consistency_band(curve.confidence, curve.count)
    for bar, bottom, top in zip(ax.patches, low, high, strict=True):
        assert bar.get_y() == pytest.approx(bottom)
        assert bar.get_height() == pytest.approx(max(top - bottom, 0.004))


def test_the_band_holds_calibrated_forecasts_as_often_as_it_says() -> None:
    inside, total = 0, 0
    for seed in range(150):
        curve = scores.reliability_curve(*_calibrated(300, seed), 10)
        low, high = consistency_band(curve.confidence, curve.count, 0.9)
        accuracy = np.array(curve.accuracy)
        inside += int(((low <= accuracy) & (accuracy <= high)).sum())
        total += len(accuracy)
    # A binomial's quantiles hold at least 90 %; with few rows in a bin rather more.
    assert inside / total > 0.9 - 4 * np.sqrt(0.09 / total)
    overconfident, y = _calibrated(3000, 0)
    sharper = overconfident**3 / (overconfident**3).sum(1, keepdim=True)
    curve = scores.reliability_curve(sharper, y, 10)
    low, high = consistency_band(curve.confidence, curve.count, 0.9)
    assert (np.array(curve.accuracy) < low).mean() > 0.5


def test_reliability_takes_probabilities_of_yes() -> None:
    yes, y = torch.tensor([0.9, 0.2, 0.7, 0.4]), torch.tensor([1, 0, 1, 1])
    ax = plot.reliability(yes, y)
    both = plot.reliability(torch.stack([1 - yes, yes], 1), y)
    np.testing.assert_allclose(ax.lines[-1].get_xydata(), both.lines[-1].get_xydata(), atol=1e-7)


@pytest.mark.parametrize(
    ("probs", "y", "word"),
    [
        ([[0.5, 0.6]], [0], "sum to 1"),
        ([[0.5, 0.5]], [0, 1], "`y`"),
        ([[float("nan"), 0.5]], [0], "finite"),
        ([[0.5, 0.5]], [2], "from 0 to 1"),
        ([1.2], [1], "`probs`"),
    ],
)
def test_reliability_refuses(probs: list[object], y: list[int], word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        plot.reliability(probs, y)


def test_wrong_axes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="`ax`"):
        plot.reliability([[0.5, 0.5]], [0], ax="here")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- doubt


def test_risk_coverage_lines() -> None:
    rng = np.random.default_rng(0)
    score, error = rng.random(50), rng.integers(0, 2, 50).astype(float)
    ax = plot.risk_coverage(score, error)
    _labelled(ax)
    chance, oracle, own = ax.lines
    curve = scores.risk_coverage(score, error)
    np.testing.assert_allclose(own.get_xydata(), np.c_[curve.coverage, curve.risk])
    assert np.asarray(oracle.get_ydata()).mean() == pytest.approx(curve.oracle_aurc)
    np.testing.assert_allclose(chance.get_ydata(), error.mean())
    np.testing.assert_array_less(np.asarray(oracle.get_ydata()), np.asarray(own.get_ydata()) + 1e-12)


def test_long_curves_are_thinned_with_their_ends() -> None:
    score = np.linspace(0, 1, 5000)
    ax = plot.risk_coverage(score, score)
    x = np.asarray(ax.lines[-1].get_xdata())
    assert len(x) == MOST_POINTS
    assert (x[0], x[-1]) == (1 / 5000, 1.0)


def test_no_errors_at_all_can_be_drawn() -> None:
    ax = plot.risk_coverage([0.1, 0.2], [0.0, 0.0])
    assert ax.get_ylim()[1] > 1e-3


def test_risk_coverage_refuses() -> None:
    with pytest.raises(ArgumentError, match="`error`"):
        plot.risk_coverage([0.1, 0.2], [0.0])
    with pytest.raises(ArgumentError, match="`score`"):
        plot.risk_coverage([0.1, float("nan")], [0.0, 1.0])


def test_histogram_shares_and_auroc() -> None:
    groups = {"in": np.array([0.1, 0.2, 0.3]), "out $": np.array([0.2, 0.9])}
    ax = plot.uncertainty_histogram(groups, bins=4, xlabel="doubt")
    assert ax.get_xlabel() == "doubt"
    assert "0.75" in ax.get_title()
    outlines = [patch for patch in ax.patches if patch.get_label() and not str(patch.get_label()).startswith("_")]
    assert [str(p.get_label()) for p in outlines] == ["in (3)", r"out \$ (2)"]
    for patch in outlines:
        assert patch.get_data().values.sum() == pytest.approx(1.0)  # type: ignore[attr-defined]
    plot.uncertainty_histogram({"alike": [0.5, 0.5]}).figure.canvas.draw()


def test_histogram_refuses() -> None:
    for bad in ({}, [1.0]):
        with pytest.raises(ArgumentError, match="`groups`"):
            plot.uncertainty_histogram(bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="groups"):
        plot.uncertainty_histogram({"in": [float("nan")]})


# ---------------------------------------------------------------------- real values


@pytest.mark.parametrize("levels", [(0.5, 0.9)])
def test_coverage_agrees_with_the_intervals_themselves(levels: tuple[float, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(5, 200, 2, generator=rng), torch.randn(200, 2, generator=rng)
    for predictive, truth in (
        (from_outputs(outputs, Normal(scale=0.7)), y),
        (from_outputs(outputs, HeteroscedasticNormal()), y[:, :1]),
        (from_outputs(outputs[..., :1], Poisson()), torch.poisson(outputs[0, :, :1].exp(), generator=rng)),
    ):
        found, total = observed_coverage(predictive, truth, levels)  # type: ignore[arg-type]
        slow = [scores.interval_coverage(*predictive.interval(level), truth).coverage for level in levels]
        np.testing.assert_allclose(found, slow)
        assert total == truth.numel()
        ax = plot.coverage(predictive, truth, levels=levels)  # type: ignore[arg-type]
        np.testing.assert_allclose(ax.lines[-1].get_xydata(), np.c_[levels, slow])
        _labelled(ax)


def test_coverage_refuses() -> None:
    predictive = from_outputs(torch.zeros(1, 3, 1), Normal(scale=1.0))
    with pytest.raises(ArgumentError, match="`y`"):
        plot.coverage(predictive, torch.zeros(4))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="finite"):
        plot.coverage(predictive, [0.0, 1.0, float("nan")])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`levels`"):
        plot.coverage(predictive, torch.zeros(3), levels=[1.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`predictive`"):
        plot.coverage(from_outputs(torch.zeros(1, 3, 2), Categorical()), torch.zeros(3))  # type: ignore[arg-type]


def test_regression_band_shows_both_kinds_of_uncertainty() -> None:
    x = torch.tensor([2.0, 0.0, 1.0])
    outputs = torch.stack([x - 0.5, x + 0.5]).unsqueeze(-1)  # two members, ± 0.5 about x
    predictive = from_outputs(outputs, Normal(scale=2.0))
    ax = plot.regression_band(x, predictive, (x[:, None], x), level=0.9)  # type: ignore[arg-type]
    _labelled(ax)
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[0, 0], [1, 1], [2, 2]], atol=1e-6)
    outer, inner = (band.get_paths()[0].vertices for band in ax.collections)
    inner_half = (inner[:, 1] - inner[:, 0]).max()  # the line is y = x
    outer_half = (outer[:, 1] - outer[:, 0]).max()
    assert inner_half == pytest.approx(1.6449 * 0.5, rel=1e-3)
    low, high = predictive.interval(0.9)
    assert outer_half == pytest.approx(float((high - low)[0, 0]) / 2, rel=1e-3)
    assert len(ax.lines[1].get_xdata()) == 3  # the data


def test_regression_band_refuses() -> None:
    predictive = from_outputs(torch.zeros(1, 3, 1), Normal(scale=1.0))
    with pytest.raises(ArgumentError, match="`x`"):
        plot.regression_band(torch.zeros(4), predictive)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`x`"):
        plot.regression_band(torch.zeros(3, 2), predictive)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`output`"):
        plot.regression_band(torch.zeros(3), predictive, output=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`predictive`"):
        plot.regression_band(torch.zeros(3), from_outputs(torch.zeros(1, 3, 2), Categorical()))  # type: ignore[arg-type]


def test_predicted_observed_parts_rows_by_their_intervals() -> None:
    predictive = from_outputs(torch.zeros(1, 500, 1), Normal(scale=1.0))
    y = torch.linspace(-3, 3, 500)
    ax = plot.predicted_observed(predictive, y, most=100)  # type: ignore[arg-type]
    _, inside, outside = ax.lines
    assert len(inside.get_ydata()) + len(outside.get_ydata()) == 100
    assert np.abs(np.asarray(inside.get_ydata())).max() <= 1.65 <= np.abs(np.asarray(outside.get_ydata())).min() + 0.01


# ---------------------------------------------------------------------- planes, weights, paths


@pytest.mark.parametrize("show", ["entropy", "mutual_information", "class"])
def test_decision_regions(show: str) -> None:
    x, y = torch.randn(20, 2), torch.arange(20) % 2

    def model(grid: torch.Tensor) -> object:
        return from_outputs(torch.stack([grid, 2 * grid]), Categorical())

    ax = plot.decision_regions(model, x, y, show, resolution=12)  # type: ignore[arg-type]
    _labelled(ax)
    assert sum(len(line.get_xdata()) for line in ax.lines) == 20
    left, right = ax.get_xlim()
    assert left < float(x[:, 0].min()) < float(x[:, 0].max()) < right
    if show == "entropy":
        grid = torch.cartesian_prod(torch.linspace(left, right, 12), torch.linspace(*ax.get_ylim(), 12))
        expected = model(grid).entropy().view(12, 12).T  # type: ignore[attr-defined]
        np.testing.assert_allclose(ax.collections[0].get_array(), expected, atol=1e-4)
    ax.figure.canvas.draw()


def test_decision_regions_refuses() -> None:
    def model(grid: torch.Tensor) -> object:
        return from_outputs(grid[:, :1], Normal(scale=1.0))

    for x, y, show, word in (
        (torch.zeros(3, 3), torch.zeros(3), "entropy", "two columns"),
        (torch.zeros(3, 2), torch.zeros(2), "entropy", "`y`"),
        (torch.zeros(3, 2), torch.zeros(3), "doubt", "`show`"),
        (torch.zeros(3, 2), torch.zeros(3), "entropy", "`model`"),
    ):
        with pytest.raises(ArgumentError, match=word):
            plot.decision_regions(model, x, y, show)  # type: ignore[arg-type]


def test_yes_no_planes_can_be_drawn() -> None:
    ax = plot.decision_regions(
        lambda grid: from_outputs(grid[None, :, :1], Bernoulli()), torch.randn(5, 2), torch.ones(5), "class"
    )  # type: ignore[arg-type]
    ax.figure.canvas.draw()


def test_correlations_by_block() -> None:
    target = Target(torch.nn.Linear(2, 1), Normal(scale=1.0), GaussianPrior(1.0))
    matrix = torch.tensor([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 9.0]])
    posterior = Gaussian(torch.zeros(3), DenseCovariance(matrix))
    ax = plot.covariance(Fitted(target, posterior, RunInfo()))
    expected = [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(ax.images[0].get_array(), expected, atol=1e-6)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["weight", "bias"]
    np.testing.assert_allclose(plot.covariance(matrix).images[0].get_array(), expected, atol=1e-6)
    rng = torch.Generator().manual_seed(0)
    draws = Draws(torch.randn(4000, 3, generator=rng) @ torch.linalg.cholesky(matrix).T)
    assert np.abs(plot.covariance(draws).images[0].get_array() - np.array(expected)).max() < 5 / np.sqrt(4000)
    assert plot.covariance(posterior, max_parameters=2).images[0].get_array().shape == (2, 2)


def test_correlations_refuse() -> None:
    for bad, word in (
        (torch.zeros(2, 3), "symmetric"),
        (torch.tensor([[1.0, 0.5], [0.1, 1.0]]), "symmetric"),
        (torch.tensor([[-1.0, 0.0], [0.0, 1.0]]), "variances"),
        (torch.tensor([[float("nan")]]), "finite"),
        (Point(torch.zeros(2)).nodes() and Draws(torch.zeros(1, 2)), "two draws"),
    ):
        with pytest.raises(ArgumentError, match=word):
            plot.covariance(bad)
    layout = Target(torch.nn.Linear(2, 1), Normal(scale=1.0), GaussianPrior(1.0)).layout
    with pytest.raises(ArgumentError, match="`layout`"):
        plot.covariance(torch.eye(2), layout=layout)


def test_laplace_covariance_of_a_fit() -> None:
    target = Target(torch.nn.Linear(2, 1), Normal(scale=1.0), GaussianPrior(1.0))
    data = (torch.randn(20, 2), torch.randn(20, 1))
    fitted = fit(target, Laplace(curvature=Dense(), tune=None), data, start=target.network, progress=False)
    matrix = plot.covariance(fitted).images[0].get_array()
    assert matrix.shape == (3, 3)
    np.testing.assert_allclose(np.diag(matrix), 1, atol=1e-6)


def test_loss_along_a_path() -> None:
    t = torch.linspace(0, 1, 5)
    found = PathLoss(t, t * 0, 1 - (2 * t - 1).square(), t, t)
    ax = plot.loss_along(found)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 0)
    np.testing.assert_allclose(ax.lines[1].get_ydata(), found.straight)
    _labelled(ax)
    with pytest.raises(ArgumentError, match="`found`"):
        plot.loss_along(t)


def test_mixtures_of_points_have_a_covariance_too() -> None:
    mixture = Mixture((Point(torch.tensor([0.0, 0.0])), Point(torch.tensor([1.0, -1.0]))))
    assert plot.covariance(mixture).images[0].get_array()[0, 1] == pytest.approx(-1.0, abs=1e-6)


def test_matplotlib_is_not_imported_before_the_first_plot() -> None:
    program = "import sys, temperance.show.plot, temperance.show.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0


# ---------------------------------------------------------------------- predictives of classes, and large numbers


def test_a_predictive_of_classes_may_be_given_itself() -> None:
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 90, 4, generator=rng)
    y = torch.randint(4, (90,), generator=rng)
    classes = from_outputs(outputs, Categorical())
    labels, several = from_outputs(outputs, Bernoulli()), torch.randint(2, (90, 4), generator=rng)
    yes = from_outputs(outputs[..., :1], Bernoulli())
    for given, truth, probs, flat in (
        (classes, y, classes.probs, y),
        (yes, several[:, 0], yes.probs, several[:, 0]),
        (labels, several, labels.probs.reshape(-1), several.reshape(-1)),
    ):
        found, wanted = plot.reliability(given, truth), plot.reliability(probs, flat)
        np.testing.assert_allclose(found.lines[-1].get_xydata(), wanted.lines[-1].get_xydata())
        wrong = (given.predict() != truth.view_as(given.predict())).double().reshape(90, -1).mean(1)
        found, wanted = plot.risk_coverage(given, truth), plot.risk_coverage(given.entropy(), wrong)
        np.testing.assert_allclose(found.lines[-1].get_xydata(), wanted.lines[-1].get_xydata())
        for draw in (plot.reliability, plot.risk_coverage):
            with pytest.raises(ArgumentError, match="`y`"):
                draw(given, truth[:5])
    with pytest.raises(ArgumentError):
        plot.risk_coverage(from_outputs(outputs, Normal(scale=1.0)), y)


def test_large_numbers_do_not_overlap() -> None:
    rng = torch.Generator().manual_seed(0)
    prices = 5e5 + 3e5 * torch.rand(1, 50, 1, generator=rng)
    drawn = [
        plot.predicted_observed(from_outputs(prices, Normal(scale=5e4)), prices[0]),
        plot.uncertainty_histogram({"rows": prices.reshape(-1) * 4}),
    ]
    for ax in drawn:
        ax.figure.canvas.draw()
        low, high = ax.get_xlim()
        shown = [text for text in ax.get_xticklabels() if low <= text.get_position()[0] <= high]
        assert 2 <= len(shown) <= 6
        assert all(text.get_text().endswith(("k", "M")) for text in shown)
        boxes = [text.get_window_extent() for text in shown]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
        assert ax.xaxis.get_offset_text().get_text() == ""
