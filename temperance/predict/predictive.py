"""``Predictive``: what a posterior says about new inputs, p(y | x, D) = Σ_s w_s p(y | x, θ_s).

Probabilities are averaged, never logits. Uncertainty splits in two ways that hold exactly:

* in nats: ``entropy() = aleatoric() + mutual_information()`` — the mixture's entropy is the expected entropy of its
  members (noise that more data cannot remove) plus what y and θ tell of each other (what data can). Of several yes/no
  labels or counts the three are sums over outputs; of several real outputs they are those of the joint distribution;
* in squared units: ``variance() = aleatoric_variance() + epistemic_variance()`` (the law of total variance).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Outcome
from temperance.core.registry import ByOutcome
from temperance.core.seeds import check_seed, generator
from temperance.model.likelihoods import Likelihood
from temperance.predict.monte_carlo import standard_error
from temperance.predict.source import OutputBlock, Outputs

_SLICE = 2**18  # numbers worked on at once
_SCRAMBLES = 8  # of quasi-random points, to see their error
Statistic = Callable[[Tensor, dict[str, Tensor]], Tensor]


class Predictive(ABC):
    """The predictive distribution of each row; made by ``Fitted.predict``."""

    def __init__(self, source: Outputs, likelihood: Likelihood) -> None:
        self.source, self.likelihood = source, likelihood
        self.weights = source.weights
        self._log_weights = self.weights.log()

    def __len__(self) -> int:
        return self.source.rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows, {self.num_draws} draws)"

    @property
    def outcome(self) -> Outcome:
        """What is predicted."""
        return self.likelihood.outcome

    @property
    def num_draws(self) -> int:
        """S, how many settings of θ are averaged."""
        return len(self.source)

    def as_functions(self) -> Predictive:
        """The same predictive with members that are functions, one θ for all rows: itself, unless its members are
        points of each row's own distribution."""
        return self

    def _over_rows(self, function: Statistic) -> Tensor:
        """``function`` of (outputs S × b × C, learned) for each block, joined along rows (the result's first dim)."""
        return torch.cat([function(outputs, learned) for _, outputs, learned in self.source.blocks()])

    def _slices(self, outputs: Tensor) -> Iterator[slice]:
        """Ranges of draws small enough that what is computed of them stays in the processor's cache."""
        step = max(1, _SLICE // max(1, outputs[0].numel()))
        for start in range(0, len(outputs), step):
            yield slice(start, start + step)

    def _average(self, function: Statistic, outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
        """Σ_s w_s function(outputs_s), over the first dimension."""
        total: Tensor | None = None
        for part in self._slices(outputs):
            values = function(outputs[part], {name: value[part] for name, value in learned.items()})
            added = torch.tensordot(self.weights[part], values, dims=1)
            total = added if total is None else total + added
        assert total is not None
        return total

    def _targets(self, y: Any) -> Tensor:
        tensor = torch.as_tensor(y).to(self.source.engine.device)
        if tensor.dim() == 0 or len(tensor) != len(self):
            raise ArgumentError(f"`y` must have one entry for each of the {len(self)} rows; got {tuple(tensor.shape)}.")
        return self.likelihood.prepare(tensor, self.source.num_outputs, self.source.engine.layout.dtype)

    def _member_log_prob(self, y: Tensor, block: OutputBlock) -> Tensor:
        rows, outputs, learned = block
        parts = []
        for part in self._slices(outputs):
            chosen = {name: value[part] for name, value in learned.items()}
            parts.append(self.likelihood.log_prob(outputs[part], y[rows], chosen))
        return torch.cat(parts)

    def log_prob(self, y: Any) -> Tensor:
        """log p(y | x, D) per row: log Σ_s w_s p(y | x, θ_s)."""
        engine = self._targets(y)
        weights = self._log_weights.unsqueeze(-1)
        parts = [(self._member_log_prob(engine, block) + weights).logsumexp(0) for block in self.source.blocks()]
        return torch.cat(parts)

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p(y_1, …, y_N | x_1, …, x_N, D) of all rows together: log Σ_s w_s Π_i p(y_i | x_i, θ_s).

        Marginals do not see whether the errors of two rows go together; the joint does.
        """
        engine = self._targets(y)
        total = torch.zeros(self.num_draws, dtype=torch.float64, device=self.weights.device)
        for block in self.source.blocks():
            total += self._member_log_prob(engine, block).double().sum(-1)
        return (total + self._log_weights.double()).logsumexp(0)

    def mean(self) -> Tensor:
        """E[y | x, D]: rows × outputs."""
        return self._mean_of(self.source)

    def aleatoric_variance(self) -> Tensor:
        """E_θ Var[y | x, θ]."""
        return self._over_rows(lambda out, learned: self._average(self.likelihood.variance, out, learned))

    def epistemic_variance(self) -> Tensor:
        """Var_θ E[y | x, θ]."""

        likely = int(self.weights.argmax())

        def spread(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            chosen = {name: value[likely : likely + 1] for name, value in learned.items()}
            near = self.likelihood.mean(outputs[likely : likely + 1], chosen)  # nothing cancels where members agree
            first = second = torch.zeros_like(near[0])
            for part in self._slices(outputs):
                off = self.likelihood.mean(outputs[part], {n: v[part] for n, v in learned.items()}) - near
                first = first + torch.tensordot(self.weights[part], off, dims=1)
                second = second + torch.tensordot(self.weights[part], off.square(), dims=1)
            return (second - first.square()).clamp(min=0.0)

        return self._over_rows(spread)

    def variance(self) -> Tensor:
        """Var[y | x, D], both kinds together."""
        return self.aleatoric_variance() + self.epistemic_variance()

    def aleatoric(self) -> Tensor:
        """E_θ H[y | x, θ] in nats, per row: noise that no amount of data removes."""
        return self._over_rows(lambda out, learned: self._average(self.likelihood.entropy, out, learned))

    @abstractmethod
    def entropy(self) -> Tensor:
        """H[y | x, D] in nats, per row: all the uncertainty there is."""

    def mutual_information(self) -> Tensor:
        """I[y; θ | x, D] = entropy − aleatoric, in nats: what the data have left open (BALD)."""
        return self.entropy() - self.aleatoric()

    def monte_carlo_error(self) -> Tensor:
        """The standard error that :meth:`mean` (class probabilities; means of numbers) has for being an average over
        finitely many draws: of its shape, in its units. See :mod:`temperance.predict.monte_carlo` for the estimators.

        Counted is what other draws from the same posterior would change: of independent draws by their spread, of
        antithetic pairs by that of the pairs, of a sampler's by their effective number, of a mixture by the draws
        within each component. It is zero for a single setting of θ, for an ensemble of such (five members are five
        members: nothing was drawn from a law), for closed forms and rules of integration; of a linearised network by
        quasi-random points it is the spread over eight scrambles. Infinite: a component was drawn from only once.

        Not counted is whatever more draws cannot mend: that another ensemble would have other members, that chains
        disagree (``diagnose.rhat``), that an approximation is one. Members of :func:`~temperance.predict.from_outputs`
        are taken for independent draws.

        >>> import temperance as tp
        >>> tp.predict.from_outputs([[[0.0]], [[2.0]]], tp.Normal(scale=1.0)).monte_carlo_error()
        tensor([[1.]])
        """
        if self.source.scrambled:
            return torch.stack([self._mean_of(self.source.again(k)) for k in range(_SCRAMBLES)]).std(0)

        if not any(stratum.drawn for stratum in self.source.strata):
            return torch.zeros_like(self.mean())

        def error(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            step = max(1, _SLICE // max(1, outputs[:, 0].numel()))  # rows
            found = []
            for part in outputs.split(step, dim=1):
                found.append(standard_error(self.likelihood.mean(part, learned), self.weights, self.source.strata))
            return torch.cat(found).to(outputs.dtype)

        return self._over_rows(error)

    def imprecision(self) -> Tensor:
        """:meth:`monte_carlo_error` in the units of ``predict(..., precision=...)``: of the mean of numbers in
        predictive standard deviations, of class probabilities as it is."""
        error = self.monte_carlo_error()
        return torch.where(error > 0, error / self.variance().sqrt(), error)

    def _mean_of(self, source: Outputs) -> Tensor:
        """:meth:`mean` over another source with the same weights."""
        return torch.cat([self._average(self.likelihood.mean, out, learned) for _, out, learned in source.blocks()])

    @abstractmethod
    def std(self) -> Tensor:
        """A standard deviation per row and output; see the subclass."""

    @abstractmethod
    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of a central interval; see the subclass."""

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together, n × rows (× outputs). Each draw has one θ for all its rows: they go together as
        the joint predictive says."""
        check_count(n, "n")
        rng = generator(check_seed(seed), "predictive-node")
        noise = generator(seed, "predictive-noise", device=self.weights.device)
        pick = torch.multinomial(self.weights.cpu(), n, replacement=True, generator=rng).to(self.weights.device)
        parts = []
        for _, outputs, learned in self.source.blocks():
            chosen = {name: value[pick] for name, value in learned.items()}
            parts.append(self.likelihood.sample(outputs[pick], chosen, noise))
        return torch.cat(parts, dim=1)


PREDICTIVES: ByOutcome[type[Predictive]] = ByOutcome("predictives", "temperance.predict.PREDICTIVES")
"""The class of the predictive of each outcome."""

SCORES: ByOutcome[Callable[[Any, Tensor], dict[str, float]]] = ByOutcome("scores", "temperance.predict.SCORES")
"""What ``Fitted.evaluate`` tells beside the log-loss: a function of the predictive and the known answers."""


def evaluate(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """The scores of known answers: ``log_loss``, and those registered for the outcome.

    >>> import temperance as tp
    >>> evaluate(tp.predict.from_outputs([[0.0, 2.0]], tp.Bernoulli()), torch.tensor([[0.0, 1.0]]))
    {'log_loss': 0.820...}
    """
    found = {"log_loss": -float(predictive.log_prob(y).double().mean())}
    own = SCORES.find(predictive.outcome)
    return found if own is None else {**found, **own(predictive, y)}
