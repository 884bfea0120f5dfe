"""Contextual bandits: see a context, pull an arm, get its reward and learn nothing of the others.

An *environment* says which context comes at step t and what each arm would pay, a *policy* chooses and learns, and
:func:`play` lets them meet. Regret is what the best arm in expectation would have paid more:
Σ_t max_a E[r_t(a)] − E[r_t(a_t)].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, check_instance, check_positive, real, shown
from temperance.core.errors import ArgumentError
from temperance.core.progress import ProgressBar
from temperance.core.seeds import check_seed, derive_seed, generator
from temperance.data.bandit import load_mushrooms


class Environment(ABC):
    """Contexts and rewards. Step t is the same whatever was done before, so policies can be compared step by step."""

    num_arms: int
    num_features: int

    @abstractmethod
    def context(self, step: int) -> Tensor:
        """The context of a step, ``num_features`` numbers."""

    @abstractmethod
    def reward(self, step: int, arm: int) -> float:
        """What an arm pays at a step."""

    @abstractmethod
    def expected(self, step: int) -> Tensor:
        """What each arm pays on average at a step."""


class Policy(ABC):
    """Chooses arms and learns from what they pay."""

    @abstractmethod
    def choose(self, context: Tensor) -> int:
        """The arm to pull."""

    @abstractmethod
    def learn(self, context: Tensor, arm: int, reward: float) -> None:
        """What it paid."""


@dataclass(frozen=True)
class Play:
    """The arms pulled, the rewards got, and the regret of each step."""

    arms: Tensor
    rewards: Tensor
    regret: Tensor

    @property
    def cumulative_regret(self) -> Tensor:
        """Σ up to each step."""
        return self.regret.cumsum(0)


def play(environment: Environment, policy: Policy, steps: int, *, progress: bool | None = None) -> Play:
    """Let a policy act for some steps.

    >>> found = play(BernoulliBandit([0.2, 0.9]), BetaBernoulli(2), 200)
    >>> bool(found.cumulative_regret[-1] < 0.35 * 100)  # pulling at random costs 70
    True
    """
    check_instance(environment, "environment", Environment, "an Environment such as BernoulliBandit([0.1, 0.9])")
    check_instance(policy, "policy", Policy, "a Policy such as BetaBernoulli(2)")
    check_flag(progress, "progress", optional=True)
    check_count(steps, "steps")
    arms, rewards, regret = [], [], []
    total = 0.0
    with ProgressBar(type(policy).__name__, steps, progress) as bar:
        for step in range(steps):
            context = environment.context(step)
            arm = int(policy.choose(context))
            if not 0 <= arm < environment.num_arms:
                raise ArgumentError(f"`policy` must choose an arm from 0 to {environment.num_arms - 1}; got {arm}.")
            reward = environment.reward(step, arm)
            policy.learn(context, arm, reward)
            expected = environment.expected(step)
            arms.append(arm)
            rewards.append(reward)
            regret.append(float(expected.max() - expected[arm]))
            total += regret[-1]
            bar.advance_to(step + 1, total, last=step + 1 == steps)
    return Play(torch.tensor(arms), torch.tensor(rewards, dtype=torch.float64), torch.tensor(regret).double())


class BernoulliBandit(Environment):
    """Arms that pay one with given probabilities; there is no context.

    >>> BernoulliBandit([0.1, 0.5]).expected(0)
    tensor([0.1000, 0.5000])
    """

    def __init__(self, probs: Sequence[float] | Tensor, seed: int = 0) -> None:
        numbers = probs.tolist() if isinstance(probs, Tensor) and probs.dim() == 1 else probs
        good = isinstance(numbers, list | tuple) and len(numbers) > 0 and all(0 <= real(p) <= 1 for p in numbers)
        if not good:
            raise ArgumentError(f"`probs` must be probabilities, one for each arm; got {shown(probs)}.")
        self.probs = torch.tensor(numbers, dtype=torch.get_default_dtype())
        self.num_arms, self.num_features, self.seed = len(self.probs), 0, check_seed(seed)

    def context(self, step: int) -> Tensor:
        """Nothing."""
        return torch.empty(0)

    def reward(self, step: int, arm: int) -> float:
        """One or zero."""
        uniform = torch.rand(self.num_arms, generator=generator(self.seed, "reward", step))
        return float(uniform[arm] < self.probs[arm])

    def expected(self, step: int) -> Tensor:
        """The probabilities."""
        return self.probs


class MushroomBandit(Environment):
    """Eat or not (Blundell et al. 2015): an edible mushroom pays 5, a poisonous one 5 or −35 with probability ½ each,
    not eating pays 0. Arm 1 eats. The mushrooms are those of UCI, see :func:`temperance.data.bandit.load_mushrooms`."""

    def __init__(self, seed: int = 0) -> None:
        mushrooms = load_mushrooms()
        self.x, self.edible = mushrooms.x, mushrooms.edible
        self.num_arms, self.num_features, self.seed = 2, self.x.shape[1], check_seed(seed)

    def _row(self, step: int) -> int:
        epoch, place = divmod(step, len(self.x))
        if getattr(self, "_epoch", None) != epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self.x), generator=generator(self.seed, "mushrooms", epoch))
        return int(self._order[place])

    def context(self, step: int) -> Tensor:
        """A mushroom's attributes, zeros and ones."""
        return self.x[self._row(step)]

    def reward(self, step: int, arm: int) -> float:
        """0 if not eaten, else 5 or −35."""
        if arm == 0:
            return 0.0
        lucky = float(torch.rand((), generator=generator(self.seed, "luck", step))) < 0.5
        return 5.0 if lucky or bool(self.edible[self._row(step)]) else -35.0

    def expected(self, step: int) -> Tensor:
        """0, and 5 or −15."""
        return torch.tensor([0.0, 5.0 if bool(self.edible[self._row(step)]) else -15.0])


