"""Likelihoods beyond the usual ones under methods of every family, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.outcomes import Categories

ROWS = 30
X = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))


def classes(rng: torch.Generator) -> Tensor:
    return torch.randint(3, (ROWS,), generator=rng)


def reals(rng: torch.Generator) -> Tensor:
    return X[:, :1] + torch.randn(ROWS, 1, generator=rng)


def counts(rng: torch.Generator) -> Tensor:
    return torch.poisson((1 + X[:, :1]).exp(), generator=rng) * (torch.rand(ROWS, 1, generator=rng) > 0.3)


CASES: dict[str, tuple[tp.Likelihood, int, Callable[[torch.Generator], Tensor]]] = {
    "curated": (tp.CuratedLabels(3), 3, classes),
    "curated, with undecided rows": (tp.CuratedLabels(2, undecided=True), 2, classes),  # 2 is undecided
    "noisy labels": (tp.NoisyLabels(0.1), 3, classes),
    "noisy labels, rate learned": (tp.NoisyLabels(), 3, classes),
    "noisy Dirichlet": (tp.NoisyDirichlet(0.05), 3, classes),
    "negative binomial": (tp.NegativeBinomial(0.5), 1, counts),
    "negative binomial, dispersion learned": (tp.NegativeBinomial(), 1, counts),
    "zero-inflated": (tp.ZeroInflated(tp.Poisson()), 2, counts),
    "zero-inflated, dispersion learned": (tp.ZeroInflated(tp.NegativeBinomial()), 2, counts),
    "contaminated": (tp.ContaminatedNormal(scale=0.5), 1, reals),
    "contaminated, scale learned": (tp.ContaminatedNormal(0.1, 5.0), 1, reals),
}
METHODS = {
    "MAP": tp.MAP(lr=0.01),
    "SGHMC": tp.Collect(tp.SGHMC(lr=0.002), burn=0.3, every=1),
    "HMC": tp.Collect(tp.HMC(step_size=0.03, length=4), burn=0.3, every=1),
    "Variational": tp.Variational(lr=0.01),
    "Laplace, KFAC": tp.Laplace(tp.MAP(lr=0.01), curvature=tp.KFAC()),
    "Laplace, KFAC by Monte Carlo": tp.Laplace(tp.MAP(lr=0.01), curvature=tp.KFAC(kind="monte-carlo", samples=2)),
    "an ensemble": tp.Ensemble(tp.MAP(lr=0.01), 3),
}


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return tp.nn.MLP(2, [6], outputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_fitted_predicted_scored_saved(name: str, method: str, tmp_path: Path) -> None:
    likelihood, outputs, targets = CASES[name]
    y = targets(torch.Generator().manual_seed(1))
    target = tp.Target(network(outputs), likelihood, tp.GaussianPrior(1.0))
    fitted = tp.fit(target, METHODS[method], (X, y), steps=30, batch_size=10, seed=2, progress=False)
    pred = fitted.predict(X)
    _holds_together(pred)
    known = y.clamp(max=outputs - 1) if isinstance(pred.outcome, Categories) else y  # no undecided rows
    scores = fitted.evaluate((X, known))
    assert all(torch.isfinite(torch.tensor(value)) for value in scores.values()), scores
    fitted.save(tmp_path / "run")
    loaded = tp.load(tmp_path / "run", network(outputs))
    assert loaded.target.likelihood == likelihood
    assert torch.equal(loaded.predict(X).mean(), pred.mean())
    assert loaded.evaluate((X, known)) == scores


def _holds_together(pred: Any) -> None:
    """The splits that hold for every likelihood, and numbers that are numbers."""
    torch.testing.assert_close(pred.entropy(), pred.aleatoric() + pred.mutual_information(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pred.variance(), pred.aleatoric_variance() + pred.epistemic_variance())
    assert float(pred.mutual_information().min()) > -1e-4
    draws = pred.sample(2000).double()
    if isinstance(pred.outcome, Categories):
        torch.testing.assert_close(pred.probs.sum(-1), torch.ones(ROWS), rtol=1e-5, atol=0)
        share = torch.stack([draws.eq(k).double().mean(0) for k in range(pred.probs.shape[1])], -1)
        torch.testing.assert_close(share, pred.probs.double(), rtol=0, atol=0.08)
        return
    low, high = pred.interval(0.9)
    assert bool((pred.cdf(high) >= 0.95 - 1e-4).all())
    inside = ((draws >= low.double()) & (draws <= high.double())).double().mean()
    assert float(inside) > 0.88
    torch.testing.assert_close((draws <= high.double()).double().mean(0), pred.cdf(high).double(), rtol=0, atol=0.05)
