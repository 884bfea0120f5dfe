from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.data.bandit import MUSHROOM_FILES, load_mushrooms
from temperance.decide.bandit import (
    BernoulliBandit,
    BetaBernoulli,
    Environment,
    MushroomBandit,
    Policy,
    UniformPolicy,
    play,
)
from temperance.decide.neural_linear import NeuralLinear, NormalInverseGamma
from temperance.decide.policies import ArmNetwork, EpsilonGreedy, ThompsonSampling, thompson

from .helpers import values_from

needs_mushrooms = pytest.mark.skipif(MUSHROOM_FILES.where() is None, reason="the mushrooms are not here")


def test_beta_bernoulli_regret_grows_as_a_logarithm():
    """Lai and Robbins: regret ≈ c log T with c = gap / KL(p, q). A linear regret would be 100 times as large at the end
    as at one hundredth of the run; a logarithm at most doubles when T is squared."""
    steps, runs = 2000, 6
    total = torch.zeros(steps, dtype=torch.float64)
    for seed in range(runs):
        total += play(BernoulliBandit([0.4, 0.7], seed), BetaBernoulli(2, seed=seed), steps).cumulative_regret / runs
    divergence = 0.4 * math.log(0.4 / 0.7) + 0.6 * math.log(0.6 / 0.3)
    bound = 0.3 / divergence * math.log(steps)
    assert float(total[-1]) < 3 * bound  # random pulls would cost 300
    growth = float(total[-1] - total[steps // 2 - 1]) / float(total[steps // 2 - 1])
    assert growth < 0.35  # log gives log 2 / log 1000 = 0.1, a line gives 1


def test_thompson_picks_an_arm_as_often_as_it_is_best():
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(40, 3, 1, generator=rng, dtype=torch.float64)
    means[:, 1] = means[:, 0] + 0.1  # arms that go together: 1 always beats 0, though their marginals are near equal
    pred = values_from(means)
    wanted = torch.bincount(means[:, :, 0].argmax(1), minlength=3) / 40
    picks = torch.bincount(torch.tensor([thompson(pred, seed) for seed in range(400)]), minlength=3) / 400
    assert int(picks[0] * 400) == 0
    assert torch.allclose(picks, wanted, atol=4 * math.sqrt(0.25 / 400))


def test_the_update_is_that_of_ridge_regression():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(30, generator=rng, dtype=torch.float64) + x[:, 0]
    belief = NormalInverseGamma(4, precision=0.5, shape=3.0, rate=2.0)
    for row, value in zip(x, y, strict=True):
        belief.update(row.unsqueeze(0), value.unsqueeze(0))
    precision = x.T @ x + 0.5 * torch.eye(4)
    mean = torch.linalg.inv(precision) @ x.T @ y
    assert torch.allclose(belief.mean, mean)
    assert belief.shape == pytest.approx(3.0 + 15)
    # b₀ + ½ (residuals + λ |μ|²), the same by another way
    assert belief.rate == pytest.approx(2.0 + 0.5 * float((y - x @ mean).square().sum() + 0.5 * mean.square().sum()))
    draws = torch.stack([belief.sample(rng) for _ in range(4000)])
    covariance = belief.rate / (belief.shape - 1) * torch.linalg.inv(precision)
    spread = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * spread / math.sqrt(4000)).all()
    assert torch.allclose(draws.T.cov(), covariance, atol=float(6 * spread.max() ** 2 * math.sqrt(2 / 4000)))


class Lines(Environment):
    """Two arms that pay ± x + noise."""

    num_arms, num_features = 2, 1

    def context(self, step: int) -> torch.Tensor:
        return torch.tensor([math.sin(7.0 * step)])

    def expected(self, step: int) -> torch.Tensor:
        x = float(self.context(step))
        return torch.tensor([x, -x])

    def reward(self, step: int, arm: int) -> float:
        return float(self.expected(step)[arm]) + 0.1 * math.sin(31.0 * step)


def make() -> tp.Target:
    return tp.Target(ArmNetwork(tp.nn.MLP(1, [8], 2)), tp.Normal(scale=0.3), tp.GaussianPrior(1.0))


@pytest.mark.parametrize(
    "policy",
    [
        lambda: ThompsonSampling(make, tp.Ensemble(tp.MAP(lr=0.05), 3), 2, every=30, first=10, steps=60),
        lambda: EpsilonGreedy(make, tp.MAP(lr=0.05), 2, every=30, first=10, steps=60, epsilon=0.05),
        lambda: NeuralLinear(make, tp.MAP(lr=0.05), 2, every=30, first=10, steps=60),
    ],
)
def test_policies_learn_and_repeat(policy):
    found = play(Lines(), policy(), 100)
    again = play(Lines(), policy(), 40)
    assert torch.equal(found.arms[:40], again.arms)
    blind = play(Lines(), UniformPolicy(2), 100)
    assert float(found.regret[-40:].sum()) < 0.3 * float(blind.regret[-40:].sum())


def test_neural_linear_learns_at_every_step_between_refits():
    policy = NeuralLinear(make, tp.MAP(lr=0.05), 2, every=100, first=6, steps=20)
    play(Lines(), policy, 15)
    features = policy.features(torch.stack(policy.contexts))
    scaled = (torch.tensor(policy.rewards) - policy.shift) / policy.scale
    for arm, belief in enumerate(policy.beliefs):
        rows = torch.tensor(policy.arms) == arm
        x = features[rows]
        wanted = torch.linalg.solve(x.T @ x + 0.25 * torch.eye(x.shape[1]), x.T @ scaled[rows].double())
        assert torch.allclose(belief.mean, wanted, atol=1e-6)


def test_bad_input():
    class Wild(Policy):
        def choose(self, context: torch.Tensor) -> int:
            return 7

        def learn(self, context: torch.Tensor, arm: int, reward: float) -> None: ...

    for call, message in [
        (lambda: play(Lines(), Wild(), 3), "arm from 0 to 1"),
        (lambda: play(Lines(), BetaBernoulli(2), 3), "`reward`"),
        (lambda: BernoulliBandit([2.0]), "`probs`"),
        (lambda: BetaBernoulli(2, wins=0.0), "`wins`"),
        (lambda: NormalInverseGamma(2, rate=0.0), "`rate`"),
        (lambda: EpsilonGreedy(make, tp.MAP(), 2, epsilon=2.0), "`epsilon`"),
        (lambda: ThompsonSampling(make, tp.MAP(), 2).predict(torch.zeros(1)), "nothing has been fitted"),
        (lambda: thompson(values_from(torch.zeros(2, 3, 2))), "one output"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
    plain = lambda: tp.Target(Both(), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))  # noqa: E731
    with pytest.raises(ArgumentError, match="ArmNetwork"):
        play(Lines(), NeuralLinear(plain, tp.MAP(), 2, first=2, steps=2), 3)


class Both(nn.Module):
    """A network of context and arm together."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, context: torch.Tensor, arm: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([context, arm.unsqueeze(-1).to(context)], dim=-1))


@needs_mushrooms
def test_mushrooms():
    mushrooms = load_mushrooms()
    assert mushrooms.x.shape == (8124, 117)
    assert int(mushrooms.edible.sum()) == 4208
    assert (mushrooms.x.sum(1) == 22).all()
    environment = MushroomBandit(seed=0)
    rewards = torch.tensor([environment.reward(t, 1) for t in range(2000)])
    edible = torch.tensor([bool(environment.expected(t)[1] == 5) for t in range(2000)])
    assert (rewards[edible] == 5).all()
    assert set(rewards[~edible].tolist()) == {5.0, -35.0}
    count = int((~edible).sum())
    assert float(rewards[~edible].mean()) == pytest.approx(-15, abs=4 * 20 / math.sqrt(count))
    assert [environment.reward(t, 0) for t in range(5)] == [0.0] * 5
    assert environment.context(3).shape == (117,)


@needs_mushrooms
@pytest.mark.slow
def test_mushroom_regret_is_below_that_of_greed_with_noise():
    def target() -> tp.Target:
        return tp.Target(ArmNetwork(tp.nn.MLP(117, [50], 2)), tp.Normal(scale=0.3), tp.GaussianPrior(tp.FanIn(1.0)))

    common = {"every": 100, "first": 40, "steps": 150}
    environment = MushroomBandit(seed=0)
    sampled = play(environment, ThompsonSampling(target, tp.Ensemble(tp.MAP(lr=1e-2), 5), 2, **common), 1500)
    greedy = play(environment, EpsilonGreedy(target, tp.MAP(lr=1e-2), 2, epsilon=0.05, **common), 1500)
    blind = play(environment, UniformPolicy(2), 1500)
    assert sampled.cumulative_regret[-1] < greedy.cumulative_regret[-1] < 0.5 * blind.cumulative_regret[-1]
