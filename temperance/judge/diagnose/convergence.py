"""Convergence of a run's weights, and of its predictions.

The hidden units of a network can change places, and those of odd activations their signs, without any change of the
function. Chains that have found the same functions may therefore disagree about every weight: R-hat of weights is large
while that of predictions is 1. Judge a run by :func:`predictions`; :func:`weights` is for those who read weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.judge.diagnose.chains import Run, evenly, stack_chains, unpack
from temperance.judge.diagnose.mixing import bulk_ess, rhat, tail_ess
from temperance.model.target import Target
from temperance.posteriors import Draws
from temperance.predict import predict


@dataclass(frozen=True, eq=False)
class Convergence:
    """R-hat and effective numbers of draws of many quantities.

    A quantity that never changes (a probability that has been rounded to one) has no R-hat; it is left out of every
    summary and counted in ``constant``.

    Attributes:
        what: what the quantities are, in words.
        names: their names.
        rhat: rank-normalised split R-hat, one for each.
        bulk_ess: effective draws for the middle of each distribution.
        tail_ess: effective draws for the tails.
        chains: how many chains there are.
        draws: how many draws each has.
    """

    what: str
    names: tuple[str, ...]
    rhat: Tensor
    bulk_ess: Tensor
    tail_ess: Tensor
    chains: int
    draws: int

    @property
    def constant(self) -> int:
        """How many quantities never change."""
        return int(self.rhat.isnan().sum())

    def _known(self, values: Tensor) -> Tensor:
        known = values[~self.rhat.isnan()]
        return known if len(known) else values.new_full((1,), torch.nan)

    @property
    def worst(self) -> tuple[str, float]:
        """The quantity of the largest R-hat."""
        if self.constant == len(self.names):
            return "none", float("nan")
        place = int(self.rhat.nan_to_num(nan=-1.0, posinf=torch.inf).argmax())
        return self.names[place], float(self.rhat[place])

    @property
    def median_rhat(self) -> float:
        """The median R-hat."""
        return float(self._known(self.rhat).quantile(0.5, interpolation="higher"))

    @property
    def median_ess(self) -> float:
        """The median effective number of draws (bulk)."""
        return float(self._known(self.bulk_ess).median())

    @property
    def least_ess(self) -> float:
        """The smallest effective number of draws, bulk or tail."""
        return float(torch.minimum(self._known(self.bulk_ess), self._known(self.tail_ess)).min())

    def share_below(self, limit: float) -> float:
        """The share of quantities whose R-hat is below ``limit``."""
        known = self._known(self.rhat)
        return float("nan") if bool(known.isnan().any()) else float((known < limit).double().mean())

    def __str__(self) -> str:
        name, value = self.worst
        still = f" ({self.constant} of them constant)" if self.constant else ""
        return "\n".join(
            (
                f"{self.what}: {len(self.names)} quantities{still}, {self.chains} chains × {self.draws} draws",
                f"  R-hat      median {self.median_rhat:.3f}, worst {value:.3f} ({name})",
                f"             below 1.01: {self.share_below(1.01):.0%}, below 1.05: {self.share_below(1.05):.0%}",
                f"  ESS        bulk median {self.median_ess:.0f}, least {float(self._known(self.bulk_ess).min()):.0f}; "
                f"tail least {float(self._known(self.tail_ess).min()):.0f}",
            )
        )


def weights(run: Run, max_parameters: int = 500, *, target: Target | None = None) -> Convergence:
    """Convergence of the weights themselves, of at most ``max_parameters`` of them, evenly spaced in θ.

    >>> from temperance import Categorical, GaussianPrior, Target
    >>> from temperance.posteriors import Mixture
    >>> target = Target(torch.nn.Linear(1, 2), Categorical(), GaussianPrior(1.0))
    >>> rng = torch.Generator().manual_seed(0)
    >>> run = Mixture(tuple(Draws(torch.randn(200, 4, generator=rng)) for _ in range(4)))
    >>> weights(run, target=target).share_below(1.05)
    1.0
    """
    target, chains = unpack(run, target)
    picked = evenly(target.layout.size, check_count(max_parameters, "max_parameters"))
    values = stack_chains([chain.theta[:, picked.to(chain.theta.device)] for chain in chains])
    return _convergence("weights", _parameter_names(target, picked), values)


def predictions(
    run: Run, x: Any, *, target: Target | None = None, max_quantities: int = 1000, batch_size: int = 1024
) -> Convergence:
    """Convergence in function space: of E[y | x, θ] at the rows of ``x``: the probability of each class, the mean of
    real targets, the rate of counts. At most ``max_quantities`` of them are looked at, evenly spaced.
    """
    target, chains = unpack(run, target)
    check_count(max_quantities, "max_quantities")
    series: list[Tensor] = []
    names: tuple[str, ...] = ()
    engine = Engine(target)
    for chain in chains:
        found = predict(engine, Draws(chain.theta, chain.buffers), x, batch_size=batch_size)
        with torch.no_grad():
            means = [found.likelihood.mean(outputs, learned) for _, outputs, learned in found.source.blocks()]
        mean = torch.cat(means, 1)  # S × rows × outputs
        picked = evenly(mean[0].numel(), max_quantities)
        series.append(mean.flatten(1)[:, picked.to(mean.device)])
        label = target.likelihood.outcome.part
        names = tuple(f"row {int(k) // mean.shape[-1]}, {label} {int(k) % mean.shape[-1]}" for k in picked)
    return _convergence(target.likelihood.outcome.predictions, names, stack_chains(series))


def _convergence(what: str, names: tuple[str, ...], values: Tensor) -> Convergence:
    chains, draws = values.shape[:2]
    needed = 8 if chains == 1 else 4
    if draws < needed:
        raise ArgumentError(
            f"`run` must have at least {needed} draws in {'its one chain' if chains == 1 else 'each chain'}; got "
            f"{draws}."
        )
    return Convergence(what, names, rhat(values), bulk_ess(values), tail_ess(values), chains, draws)


def _parameter_names(target: Target, picked: Tensor) -> tuple[str, ...]:
    """``0.weight[3,1]`` for each place in θ."""
    names: list[str] = []
    entries = iter(target.layout.entries)
    entry = next(entries)
    for place in picked.tolist():  # ascending
        while place >= entry.stop:
            entry = next(entries)
        where = torch.unravel_index(torch.tensor(place - entry.start), entry.shape)
        names.append(f"{entry.name}[{','.join(str(int(i)) for i in where)}]" if entry.shape else entry.name)
    return tuple(names)
