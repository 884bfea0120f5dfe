from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.judge import diagnose
from temperance.posteriors import Draws, Mixture, Trace
from temperance.testing import critical_value

from .simulate import quadratic, symplectic_euler

# Protocol A.5: the 99 % interval at T = 1.
INTERVALS = {
    1: (0.000039, 7.879),
    10: (0.2156, 2.5188),
    64: (0.6033, 1.5137),
    100: (0.67328, 1.40170),
    1000: (0.88856, 1.11895),
    270_000: (0.99300, 1.00702),
}

# Protocol A.2: ℓ, β, T with n = k = 1, then the stationary Var θ and Var m of symplectic Euler.
TABLE = [
    (0.05, 0.8, 1.0, 1.01408451, 1.12676056),
    (0.1, 0.98, 1.0, 1.02590674, 1.03626943),
    (0.01, 0.9, 1.0, 1.00263852, 1.05540897),
    (0.25, 0.5, 0.5, 0.54545455, 0.72727273),
]


def two_tensors(first: int = 120, second: int = 80) -> tp.Target:
    network = nn.Sequential(nn.Linear(first, 1, bias=False), nn.Linear(1, second, bias=False))
    return tp.Target(network, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))


def synthetic(kinetic: torch.Tensor, temperature: float = 1.0, bias: float = 1.0, **changes) -> Trace:
    count = len(kinetic)
    trace = Trace(
        step=torch.arange(count),
        pace=torch.ones(count),
        temperature=torch.full((count,), temperature),
        kinetic_bias=torch.full((count,), bias),
        kinetic=kinetic,
        configurational=kinetic.clone(),
        loss=torch.zeros(count),
        draw_step=torch.arange(count),
    )
    return replace(trace, **changes)


@pytest.mark.parametrize("size", INTERVALS)
def test_intervals_are_those_of_the_protocol(size):
    low, high = INTERVALS[size]
    found = diagnose.kinetic_interval(size)
    assert found == (pytest.approx(low, rel=1e-2 if size == 1 else 2e-4), pytest.approx(high, rel=2e-4))
    assert diagnose.kinetic_interval(size, 0.5) == (pytest.approx(found[0] / 2), pytest.approx(found[1] / 2))


@pytest.mark.parametrize(("lr", "momentum", "temperature", "var_theta", "var_m"), TABLE)
def test_symplectic_euler_has_the_temperatures_of_the_closed_form(lr, momentum, temperature, var_theta, var_m):
    target = two_tensors()
    start = torch.randn(4, 200, dtype=torch.float64) * var_theta**0.5
    gradient = quadratic(torch.ones(200), torch.zeros(200))
    run = symplectic_euler(
        target, gradient, start, 1, lr=lr, momentum=momentum, temperature=temperature, steps=4000, every=20
    )
    kinetic = diagnose.kinetic(run, target=target, after=500)
    place = diagnose.configurational(run, target=target, after=500)
    assert kinetic.network_error < 0.01
    limit = critical_value(6, 1e-4)
    for found, truth in ((kinetic, var_m / temperature), (place, var_theta / temperature)):
        assert abs(found.network_mean - truth) < limit * found.network_error
        assert ((found.mean - truth).abs() < limit * found.error).all()
    corrected = diagnose.kinetic(run, target=target, after=500, corrected=True)
    assert corrected.network_mean == pytest.approx(kinetic.network_mean * (1 + momentum) / 2)


def test_the_correction_leaves_one_for_a_small_step_and_without_it_the_check_would_fail():
    target = two_tensors(1000, 1000)
    start = torch.randn(4, 2000)
    run = symplectic_euler(
        target, quadratic(torch.ones(2000), torch.zeros(2000)), start, 1, lr=1e-3, momentum=0.8, steps=1500, every=15
    )
    raw, corrected = (diagnose.kinetic(run, target=target, after=200, corrected=c) for c in (False, True))
    assert abs(corrected.network_mean - 1) < 4 * corrected.network_error < 0.02
    assert raw.network_mean == pytest.approx(2 / 1.8, abs=0.02)
    assert corrected.inside_share > 0.97  # 0.99 in truth, over 700 readings
    assert raw.inside_share < 0.8


