"""Predictives of the linearised network: Gaussian in the outputs, then through the likelihood.

* Each row's Gaussian is represented by quasi-random points whose mean and covariance are exactly its own, so that every
  statistic of :class:`~temperance.predict.Predictive` is had with little sampling noise. That serves any outcome.
* An outcome with closed forms has them in a file of its own: class probabilities in
  :mod:`~temperance.predict.linearised_classes`, Gaussian noise in :mod:`~temperance.predict.linearised_reals`. Each
  puts its predictive into ``LINEARISED``.
* Draws of all rows together (``sample``, ``joint_log_prob`` of classes) are draws of functions, f(x) + J(x) δ, one δ
  for all x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, generator
from temperance.data.sources import Inputs
from temperance.engine.engine import Engine
from temperance.model.likelihoods import Likelihood
from temperance.posteriors import Posterior
from temperance.predict.gaussian_sources import (
    FunctionSource,
    GaussianSource,
    Linearised,
    LinearisedSource,
    MarginalSource,
)
from temperance.predict.predictive import Predictive

CLOSED_FORMS = ("probit", "bridge")
LINKS = ("linearised", *CLOSED_FORMS, "functions")
FUNCTION_DRAWS = 64
_VALUE_POINTS = 48  # the entropy of a mixture of so many densities, by quadrature, is what costs
_MANY_OUTPUTS = 64  # beyond this no C × C covariance of a row is built: draws of functions stand for it
_JOINT = 4096  # rows times outputs of a joint covariance


class LinearisedMixin(Predictive):
    """What linearised predictives share: the law's own moments, and draws of functions for what concerns all rows."""

    plain: ClassVar[type[Predictive]]
    """The predictive of the same outcome over draws."""
    points: ClassVar[int] = _VALUE_POINTS
    """How many points stand for a row's Gaussian."""

    source: LinearisedSource
    functions: Callable[[int], FunctionSource]

    @classmethod
    def check_form(cls, by: str, likelihood: Likelihood) -> None:
        """Raise unless ``by`` is a way to predict this outcome."""
        if by in CLOSED_FORMS:
            raise ArgumentError(f"`by` {by!r} is for class probabilities; the likelihood is {likelihood!r}.")

    @classmethod
    def of_points(cls, source: MarginalSource, likelihood: Likelihood, by: str) -> LinearisedMixin:
        """The predictive of points of each row's Gaussian; a subclass uses closed forms where it has them."""
        return cls(source, likelihood)

    @cached_property
    def _functions(self) -> FunctionSource:
        return self.functions(FUNCTION_DRAWS)

    def as_functions(self) -> Predictive:
        """Draws of functions in place of points."""
        return self if isinstance(self.source, FunctionSource) else self._over(self._functions)

    def _over(self, source: FunctionSource) -> Predictive:
        """The same predictive over draws of functions."""
        return self.plain(source, self._plain_likelihood())

    def _plain_likelihood(self) -> Likelihood:
        return self.likelihood

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together, n × rows (× outputs); each has a function of its own for all its rows."""
        check_count(n, "n")
        likelihood = self._plain_likelihood()
        rng, noise = (
            generator(check_seed(seed), "predictive-node"),
            generator(seed, "predictive-noise", device=self.weights.device),
        )
        # A component by its share, for each draw; then functions of that component, none of them twice.
        shares = torch.tensor(self.source.shares, dtype=torch.float64)
        component = torch.multinomial(shares, n, replacement=True, generator=rng)
        most = int(component.bincount().max())
        source = self._functions if 2 * most * len(shares) <= len(self._functions) else None
        source = source or self.functions(2 * most * len(shares))
        each = len(source) // len(shares)
        pick = torch.empty(n, dtype=torch.int64)
        for k in range(len(shares)):
            own = component == k
            pick[own] = k * each + torch.randperm(each, generator=rng)[: int(own.sum())]
        pick = pick.to(self.weights.device)
        parts = []
        for _, outputs, learned in source.blocks():
            chosen = {name: value[pick] for name, value in learned.items()}
            parts.append(likelihood.sample(outputs[pick], chosen, noise))
        return torch.cat(parts, dim=1)

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p(y_1, …, y_N | D), by draws of functions: for few rows, for the average of many products needs many
        draws (``predict(..., draws=...)``)."""
        return self._over(self._functions).joint_log_prob(y)

    def output_functions(self) -> Tensor:
        """Draws of the outputs, S × rows × C: smooth in x, for each draw is one function (Thompson sampling)."""
        return torch.cat([outputs for _, outputs, _ in self._functions.blocks()], dim=1)

    def output_mean(self) -> Tensor:
        """The outputs' mean, rows × C (of a mixture: averaged)."""
        return torch.cat([self._mixed(means) for _, means, _ in self._marginals()])

    def output_variance(self) -> Tensor:
        """The outputs' variance, rows × C (of a mixture: averaged, and that of the means added)."""
        parts = []
        for _, means, covariances in self._marginals():
            centre = self._mixed(means)
            within = self._mixed([c.diagonal(dim1=-2, dim2=-1) for c in covariances])
            parts.append(within + self._mixed([(m - centre).square() for m in means]))
        return torch.cat(parts)

    def output_covariance(self) -> Tensor:
        """The joint covariance of all outputs at all rows, (rows·C) × (rows·C), of a posterior with one component."""
        if len(self.source.laws) > 1:
            raise ArgumentError("the joint covariance is that of one Gaussian; this posterior is a mixture of several.")
        return self._joint_moments()[0][1].to(self.weights.dtype)

    def _joint_moments(self) -> list[tuple[Tensor, Tensor]]:
        """Outputs and joint covariance of each component, in float64."""
        source = self.source
        if source.rows * source.num_outputs > _JOINT:
            raise ArgumentError(
                f"the joint covariance of {source.rows} rows with {source.num_outputs} outputs has "
                f"{source.rows * source.num_outputs}² numbers; ask for at most {_JOINT} rows times outputs."
            )
        return [law.joint(source.x, source.batch_size) for law in source.laws]

    @cached_property
    def _marginal_source(self) -> MarginalSource:
        if isinstance(self.source, MarginalSource):
            return self.source
        if isinstance(self.source, GaussianSource):
            return self.source.inner
        if self.source.num_outputs > _MANY_OUTPUTS:
            raise ArgumentError(
                f"with {self.source.num_outputs} outputs the covariance of a row is not built; use output_functions()."
            )
        return MarginalSource(self.source.linear, 1, 0)

    def _marginals(self) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        return self._marginal_source.moments()

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        total = parts[0] * self.source.shares[0]
        for part, share in zip(parts[1:], self.source.shares[1:], strict=True):
            total = total + share * part
        return total


