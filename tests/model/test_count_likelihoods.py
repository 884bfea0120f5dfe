"""Counts that vary more than a Poisson law lets them, and counts with zeros of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NetworkError, TemperanceWarning
from temperance.model.likelihoods import CountLikelihood
from temperance.model.likelihoods.counts import places
from temperance.predict import from_outputs
from tests.small import members

A = 0.7
LOG_A = {"likelihood.log_dispersion": torch.tensor([math.log(A)], dtype=torch.float64)}
F64 = torch.tensor([[0.2], [-1.5], [3.0], [1.1]], dtype=torch.float64)
Y64 = torch.tensor([[0.0], [1.0], [40.0], [3.0]], dtype=torch.float64)
G64 = torch.tensor([[-0.5], [1.0], [0.3], [-2.0]], dtype=torch.float64)
K = np.arange(6000)


def scipy_law(mean: float, dispersion: float):
    """scipy's, by the number of successes r and their probability r / (r + μ)."""
    r = 1 / dispersion
    return scipy.stats.nbinom(r, r / (r + mean))


def masses(law: CountLikelihood, outputs: Tensor, learned=None) -> Tensor:
    """P(k) of one row with one count, k = 0, …, 5999, by scipy alone."""
    f = float(outputs[0])
    each = law.each if isinstance(law, tp.ZeroInflated) else law
    dispersion = getattr(each, "dispersion", None) or A
    rate = math.exp(f)
    p = scipy.stats.poisson.pmf(K, rate) if isinstance(each, tp.Poisson) else scipy_law(rate, dispersion).pmf(K)
    if isinstance(law, tp.ZeroInflated):
        share = 1 / (1 + math.exp(-float(outputs[1])))
        p = (1 - share) * p + share * (K == 0)
    return torch.as_tensor(p)


LAWS = [
    tp.NegativeBinomial(0.5),
    tp.NegativeBinomial(),
    tp.ZeroInflated(tp.Poisson()),
    tp.ZeroInflated(tp.NegativeBinomial(0.5)),
    tp.ZeroInflated(tp.NegativeBinomial()),
]
laws = pytest.mark.parametrize("law", LAWS, ids=repr)


def outputs_of(law: CountLikelihood) -> Tensor:
    return torch.cat([F64, G64], -1) if isinstance(law, tp.ZeroInflated) else F64


@laws
def test_every_number_against_scipy(law: CountLikelihood) -> None:
    """Mass, distribution function, mean, variance, entropy, exponential moment: sums of scipy's masses."""
    learned = LOG_A if law.learned_parameters() else {}
    outputs = outputs_of(law)
    ks = torch.as_tensor(K, dtype=torch.float64)
    for row, y in zip(outputs, Y64, strict=True):
        p, one = masses(law, row), row.unsqueeze(0)
        assert float(p.sum()) == pytest.approx(1, abs=1e-10)
        assert float(law.log_prob(one, y.view(1, 1), learned)) == pytest.approx(float(p[int(y)].log()), rel=1e-9)
        assert float(law.cdf(one, y.view(1, 1) + 0.5, learned)) == pytest.approx(float(p[: int(y) + 1].sum()), rel=1e-9)
        assert float(law.cdf(one, torch.full((1, 1), -0.5).double(), learned)) == 0.0
        mean = float((p * ks).sum())
        assert float(law.mean(one, learned)) == pytest.approx(mean, rel=1e-7)
        assert float(law.variance(one, learned)) == pytest.approx(float((p * (ks - mean) ** 2).sum()), rel=1e-6)
        assert float(law.entropy(one, learned)) == pytest.approx(-float(torch.special.xlogy(p, p).sum()), rel=1e-7)
        assert float(p[int(law.reach(one, learned)) + 1 :].sum()) < 1e-12
        moment = law.log_exponential_moment(one, learned, -0.3)
        assert (moment is None) != law.exponential_moments()
        if moment is not None:
            assert float(moment) == pytest.approx(float((p * torch.exp(-0.3 * ks)).sum().log()), rel=1e-9)


