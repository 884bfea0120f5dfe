"""Policies whose beliefs are a posterior over networks, refitted now and then to what has been seen.

The target's network takes ``(context, arm)``, a batch of contexts and of arm numbers, and gives one output, the reward;
:class:`ArmNetwork` makes one of any network with an output for each arm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_count, check_instance, real, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, derive_seed, generator
from temperance.data.data import Data
from temperance.decide.active import make_fresh
from temperance.decide.bandit import Policy
from temperance.decide.members import check_predictive
from temperance.inference.base import Inference
from temperance.model.target import Target
from temperance.predict import Predictive
from temperance.run.fit import fit
from temperance.run.fitted import Fitted


class ArmNetwork(nn.Module):
    """``network`` has an output for each arm; this is that of the arm asked for.

    >>> ArmNetwork(nn.Linear(3, 5))(torch.zeros(2, 3), torch.tensor([4, 0])).shape
    torch.Size([2, 1])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        check_instance(network, "network", nn.Module, "a torch.nn.Module with an output for each arm")
        self.network = network

    def forward(self, context: Tensor, arm: Tensor) -> Tensor:
        """The reward of one arm for each row."""
        return self.network(context).gather(-1, arm.unsqueeze(-1))


def thompson(predictive: Predictive, seed: int = 0) -> int:
    """The row that is best under one draw of θ: row a is chosen with the posterior probability that it is the best.

    One member speaks for all rows, so arms that are good or bad together are seen as such.
    """
    made = check_predictive(predictive).as_functions()
    rng = generator(check_seed(seed), "thompson")
    pick = int(torch.multinomial(made.weights.double().cpu(), 1, generator=rng))
    means = []
    for _, outputs, learned in made.source.blocks():
        chosen = {name: value[pick : pick + 1] for name, value in learned.items()}
        means.append(made.likelihood.mean(outputs[pick : pick + 1], chosen)[0])
    values = torch.cat(means)
    if values.shape[1] != 1:
        raise ArgumentError(f"`predictive` must have one output, the reward; got {values.shape[1]}.")
    return int(values[:, 0].argmax())


class FittedPolicy(Policy):
    """What policies over a posterior share: memory, refits, and one predictive of all arms in a context.

    Rewards are standardised before each fit, which changes no choice.
    """

    def __init__(
        self,
        make_target: Callable[[], Target] | Target,
        method: Any,
        num_arms: int,
        *,
        every: int = 50,
        first: int = 20,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(make_target, Target) and not callable(make_target):
            raise ArgumentError(
                f"`make_target` must be a Target or a function that makes one; got {shown(make_target)}."
            )
        check_instance(method, "method", Inference, "a temperance method such as MAP(lr=1e-3)")
        for name, count in (("epochs", epochs), ("steps", steps), ("batch_size", batch_size), ("draws", draws)):
            if count is not None:
                check_count(count, name)
        self.make_target, self.method, self.num_arms = make_target, method, check_count(num_arms, "num_arms")
        self.every, self.first = check_count(every, "every"), check_count(first, "first")
        self.how: dict[str, Any] = {"epochs": epochs, "steps": steps, "batch_size": batch_size}
        self.draws, self.seed = draws, check_seed(seed)
        self.contexts: list[Tensor] = []
        self.arms: list[int] = []
        self.rewards: list[float] = []
        self.fitted: Fitted | None = None

    @property
    def step(self) -> int:
        """How many arms have been pulled."""
        return len(self.arms)

    def predict(self, context: Tensor) -> Predictive:
        """The predictive of every arm's reward in this context, standardised: a row for each arm."""
        if self.fitted is None:
            raise ArgumentError(f"nothing has been fitted yet: the first {self.first} arms are pulled in turn.")
        x = (context.expand(self.num_arms, -1), torch.arange(self.num_arms))
        return self.fitted.predict(x, draws=self.draws, seed=derive_seed(self.seed, "draws", self.step))

    def choose(self, context: Tensor) -> int:
        """Each arm in turn at first; then by belief."""
        return self.step % self.num_arms if self.fitted is None else self.by_belief(context)

    def by_belief(self, context: Tensor) -> int:
        """The arm that the posterior recommends."""
        raise NotImplementedError

    def learn(self, context: Tensor, arm: int, reward: float) -> None:
        """Remember, and refit when it is time."""
        self.contexts.append(context)
        self.arms.append(arm)
        self.rewards.append(reward)
        if self.step >= self.first and (self.step - self.first) % self.every == 0:
            self.refit()

    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Contexts, arms, and rewards as a column."""
        return torch.stack(self.contexts), torch.tensor(self.arms), torch.tensor(self.rewards).unsqueeze(1)

    def refit(self) -> None:
        """Fit to everything seen."""
        contexts, arms, rewards = self.seen()
        spread = rewards.std(correction=0)
        scaled = (rewards - rewards.mean()) / (spread if spread > 0 else 1.0)
        own = derive_seed(self.seed, "refit", self.step)
        target = make_fresh(self.make_target, own)
        self.fitted = fit(target, self.method, Data((contexts, arms), scaled), seed=own, progress=False, **self.how)


class ThompsonSampling(FittedPolicy):
    """Act as if one draw of θ from the posterior were the truth (Thompson 1933).

    Explores as much as the posterior leaves open: an arm is pulled with the probability that it is the best. A
    ``Laplace`` takes ``tune=None`` here: the width that predicts best on rows seen so far leaves too little open.

    >>> import temperance as tp
    >>> from temperance.decide.bandit import BernoulliBandit, play
    >>> class Flat(nn.Module):  # there is no context: one number for each arm
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.value = nn.Parameter(torch.zeros(2))
    ...     def forward(self, context, arm):
    ...         return self.value[arm].unsqueeze(-1)
    >>> make = lambda: tp.Target(Flat(), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    >>> belief = tp.Laplace(tp.MAP(lr=0.1), tp.Dense(), tune=None)
    >>> policy = ThompsonSampling(make, belief, 2, steps=50, every=20, first=4)
    >>> found = play(BernoulliBandit([0.1, 0.9]), policy, 60)
    >>> int(found.arms.sum()) > 40
    True
    """

    def by_belief(self, context: Tensor) -> int:
        """Argmax of one draw."""
        return thompson(self.predict(context), derive_seed(self.seed, "thompson", self.step))


class EpsilonGreedy(FittedPolicy):
    """The arm with the best mean, or with probability ``epsilon`` any arm: exploration that never stops."""

    def __init__(self, *args: Any, epsilon: float = 0.05, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= real(epsilon) <= 1:
            raise ArgumentError(f"`epsilon` must be a probability; got {shown(epsilon)}.")
        self.epsilon = float(epsilon)

    def by_belief(self, context: Tensor) -> int:
        """Argmax of the mean, or at random."""
        rng = generator(self.seed, "epsilon", self.step)
        if float(torch.rand((), generator=rng)) < self.epsilon:
            return int(torch.randint(self.num_arms, (), generator=rng))
        return int(self.predict(context).mean()[:, 0].argmax())