LINEARISED: dict[type[Predictive], type[LinearisedMixin]] = {}
"""The linearised form of a predictive; where there is none it is made of the predictive and what all share."""


def linearised_kind(kind: type[Predictive]) -> type[LinearisedMixin]:
    """The linearised form of ``kind``."""
    if kind not in LINEARISED:
        own = {"plain": kind, "__module__": __name__}
        LINEARISED[kind] = type(f"Linearised{kind.__name__}", (LinearisedMixin, kind), own)
    return LINEARISED[kind]


def predict_linearised(
    engine: Engine,
    posterior: Posterior,
    x: Inputs,
    kind: type[Predictive],
    by: str,
    seed: int,
    batch_size: int,
) -> Callable[[int | None], Predictive]:
    """The predictive of the linearised network for a number of draws, or for the usual one; see the module. What does
    not depend on that number is computed once."""
    linear = Linearised(engine, posterior, x, batch_size)
    form, likelihood = linearised_kind(kind), engine.likelihood.for_new_rows
    form.check_form(by, likelihood)
    points: list[MarginalSource] = []

    def make(draws: int | None) -> Predictive:
        parts = len(linear.laws)

        def functions(count: int) -> FunctionSource:
            wanted = max(count, draws or 0)
            return FunctionSource(linear, max(1, -(-wanted // parts)), seed)

        if by == "functions" or (linear.num_outputs > _MANY_OUTPUTS and by == "linearised"):
            made = form(functions(draws or FUNCTION_DRAWS), likelihood)
        else:
            # Points for every component: two and a half for each dimension at least, so that their moments are exact.
            least = max(form.points, 5 * (linear.num_outputs + 1) // 2)
            each = least if draws is None else max(1, -(-draws // parts))
            points[:] = [points[0].of(each) if points else MarginalSource(linear, each, seed)]
            made = form.of_points(points[0], likelihood, by)
        made.functions = functions
        return made

    return make
