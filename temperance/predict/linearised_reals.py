"""Real targets under the linearised network: with additive Gaussian noise in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.linalg.points import standard_points
from temperance.model.likelihoods import GaussianNoise, Likelihood, RealLikelihood
from temperance.model.likelihoods.base import LearnedValues
from temperance.predict.forms import Reshaped
from temperance.predict.gaussian_sources import GaussianSource, LinearisedSource, MarginalSource
from temperance.predict.linearised import LINEARISED, LinearisedMixin
from temperance.predict.reals import RealPredictive
from temperance.predict.source import OutputBlock

_ENTROPY_POINTS = 256
_EXACT = 2048  # rows times outputs up to which the covariance of all rows is factorised


@dataclass(frozen=True, eq=False)
class SpreadNoise(GaussianNoise):
    """Additive noise around a location that is Gaussian itself: the variance of both, under one of the normals that the
    noise consists of. It describes members of a predictive and is not for training."""

    noise: RealLikelihood

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`~temperance.model.likelihoods.Likelihood`."""
        return self.noise.prepare(y, num_outputs, dtype)

    def location(self, outputs: Tensor) -> Tensor:
        """That of the noise alone."""
        return self.noise.location(outputs)

    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """√(σ² + v)."""
        scale = self.noise.noise_scale(outputs, learned)
        if "width" in learned:
            scale = scale * learned["width"]
        return (scale.square() + learned["epistemic"]).sqrt()

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Not for training."""
        raise NotImplementedError("a predictive is not trained: use the target's likelihood")

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Not for training."""
        raise NotImplementedError("a predictive is not trained: use the target's likelihood")


class LinearisedRealPredictive(LinearisedMixin, RealPredictive):
    """Real targets, by points of each row's Gaussian."""

    plain = RealPredictive

    @classmethod
    def of_points(cls, source: MarginalSource, likelihood: Likelihood, by: str) -> LinearisedMixin:
        """In closed form where Gaussian noise adds to f; or, to one output, a mixture of such noises."""
        if isinstance(likelihood, RealLikelihood) and likelihood.keeps_gaussian(source.num_outputs):
            return LinearisedNormalPredictive(source, likelihood)
        return cls(source, likelihood)

    def reshaped(self, law: RealLikelihood) -> LinearisedRealPredictive | None:
        """By points of each row's Gaussian, or in closed form as before; and the same functions."""
        likelihood = self._plain_likelihood()
        if not isinstance(likelihood, GaussianNoise):
            return None
        members, noise = self._members(), Reshaped(likelihood, law)
        made = self.of_points(members, noise, "") if isinstance(members, MarginalSource) else type(self)(members, noise)
        assert isinstance(made, LinearisedRealPredictive)
        made.functions = self.functions
        return made

    def _members(self) -> LinearisedSource:
        """Apart from their noise."""
        return self.source


class LinearisedNormalPredictive(LinearisedRealPredictive):
    """Regression with Gaussian noise: y ~ N(f, V + σ²), in closed form (averaged over a learned σ); of one output also
    with noise that is a mixture of normals, y ~ Σ_j ρ_j N(f, V + (k_j σ)²)."""

    source: GaussianSource

    def __init__(self, source: MarginalSource, likelihood: RealLikelihood) -> None:
        super().__init__(GaussianSource(source, likelihood.normals), SpreadNoise(likelihood))
        self.noise = likelihood

    def _plain_likelihood(self) -> Likelihood:
        return self.noise

    def _members(self) -> LinearisedSource:
        return self.source.inner

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

    def _member_log_prob(self, y: Tensor, block: OutputBlock) -> Tensor:
        rows, outputs, learned = block
        if "covariance" not in learned:
            return super()._member_log_prob(y, block)
        lower = torch.linalg.cholesky(learned["covariance"] + torch.diag_embed(self.noise.variance(outputs, learned)))
        delta = (y[rows] - outputs).unsqueeze(-1)
        white = torch.linalg.solve_triangular(lower, delta, upper=False).squeeze(-1)
        log_det = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white.square().sum(-1) + log_det + outputs.shape[-1] * math.log(2 * math.pi))

    def joint_moments(self, by_draws: bool = False) -> tuple[Tensor, Tensor]:
        """Its own covariance, where it is one Gaussian of few rows and outputs."""
        rows, outputs = len(self), self.source.num_outputs
        if by_draws or len(self.source.laws) > 1 or rows * outputs > _EXACT:
            return super().joint_moments(by_draws)
        values, vectors = torch.linalg.eigh(self.output_covariance().double())
        root = vectors * values.clamp(min=0.0).sqrt()
        return root.view(rows, outputs, -1), self.aleatoric_variance().double()

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p of all rows together, log Σ over components and noise levels of N(y; f, K + σ² I), in closed form; with
        outliers, any of which may be one, by draws of functions."""
        if len(self.noise.normals) > 1:
            return super().joint_log_prob(y)
        engine = self._targets(y)
        _, outputs, learned = next(iter(self.source.blocks()))
        noises = self.noise.variance(outputs, learned)[:, 0].double()  # one row stands for all: members × C
        rows, each = self.source.rows, self.source.each
        found = []
        for k, (means, joint) in enumerate(self._joint_moments()):
            delta = (engine - means).flatten().double()
            for member in range(k * each, (k + 1) * each):
                lower = torch.linalg.cholesky(joint + torch.diag(noises[member].repeat(rows)))
                white = torch.linalg.solve_triangular(lower, delta.unsqueeze(1), upper=False)
                value = -0.5 * white.square().sum() - lower.diagonal().log().sum()
                found.append(value - 0.5 * len(delta) * math.log(2 * math.pi))
        return (torch.stack(found) + self._log_weights.double()).logsumexp(0)


LINEARISED[RealPredictive] = LinearisedRealPredictive
