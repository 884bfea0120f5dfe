"""Members whose weights differ: every statistic against the mixture written out by hand, at weights (0.9, 0.1)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.decide import epig
from temperance.decide.acquire import joint_information
from temperance.decide.actions import LinexLoss, bayes_action
from temperance.decide.policies import thompson
from temperance.posteriors import Mixture
from temperance.predict import from_outputs

F64 = torch.float64
WEIGHTS = torch.tensor([0.9, 0.1], dtype=F64)
MIXED = torch.distributions.MixtureSameFamily
LAWS = {
    "classes": (tp.Categorical(), lambda f: torch.distributions.Categorical(logits=f)),
    "labels": (tp.Bernoulli(), lambda f: torch.distributions.Independent(torch.distributions.Bernoulli(logits=f), 1)),
    "reals": (tp.Normal(scale=0.3), lambda f: torch.distributions.Independent(torch.distributions.Normal(f, 0.3), 1)),
    "counts": (tp.Poisson(), lambda f: torch.distributions.Independent(torch.distributions.Poisson(f.exp()), 1)),
}


def outputs() -> torch.Tensor:
    """Two members far apart, five rows, three outputs."""
    f = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    return torch.stack([f[0], f[1] + 2.0 * f[1].sign()])


@pytest.mark.parametrize("kind", LAWS)
def test_the_predictive_of_weighted_members(kind):
    likelihood, law = LAWS[kind]
    f = outputs()
    found = from_outputs(f, likelihood, weights=WEIGHTS)
    members = law(f)
    y = law(f[1]).sample()
    logs = members.log_prob(y)  # 2 × rows
    assert torch.allclose(found.log_prob(y), (WEIGHTS.log().unsqueeze(1) + logs).logsumexp(0))
    assert float(found.joint_log_prob(y)) == pytest.approx(float((WEIGHTS.log() + logs.sum(1)).logsumexp(0)))
    mean = f.softmax(-1) if kind == "classes" else members.mean
    assert torch.allclose(found.mean(), torch.einsum("s,snc->nc", WEIGHTS, mean))
    centre = torch.einsum("s,snc->nc", WEIGHTS, mean)
    between = torch.einsum("s,snc->nc", WEIGHTS, (mean - centre).square())
    assert torch.allclose(found.epistemic_variance(), between)
    within = mean * (1 - mean) if kind == "classes" else members.variance
    assert torch.allclose(found.aleatoric_variance(), torch.einsum("s,snc->nc", WEIGHTS, within))
    draws = found.sample(4000, seed=1)
    empirical = nn.functional.one_hot(draws, 3).double().mean(0) if kind == "classes" else draws.mean(0)
    error = 5 * (found.variance() / 4000).sqrt() + 1e-3
    assert bool(((empirical - found.mean()).abs() < error).all())
    if kind in ("classes", "labels"):
        rows = f.softmax(-1) if kind == "classes" else torch.stack([f.sigmoid(), 1 - f.sigmoid()], -1)
        flat = rows if kind == "classes" else rows.flatten(1, 2)

        def entropy(p):
            return -torch.special.xlogy(p, p).sum(-1)

        total = entropy(torch.einsum("s,s...->...", WEIGHTS, flat))
        noise = torch.einsum("s,s...->...", WEIGHTS, entropy(flat))
        if kind == "labels":
            total, noise = total.view(5, 3).sum(1), noise.view(5, 3).sum(1)
        assert torch.allclose(found.entropy(), total)
        assert torch.allclose(found.aleatoric(), noise)
        assert torch.allclose(found.mutual_information(), total - noise, atol=1e-12)


def mixture(likelihood: tp.Likelihood, outputs: int):
    """Two Laplace components, with weights that differ."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(25, 2, generator=rng, dtype=F64)
    y = torch.randint(0, outputs, (25,), generator=rng) if outputs > 1 else torch.sin(3 * x[:, :1])
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    target = tp.Target(net, likelihood, tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Ensemble(tp.Laplace(tp.MAP(lr=2e-2), tp.Dense(), tune=None), 2), (x, y), steps=150)
    first, second = fitted.posterior.components
    bias = torch.zeros_like(second.mean)
    bias[-outputs:] = torch.tensor([3.0, -3.0, 0.0][:outputs])  # the two would agree: move one of them
    parts = (first, dataclasses.replace(second, mean=second.mean + bias))
    alone = [tp.Fitted(fitted.target, part, fitted.info) for part in parts]
    return tp.Fitted(fitted.target, Mixture(parts, weights=(0.9, 0.1)), fitted.info), alone, x, y


