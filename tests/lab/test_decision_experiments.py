"""The experiments on strangers, shift and deferral: what they are built on, and how they judge."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.lab import Cell, Cells
from temperance.lab.experiment import Finished
from temperance.lab.experiments import deferral, ood, shift
from temperance.lab.image_methods import (
    METHODS,
    POINTS,
    SCALED,
    SMALL,
    ImageSettings,
    against,
    ask,
    load_parts,
    mean_of,
    train,
)
from temperance.predict.calibrated import from_outputs

SETTINGS = ImageSettings(**SMALL)


@pytest.fixture(scope="module")
def parts():
    return load_parts(SETTINGS, 0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_and_the_points_have_no_mutual_information(name, parts):
    predictive = ask(SETTINGS, train(SETTINGS, name, parts, 0), parts.test.x)
    assert tp.scores.accuracy(predictive.probs, parts.test.y) > 0.6
    information = predictive.mutual_information()
    if name in POINTS:
        assert float(information.abs().max()) < 1e-5
    else:
        assert float(information.mean()) > 1e-3


def test_scaled_map_is_map_with_another_temperature(parts):
    plain, scaled = (train(SETTINGS, name, parts, 0).predict(parts.held_out.x) for name in POINTS)
    assert torch.equal(plain.predict(), scaled.predict())
    assert scaled.log_prob(parts.held_out.y).mean() > plain.log_prob(parts.held_out.y).mean()


def test_held_out_rows_are_not_trained_on(parts):
    rows = {tuple(x.flatten().tolist()) for x in parts.train.x}
    assert len(parts.held_out) == SETTINGS.held_out
    assert sum(tuple(x.flatten().tolist()) in rows for x in parts.held_out.x) == 0
    other = load_parts(SETTINGS, 1)
    assert torch.equal(other.test.x, parts.test.x)
    assert not torch.equal(other.train.x, parts.train.x)


def test_a_method_that_does_not_exist(parts):
    with pytest.raises(ArgumentError, match="`methods` must be among"):
        train(SETTINGS, "magic", parts, 0)


# ---------------------------------------------------------------------- comparisons


def finished(method, seed, **values):
    return Finished(Cell.of(method=method, seed=seed), values, 0.0)


def test_differences_are_paired_and_can_be_of_differences():
    done = Cells(
        [finished("MAP", s, clean=1.0 * s, worst=3.0 * s) for s in range(3)]
        + [finished("Ensemble", s, clean=1.0 * s - 0.1, worst=3.0 * s - 0.5) for s in range(3)]
    )
    assert against(done, "worst", ["Ensemble"])["Ensemble"].mean == pytest.approx(-0.5)
    further = against(done, ["worst"], ["Ensemble"], minus=["clean"])["Ensemble"]
    assert (further.mean, further.error) == pytest.approx((-0.4, 0.0))
    assert mean_of(done, ["clean", "worst"], "MAP") == {0: 0.0, 1: 2.0, 2: 4.0}


def test_a_seed_that_lacks_an_entry_is_left_out():
    done = Cells([finished("MAP", 0, a=1.0, b=3.0), finished("MAP", 1, a=1.0)])
    assert mean_of(done, ["a", "b"], "MAP") == {0: 2.0}
    assert mean_of(done, ["a"], "SWAG") == {}


# ---------------------------------------------------------------------- strangers and shift


def test_strangers_made_of_the_test_images(parts):
    settings = ood.PRESETS["quick"].settings
    x = parts.test.x
    assert torch.allclose(ood.strangers(settings, "negative", parts.test), 1 - x)
    shuffled = ood.strangers(settings, "shuffled", parts.test)
    assert not torch.equal(shuffled, x)
    assert torch.equal(shuffled.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


def test_a_histogram_of_entropies_is_of_shares():
    shares = ood.histogram(torch.tensor([0.0, 0.1, math.log(10), math.log(10)]), 10)
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    assert shares[-1] == pytest.approx(0.5)


def test_turning_is_exact_at_right_angles_and_undone_by_its_inverse():
    x = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    for angle, times in ((90, 1), (180, 2), (-90, 3)):
        assert torch.allclose(shift.turned(x, angle, (1, 9, 9)), torch.rot90(x, times, (2, 3)), atol=1e-4)
    flat = x.flatten(1)
    assert shift.turned(flat, 30, (1, 9, 9)).shape == flat.shape
    inside = torch.zeros(1, 1, 21, 21)
    inside[..., 8:13, 7:12] = 1.0
    back = shift.turned(shift.turned(inside, 40, (1, 21, 21)), -40, (1, 21, 21))
    assert float((back - inside)[..., 9:12, 8:11].abs().max()) < 0.15


# ---------------------------------------------------------------------- deferral


def calibrated_forecasts(rows, seed):
    """Ten classes, and labels drawn from the forecast itself: an honest forecaster."""
    rng = torch.Generator().manual_seed(seed)
    logits = 8.0 * torch.randn(rows, 10, generator=rng, dtype=torch.float64)
    probs = logits.softmax(-1)
    return probs, torch.multinomial(probs, 1, generator=rng).squeeze(1)


def test_promises_are_kept_by_an_honest_forecaster_and_broken_by_labels_that_lie():
    settings = dataclasses.replace(deferral.PRESETS["quick"].settings, risk=0.1, calibration=600, splits=60)
    probs, y = calibrated_forecasts(4000, 0)
    rolled = probs.roll(1, 0)  # as sure as before, of another row's classes
    found = deferral.promises(settings, {"clean": probs, "rolled": rolled}, y, 0)
    assert found["answered clean"] > 0.2
    assert found["broken clean"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / settings.splits)
    assert 0.0 < found["met clean"] < 0.1
    assert found["broken rolled"] == 1.0
    assert found["met rolled"] == pytest.approx(0.9, abs=0.05)


def test_the_expected_cost_of_an_honest_forecaster_is_what_is_paid():
    settings = deferral.PRESETS["quick"].settings
    probs, y = calibrated_forecasts(20000, 1)
    found = deferral.costs(settings, from_outputs(probs.log(), tp.Categorical()), y)
    for price in settings.prices:
        paid, expected = found[f"paid-{price:g}"], found[f"expected-{price:g}"]
        assert paid == pytest.approx(expected, abs=4 * math.sqrt(paid / 20000))  # a cost in [0, 1]: variance ≤ mean
        assert expected <= price + 1e-6
    asked = [found[f"asked-{price:g}"] for price in settings.prices]
    assert asked == sorted(asked, reverse=True)


def test_selective_risk_ends_at_the_error_rate():
    probs, y = calibrated_forecasts(500, 2)
    found = deferral.selective(deferral.given(probs), y)
    assert found["risk"][-1] == pytest.approx(1 - tp.scores.accuracy(probs, y), abs=1e-4)
    assert found["coverage"][-1] == 1.0
    assert 0.0 <= found["excess"] <= found["aurc"]


def test_scaled_map_stands_among_the_points():
    assert SCALED in POINTS
    assert set(SETTINGS.marginal).isdisjoint(POINTS)
