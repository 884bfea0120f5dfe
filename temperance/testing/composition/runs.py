"""Short runs for the composition battery: a small problem, what a run predicts, a run that is killed twice."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.inference import Inference
from temperance.model.likelihoods import Categorical, Likelihood, Normal
from temperance.model.priors import GaussianPrior, InverseGamma, Learned, Prior
from temperance.model.target import Target
from temperance.posteriors import Posterior
from temperance.run.fit import fit
from temperance.run.fitted import Fitted
from temperance.testing.cost import patched
from temperance.testing.inference import _Stopped, _stopped_after


@dataclass(frozen=True)
class SmallProblem:
    """A network as a user brings it, data that it can learn a little of in a few steps, and inputs to be asked at."""

    network: nn.Module
    likelihood: Likelihood
    data: Data
    queries: Tensor
    scale: float
    """How large the predicted means are: a spread is near zero when it is beside this."""
    prior: Prior = field(default_factory=lambda: GaussianPrior(scale=1.0))

    def weights(self) -> Tensor:
        """The given network's, as they are now."""
        return torch.cat([p.detach().flatten().clone() for p in self.network.parameters()])

    def target(self, subset: Any = None) -> Target:
        """The problem anew, or that of a part of the network."""
        return Target(self.network, self.likelihood, self.prior, subset=subset)


def small_problem(
    *,
    classes: bool = False,
    dropout: bool = False,
    learned_noise: bool = False,
    learned_scales: bool = False,
    conjugate_scales: bool = False,
    rows: int = 30,
) -> SmallProblem:
    """Two inputs, eight hidden units: a run of a dozen steps takes milliseconds.

    >>> small_problem(dropout=True).target("0").num_parameters
    24
    """
    rng = generator(0, "composition-problem")
    x = torch.randn(rows, 2, generator=rng)
    outputs = 3 if classes else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        between = [nn.Tanh(), nn.Dropout(0.2)] if dropout else [nn.Tanh()]
        network = nn.Sequential(nn.Linear(2, 8), *between, nn.Linear(8, outputs))
    wave = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:]
    if classes:
        y: Tensor = (wave[:, 0] > -0.3).long() + (wave[:, 0] > 0.4).long()
        likelihood: Likelihood = Categorical()
    else:
        y = wave + 0.2 * torch.randn(rows, 1, generator=rng)
        likelihood = Normal() if learned_noise else Normal(scale=0.3)
    queries = torch.cat([x[:6], 2.5 * torch.randn(6, 2, generator=rng)])
    prior = GaussianPrior(scale=Learned() if learned_scales else 1.0)
    if conjugate_scales:
        prior = GaussianPrior(scale=Learned(hyper=InverseGamma(2.0, 1.0), each="network"))
    return SmallProblem(network, likelihood, Data(x, y), queries, scale=1.0, prior=prior)


# ---------------------------------------------------------------------- what a run says


def parts_of(posterior: Posterior) -> list[Posterior]:
    """The members that a posterior mixes, mixtures of mixtures taken apart; a posterior that mixes none is its own.

    >>> from temperance.posteriors import Mixture, Point
    >>> pair = Mixture((Point(torch.zeros(2)), Point(torch.ones(2))))
    >>> len(parts_of(Mixture((pair, pair))))
    4
    """
    return [part for _, part in posterior.parts()]


def kind_of(posterior: Posterior) -> str:
    """The name of what is inside, maps between θ and a part of it left out."""
    inner = getattr(posterior, "inner", None)
    return kind_of(inner) if isinstance(inner, Posterior) else type(posterior).__name__


