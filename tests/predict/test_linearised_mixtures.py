"""Linearised predictions where they are easily wrong: several members, rows in chunks, joint quantities, float32."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp

F64 = torch.float64


def regression(outputs=1, members=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(25, 2, generator=rng, dtype=F64)
    y = torch.sin(x @ torch.randn(2, outputs, generator=rng, dtype=F64))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    target = tp.Target(net, tp.Normal(scale=0.2), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.Laplace(tp.MAP(lr=2e-2), tp.Dense(), tune=None), members)
    return tp.fit(target, method, (x, y), steps=150), x, y


def test_functions_of_a_mixture_do_not_depend_on_chunks():
    fitted, x, _ = regression(outputs=2)
    whole, chunks = fitted.predict(x), fitted.predict(x, batch_size=4)
    assert torch.allclose(whole.output_functions(), chunks.output_functions(), atol=1e-10)
    assert torch.allclose(whole.variance(), chunks.variance(), atol=1e-12)


def test_predicting_leaves_the_target_as_it_was():
    torch.manual_seed(0)
    x, y = torch.randn(40, 5), torch.randint(0, 3, (40,))
    target = tp.Target(tp.nn.MLP(5, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Ensemble(tp.Laplace(tp.MAP(lr=1e-2), on=tp.last_layer, tune=None), 2), (x, y), epochs=3)
    fresh = tp.fit(target, tp.MAP(lr=1e-2), (x, y), epochs=3).posterior.theta
    fitted.predict(x, batch_size=7).sample(3)
    assert all(p.requires_grad for p in target.network.parameters())
    assert torch.equal(tp.fit(target, tp.MAP(lr=1e-2), (x, y), epochs=3).posterior.theta, fresh)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_mixture_against_brute_force(outputs):
    fitted, x, y = regression(outputs=outputs, members=3)
    found = fitted.predict(x[:4])
    means, covariances = [], []
    for component in fitted.posterior.components:
        alone = tp.Fitted(fitted.target, component, fitted.info).predict(x[:4])
        means.append(alone.mean())
        covariances.append(alone.output_covariance() + 0.04 * torch.eye(4 * outputs, dtype=F64))
    joint = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(3, dtype=F64)),
        torch.distributions.MultivariateNormal(torch.stack([m.flatten() for m in means]), torch.stack(covariances)),
    )
    assert float(found.joint_log_prob(y[:4])) == pytest.approx(float(joint.log_prob(y[:4].flatten())), abs=1e-8)
    assert torch.allclose(found.mean(), torch.stack(means).mean(0), atol=1e-12)
    assert torch.allclose(found.variance().flatten(), joint.variance, atol=1e-10)
    torch.manual_seed(0)
    for n in range(4):
        pick = slice(n * outputs, (n + 1) * outputs)
        marginal = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(torch.ones(3, dtype=F64)),
            torch.distributions.MultivariateNormal(
                torch.stack([m[n] for m in means]), torch.stack([c[pick, pick] for c in covariances])
            ),
        )
        assert float(found.log_prob(y[:4])[n]) == pytest.approx(float(marginal.log_prob(y[n])), abs=1e-8)
        values = -marginal.log_prob(marginal.sample((40_000,)))
        assert float(found.entropy()[n]) == pytest.approx(
            float(values.mean()), abs=5 * float(values.std()) / 200 + 0.01
        )


def test_joint_log_prob_with_a_learned_noise():
    rng = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 30, dtype=F64).unsqueeze(1)
    features = torch.cat([x**k for k in range(5)], dim=1)
    y = torch.sin(2 * x) + 0.1 * torch.randn(30, 1, generator=rng, dtype=F64)
    target = tp.Target(nn.Linear(5, 1, bias=False, dtype=F64), tp.Normal(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=3e-2), tp.Dense(), tune=None), (features, y), steps=1500)
    found = fitted.predict(features[::6])
    covariance = features[::6] @ fitted.posterior.covariance()[:5, :5] @ features[::6].mT
    centre, spread = float(fitted.posterior.mean[-1]), float(fitted.posterior.covariance()[-1, -1])
    grid = torch.linspace(-7, 7, 801, dtype=F64)
    logs = []
    for z in grid.tolist():
        noise = math.exp(2 * (centre + math.sqrt(spread) * z))
        law = torch.distributions.MultivariateNormal(
            found.mean().flatten(), covariance + noise * torch.eye(5, dtype=F64)
        )
        logs.append(float(law.log_prob(y[::6].flatten())) - 0.5 * z * z)
    exact = torch.tensor(logs, dtype=F64).logsumexp(0) + math.log(14 / 800) - 0.5 * math.log(2 * math.pi)
    assert float(found.joint_log_prob(y[::6])) == pytest.approx(float(exact), abs=1e-4)


def test_full_hessian_with_a_learned_noise_predicts():
    torch.manual_seed(0)
    x = torch.randn(40, 3, dtype=F64)
    y = x[:, :1] + 0.3 * torch.randn(40, 1, dtype=F64)
    target = tp.Target(nn.Linear(3, 1, dtype=F64), tp.Normal(), tp.GaussianPrior(1.0))
    method = tp.Laplace(tp.MAP(lr=3e-2), tp.Dense(kind="hessian"), tune=None)
    fitted = tp.fit(target, method, (x, y), steps=1500)
    found = fitted.predict(x[:5])
    design = torch.cat([x[:5], torch.ones(5, 1, dtype=F64)], dim=1)
    covariance = fitted.posterior.covariance()[:4, :4]
    assert torch.allclose(found.epistemic_variance().flatten(), (design @ covariance * design).sum(1), rtol=1e-8)


def test_process_in_single_precision_keeps_its_variance():
    x = torch.linspace(-2, 2, 120).unsqueeze(1)
    torch.manual_seed(0)
    net = tp.nn.MLP(1, [30], 1, activation=nn.Tanh)
    ratios = {}
    for dtype in (torch.float32, F64):
        target = tp.Target(net.to(dtype), tp.Normal(scale=0.05), tp.GaussianPrior(2.0))
        fitted = tp.fit(target, tp.FunctionalLaplace(), (x.to(dtype), torch.sin(3 * x).to(dtype)))
        ratios[dtype] = fitted.predict(x[::7].to(dtype)).output_variance().double()
    ratio = ratios[torch.float32] / ratios[F64]
    assert float(ratio.min()) > 0.9
    assert float(ratio.max()) < 1.1


def test_classes_of_a_mixture_have_enough_points():
    """Many members of the same law are that law: their points must not run out."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 4, dtype=F64), torch.randint(0, 10, (60,))
    target = tp.Target(nn.Linear(4, 10, dtype=F64), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2), tp.Dense(), tune=None), (x, y), steps=200)
    many = tp.Fitted(target, tp.posteriors.Mixture((fitted.posterior,) * 8), fitted.info).predict(x[:5])
    law = fitted.predict(x[:5])
    covariance = law.output_covariance().view(5, 10, 5, 10)
    for n in range(5):
        outputs = torch.distributions.MultivariateNormal(
            law.output_mean()[n], covariance[n, :, n] + 1e-10 * torch.eye(10, dtype=F64)
        ).sample((50_000,))
        exact = outputs.softmax(-1).mean(0)
        assert float((many.probs[n] - exact).abs().sum()) / 2 < 0.01
        assert float((law.probs[n] - exact).abs().sum()) / 2 < 0.03