def test_a_linearised_mixture_of_reals():
    both, alone, x, y = mixture(tp.Normal(scale=0.2), 1)
    new = 3 * x[:4]  # far out, where the two differ
    found, parts = both.predict(new), [one.predict(new) for one in alone]
    law = MIXED(
        torch.distributions.Categorical(WEIGHTS),
        torch.distributions.MultivariateNormal(
            torch.stack([p.mean().flatten() for p in parts]),
            torch.stack([p.output_covariance() + 0.04 * torch.eye(4, dtype=F64) for p in parts]),
        ),
    )
    assert float(found.joint_log_prob(y[:4])) == pytest.approx(float(law.log_prob(y[:4].flatten())), abs=1e-8)
    assert torch.allclose(found.mean().flatten(), law.mean)
    assert torch.allclose(found.variance().flatten(), law.variance)
    logs = torch.stack([p.log_prob(y[:4]) for p in parts])
    assert torch.allclose(found.log_prob(y[:4]), (WEIGHTS.log().unsqueeze(1) + logs).logsumexp(0))
    middle = sum(w * p.output_mean() for w, p in zip(WEIGHTS, parts, strict=True))
    assert torch.allclose(found.output_mean(), middle)
    spread = sum(
        w * (p.output_variance() + (p.output_mean() - middle).square()) for w, p in zip(WEIGHTS, parts, strict=True)
    )
    assert torch.allclose(found.output_variance(), spread)
    draws = found.sample(6000, seed=2).squeeze(-1)
    assert bool(((draws.mean(0) - law.mean).abs() < 5 * (law.variance / 6000).sqrt()).all())
    assert torch.allclose(draws.var(0), law.variance, rtol=0.15)


