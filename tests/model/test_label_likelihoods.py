"""Labels as they come about: curated, mislabelled, nearly sure."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, TemperanceWarning
from temperance.engine import Engine
from temperance.predict import from_outputs
from temperance.predict.calibrated import MovedPredictive

RNG = torch.Generator().manual_seed(0)
F64 = torch.randn(6, 4, generator=RNG, dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 3, 0, 1])


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def rows(n: int = 40, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(n, 2, generator=rng, dtype=torch.float64), torch.randint(classes, (n,), generator=rng)


# ---------------------------------------------------------------------- curated labels


def test_curated_labels_are_a_cold_likelihood() -> None:
    """Energies, gradients and curvature of S labellers are those of Categorical at λ = 1/S; so is what is sampled."""
    x, y = rows()
    prior = tp.GaussianPrior(1.0)
    curated = tp.Target(network(), tp.CuratedLabels(4), prior)
    cold = tp.Target(network(), tp.Categorical(), prior, likelihood_temperature=1 / 4)
    theta = torch.stack([curated.fresh_theta(k) for k in range(3)])
    found = []
    for target in (curated, cold):
        data = target.prepare(tp.data.Data(x, y))
        engine = Engine(target, data)
        (batch,) = data.full_pass()
        grad, exact = torch.zeros_like(theta), torch.zeros_like(theta)
        engine.gradients(theta, batch, grad)
        found.append((engine.energy(theta, data), grad, engine.energies(theta, batch, exact), exact))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    for curvature in (tp.KFAC(), tp.Dense(), tp.Lanczos(6), tp.KFAC(kind="monte-carlo", samples=3)):
        made = [
            tp.fit(t, tp.Laplace(curvature=curvature, tune=None), (x, y), progress=False).posterior
            for t in (curated, cold)
        ]
        torch.testing.assert_close(*(p.operator.dense() for p in made), rtol=1e-6, atol=1e-9)
    chain = tp.Collect(tp.SGHMC(lr=0.01), burn=0.2, every=1)
    runs = [tp.fit(t, chain, (x, y), steps=40, batch_size=16, seed=5, progress=False) for t in (curated, cold)]
    torch.testing.assert_close(runs[0].posterior.theta, runs[1].posterior.theta)
    torch.testing.assert_close(runs[0].predict(x).probs, runs[1].predict(x).probs)
    assert runs[0].evaluate((x, y)) == pytest.approx(runs[1].evaluate((x, y)))


def test_the_law_of_agreement_by_counting() -> None:
    """Every answer that three labellers can give, by their product; then log p and its derivatives."""
    law = tp.CuratedLabels(3, undecided=True)
    p = F64.softmax(-1)
    expected = torch.zeros(len(F64), 5, dtype=torch.float64)
    for said in torch.cartesian_prod(*[torch.arange(4)] * 3):
        label = int(said[0]) if len(set(said.tolist())) == 1 else 4
        expected[:, label] += p[:, said].prod(-1)
    torch.testing.assert_close(law.mean(F64, {}), expected)
    for label in range(5):
        y = torch.full((len(F64),), label)
        torch.testing.assert_close(law.log_prob(F64, y, {}), expected[:, label].log())
        leaf = F64[0].clone()
        hessian = torch.autograd.functional.hessian(lambda f: -law.log_prob(f[None], y[:1], {})[0], leaf)  # noqa: B023
        torch.testing.assert_close(law.hessian(leaf[None], y[:1], {})[0], hessian)


@pytest.mark.parametrize("labellers", [2, 3, 9])
def test_sure_networks_have_a_finite_probability_of_undecided_rows(labellers: int) -> None:
    """1 − Σ p^S rounds to zero; its logarithm is log S − gap all the same, with a slope."""
    f = torch.tensor([[0.0, -60.0, -200.0]], requires_grad=True)
    found = tp.CuratedLabels(labellers, undecided=True).log_prob(f, torch.tensor([3]), {})
    assert float(found.detach()) == pytest.approx(math.log(labellers) - 60, rel=1e-5)
    (slope,) = torch.autograd.grad(found.sum(), f)
    assert slope[0].tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-5)


def test_curated_labels_predict_by_categorical() -> None:
    x, y = rows()
    y = torch.where(torch.arange(40) % 5 == 0, 3, y)  # three classes; 3 is undecided
    target = tp.Target(network(), tp.CuratedLabels(2, undecided=True), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MAP(lr=0.02), (x, y), epochs=5, progress=False)
    pred = fitted.predict(x)
    assert pred.likelihood == tp.Categorical()
    outputs = fitted.network()(x).detach()
    torch.testing.assert_close(pred.probs, outputs.softmax(-1))
    decided = y < 3
    scores = fitted.evaluate((x[decided], y[decided]))
    assert scores["log_loss"] == pytest.approx(float(F.cross_entropy(outputs[decided], y[decided])))
    with pytest.raises(DataError, match=r"classes from 0 to 2.*got labels from 0 to 3"):
        fitted.evaluate((x, y))
    with pytest.raises(DataError, match="classes from 0 to 2"):
        tp.fit(target.with_likelihood(tp.CuratedLabels(2)), tp.MAP(), (x, y), epochs=1, progress=False)


def test_undecided_rows_teach_that_a_row_is_in_doubt() -> None:
    """The same x, always undecided, then never: how sure one labeller is."""
    x = torch.ones(60, 1, dtype=torch.float64)
    sure = []
    for undecided in (50, 0):
        y = torch.where(torch.arange(60) < undecided, 2, 0)
        target = tp.Target(nn.Linear(1, 2).double(), tp.CuratedLabels(3, undecided=True), tp.GaussianPrior(3.0))
        fitted = tp.fit(target, tp.MAP(lr=0.05), (x, y), epochs=150, progress=False)
        sure.append(float(fitted.predict(x[:1]).probs.max()))
    assert sure[0] < 0.75 < 0.97 < sure[1]  # Σ p³ = 10/60 has no solution above a half: 0.25 at p = ½ is the least


def test_undecided_rows_are_what_tells_one_labeller_from_three() -> None:
    """Three labellers whose logit is 2 x. With the rows on which they disagreed the slope is found; from those that
    were kept it comes out three times as steep, which is that of kept labels. Log-loss of either kind says so."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 1, generator=rng, dtype=torch.float64)
    said = (torch.rand(6000, 3, generator=rng) < (2 * x).sigmoid()).long()
    agreed = (said == said[:, :1]).all(1)
    all_rows, kept = (x, torch.where(agreed, said[:, 0], 2)), (x[agreed], said[agreed, 0])
    slope, single, curated = [], [], []
    for law, data in ((tp.CuratedLabels(3, undecided=True), all_rows), (tp.CuratedLabels(3), kept)):
        target = tp.Target(nn.Linear(1, 2).double(), law, tp.GaussianPrior(10.0))
        fitted = tp.fit(target, tp.MAP(lr=0.1), data, epochs=40, batch_size=500, progress=False)
        weight = fitted.network().weight.detach()
        slope.append(float(weight[1] - weight[0]))
        single.append(fitted.evaluate((x, (torch.rand(6000, 1, generator=rng) < (2 * x).sigmoid()).long()))["log_loss"])
        curated.append(fitted.evaluate(kept)["log_loss"])
    assert slope[0] == pytest.approx(2.0, rel=0.1)
    assert slope[1] == pytest.approx(6.0, rel=0.15)
    assert single[0] < single[1] - 0.1
    assert curated[1] < curated[0] - 0.02


