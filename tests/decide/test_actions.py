from __future__ import annotations

import math

import pytest
import torch

import temperance as tp
from temperance.core.encoding import decode, encode
from temperance.core.errors import ArgumentError
from temperance.decide.actions import (
    AbsoluteLoss,
    LinexLoss,
    PinballLoss,
    SquaredLoss,
    bayes_action,
    with_abstention,
)
from temperance.predict.affine import AffinePredictive

from .helpers import classes_from, random_logits, values_from


def test_classes_against_enumeration():
    pred = classes_from(random_logits(5, 40, 3, scale=4.0))
    cost = [[0.0, 4.0, 1.0], [1.0, 0.0, 7.0], [2.0, 2.0, 0.0], [1.0, 1.1, 1.2]]
    made = bayes_action(pred, cost)
    for row, p in enumerate(pred.probs.tolist()):
        expected = [sum(c * q for c, q in zip(line, p, strict=True)) for line in cost]
        assert int(made.action[row]) == min(range(4), key=expected.__getitem__)
        assert float(made.cost[row]) == pytest.approx(min(expected), rel=1e-6)
    assert len(made.action.unique()) > 2, made.action


def test_abstention_is_a_row_and_is_taken_where_the_error_costs_more():
    pred = classes_from(random_logits(5, 50, 2))
    made = bayes_action(pred, with_abstention([[0.0, 1.0], [1.0, 0.0]], 0.2))
    assert torch.equal(made.action == 2, 1 - pred.probs.max(1).values > 0.2)


def test_a_yes_no_label_has_two_classes():
    pred = classes_from(torch.tensor([[[2.0], [-1.0]]]), tp.Bernoulli())
    made = bayes_action(pred, [[0.0, 1.0], [1.0, 0.0]])
    assert made.action.tolist() == [1, 0]


@pytest.fixture(scope="module")
def mixture():
    rng = torch.Generator().manual_seed(1)
    return values_from(torch.randn(4, 6, 1, generator=rng, dtype=torch.float64), noise=0.3)


def dense_expectation(pred, loss, action: torch.Tensor) -> torch.Tensor:
    """E loss(action, y) by a fine sum over y."""
    y = torch.linspace(-8, 8, 20001, dtype=torch.float64)
    density = torch.stack([pred.log_prob(torch.full((len(pred), 1), float(v), dtype=torch.float64)) for v in y[::40]])
    coarse = y[::40]
    return (density.exp() * loss(action.T, coarse.unsqueeze(1))).sum(0) * float(coarse[1] - coarse[0])


@pytest.mark.parametrize(
    ("loss", "best"),
    [
        (SquaredLoss(), lambda p: p.mean()),
        (AbsoluteLoss(), lambda p: p.quantile(0.5)),
        (PinballLoss(0.9), lambda p: p.quantile(0.9)),
        (LinexLoss(1.5), None),
        (LinexLoss(-0.7), None),
    ],
)
def test_real_losses_are_minimal_and_cost_what_they_say(mixture, loss, best):
    made = bayes_action(mixture, loss, samples=4000)
    if best is not None:
        assert torch.equal(made.action, best(mixture))
    at = dense_expectation(mixture, loss, made.action)
    for shift in (-0.05, 0.05):
        assert (dense_expectation(mixture, loss, made.action + shift) > at).all()
    draws = loss(made.action, mixture.sample(4000))
    error = 5 * draws.std(0).squeeze(1) / math.sqrt(4000)
    assert ((made.cost.squeeze(1) - at).abs() < error).all()


def test_linex_of_one_gaussian_is_closed():
    pred = values_from(torch.tensor([[[1.0], [2.0]]]), noise=0.5)
    made = bayes_action(pred, LinexLoss(2.0))
    assert torch.allclose(made.action.squeeze(1), torch.tensor([1.0, 2.0]).double() - 2.0 * 0.25 / 2)


def test_a_function_is_minimised_by_search(mixture):
    made = bayes_action(mixture, lambda a, y: (a - y).abs(), samples=4000)
    at = dense_expectation(mixture, AbsoluteLoss(), made.action)
    least = dense_expectation(mixture, AbsoluteLoss(), mixture.quantile(0.5))
    assert (at <= least + 5 * mixture.std().squeeze(1) / math.sqrt(4000)).all()
    assert (at >= least - 1e-6).all()
    among = bayes_action(mixture, lambda a, y: (a - y).square(), candidates=[-1.0, 0.0, 1.0])
    wanted = (mixture.sample(2000).mean(0) - torch.tensor([-1.0, 0.0, 1.0])).abs().argmin(1)
    assert torch.equal(among.action.squeeze(1), torch.tensor([-1.0, 0.0, 1.0]).double()[wanted])


def test_other_units_move_the_action_with_them(mixture):
    other = AffinePredictive(mixture, 10.0, 2.0)
    for loss in (SquaredLoss(), PinballLoss(0.3)):
        assert torch.allclose(bayes_action(other, loss).action, 10 + 2 * bayes_action(mixture, loss).action)
    scaled = bayes_action(other, LinexLoss(0.5), samples=50_000).action
    assert torch.allclose(scaled, 10 + 2 * bayes_action(mixture, LinexLoss(1.0)).action, atol=0.05)


def test_losses_are_values():
    assert decode(encode(PinballLoss(0.3), {}), {}) == PinballLoss(0.3)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ([[0.0, 1.0]], "3 classes"),
        ([0.0, 1.0], "matrix"),
        ([[float("nan")] * 3], "finite"),
        ("cheap", "matrix"),
        (SquaredLoss(), "function"),
    ],
)
def test_bad_costs(cost, message):
    with pytest.raises(ArgumentError, match=message):
        bayes_action(classes_from(random_logits(2, 3, 3)), cost)


def test_bad_losses(mixture):
    with pytest.raises(ArgumentError, match="`cost`"):
        bayes_action(mixture, [[0.0, 1.0]])
    with pytest.raises(ArgumentError, match="elementwise"):
        bayes_action(mixture, lambda a, y: torch.tensor(0.0))
    with pytest.raises(ArgumentError, match="`level`"):
        PinballLoss(1.0)
    with pytest.raises(ArgumentError, match="`shape`"):
        LinexLoss(0.0)
    with pytest.raises(ArgumentError, match="infinite"):
        bayes_action(classes_from(torch.zeros(2, 3, 1), tp.StudentT(scale=1.0)), LinexLoss())
    with pytest.raises(ArgumentError, match="`predictive`"):
        bayes_action(torch.zeros(3), SquaredLoss())
    with pytest.raises(ArgumentError, match="labels"):
        bayes_action(classes_from(torch.zeros(2, 3, 2), tp.Bernoulli()), [[0.0, 1.0]])