@laws
def test_derivatives_are_those_of_autograd(law: CountLikelihood) -> None:
    """Slope and Hessian at counts small and large, and the information in what is learned, from its definition."""
    learned = {name: value.clone().requires_grad_() for name, value in LOG_A.items() if law.learned_parameters()}
    outputs = outputs_of(law)
    for y in (Y64, torch.zeros_like(Y64), torch.full_like(Y64, 7.0)):
        leaf = outputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(law.log_prob(leaf, y, learned).sum(), leaf)
        torch.testing.assert_close(law.score(outputs, y, learned).detach(), slope)
        for row in range(len(y)):
            found = torch.autograd.functional.hessian(
                lambda f, at=row, y=y: -law.log_prob(f[None], y[at : at + 1], learned)[0], outputs[row]
            )
            claimed = law.hessian(outputs[row : row + 1], y[row : row + 1], learned)[0].detach()
            torch.testing.assert_close(claimed, found, rtol=1e-8, atol=1e-9)
    for row in range(len(outputs)):
        expected = torch.zeros(outputs.shape[1], outputs.shape[1], dtype=torch.float64)
        information = torch.zeros((), dtype=torch.float64)
        for k, p in enumerate(masses(law, outputs[row])[:400]):
            leaf = outputs[row : row + 1].clone().requires_grad_()
            log_p = law.log_prob(leaf, torch.full((1, 1), float(k), dtype=torch.float64), learned).sum()
            s, *own = torch.autograd.grad(log_p, [leaf, *learned.values()])
            expected += p * s.mT @ s
            information += p * own[0].square().sum() if own else 0.0
        found = law.fisher(outputs[row : row + 1], learned)[0].detach()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
        if learned:
            made = law.learned_fisher(outputs[row : row + 1], learned).detach()
            assert float(made) == pytest.approx(float(information), rel=1e-5)