def test_what_curated_labels_refuse() -> None:
    with pytest.raises(ArgumentError, match="`labellers` must be a positive integer; got 0"):
        tp.CuratedLabels(0)
    with pytest.raises(ArgumentError, match="`labellers` must be at least 2 with undecided rows"):
        tp.CuratedLabels(1, undecided=True)
    with pytest.raises(DataError, match="integer class labels for CuratedLabels"):
        tp.CuratedLabels(2).prepare(torch.tensor([[0.5, 0.5]]), 2)


# ---------------------------------------------------------------------- mislabelled rows


def test_noisy_labels_against_a_mixture() -> None:
    p = 0.7 * F64.softmax(-1) + 0.3 / 4
    law = torch.distributions.Categorical(p)
    torch.testing.assert_close(tp.NoisyLabels(0.3).log_prob(F64, Y, {}), law.log_prob(Y))
    torch.testing.assert_close(tp.NoisyLabels(0.3).entropy(F64, {}), law.entropy())
    logit = {"likelihood.logit_rate": torch.tensor([math.log(0.3 / 0.7)], dtype=torch.float64)}
    torch.testing.assert_close(tp.NoisyLabels().log_prob(F64, Y, logit), law.log_prob(Y))


@pytest.mark.parametrize("rate", [0.3, None])
def test_noisy_slopes_and_information_are_those_of_autograd(rate: float | None) -> None:
    law = tp.NoisyLabels(rate)
    learned = {p.name: torch.tensor([-0.4], dtype=torch.float64, requires_grad=True) for p in law.learned_parameters()}
    leaf = F64.clone().requires_grad_()
    loss = -law.log_prob(leaf, Y, learned)
    expected = torch.autograd.grad(loss.sum(), [leaf, *learned.values()])
    each, slope, own = law.row_slopes(F64, Y, learned)
    torch.testing.assert_close(each.detach(), loss.detach())
    torch.testing.assert_close(slope.detach(), expected[0])
    torch.testing.assert_close(law.score(F64, Y, learned).detach(), -expected[0])
    for name, value in own.items():
        torch.testing.assert_close(value.sum(0).detach(), expected[1])
        total = torch.zeros(1, 1, dtype=torch.float64)
        for k in range(4):  # E of the squared score, by its definition
            log_p = law.log_prob(F64, torch.full((6,), k), learned)
            for row in log_p:
                (s,) = torch.autograd.grad(row, learned[name], retain_graph=True)
                total += row.detach().exp() * s**2
        torch.testing.assert_close(law.learned_fisher(F64, learned).detach(), total)


