"""Predictives of the linearised network: Gaussian in the outputs, then through the likelihood.

* Regression with Gaussian noise is closed: y ~ N(f, V + σ²), averaged over a learned σ and the members of a mixture.
* Otherwise each row's Gaussian is represented by quasi-random points whose mean and covariance are exactly its own, so
  that every statistic of :class:`~temperance.predict.Predictive` is had with little sampling noise.
* ``"probit"`` and ``"bridge"`` are closed forms for class probabilities.
* Draws of all rows together (``sample``, ``joint_log_prob`` of classes) are draws of functions, f(x) + J(x) δ, one δ
  for all x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, generator
from temperance.data.sources import Inputs
from temperance.model.likelihoods import Bernoulli, Likelihood, Normal
from temperance.model.likelihoods.base import Learned
from temperance.model.target import Target
from temperance.posteriors import Posterior
from temperance.predict.gaussian_sources import (
    FunctionSource,
    GaussianSource,
    Linearised,
    LinearisedSource,
    MarginalSource,
    standard_points,
)
from temperance.predict.links import bridge_probabilities, probit_logits, probit_probabilities
from temperance.predict.predictive import ClassPredictive, Predictive
from temperance.predict.source import Block
from temperance.predict.values import RealPredictive

LINKS = ("linearised", "probit", "bridge", "functions")
FUNCTION_DRAWS = 64
_CLASS_POINTS = 128
_VALUE_POINTS = 48  # the entropy of a mixture of so many densities, by quadrature, is what costs
_MANY_OUTPUTS = 64  # beyond this no C × C covariance of a row is built: draws of functions stand for it
_JOINT = 4096  # rows times outputs of a joint covariance
_ENTROPY_POINTS = 256


class LinearisedMixin(Predictive):
    """What linearised predictives share: the law's own moments, and draws of functions for what concerns all rows."""

    source: LinearisedSource
    functions: Callable[[int], FunctionSource]

    @cached_property
    def _functions(self) -> FunctionSource:
        return self.functions(FUNCTION_DRAWS)

    def _over(self, source: FunctionSource) -> Predictive:
        """The same predictive over draws of functions."""
        kind = next(k for k in type(self).__mro__ if k.__module__ != __name__)
        return kind(source, self._plain_likelihood())

    def _plain_likelihood(self) -> Likelihood:
        return self.likelihood

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together, n × rows (× outputs); each has a function of its own for all its rows."""
        check_count(n, "n")
        source = self._functions if n <= len(self._functions) // 2 else self.functions(2 * n)
        likelihood = self._plain_likelihood()
        rng, noise = (
            generator(check_seed(seed), "predictive-node"),
            generator(seed, "predictive-noise", device=self.weights.device),
        )
        pick = torch.multinomial(source.weights.cpu(), n, replacement=False, generator=rng).to(self.weights.device)
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


class LinearisedClassPredictive(LinearisedMixin, ClassPredictive):
    """Classes and yes/no labels. ``link`` says how probabilities come of the Gaussian over the outputs; with a closed
    form, ``probs``, ``mean``, ``entropy`` and ``log_prob`` are its own, the rest (``aleatoric``, ``std``, ``interval``)
    that of the points."""

    link: str = "points"

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities, rows × classes."""
        if self.link == "points":
            return super().mean().clamp(0.0, 1.0)
        parts = []
        for _, means, covariances in self._marginals():
            found = []
            for mean, covariance in zip(means, covariances, strict=True):
                if self.link == "probit":
                    variance = covariance.diagonal(dim1=-2, dim2=-1)
                    found.append(probit_probabilities(mean, variance, self._is_binary()))
                else:
                    found.append(bridge_probabilities(mean, covariance))
            parts.append(self._mixed(found))
        return torch.cat(parts)

    def mean(self) -> Tensor:
        """The averaged probabilities."""
        return self.probs

    def log_prob(self, y: Any) -> Tensor:
        """log p(y | x, D) per row, by the link."""
        if self.link == "points":
            return super().log_prob(y)
        target = self._targets(y)
        parts = []
        for rows, means, covariances in self._marginals():
            found = []
            for mean, covariance, share in zip(means, covariances, self.source.shares, strict=True):
                found.append(self._link_log_prob(mean, covariance, target[rows]) + math.log(share))
            parts.append(torch.stack(found).logsumexp(0))
        return torch.cat(parts)

    def _link_log_prob(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        if self.link == "bridge":
            log_probs = bridge_probabilities(mean, covariance).clamp(min=torch.finfo(mean.dtype).tiny).log()
        else:
            logits = probit_logits(mean, covariance.diagonal(dim1=-2, dim2=-1))
            if self._is_binary():
                return (y * F.logsigmoid(logits) + (1 - y) * F.logsigmoid(-logits)).sum(-1)
            log_probs = logits.log_softmax(-1)
        return log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def mutual_information(self) -> Tensor:
        """Entropy − aleatoric; a closed form of the probabilities may put it below zero, which counts as zero."""
        found = super().mutual_information()
        return found if self.link == "points" else found.clamp(min=0.0)


class _SpreadNormal(Normal):
    """Gaussian noise and a Gaussian location together: the variance of both."""

    def noise_scale(self, outputs: Tensor, learned: Learned) -> Tensor:
        """√(σ² + v)."""
        return (super().noise_scale(outputs, learned).square() + learned["epistemic"]).sqrt()


class LinearisedNormalPredictive(LinearisedMixin, RealPredictive):
    """Regression with Gaussian noise: y ~ N(f, V + σ²), in closed form (averaged over a learned σ)."""

    source: GaussianSource

    def __init__(self, source: MarginalSource, likelihood: Normal) -> None:
        spread = _SpreadNormal(scale=likelihood.scale, num_outputs=likelihood.num_outputs)
        super().__init__(GaussianSource(source), spread)
        self.noise = likelihood

    def _plain_likelihood(self) -> Likelihood:
        return self.noise

    def aleatoric_variance(self) -> Tensor:
        """E σ²."""
        return self._over_rows(lambda out, learned: self._average(self.noise.variance, out, learned))

    def epistemic_variance(self) -> Tensor:
        """V, and for a mixture the variance of the means."""

        def spread(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            within = self._average(lambda _, k: k["epistemic"], outputs, learned)
            centre = self._average(self.noise.mean, outputs, learned)
            return within + self._average(lambda o, k: (o - centre).square(), outputs, learned)

        return self._over_rows(spread)

    def aleatoric(self) -> Tensor:
        """E_σ of the noise's entropy."""
        return self._over_rows(lambda out, learned: self._average(self.noise.entropy, out, learned))

    def entropy(self) -> Tensor:
        """Of the whole predictive. Of several outputs it is that of their joint distribution, with the average noise
        variance: in closed form for one Gaussian, by quasi-random points for a mixture."""
        if self.source.num_outputs > 1:
            return self._over_rows(self._joint_entropy)
        member = self._over_rows(lambda out, learned: self._average(self.likelihood.entropy, out, learned))
        return member + RealPredictive.mutual_information(self)

    def _joint_entropy(self, outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
        each, shares = self.source.each, torch.tensor(self.source.shares, dtype=torch.float64)
        noise = self._average(self.noise.variance, outputs, learned).double()
        means = outputs[::each].double()  # one for each component
        lower = torch.linalg.cholesky(learned["covariance"][::each].double() + torch.diag_embed(noise))
        log_det = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # K × b
        width = outputs.shape[-1]
        if len(means) == 1:
            return (0.5 * (log_det[0] + width * math.log(2 * math.pi * math.e))).to(outputs.dtype)
        points = standard_points(_ENTROPY_POINTS, width, means)
        total = torch.zeros(means.shape[1], dtype=torch.float64, device=means.device)
        for k, share in enumerate(self.source.shares):
            y = means[k] + torch.einsum("bij,pj->pbi", lower[k], points)
            white = torch.linalg.solve_triangular(
                lower.unsqueeze(0), (y.unsqueeze(1) - means).unsqueeze(-1), upper=False
            ).squeeze(-1)
            log_p = -0.5 * (white.square().sum(-1) + log_det + width * math.log(2 * math.pi))  # points × K × b
            mixed = (log_p + shares.log().to(log_p.device).view(1, -1, 1)).logsumexp(1)
            total -= share * mixed.mean(0)
        return total.to(outputs.dtype)

    def mutual_information(self) -> Tensor:
        """Entropy − aleatoric."""
        return self.entropy() - self.aleatoric()

    def _member_log_prob(self, y: Tensor, block: Block) -> Tensor:
        rows, outputs, learned = block
        if "covariance" not in learned:
            return super()._member_log_prob(y, block)
        lower = torch.linalg.cholesky(learned["covariance"] + torch.diag_embed(self.noise.variance(outputs, learned)))
        delta = (y[rows] - outputs).unsqueeze(-1)
        white = torch.linalg.solve_triangular(lower, delta, upper=False).squeeze(-1)
        log_det = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white.square().sum(-1) + log_det + outputs.shape[-1] * math.log(2 * math.pi))

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p of all rows together, log Σ over components and noise levels of N(y; f, K + σ² I), in closed form."""
        target = self._targets(y)
        _, outputs, learned = next(iter(self.source.blocks()))
        noises = self.noise.variance(outputs, learned)[:, 0].double()  # one row stands for all: members × C
        rows, each = self.source.rows, self.source.each
        found = []
        for k, (means, joint) in enumerate(self._joint_moments()):
            delta = (target - means).flatten().double()
            for member in range(k * each, (k + 1) * each):
                lower = torch.linalg.cholesky(joint + torch.diag(noises[member].repeat(rows)))
                white = torch.linalg.solve_triangular(lower, delta.unsqueeze(1), upper=False)
                value = -0.5 * white.square().sum() - lower.diagonal().log().sum()
                found.append(value - 0.5 * len(delta) * math.log(2 * math.pi))
        return (torch.stack(found) + self._log_weights.double()).logsumexp(0)


def predict_linearised(
    target: Target,
    posterior: Posterior,
    x: Inputs,
    kind: type[Predictive],
    by: str,
    draws: int | None,
    seed: int,
    batch_size: int,
) -> Predictive:
    """The predictive of the linearised network; see the module."""
    linear = Linearised(target, posterior, x, batch_size)
    parts = len(linear.laws)

    def functions(count: int) -> FunctionSource:
        wanted = max(count, draws or 0)
        return FunctionSource(linear, max(1, -(-wanted // parts)), seed)

    likelihood = target.likelihood
    classes = issubclass(kind, ClassPredictive)
    if by in ("probit", "bridge") and not classes:
        raise ArgumentError(f"`by` {by!r} is for class probabilities; the likelihood is {likelihood!r}.")
    if by == "bridge" and isinstance(likelihood, Bernoulli):
        raise ArgumentError("`by` 'bridge' is for Categorical; for yes/no labels use 'probit'.")
    made: LinearisedMixin
    if by == "functions" or (linear.num_outputs > _MANY_OUTPUTS and by == "linearised"):
        made = _kind(kind)(functions(draws or FUNCTION_DRAWS), likelihood)
        made.functions = functions
        return made
    # Points for every component: two and a half for each dimension at least, so that their moments are exact.
    least = max(_CLASS_POINTS if classes else _VALUE_POINTS, 5 * (linear.num_outputs + 1) // 2)
    source = MarginalSource(linear, least if draws is None else max(1, -(-draws // parts)), seed)
    if type(likelihood) is Normal:
        made = LinearisedNormalPredictive(source, likelihood)
    else:
        made = _kind(kind)(source, likelihood)
        if isinstance(made, LinearisedClassPredictive) and by != "linearised":
            made.link = by
    made.functions = functions
    return made


_made: dict[type[Predictive], type[LinearisedMixin]] = {ClassPredictive: LinearisedClassPredictive}


def _kind(kind: type[Predictive]) -> type[LinearisedMixin]:
    """``kind`` with what linearised predictives share."""
    if kind not in _made:
        _made[kind] = type(f"Linearised{kind.__name__}", (LinearisedMixin, kind), {"__module__": __name__})
    return _made[kind]