def test_a_dispersion_for_each_column() -> None:
    law = tp.NegativeBinomial(num_outputs=2)
    learned = {"likelihood.log_dispersion": torch.tensor([-1.0, 0.5], dtype=torch.float64)}
    f = torch.tensor([[0.3, 1.0], [2.0, -1.0]], dtype=torch.float64)
    y = torch.tensor([[2.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    parts = []
    for d, a in enumerate((math.exp(-1.0), math.exp(0.5))):
        one = tp.NegativeBinomial(a)
        parts.append(one.log_prob(f[:, d : d + 1], y[:, d : d + 1], {}))
    torch.testing.assert_close(law.log_prob(f, y, learned), parts[0] + parts[1])
    fisher = law.learned_fisher(f, learned)
    assert fisher.shape == (2, 2)
    assert float(fisher[0, 1]) == 0.0
    single = tp.NegativeBinomial().learned_fisher(
        f[:, :1], {"likelihood.log_dispersion": learned[next(iter(learned))][:1]}
    )
    assert float(fisher[0, 0]) == pytest.approx(float(single))


def test_little_dispersion_is_a_poisson_law_in_float32_too() -> None:
    f, y = torch.tensor([[0.5], [4.0]]), torch.tensor([[3.0], [50.0]])
    torch.testing.assert_close(
        tp.NegativeBinomial(1e-9).log_prob(f, y, {}), tp.Poisson().log_prob(f, y, {}), rtol=1e-3, atol=1e-3
    )


def test_sums_over_many_counts_may_skip_some() -> None:
    """Places and weights against all counts, for a law whose tail is long."""
    k, w = places(1.2e6, 0.5)
    assert len(k) < 3000
    f = torch.full((1, 1), math.log(3e4), dtype=torch.float64)
    log_p = tp.NegativeBinomial(0.4).log_mass(f, k.unsqueeze(-1), {}).squeeze(-1)
    every = np.arange(1_200_001)
    p = scipy_law(3e4, 0.4).pmf(every)
    assert float((w * log_p.exp()).sum()) == pytest.approx(float(p.sum()), rel=1e-9)
    assert float((w * log_p.exp() * k).sum()) == pytest.approx(float((p * every).sum()), rel=1e-9)
    assert float((w * log_p.exp() * log_p).sum()) == pytest.approx(float(scipy.special.xlogy(p, p).sum()), rel=1e-9)


@pytest.mark.parametrize(("mean", "dispersion"), [(30.0, 0.5), (3e4, 0.4), (1e6, 1e-5), (2.0, 8.0)])
def test_entropies_of_small_and_large_counts(mean: float, dispersion: float) -> None:
    law = scipy_law(mean, dispersion)
    p = law.pmf(np.arange(int(mean + 40 * law.std() + 60 * dispersion * mean) + 100))
    expected = -float(scipy.special.xlogy(p, p).sum())
    found = tp.NegativeBinomial(dispersion).entropy(torch.tensor([[math.log(mean)]], dtype=torch.float64), {})
    assert float(found) == pytest.approx(expected, abs=2e-4 if mean > 1e5 else 1e-8)


@laws
def test_mixtures_of_members_by_brute_force(law: CountLikelihood) -> None:
    """Log-probability, quantiles, entropy and mutual information of three members, and draws that follow them."""
    learned = {name: value.expand(3, 1) for name, value in LOG_A.items()} if law.learned_parameters() else {}
    rows = outputs_of(law)[[0, 2, 3]]
    pred = from_outputs(rows.unsqueeze(1), law, learned=learned, weights=[0.5, 0.2, 0.3])
    weights = torch.tensor([[0.5], [0.2], [0.3]], dtype=torch.float64)
    each = torch.stack([masses(law, row) for row in rows])
    mixed = (weights * each).sum(0)
    assert float(pred.log_prob(torch.tensor([[2.0]]))) == pytest.approx(float(mixed[2].log()))
    entropy = -float(torch.special.xlogy(mixed, mixed).sum())
    inner = -float((weights * torch.special.xlogy(each, each)).sum())
    assert float(pred.entropy()) == pytest.approx(entropy, rel=1e-7)
    assert float(pred.mutual_information()) == pytest.approx(entropy - inner, rel=1e-6)
    steps = mixed.cumsum(0)
    for level in (0.05, 0.5, 0.9, 0.999):
        assert float(pred.quantile(level)) == int((steps < level).sum())
    draws = pred.sample(20_000).flatten().long()
    found = torch.bincount(draws, minlength=len(mixed))[:40].double() / len(draws)
    error = (found - mixed[:40]) / (mixed[:40] * (1 - mixed[:40]) / len(draws)).sqrt()
    assert float(error.abs().max()) < 5


@pytest.mark.parametrize(("means", "dispersion", "close"), [((3e4, 5e4), 0.4, 1e-7), ((1e5, 1.01e5), 1e-5, 1e-3)])
def test_members_of_large_counts_by_brute_force(means: tuple[float, float], dispersion: float, close: float) -> None:
    """Sums that skip counts, and Gaussians in place of laws that nearly are."""
    f = torch.tensor(means, dtype=torch.float64).log().view(2, 1, 1)
    pred = from_outputs(f, tp.NegativeBinomial(dispersion))
    normal = bool(tp.NegativeBinomial(dispersion).nearly_normal(f, {}).all())
    assert normal == (dispersion < 0.01)
    k = np.arange(1_500_000 if dispersion > 0.01 else 200_000)
    each = np.stack([scipy_law(mean, dispersion).pmf(k) for mean in means])
    mixed = each.mean(0)
    expected = -scipy.special.xlogy(mixed, mixed).sum() + scipy.special.xlogy(each, each).sum() / 2
    assert 0.01 < expected < 0.6
    assert float(pred.mutual_information()) == pytest.approx(expected, rel=close)
    assert float(pred.quantile(0.9)) == int((mixed.cumsum() < 0.9).sum())


@laws
def test_far_outputs_give_numbers(law: CountLikelihood) -> None:
    """Rates of e⁻¹⁰⁰ and e⁶⁰, in float32 training and in predictions."""
    learned = {n: v.float() for n, v in LOG_A.items()} if law.learned_parameters() else {}
    width = outputs_of(law).shape[1]
    f = torch.tensor([[-100.0], [30.0], [5.0]]).repeat(1, width).requires_grad_()
    loss = law.negative_log_likelihood(f, torch.tensor([[0.0], [4.0], [0.0]]), learned)
    (slope,) = torch.autograd.grad(loss, f)
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(slope).all())
    assert bool(torch.isfinite(law.fisher(f.detach(), learned)).all())
    if not learned:
        target, draws = members(law, [[-100.0] * width, [60.0] * width, [2.0] * width])
        pred = tp.predict.predict(tp.engine.Engine(target), draws, torch.ones(1, 1, dtype=torch.float64))
        for value in (pred.quantile(0.9), pred.sample(5), pred.mean(), pred.mutual_information()):
            assert bool(torch.isfinite(value).all())


def test_what_counts_refuse() -> None:
    with pytest.raises(ArgumentError, match="`dispersion` must be a positive finite number; got 0"):
        tp.NegativeBinomial(0)
    with pytest.raises(ArgumentError, match=r"`each` must be a likelihood of counts, Poisson\(\) or"):
        tp.ZeroInflated(tp.Normal())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`each` must be"):
        tp.ZeroInflated(tp.ZeroInflated(tp.Poisson()))  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match="even number of outputs for ZeroInflated"):
        tp.ZeroInflated(tp.Poisson()).check_outputs(torch.zeros(4, 3))
    with pytest.raises(DataError, match="whole numbers from 0 on for NegativeBinomial"):
        tp.NegativeBinomial().prepare(torch.tensor([0.5]), 1)
    with pytest.raises(DataError, match=r"shape \(rows, 1\)"):
        tp.ZeroInflated(tp.Poisson()).prepare(torch.zeros(5, 2), 2)
    with pytest.raises(DataError, match="`num_outputs` of NegativeBinomial must be 1 or the 3 columns"):
        tp.NegativeBinomial(num_outputs=2).prepare(torch.zeros(5, 3), 3)


def test_a_trained_network_is_told_what_its_dispersion_was_set_to() -> None:
    """Of counts without units the learned number is named; it is that of largest probability."""
    x, y = simulated("spread", 400, 0)
    target = tp.Target(nn.Linear(1, 1), tp.NegativeBinomial(), tp.GaussianPrior(2.0))
    trained = tp.fit(target, tp.MAP(lr=0.05), (x, y), epochs=60, seed=0, progress=False)
    with pytest.warns(TemperanceWarning, match=r"learns its noise \(log_dispersion\).*it was set to -?0\.\d"):
        fitted = tp.fit(
            tp.Target(trained.network(), tp.NegativeBinomial(), tp.GaussianPrior(2.0)),
            tp.Laplace(tune=None),
            (x, y),
            progress=False,
        )
    assert abs(float(fitted.posterior.mean[-1])) < 0.4  # a = 1 made the data
    assert float(fitted.posterior.mean[-1]) == pytest.approx(float(trained.posterior.theta[-1]), abs=0.1)


# ---------------------------------------------------------------------- the right law beats the plain one


def simulated(kind: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Counts whose log mean is a line in x: spread (a = 1), or zero with probability 0.4, or both."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 1))
    rate = np.exp(1.0 + 0.8 * x)
    if "spread" in kind:
        rate = rate * rng.gamma(1.0, 1.0, rate.shape)
    y = rng.poisson(rate) * (rng.random(rate.shape) > (0.4 if "zeros" in kind else 0.0))
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)


RIGHT = {
    "spread": (tp.NegativeBinomial(), 1),
    "zeros": (tp.ZeroInflated(tp.Poisson()), 2),
    "spread and zeros": (tp.ZeroInflated(tp.NegativeBinomial()), 2),
}
MARGIN = {"spread": 0.7, "zeros": 0.5, "spread and zeros": 1.0}


@pytest.mark.parametrize("kind", RIGHT)
def test_the_right_law_of_counts_beats_poisson(kind: str) -> None:
    train, test = simulated(kind, 500, 0), simulated(kind, 2000, 1)
    scores = []
    for law, outputs in (RIGHT[kind], (tp.Poisson(), 1)):
        target = tp.Target(nn.Linear(1, outputs), law, tp.GaussianPrior(2.0))
        fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=0.05)), train, epochs=60, seed=0, progress=False)
        scores.append(fitted.evaluate(test))
    assert scores[0]["log_loss"] < scores[1]["log_loss"] - MARGIN[kind]
    assert scores[0]["coverage_90"] > 0.89
    assert scores[1]["coverage_90"] < 0.8


def test_a_learned_dispersion_begins_at_that_of_rows_as_often_as_they_count() -> None:
    y = torch.tensor([[0.0], [1.0], [2.0], [9.0]]).repeat(50, 1)
    often = torch.tensor([5.0, 3.0, 1.0, 1.0]).repeat(50)
    (ours,) = tp.NegativeBinomial().begin(y, often).values()
    (theirs,) = tp.NegativeBinomial().begin(y.repeat_interleave(often.long(), 0)).values()
    (unweighed,) = tp.NegativeBinomial().begin(y).values()
    assert torch.allclose(ours, theirs, atol=0.02)
    assert not torch.allclose(ours, unweighed, atol=0.1)