@pytest.mark.parametrize("n", [30, 1000])
def test_draws_of_a_linearised_mixture_are_of_components_by_their_shares(n):
    """Two components that no draw can confuse; also where few functions are at hand."""
    both, alone, x, _ = mixture(tp.Normal(scale=0.01), 1)
    new = 4 * x[:1]
    middle = [float(one.predict(new).mean()) for one in alone]
    apart = abs(middle[0] - middle[1])
    assert apart > 8 * max(float(one.predict(new).variance().sqrt()) for one in alone)
    shares = []
    for seed in range(max(1, 3000 // n)):
        draws = both.predict(new).sample(n, seed=seed).flatten()
        shares.append(((draws - middle[0]).abs() < apart / 2).double().mean())
    assert abs(float(torch.stack(shares).mean()) - 0.9) < 4 * (0.9 * 0.1 / 3000) ** 0.5


@pytest.mark.parametrize("by", ["linearised", "probit", "bridge", "functions"])
def test_a_linearised_mixture_of_classes(by):
    both, alone, x, y = mixture(tp.Categorical(), 3)
    new = 3 * x[:4]
    found, parts = both.predict(new, by=by), [one.predict(new, by=by) for one in alone]
    tolerance = {"functions": 0.08, "linearised": 0.01}.get(by, 1e-8)  # other points stand for the same Gaussians
    probs = sum(w * p.probs for w, p in zip(WEIGHTS, parts, strict=True))
    assert torch.allclose(found.probs, probs, atol=tolerance)
    assert float((parts[0].probs - parts[1].probs).abs().max()) > 0.2
    told = probs[torch.arange(4), y[:4]].log()
    assert torch.allclose(found.log_prob(y[:4]), told, atol=5 * tolerance)
    draws = nn.functional.one_hot(found.sample(4000, seed=1), 3).double().mean(0)
    exact = sum(w * p.probs for w, p in zip(WEIGHTS, (one.predict(new) for one in alone), strict=True))
    assert torch.allclose(draws, exact, atol=0.05)


def test_what_a_label_tells_of_another_by_weights():
    f = outputs()
    found = epig(from_outputs(f, tp.Categorical(), weights=WEIGHTS), [3, 4])
    probs = f.softmax(-1)

    def information(joint):
        apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        return float(torch.special.xlogy(joint, joint / apart).sum())

    for row in range(5):
        told = [information(torch.einsum("s,sc,sd->cd", WEIGHTS, probs[:, row], probs[:, t])) for t in (3, 4)]
        assert float(found[row]) == pytest.approx(sum(told) / 2, abs=1e-10)

    values = from_outputs(f[..., :1], tp.Normal(scale=0.3), weights=WEIGHTS)
    centre = torch.einsum("s,sn->n", WEIGHTS, f[..., 0])
    away = f[..., 0] - centre
    covariance = torch.einsum("s,sn,sm->nm", WEIGHTS, away, away) + 0.09 * torch.eye(5, dtype=F64)
    same = torch.einsum("s,sn,sm->nm", WEIGHTS, away, away)
    for row in range(5):
        told = []
        for t in (3, 4):  # a second label at the same input has noise of its own
            correlation = same[row, t] / (covariance[row, row] * covariance[t, t]).sqrt()
            told.append(float(-0.5 * torch.log1p(-correlation.square())))
        assert float(epig(values, [3, 4])[row]) == pytest.approx(sum(told) / 2, rel=1e-6)


def test_moments_of_all_rows_by_weights():
    f = outputs()
    learned = {"likelihood.log_scale": torch.tensor([[-1.0], [1.0]], dtype=F64)}  # members differ in their noise too
    found = from_outputs(f, tp.Normal(), weights=WEIGHTS, learned=learned)
    factor, noise = found.joint_moments()
    off = f - torch.einsum("s,snc->nc", WEIGHTS, f)
    assert torch.allclose(
        torch.einsum("ick,jdk->icjd", factor, factor), torch.einsum("s,sic,sjd->icjd", WEIGHTS, off, off)
    )
    variances = (2 * learned["likelihood.log_scale"]).exp().flatten()
    assert torch.allclose(noise, (WEIGHTS @ variances).expand(5, 3))


def test_what_values_of_several_columns_tell_of_the_member():
    """Members so far apart that a value gives them away: the entropy of the weights, and not of even ones."""
    far = torch.stack([torch.zeros(4, 2, dtype=F64), torch.full((4, 2), 50.0, dtype=F64)])
    found = from_outputs(far, tp.Normal(scale=1.0), weights=WEIGHTS).mutual_information()
    assert torch.allclose(found, -(WEIGHTS * WEIGHTS.log()).sum().expand(4), rtol=0.05)


def test_a_quantile_of_counts_is_reached_by_its_own_share():
    found = from_outputs(torch.tensor([[[0.3]], [[1.5]]], dtype=F64), tp.Poisson(), weights=WEIGHTS)
    rates = torch.tensor([0.3, 1.5], dtype=F64).exp()
    share = float(WEIGHTS @ torch.special.gammaincc(torch.full((2,), 3.0, dtype=F64), rates))  # P(y ≤ 2)
    assert float(found.quantile(share - 1e-9)) == 2
    assert float(found.quantile(share + 1e-9)) == 3


def test_one_member_speaks_as_often_as_it_weighs():
    best_first = torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]], dtype=F64)  # each member has a best row of its own
    found = from_outputs(best_first, tp.Normal(scale=1.0), weights=WEIGHTS)
    chosen = [thompson(found, seed=k) for k in range(400)]
    assert chosen.count(0) / 400 == pytest.approx(0.9, abs=0.05)


def test_the_action_of_least_linex_loss_by_weights():
    f = outputs()[..., :1]
    found = bayes_action(from_outputs(f, tp.Normal(scale=0.3), weights=WEIGHTS), LinexLoss(0.7)).action
    wanted = -torch.einsum("s,snc->nc", WEIGHTS, (-0.7 * f + 0.5 * 0.7**2 * 0.09).exp()).log() / 0.7
    assert torch.allclose(found, wanted.view_as(found))


def test_drawn_labels_are_those_of_members_by_weights():
    f = 2 * torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(5), dtype=F64)
    found = from_outputs(f, tp.Categorical(), weights=WEIGHTS)
    exact = joint_information(found, range(4))
    drawn = torch.tensor([joint_information(found, range(4), configurations=25, seed=k) for k in range(40)])
    assert float(drawn.mean()) == pytest.approx(exact, abs=4 * float(drawn.std()) / 40**0.5 + 1e-3)
