"""What ``function-prior`` is built on, and its quick preset."""

from __future__ import annotations

import json
import math

import pytest
import torch
from rich.console import Console
from torch import nn

from temperance.lab import run_experiment
from temperance.lab.experiments import find_experiment, function_prior
from temperance.lab.experiments.function_prior import HE, correlation, draw_logits, make, pick, separation, shifted


def test_a_shift_moves_and_fills_with_the_background():
    image = torch.arange(1.0, 10.0).view(1, 1, 3, 3)
    assert shifted(image, 1, 0).squeeze().tolist() == [[1, 1, 1], [1, 2, 3], [4, 5, 6]]
    assert shifted(image, 0, -1).squeeze().tolist() == [[2, 3, 1], [5, 6, 1], [8, 9, 1]]
    assert shifted(image, -2, 1).squeeze().tolist() == [[1, 7, 8], [1, 1, 1], [1, 1, 1]]
    assert shifted(image, 0, 0).equal(image)


def test_separation_counts_pairs():
    labels = torch.tensor([0, 0, 1, 1])
    rho = torch.eye(4, dtype=torch.float64)
    for (i, j), value in {(0, 1): 0.9, (2, 3): 0.3, (0, 2): 0.1, (0, 3): 0.2, (1, 2): 0.4, (1, 3): 0.5}.items():
        rho[i, j] = rho[j, i] = value
    found = separation(rho, labels)
    assert found["same"] == pytest.approx(0.6)
    assert found["different"] == pytest.approx(0.3)
    assert found["auc"] == pytest.approx((4 + 2) / 8)


def test_correlations_of_a_linear_network_are_those_of_its_inputs():
    """Without hidden layers E Σ f(x) f(x′) = C (α² x·x′ / d + (bias α)²): the correlation is known. An average of
    draws × classes independent products has a standard error of at most √(2 / (draws · classes))."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    logits = draw_logits(nn.Linear(5, 4), 1.5, 0.3, 1000, 1, x)
    kernel = x.double() @ x.double().T / 5 + 0.09
    exact = kernel / kernel.diagonal().sqrt().outer(kernel.diagonal().sqrt())
    assert float((correlation(logits, logits) - exact).abs().max()) < 5 * math.sqrt(2 / 4000)


def test_one_relu_layer_follows_the_arc_cosine_kernel():
    """E relu(u) relu(v) = (sin θ + (π − θ) cos θ) √(uu vv) / 2π for Gaussian u, v at an angle θ (Cho & Saul 2009)."""
    x = torch.nn.functional.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)))
    network = nn.Sequential(nn.Linear(3, 100), nn.ReLU(), nn.Linear(100, 10))
    logits = draw_logits(network, HE, 1e-6, 1000, 2, x)
    angle = torch.arccos((x.double() @ x.double().T).clamp(-1, 1))
    exact = (angle.sin() + (math.pi - angle) * angle.cos()) / math.pi
    assert float((correlation(logits, logits) - exact).abs().max()) < 5 * math.sqrt(2 / 10000)


def test_pooled_network_does_not_see_a_move_of_a_whole_cell():
    """Two poolings halve the image twice: a shift by four pixels inside a wide margin moves the features by one, which
    the mean over the image forgets."""
    settings = function_prior.PRESETS["quick"].settings
    image = torch.zeros(1, 1, 32, 32)
    image[..., 12:16, 12:16] = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    both = torch.cat([image, shifted(image, 4, 0)])
    for name, invariant in (("pooled", True), ("cnn", False), ("mlp", False)):
        logits = draw_logits(make(settings, name, (1, 32, 32), 3), HE, 0.3, 20, 0, both)
        assert bool(torch.allclose(logits[:, 0], logits[:, 1], atol=1e-4)) is invariant


def test_images_are_sorted_by_class_and_change_with_the_seed():
    settings = function_prior.PRESETS["quick"].settings
    x, labels = pick(settings, 0)
    assert labels.tolist() == sorted(list(range(10)) * settings.per_class)
    assert x.shape == (10 * settings.per_class, 1, 8, 8)
    assert pick(settings, 0)[0].equal(x)
    assert not pick(settings, 1)[0].equal(x)


def test_quick(tmp_path):
    experiment = find_experiment("function-prior")
    outcome = run_experiment(experiment, "quick", tmp_path, workers=1, console=Console(quiet=True))
    assert outcome.ok, [f.error for f in outcome.failed]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["problems"] == []
    assert set(results["figures"]) == {"correlations.png", "moves.png", "scale.png", "lines.png"}
    assert all("–" not in claim["measured"] for claim in results["claims"])
    verdicts = {claim["text"]: claim["holds"] for claim in results["claims"]}
    assert verdicts["CNN: logits of images of one class are more correlated than those of two"] is True
    assert verdicts["A CNN's prior functions are more invariant to a shift of 1 than an MLP's"] is True
    assert verdicts["A draw is sure of nothing at small α and of itself at large α"] is True
