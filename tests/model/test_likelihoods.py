from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import scipy.stats
import torch

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NetworkError, TemperanceWarning
from temperance.model.likelihoods.classes import probabilities
from temperance.testing import CheckFailure, check_likelihood

CASES = [
    (tp.Categorical(), 4),
    (tp.Bernoulli(), 1),
    (tp.Bernoulli(), 3),
    (tp.Normal(0.3), 1),
    (tp.Normal(0.5), 2),
    (tp.Normal(None), 1),
    (tp.Normal(None, num_outputs=2), 2),
    (tp.HeteroscedasticNormal(), 2),
    (tp.HeteroscedasticNormal(), 4),
    (tp.Poisson(), 1),
    (tp.Poisson(), 2),
    (tp.StudentT(5.0, 0.7), 1),
    (tp.StudentT(6.0, None, 2), 2),
    (tp.ContaminatedNormal(0.1, 5.0, 0.7), 1),
    (tp.ContaminatedNormal(0.2, 4.0, None, 2), 2),
    (tp.NegativeBinomial(0.5), 1),
    (tp.NegativeBinomial(None, 2), 2),
    (tp.ZeroInflated(tp.Poisson()), 2),
    (tp.ZeroInflated(tp.Poisson()), 4),
    (tp.ZeroInflated(tp.NegativeBinomial(0.5)), 2),
    (tp.ZeroInflated(tp.NegativeBinomial()), 4),
    (tp.CuratedLabels(3), 4),
    (tp.CuratedLabels(3, undecided=True), 3),
    (tp.NoisyLabels(0.2), 3),
    (tp.NoisyLabels(), 4),
    (tp.NoisyDirichlet(0.05), 3),
    (tp.NoisyDirichlet(1.3, gaussian=False), 3),
    (tp.PerPosition(tp.Categorical(), shape=(3, 3)), 9),
    (tp.PerPosition(tp.CuratedLabels(3), shape=(2, 3)), 6),
    (tp.PerPosition(tp.ZeroInflated(tp.Poisson()), shape=(2, 2)), 4),
    (tp.PerPosition(tp.Bernoulli(), shape=(2, 2, 1)), 4),
    (tp.PerPosition(tp.Normal(0.4), shape=(3, 2)), 6),
]


@pytest.mark.parametrize(("likelihood", "outputs"), CASES, ids=lambda v: repr(v))
def test_likelihoods_are_proper_with_true_curvature_and_draws(likelihood, outputs):
    check_likelihood(likelihood, outputs)


def test_log_prob_against_scipy():
    y = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
    f = torch.tensor([[0.2], [-0.5], [1.1]], dtype=torch.float64)
    expected = scipy.stats.norm.logpdf(y, f, 0.3).squeeze()
    assert torch.allclose(tp.Normal(0.3).log_prob(f, y, {}), torch.as_tensor(expected))
    expected = scipy.stats.t.logpdf(y, 3.0, f, 0.3).squeeze()
    assert torch.allclose(tp.StudentT(3.0, 0.3).log_prob(f, y, {}), torch.as_tensor(expected))
    expected = scipy.stats.poisson.logpmf(y, f.exp()).squeeze()
    assert torch.allclose(tp.Poisson().log_prob(f, y, {}), torch.as_tensor(expected))
    two = torch.cat([f, 0.5 * f], -1)
    scale = torch.where(f > 0, 1 + 0.5 * f, (0.5 * f).exp())
    expected = scipy.stats.norm.logpdf(y, f, scale).squeeze()
    assert torch.allclose(tp.HeteroscedasticNormal().log_prob(two, y, {}), torch.as_tensor(expected))
    assert torch.allclose(tp.HeteroscedasticNormal.made_of(scale), 0.5 * f)


def test_targets_are_checked_at_the_door():
    prepare = tp.Categorical().prepare
    assert prepare(torch.tensor([0, 2], dtype=torch.uint8), 3).dtype == torch.int64
    assert prepare(torch.tensor([[0], [2]]), 3).shape == (2,)
    with pytest.raises(DataError, match=r"classes from 0 to 2.*labels from 0 to 3"):
        prepare(torch.tensor([0, 3]), 3)
    with pytest.raises(DataError, match="labels from -1"):
        prepare(torch.tensor([-1, 1]), 3)
    with pytest.raises(DataError, match=r"integer class labels.*float32"):
        prepare(torch.tensor([0.0, 1.0]), 3)
    with pytest.raises(DataError, match=r"shape \(rows,\)"):
        prepare(torch.zeros(2, 3, dtype=torch.long), 3)
    with pytest.raises(DataError, match="zeros and ones"):
        tp.Bernoulli().prepare(torch.tensor([0.0, 2.0]), 1)
    with pytest.raises(DataError, match=r"shape \(rows, 2\)"):
        tp.Normal().prepare(torch.zeros(5, 3), 2)
    with pytest.raises(DataError, match="must be finite"):
        tp.Normal().prepare(torch.tensor([1.0, float("inf")]), 1)
    with pytest.raises(DataError, match="whole numbers"):
        tp.Poisson().prepare(torch.tensor([1.5]), 1)
    with pytest.raises(DataError, match="whole numbers"):
        tp.Poisson().prepare(torch.tensor([-1.0]), 1)
    for likelihood, y in ((tp.Normal(1.0), 1e6 * torch.randn(100, 1)), (tp.Normal(), 1000 + torch.randn(100, 1))):
        with pytest.warns(TemperanceWarning, match="standardise"):
            likelihood.begin(y)