def test_noise_in_labels_is_found_and_the_clean_classes_with_it() -> None:
    """Two far classes, 30 % of the labels replaced: the rate is learned, the clean probabilities are sharp, and
    observed labels are scored better than under Categorical."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 2, generator=rng)
    truth = (x[:, 0] + x[:, 1] > 0).long()
    y = torch.where(torch.rand(1500, generator=rng) < 0.3, torch.randint(2, (1500,), generator=rng), truth)
    train, test = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    scores, fits = {}, {}
    for law in (tp.NoisyLabels(), tp.Categorical()):
        target = tp.Target(nn.Linear(2, 2), law, tp.GaussianPrior(30.0))
        fits[type(law)] = tp.fit(target, tp.MAP(lr=0.05), train, epochs=60, progress=False)
        scores[type(law)] = fits[type(law)].evaluate(test)["log_loss"]
    fitted = fits[tp.NoisyLabels]
    rate = float(fitted.posterior.theta[-1].sigmoid())
    assert 0.24 < rate < 0.36
    assert scores[tp.NoisyLabels] < scores[tp.Categorical] - 0.02
    law = fitted.target.likelihood
    assert isinstance(law, tp.NoisyLabels)
    clean = law.clean(fitted.predict(x[1000:]).probs, rate)
    sharp = F.nll_loss(clean.clamp(min=1e-6).log(), truth[1000:])
    assert float(sharp) < 0.15  # of the true classes
    assert float((clean.argmax(-1) == fitted.predict(x[1000:]).predict()).float().mean()) == 1.0


def test_probabilities_of_noisy_labels_are_no_softmax() -> None:
    """Closed links are refused; probabilities that were moved are taken as they are."""
    x, y = rows()
    target = tp.Target(network(), tp.NoisyLabels(0.2), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=0.02)), (x, y), epochs=5, progress=False)
    with pytest.raises(ArgumentError, match="'probit' is for probabilities that are a softmax"):
        fitted.predict(x, by="probit")
    base = from_outputs(torch.stack([F64, F64.flip(0)]), tp.NoisyLabels(0.4))
    assert float(base.probs.min()) >= 0.1
    moved = MovedPredictive(base, base.probs.square() / base.probs.square().sum(-1, keepdim=True))
    torch.testing.assert_close(moved.sample(4000).eq(0).double().mean(0), moved.probs[:, 0], atol=0.05, rtol=0)
    members = moved.source.blocks()
    averaged = sum(moved.likelihood.mean(outputs, learned).mean(0) for _, outputs, learned in members)
    torch.testing.assert_close(averaged, moved.probs)


def test_label_smoothing_is_a_target_of_categorical() -> None:
    """The line that Categorical's docstring gives."""
    y = (1 - 0.1) * F.one_hot(Y, 4) + 0.1 / 4
    law = tp.Categorical()
    expected = F.cross_entropy(F64, Y, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(-law.log_prob(F64, law.prepare(y, 4, torch.float64), {}), expected, rtol=1e-6, atol=0)


# ---------------------------------------------------------------------- the noisy Dirichlet


def test_the_dirichlet_against_torch() -> None:
    p = F64.softmax(-1)
    concentration = 0.3 + F.one_hot(Y, 4)
    expected = torch.distributions.Dirichlet(concentration.double()).log_prob(p)
    law = tp.NoisyDirichlet(0.3, gaussian=False)
    torch.testing.assert_close(law.log_prob(F64, Y, {}), expected, rtol=1e-6, atol=1e-6)
    ratio = law.log_prob(F64, Y, {}) - tp.Categorical().log_prob(F64, Y, {})
    other = law.log_prob(F64, (Y + 1) % 4, {}) - tp.Categorical().log_prob(F64, (Y + 1) % 4, {})
    torch.testing.assert_close(ratio, other)  # what it adds to Categorical does not know y


def test_the_gaussian_form_has_the_moments_of_gamma_variables() -> None:
    """exp f_c ~ LogNormal with the mean and variance of Gamma(a_c, 1), which are both a_c."""
    law = tp.NoisyDirichlet(0.3)
    concentration = 0.3 + F.one_hot(Y, 4).double()
    variance = torch.log(1 + 1 / concentration)
    mean = concentration.log() - variance / 2
    torch.testing.assert_close((mean + variance / 2).exp(), concentration)
    torch.testing.assert_close(((variance.exp() - 1) * (2 * mean + variance).exp()), concentration)
    expected = torch.distributions.Normal(mean, variance.sqrt()).log_prob(F64).sum(-1)
    torch.testing.assert_close(law.log_prob(F64, Y, {}), expected)


def test_a_smaller_alpha_is_a_surer_label() -> None:
    """Probability of the training labels under the fit, for three α, and a cold Categorical's beside them."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=rng)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    sure = []
    for alpha in (1.0, 0.1, 0.001):
        target = tp.Target(tp.nn.MLP(2, [16], 3), tp.NoisyDirichlet(alpha), tp.GaussianPrior(3.0))
        fitted = tp.fit(target, tp.MAP(lr=0.02), (x, y), epochs=60, progress=False)
        sure.append(float(fitted.predict(x).log_prob(y).mean()))
        assert fitted.predict(x).likelihood == tp.Categorical()
        assert fitted.evaluate((x, y))["log_loss"] == pytest.approx(-sure[-1], rel=1e-5)
    assert sure[0] < sure[1] - 0.1 < sure[2] - 0.2


def test_the_dirichlet_itself_says_what_it_cannot() -> None:
    law = tp.NoisyDirichlet(0.01, gaussian=False)
    assert not law.normalised
    with pytest.raises(ArgumentError, match=r"`alpha` must be at least 1 − 1/4.*gaussian=True"):
        law.fisher(F64, {})
    assert float(torch.linalg.eigvalsh(law.hessian(F64, Y, {})).max()) < 1e-12  # convex in the logits
    with pytest.warns(TemperanceWarning, match="no upper bound"):
        law.begin(Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tp.NoisyDirichlet(0.01).begin(Y)
    with pytest.raises(ArgumentError, match="`alpha` must be a positive finite number; got 0"):
        tp.NoisyDirichlet(0)


def test_held_out_rows_are_scored_by_a_density() -> None:
    """Early stopping under a factor for θ looks at what is predicted, not at a factor that grows with |f|."""
    x, y = rows()
    target = tp.Target(network(), tp.NoisyDirichlet(0.01, gaussian=False), tp.GaussianPrior(1.0))
    data = target.prepare(tp.data.Data(x, y))
    engine = Engine(target, data)
    theta = target.fresh_theta(0)
    outputs = engine.outputs(theta[None], x)[0]
    assert engine.held_out_score(theta, data) == pytest.approx(-float(F.cross_entropy(outputs, y)))


@pytest.mark.parametrize("law", [tp.NoisyDirichlet(0.1), tp.CuratedLabels(3)], ids=repr)
def test_a_factor_for_theta_has_no_evidence(law: tp.Likelihood) -> None:
    """As a tempered likelihood has none. What sums to one has it: undecided rows count among the answers."""
    x, y = rows()
    target = tp.Target(network(), law, tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(curvature=tp.Dense(), tune=None), (x, y), progress=False)
    with pytest.raises(ArgumentError, match=r"a likelihood that sums to one over y \(`normalised`\)"):
        fitted.posterior.log_evidence(tolerance=math.inf)
    with pytest.raises(ArgumentError, match="`tune`: the evidence is defined"):
        tp.fit(target, tp.Laplace(tune="scalar"), (x, y), progress=False)
    proper = target.with_likelihood(tp.CuratedLabels(3, undecided=True))
    found = tp.fit(proper, tp.Laplace(curvature=tp.Dense(), tune=None), (x, y), progress=False).posterior
    assert math.isfinite(found.log_evidence(tolerance=math.inf))