def test_links_where_nothing_is_uncertain_or_almost_certain():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    net[0].bias.data.fill_(-1.0)
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Laplace(curvature=tp.Dense(), on=tp.last_layer, tune=None)
    fitted = tp.fit(target, method, (torch.randn(20, 2), torch.randint(0, 3, (20,))), start=net)
    for by in ("linearised", "probit", "bridge"):
        assert torch.allclose(fitted.predict(torch.zeros(1, 2), by=by).probs, torch.full((1, 3), 1 / 3)), by
    sure = nn.Linear(1, 1)
    sure.weight.data.fill_(30.0)
    sure.bias.data.fill_(0.0)
    x = torch.linspace(-3, 3, 40).unsqueeze(1)
    binary = tp.Target(sure, tp.Bernoulli(), tp.GaussianPrior(0.05))
    fitted = tp.fit(binary, tp.Laplace(curvature=tp.Dense(), tune=None), (x, (x[:, 0] > 0).long()), start=sure)
    found = float(fitted.predict(torch.ones(1, 1), by="probit").log_prob(torch.tensor([0])))
    assert found == pytest.approx(-29.9, abs=0.5)


def test_a_closed_link_is_one_predictive():
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    target = tp.Target(tp.nn.MLP(4, [6], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Ensemble(tp.Laplace(tp.MAP(lr=1e-2), tune=None), 2), (x, y), steps=50)
    for by in ("probit", "bridge"):
        found = fitted.predict(x, by=by)
        assert torch.equal(found.mean(), found.probs)
        assert torch.allclose(found.log_prob(y).exp(), found.probs.gather(1, y.unsqueeze(1))[:, 0], rtol=1e-4)


def test_each_sample_has_a_function_of_its_own():
    fitted, x, _ = regression(members=1)
    found = fitted.predict(x[:2])
    draws = found.sample(3000, seed=0)[..., 0]
    assert len(draws[:, 0].unique()) == 3000
    assert torch.allclose(draws.std(0), found.std().flatten(), rtol=0.08)