def test_outputs_that_do_not_fit_are_refused():
    with pytest.raises(NetworkError, match="one output per class"):
        tp.Categorical().check_outputs(torch.zeros(4, 1))
    with pytest.raises(NetworkError, match="even number"):
        tp.HeteroscedasticNormal().check_outputs(torch.zeros(4, 3))
    with pytest.raises(NetworkError, match="matrix"):
        tp.Normal().check_outputs(torch.zeros(4, 3, 2))
    with pytest.raises(ArgumentError, match="`scale`"):
        tp.Normal(0.0)
    with pytest.raises(ArgumentError, match="`df`"):
        tp.StudentT(df=-1.0)


def test_learned_noise_is_part_of_theta_and_finds_the_noise():
    torch.manual_seed(0)
    x = torch.randn(2000, 1)
    y = torch.cat([2 * x + 0.3 * torch.randn_like(x), -x + 1.5 * torch.randn_like(x)], 1)
    target = tp.Target(torch.nn.Linear(1, 2), tp.Normal(None, num_outputs=2), tp.GaussianPrior(10.0))
    assert target.num_parameters == 6
    fitted = tp.fit(target, tp.MAP(lr=0.05), (x, y), epochs=40)
    noise = target.layout.unflatten(fitted.posterior.theta)["likelihood.log_scale"].exp()
    assert torch.allclose(noise, torch.tensor([0.3, 1.5]), rtol=0.1)
    assert torch.allclose(fitted.predict(x[:3]).std(), noise.expand(3, 2))


@dataclass(frozen=True, eq=False)
class _ForgetsTwo(tp.Normal):
    """A Hessian that lost its square."""

    def hessian(self, outputs, y, learned):
        return super().hessian(outputs, y, learned) * self.scale


@dataclass(frozen=True, eq=False)
class _TooSure(tp.Normal):
    def sample(self, outputs, learned, rng):
        mean = self.location(outputs)
        return mean + 0.9 * (super().sample(outputs, learned, rng) - mean)


@dataclass(frozen=True, eq=False)
class _Modest(tp.Normal):
    """Says that it is no density, and is one."""

    @property
    def normalised(self):
        return False


@dataclass(frozen=True, eq=False)
class _Boastful(tp.CuratedLabels):
    """Says that it is a density, and is none."""

    @property
    def normalised(self):
        return True


@dataclass(frozen=True, eq=False)
class _WrongDraws(tp.CuratedLabels):
    """Scores of draws are S, not √S, times as long."""

    def fisher_draw(self, outputs, learned, rng):
        return self.score(outputs, self.sample(outputs, learned, rng), learned)


def test_the_check_itself_can_fail():
    with pytest.raises(CheckFailure, match="FAIL does not integrate to one, as it says"):
        check_likelihood(_Modest(0.5), 1)
    with pytest.raises(CheckFailure, match="FAIL integrates to one"):
        check_likelihood(_Boastful(3), 3)
    with pytest.raises(CheckFailure, match="FAIL draws of the fisher"):
        check_likelihood(_WrongDraws(3), 3)
    with pytest.raises(CheckFailure, match="FAIL hessian"):
        check_likelihood(_ForgetsTwo(0.5), 1)
    with pytest.raises(CheckFailure, match="FAIL variance"):
        check_likelihood(_TooSure(0.5), 1)


def test_masked_classes_have_finite_entropy():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    assert float(tp.Categorical().entropy(logits, {})) == pytest.approx(math.log(2))


@pytest.mark.parametrize("classes", [2, 3, 8, 9])
def test_probabilities_are_the_softmax(classes: int) -> None:
    f = 50 * torch.randn(4, 7, classes, dtype=torch.float64)
    torch.testing.assert_close(probabilities(f), f.softmax(-1), rtol=1e-12, atol=1e-300)
    torch.testing.assert_close(probabilities(f[0]), f[0].softmax(-1), rtol=1e-12, atol=1e-300)
    f.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: probabilities(v / 50), f)


def test_noise_that_is_given_can_be_changed():
    assert tp.Normal(scale=0.5).given_noise == 0.5
    assert tp.Normal(scale=0.5, num_outputs=2).with_noise(0.1) == tp.Normal(scale=0.1, num_outputs=2)
    for other in (tp.Normal(), tp.StudentT(scale=0.5), tp.HeteroscedasticNormal(), tp.Categorical()):
        assert other.given_noise is None
    with pytest.raises(NotImplementedError, match="Categorical has no noise of a given scale"):
        tp.Categorical().with_noise(1.0)


@pytest.mark.parametrize("likelihood", [tp.Normal(), tp.StudentT(), tp.Normal(num_outputs=2)])
def test_learned_noise_begins_at_the_spread_of_the_rows_that_count(likelihood):
    torch.manual_seed(0)
    y = torch.randn(40, 2)
    weights = torch.randint(0, 3, (40,)).double()
    far = torch.where((weights == 0).unsqueeze(1), torch.full_like(y, 1e20), y)
    found = likelihood.begin(far, weights)
    wanted = likelihood.begin(y.repeat_interleave(weights.long(), 0))
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name])