class BetaBernoulli(Policy):
    """Thompson sampling for arms that pay zero or one: θ_a ~ Beta(a + wins, b + losses), pull the largest. Its regret
    grows as log T, the slowest possible.

    >>> policy = BetaBernoulli(2)
    >>> policy.learn(torch.empty(0), 1, 1.0)
    >>> policy.wins
    tensor([1., 2.], dtype=torch.float64)
    """

    def __init__(self, num_arms: int, wins: float = 1.0, losses: float = 1.0, seed: int = 0) -> None:
        check_count(num_arms, "num_arms")
        check_positive(wins, "wins")
        check_positive(losses, "losses")
        self.wins = torch.full((num_arms,), float(wins), dtype=torch.float64)
        self.losses = torch.full((num_arms,), float(losses), dtype=torch.float64)
        self.rng = generator(check_seed(seed), "beta-bernoulli")

    def choose(self, context: Tensor) -> int:
        """The arm whose draw is largest."""
        first = torch._standard_gamma(self.wins, generator=self.rng)
        second = torch._standard_gamma(self.losses, generator=self.rng)
        return int((first / (first + second)).argmax())

    def learn(self, context: Tensor, arm: int, reward: float) -> None:
        """Count."""
        if reward not in (0.0, 1.0):
            raise ArgumentError(f"`reward` must be 0 or 1 for BetaBernoulli; got {shown(reward)}.")
        self.wins[arm] += reward
        self.losses[arm] += 1 - reward


class UniformPolicy(Policy):
    """Any arm, at random: the baseline."""

    def __init__(self, num_arms: int, seed: int = 0) -> None:
        self.num_arms, self.seed, self.step = check_count(num_arms, "num_arms"), check_seed(seed), 0

    def choose(self, context: Tensor) -> int:
        """At random."""
        self.step += 1
        return derive_seed(self.seed, "uniform", self.step) % self.num_arms

    def learn(self, context: Tensor, arm: int, reward: float) -> None:
        """Nothing is learned."""