def test_standard_errors_are_those_of_repeated_runs():
    """Of correlated readings: errors that took them for independent would be three times too small."""
    target, rng = two_tensors(1, 1), np.random.default_rng(0)
    deviations = []
    for _ in range(60):
        x = np.empty((800, 2))
        x[0] = rng.normal(size=2)
        for t in range(1, 800):
            x[t] = 0.8 * x[t - 1] + 0.6 * rng.normal(size=2)
        found = diagnose.kinetic(synthetic(torch.from_numpy(x) + 1), target=target)
        deviations += ((found.mean - 1) / found.error).tolist()
    assert 0.75 < np.std(deviations) < 1.35


def test_shares_inside_the_interval():
    target, rng = two_tensors(), torch.Generator().manual_seed(0)
    momenta = torch.randn(2000, 200, generator=rng)

    def readings(factor: float) -> Trace:
        parts = momenta.square().split([120, 80], 1)
        return synthetic(factor * torch.stack([p.mean(1) for p in parts], 1))

    right = diagnose.kinetic(readings(1.0), target=target)
    assert right.inside_share == pytest.approx(0.99, abs=4 * (0.99 * 0.01 / 4000) ** 0.5)
    hot = diagnose.kinetic(readings(1.3), target=target)
    assert hot.inside_share < 0.8
    assert hot.inside is not None
    assert hot.inside[0] < hot.inside[1]  # the larger tensor has the narrower interval
    wide = diagnose.kinetic(readings(1.3), target=target, level=0.9999)
    assert wide.inside_share > hot.inside_share + 0.1


def test_readings_are_relative_to_the_temperature_in_force_and_those_at_zero_are_left_out():
    target = two_tensors()
    ramp = torch.tensor([0.0, 0.0, 0.25, 0.5, 1.0, 1.0])
    trace = synthetic(2 * ramp.unsqueeze(1).expand(6, 2), temperature=1.0, bias=2.0)
    trace = replace(trace, temperature=ramp)
    found = diagnose.kinetic(trace, target=target)
    assert torch.equal(found.readings, torch.full((1, 4, 2), 2.0, dtype=torch.float64))
    assert found.step.tolist() == [2, 3, 4, 5]
    assert diagnose.kinetic(trace, target=target, corrected=True).network_mean == 1
    assert diagnose.kinetic(trace, target=target, after=4).step.tolist() == [4, 5]
    paced = replace(trace, pace=torch.tensor([1.0, 1, 1, 0.6, 0.3, 0.1]))
    assert diagnose.configurational(paced, target=target, max_pace=0.5).step.tolist() == [4, 5]


def test_the_whole_counts_tensors_by_size_and_chains_are_kept_apart():
    target = two_tensors(120, 80)
    kinetic = torch.tensor([[1.0, 2.0]]).expand(10, 2)
    run = Mixture(tuple(Draws(torch.zeros(1, 200), trace=synthetic(k * kinetic)) for k in (1, 3)))
    found = diagnose.kinetic(run, target=target)
    assert found.network[:, 0].tolist() == pytest.approx([1.4, 4.2])
    assert found.mean.tolist() == [2.0, 4.0]
    assert found.worst == "1.weight"
    text = str(found)
    assert "2 chains × 10 readings" in text
    assert "whole network" in text


def test_errors_name_what_is_missing():
    target = two_tensors()
    kinetic = torch.ones(10, 2)
    with pytest.raises(ArgumentError, match="`target` must be given with a Trace"):
        diagnose.kinetic(synthetic(kinetic))
    with pytest.raises(ArgumentError, match="sampler with momenta"):
        diagnose.kinetic(synthetic(kinetic * torch.nan), target=target)
    with pytest.raises(ArgumentError, match="with a trace"):
        diagnose.kinetic(Draws(torch.zeros(3, 200)), target=target)
    with pytest.raises(ArgumentError, match="`after` 10 must leave readings"):
        diagnose.kinetic(synthetic(kinetic), target=target, after=10)
    with pytest.raises(ArgumentError, match="2 tensors; got 1"):
        diagnose.configurational(synthetic(kinetic[:, :1]), target=target)
    with pytest.raises(ArgumentError, match=r"`level` must lie strictly between 0 and 1; got 1\.0"):
        diagnose.kinetic_interval(3, level=1.0)
    with pytest.raises(ArgumentError, match=r"`run` must hold draws of a sampler.*got Point"):
        diagnose.kinetic(Mixture((tp.posteriors.Point(torch.zeros(200)),)), target=target)
