"""Plots of a sampler's chains."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.posteriors import Draws, Point
from temperance.run.fitted import Fitted
from temperance.show import plot
from temperance.show.plot.chains import measured_temperatures, predicted_series


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def run() -> Fitted:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=rng)
    y = (x.sum(1) > 0).long()
    target = tp.Target(tp.nn.MLP(2, [4], 2), tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.05), burn=0.2, every=4, read_every=4), 2)
    return tp.fit(target, method, (x, y), steps=200, batch_size=30, progress=False)


def test_temperatures_of_each_tensor_and_the_whole(run: Fitted) -> None:
    ax = plot.temperatures(run)
    found = measured_temperatures(run)
    assert [part.what for part in found] == ["kinetic", "configurational"]
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == [*(entry.name for entry in run.target.layout.entries), "whole network"]
    drawn = [container.lines[0] for container in ax.containers if hasattr(container, "has_xerr")]
    for line, part in zip(drawn, found, strict=True):
        np.testing.assert_allclose(np.asarray(line.get_xdata())[:-1], part.mean, rtol=1e-6)
        assert np.asarray(line.get_xdata())[-1] == pytest.approx(part.network_mean)
    assert ax.get_title()


def test_traces_are_what_each_draw_predicts(run: Fitted) -> None:
    x = torch.tensor([[2.0, 2.0], [-2.0, -2.0]])
    ax = plot.traces(run, x, rows=2)
    chain = run.posterior.components[1]  # type: ignore[attr-defined]
    alone = torch.stack([Fitted(run.target, Draws(t[None]), run.info).predict(x).probs for t in chain.theta])
    best = run.predict(x).probs.argmax(-1)
    expected = alone[:, torch.arange(2), best].double().numpy()
    found = predicted_series(run.target, run.posterior.components, x, 2)  # type: ignore[attr-defined]
    np.testing.assert_allclose(found[1], expected, atol=1e-5)
    assert len(ax.lines) == 2 * 2 * 2  # draws and running means, of two rows in two chains
    np.testing.assert_allclose(ax.lines[4].get_ydata(), expected[:, 0], atol=1e-5)
    assert np.asarray(ax.lines[5].get_ydata())[-1] == pytest.approx(expected[:, 0].mean(), abs=1e-5)


def test_traces_use_the_training_data_unless_told(run: Fitted) -> None:
    assert run.data is not None
    assert len(plot.traces(run).lines) == 2 * 3 * 2
    with pytest.raises(ArgumentError, match="`x`"):
        plot.traces(Fitted(run.target, run.posterior, run.info))


def test_losses_and_energies_along_chains(run: Fitted) -> None:
    ax = plot.traces(run, what="energy")
    trace = run.posterior.components[0].trace  # type: ignore[attr-defined]
    np.testing.assert_allclose(ax.lines[0].get_xydata(), np.c_[trace.step, trace.loss], rtol=1e-5)
    method = tp.Collect(tp.HMC(step_size=0.1, length=3), every=1)
    exact = tp.fit(run.target, method, run.data, steps=20, progress=False)
    ax = plot.traces(exact, what="energy")
    assert "energy" in ax.get_ylabel()
    assert len(ax.lines[0].get_xdata()) > 5


def test_what_has_no_chains_is_refused(run: Fitted) -> None:
    point = Fitted(run.target, Point(torch.zeros(run.target.layout.size)), run.info)
    for draw in (plot.temperatures, plot.traces):
        with pytest.raises(ArgumentError, match="draws"):
            draw(point)
    bare = Fitted(run.target, Draws(torch.zeros(3, run.target.layout.size)), run.info)
    with pytest.raises(ArgumentError, match="trace"):
        plot.temperatures(bare)
    with pytest.raises(ArgumentError, match="trace"):
        plot.traces(bare, what="energy")
    with pytest.raises(ArgumentError, match="`what`"):
        plot.traces(run, what="weights")