@dataclass(frozen=True)
class Says:
    """What a posterior predicts at the problem's queries, without rounding of our own."""

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    weights: Tensor
    shares: Tensor

    @property
    def spread(self) -> float:
        """The epistemic standard deviation, averaged."""
        return float(self.epistemic.clamp(min=0).sqrt().mean())

    def differs(self, other: Says) -> str:
        """The names of what is not equal bit for bit."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)]
        return ", ".join(name for name, a, b in pairs if a.shape != b.shape or not torch.equal(a, b))

    @property
    def finite(self) -> bool:
        """Whether every number is."""
        return all(bool(torch.isfinite(getattr(self, f.name)).all()) for f in dataclasses.fields(self))


def says(fitted: Fitted, x: Tensor, posterior: Posterior | None = None, by: str | None = None) -> Says:
    """What a run predicts, or what one of its members does."""
    shown = fitted if posterior is None else dataclasses.replace(fitted, posterior=posterior)
    found = shown.predict(x, by=by)
    weights = getattr(found, "weights", torch.ones(1))
    shares = getattr(shown.posterior, "shares", lambda: (1.0,))()
    return Says(
        found.mean().detach().clone(),
        found.epistemic_variance().detach().clone(),
        found.aleatoric_variance().detach().clone(),
        torch.as_tensor(weights).detach().clone(),
        torch.tensor(shares, dtype=torch.float64),
    )


# ---------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Law:
    """How predictions are distributed over seeds: their mean, the variance between runs and that within them."""

    mean: Tensor
    between: Tensor
    within: Tensor
    count: int


@dataclass
class Runs:
    """Short runs of methods on one problem; what was run once is kept, for several rules look at the same one."""

    problem: SmallProblem
    steps: int
    batch_size: int
    seed: int = 0
    done: dict[tuple[int, str, bool], Fitted | Exception] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def new(self, method: Inference[Any], subset: Any = None, full: bool = False, **options: Any) -> Fitted:
        """A run that was not made before."""
        return fit(
            self.problem.target(subset),
            method,
            self.problem.data,
            steps=None if method.facts().default_steps == 0 else self.steps,
            batch_size=len(self.problem.data) if full else self.batch_size,
            seed=self.seed,
            progress=False,
            **options,
        )

    def seeds(self, method: Inference[Any], subset: Any, count: int = 8) -> Law:
        """Runs of several seeds."""
        others = [dataclasses.replace(self, seed=seed, done={}, kept=[]) for seed in range(count)]
        found = [says(other.new(method, subset), self.problem.queries) for other in others]
        means = torch.stack([one.mean for one in found]).double()
        within = torch.stack([one.epistemic for one in found]).double().mean(0)
        return Law(means.mean(0), means.var(0), within, count)

    def alone(self, method: Inference[Any], subset: Any = None, full: bool = False) -> Fitted | None:
        """The run of a method that others are compared with; ``None`` where the method cannot run by itself."""
        key = (id(method), repr(subset), full)
        if key not in self.done:
            self.kept.append(method)  # an id is one only while its owner lives
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self.done[key] = self.new(method, subset, full)
                except Exception as error:
                    self.done[key] = error
        found = self.done[key]
        return None if isinstance(found, Exception) else found

    def killed_twice(self, method: Inference[Any], folder: Path) -> tuple[Fitted, int]:
        """A run that ended twice in its middle and went on each time; and how often it really was ended."""
        ends = 0
        for stop in (self.steps // 4, self.steps // 2):  # in the first part of a run that has two, and in the second
            with contextlib.suppress(_Stopped), _stopped_after(type(method), stop):
                self.new(method, checkpoint=folder, every=2)
                ends -= 1
            ends += 1
        return self.new(method, checkpoint=folder, every=2), ends


@contextlib.contextmanager
def steps_counted() -> Iterator[list[int]]:
    """Steps that were finished, in the one number of the list: those of the outermost method, or a first one further
    inside. A step that was refused in its beginning is none."""
    made = [0]
    depth = whole = 0

    def make(original: Any) -> Any:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth, whole
            depth += 1
            try:
                found = original(self, *args, **kwargs)
            finally:
                depth -= 1
            whole += depth == 0
            made[0] = max(whole, 1)
            return found

        return step

    with contextlib.ExitStack() as stack:
        kinds: list[type] = [Inference]
        for kind in kinds:
            kinds.extend(set(kind.__subclasses__()) - set(kinds))
            for name in ("step", "step_stack"):
                if name in vars(kind) and not getattr(vars(kind)[name], "__isabstractmethod__", False):
                    stack.enter_context(patched(kind, name, make))
        yield made


@contextlib.contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """What was warned of, each once, without the numbers that differ from run to run."""
    heard: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield heard
        finally:
            heard.extend(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught))
