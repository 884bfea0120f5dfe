"""From a mode to a Gaussian: curvature of the data plus that of the prior, inverted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.inference.curvature.structures import Curvature, Dense, Diagonal, Problem
from temperance.inference.curvature.subsets import Subnetwork, chosen_names, prior_mean_of
from temperance.inference.curvature.sweep import Sums, Sweep
from temperance.linalg.assembled import PosteriorCovariance
from temperance.linalg.blocks import Block
from temperance.linalg.places import take
from temperance.model.theta import Subset
from temperance.posteriors import EvidenceTerms, LaplacePosterior
from temperance.posteriors.laplace import CorrelatedGaussian


@dataclass(frozen=True)
class PriorCurvature:
    """The prior around θ: its precision τ and score, its log density (a number for each parameter, or one for all), its
    mean where it is Gaussian, and the curvature of earlier data where it is an earlier posterior."""

    precision: Tensor
    score: Tensor
    log_density: Tensor
    mean: Tensor | None
    earlier: tuple[Block, ...] | None = None


def prior_curvature(engine: Engine, theta: Tensor) -> PriorCurvature:
    """Look at the target's prior around θ."""
    engine.target.refuse_learned_scales("a Laplace approximation")
    precision, score, log_density = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros_like(theta)
    mean: Tensor | None = torch.zeros_like(theta)
    for piece, density in engine.bound_prior.pieces:
        here = theta[piece]
        score[piece] = density.score(here)
        if isinstance(density, CorrelatedGaussian):
            made = density.log_density(here)
            operator = density.operator
            blocks = tuple(block.times(operator.data_factor) for block in operator.blocks)
            return PriorCurvature(operator.prior_precision, score, made, None, blocks)
        log_density[piece] = density.log_density(here)
        if not density.bends:
            raise ArgumentError(
                "`prior` must be smooth for a Laplace approximation; a LaplacePrior has a kink at its mean and no "
                "curvature elsewhere. Use a GaussianPrior, or another method."
            )
        precision[piece] = density.curvature(here)
        gaussian = density.gaussian
        if gaussian is None:
            mean = None
        elif mean is not None:
            mean[piece] = prior_mean_of(gaussian[0], len(here), theta)
    return PriorCurvature(precision, score, log_density, mean)


def approximate(
    engine: Engine,
    theta: Tensor,
    buffers: dict[str, Tensor],
    data: Data,
    curvature: Curvature,
    on: Subset | Subnetwork = None,
) -> LaplacePosterior:
    """The Laplace approximation of ``target`` given ``data`` around ``theta``, which should be a mode."""
    theta = theta.detach().clone()
    prior = prior_curvature(engine, theta)
    index: Tensor | None = None
    names = chosen_names(engine, on)
    if isinstance(on, Subnetwork):
        variance = None
        if on.needs_variance:
            kind = "ggn" if curvature.kind == "hessian" else curvature.kind
            first = Diagonal(kind, curvature.samples, curvature.batch_size, curvature.seed)
            variance = approximate(engine, theta, buffers, data, first).operator.diagonal()
        index = on.index(engine, theta, variance)
        names = [e.name for e in engine.layout.network_entries if bool(((index >= e.start) & (index < e.stop)).any())]
    sweep = Sweep(
        engine,
        theta,
        buffers,
        data,
        names=names,
        kind=curvature.sweep_kind,
        samples=curvature.samples,
        batch_size=curvature.batch_size,
        seed=curvature.seed,
    )
    blocks, sums = curvature.compute(Problem(sweep, prior.precision, index))
    operator = PosteriorCovariance(blocks, prior.precision, engine.temperature)
    if prior.earlier is not None:
        operator = PosteriorCovariance(operator.merged(prior.earlier), prior.precision, engine.temperature)
    terms = evidence_terms(engine, operator, prior, sums, isinstance(curvature, Dense))
    return LaplacePosterior(theta, operator, terms, {name: value.clone() for name, value in buffers.items()})


def without_evidence(engine: Engine) -> bool:
    """Whether p(D) is not defined: p(D | θ) is tempered, or is a factor for θ that does not sum to one over y."""
    return engine.temperature != 1.0 or engine.likelihood_temperature != 1.0 or not engine.likelihood.normalised


def evidence_terms(
    engine: Engine, operator: PosteriorCovariance, prior: PriorCurvature, sums: Sums, dense: bool
) -> EvidenceTerms:
    """What :meth:`LaplacePosterior.log_evidence` is made of."""
    gradient = sums.gradient + prior.score
    slack, effective = 0.0, 0.0
    for block, covariance in zip(operator.blocks, operator.parts, strict=True):
        here = take(gradient, block.places)
        slack += 0.5 * float((here * covariance.product(here)).sum().double())
        tau = take(operator.prior_precision, block.places)
        effective += block.size - float((tau * covariance.diagonal()).sum().double())
    if len(prior.log_density) == 1:
        log_prior = float(prior.log_density.double())
    else:
        log_prior = float(sum(take(prior.log_density, b.places).double().sum() for b in operator.blocks))
    return EvidenceTerms(
        log_likelihood=sums.log_likelihood,
        log_prior=log_prior,
        gradient=sums.gradient,
        slack=slack,
        counted=slack if dense else 0.0,
        effective=effective,
        prior_mean=prior.mean,
        num_targets=sums.num_targets,
        noise=engine.likelihood.given_noise,
        dense=dense,
        tempered=without_evidence(engine),
    )
