"""Class probabilities for targets: annotators who disagree, smoothed labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError
from temperance.data import Data
from temperance.engine import Engine

VOTES = torch.tensor([[3, 1, 0], [0, 4, 0], [1, 1, 2], [2, 2, 0], [0, 1, 3], [4, 0, 0]])


def problem() -> tuple[tp.Target, Data, Data]:
    """Rows on which four annotators voted: shares with weight 4, and each vote as a row of its own."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(len(VOTES), 2, generator=rng, dtype=torch.float64)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    shares = Data(x, VOTES / 4, weights=torch.full((len(VOTES),), 4.0))
    which = VOTES.nonzero().repeat_interleave(VOTES[VOTES > 0], 0)
    return target, shares, Data(x[which[:, 0]], which[:, 1])


def test_shares_are_votes() -> None:
    target, shares, votes = problem()
    ours, theirs = target.prepare(shares), target.prepare(votes)
    engines = Engine(target, ours), Engine(target, theirs)
    theta = torch.stack([target.fresh_theta(k) for k in range(2)])
    torch.testing.assert_close(*(e.energy(theta, d) for e, d in zip(engines, (shares, votes), strict=True)))
    made = []
    for engine, data in zip(engines, (ours, theirs), strict=True):
        (batch,) = data.full_pass()
        one, stacked, exact = torch.zeros_like(theta[:1]), torch.zeros_like(theta), torch.zeros_like(theta)
        engine.gradients(theta[:1], batch, one)
        engine.gradients(theta, batch, stacked)
        made.append((one * len(data), stacked * len(data), engine.energies(theta, batch, exact), exact))
    for a, b in zip(*made, strict=True):
        torch.testing.assert_close(a, b)
    for curvature in (tp.Dense(), tp.KFAC(), tp.Diagonal(), tp.Lanczos(10)):
        found = [
            tp.fit(target, tp.Laplace(curvature=curvature, tune=None), d, progress=False).posterior
            for d in (shares, votes)
        ]
        torch.testing.assert_close(*(p.operator.dense() for p in found), rtol=1e-6, atol=1e-8)
        assert found[0].terms.log_likelihood == pytest.approx(found[1].terms.log_likelihood)


def test_certain_shares_are_labels() -> None:
    rng = torch.Generator().manual_seed(0)
    f = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (5,), generator=rng)
    soft = torch.nn.functional.one_hot(y, 3).double()
    law = tp.Categorical()
    torch.testing.assert_close(law.log_prob(f, soft, {}), law.log_prob(f, y, {}))
    torch.testing.assert_close(law.negative_log_likelihood(f[0], soft, {}), law.negative_log_likelihood(f[0], y, {}))
    torch.testing.assert_close(law.score(f[0], soft, {}), law.score(f[0], y, {}))


@pytest.mark.parametrize(
    "method", [tp.Ensemble(tp.MAP(lr=1e-2), 3), tp.Laplace(tp.MAP(lr=1e-2), tune=None)], ids=["draws", "linear"]
)
@pytest.mark.parametrize("by", [None, "probit"])
def test_scores_are_expectations_over_the_class(method: Any, by: str | None) -> None:
    target, shares, votes = problem()
    if by == "probit" and isinstance(method, tp.Ensemble):
        pytest.skip("of a linearised network")
    fitted = tp.fit(target, method, shares, steps=30, seed=0, progress=False)
    ours, theirs = fitted.evaluate(shares, by=by), fitted.evaluate(votes, by=by)  # four votes on each row
    assert list(ours) == ["log_loss", "accuracy", "brier", "ece"]
    for name in ours:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-9)
    probs = fitted.predict(shares.x, by=by).probs
    assert ours["log_loss"] == pytest.approx(tp.scores.log_loss(probs, VOTES / 4), rel=1e-5)


def test_what_needs_one_class_a_row_refuses_shares() -> None:
    target, shares, _ = problem()
    found = tp.fit(target, tp.MAP(), shares, steps=2, progress=False).predict(shares.x)
    with pytest.raises(ArgumentError, match="a class for each row here, not class probabilities"):
        tp.decide.conformal.Split().calibrate(found, shares.y)
    with pytest.raises(ArgumentError, match="a class for each row here"):
        tp.calibrate.Temperature().fit(found, shares.y)


def test_shares_are_checked_at_the_door() -> None:
    prepare = tp.Categorical().prepare
    assert prepare(torch.tensor([[0.25, 0.75]], dtype=torch.float16), 2).dtype == torch.float32
    for bad in ([[0.5, 0.6]], [[-0.1, 1.1]], [[0.5, float("nan")]]):
        with pytest.raises(DataError, match="summing to 1 in each row"):
            prepare(torch.tensor(bad), 2)
    with pytest.raises(DataError, match=r"rows of 3 class probabilities.*shape \(1, 2\)"):
        prepare(torch.tensor([[0.5, 0.5]]), 3)
