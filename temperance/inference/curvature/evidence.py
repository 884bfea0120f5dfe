"""Choosing the strength of the prior, and the noise, by the evidence of a Laplace approximation.

With curvature H, log-likelihood ℓ and its gradient at θ* known, the evidence of the model linearised at θ* is a
function of the prior's precision τ and of the noise alone, and costs no further pass over the data:

    log Z(τ, σ) = ℓ(σ) + log p(θ* | τ) + ½ P log 2π − ½ log |Λ| + ½ gᵀ Λ⁻¹ g,    Λ = ρ H + diag τ,

where ρ = σ₀²/σ² scales the data, and g = ρ ∇ℓ − τ (θ* − mean) moves to the mode that belongs to the new τ: with a dense
Λ this is the evidence of the linearised model itself (Antorán et al. 2022). With other structures that last term is
left out, and θ* is taken for the mode, as is the custom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, check_positive, check_whole, shown
from temperance.core.encoding import Value, moved
from temperance.core.errors import ArgumentError, NumericalError
from temperance.engine.engine import Engine
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature import KFAC, Curvature
from temperance.inference.curvature.approximate import prior_curvature, without_evidence
from temperance.linalg.assembled import PosteriorCovariance
from temperance.linalg.places import put, take
from temperance.model.priors import GaussianPrior
from temperance.posteriors import CurvatureGaussian, EvidenceTerms, LaplacePosterior

_LOG_2PI = math.log(2 * math.pi)
_UNDEFINED = (
    "`tune`: the evidence is defined at temperature 1 and likelihood temperature 1, under a likelihood that sums to "
    "one over y (`normalised`)."
)
_REACH = 14.0  # how far, in log, a precision may move: a factor of a million either way


@dataclass(frozen=True, eq=False)
class Tune(Value):
    """What is chosen by evidence, and when.

    Args:
        prior: one factor on the prior's precision for all parameters (``"scalar"``), one for each layer (``"layer"``),
            one for each parameter (``"parameter"``, not with Kronecker factors), or none (``None``).
        noise: whether the noise scale of ``Normal(scale=...)`` is chosen too.
        every: choose anew after every so many epochs of training, so that training goes on under the chosen prior
            (Immer et al. 2021); ``None`` chooses once, after training.
        burn: epochs before the first time.
        until: the share of the run after which nothing is chosen any more, so that training finds the mode that belongs
            to what was chosen last.
        reach: how far a log precision (or twice a log noise) may move at one time during training.
        shift: whether the move of the mode that a new prior brings, ½ gᵀ Λ⁻¹ g, counts; ``None`` counts it where Λ is
            dense. A diagonal or factored Λ⁻¹ overstates that gain, and would choose a prior of no width.

    >>> Tune("layer", noise=True).noise
    True
    """

    card: ClassVar[Card] = Card(
        "chooses the prior's precision, and the noise, by the evidence",
        MethodFamily.CURVATURE,
        papers=(
            "Immer et al., Scalable marginal likelihood estimation for model selection in deep learning, ICML 2021",
        ),
    )

    prior: Literal["scalar", "layer", "parameter"] | None = "layer"
    noise: bool = False
    every: int | None = None
    burn: int = 0
    until: float = 0.8
    reach: float = 2.0
    shift: bool | None = None

    def __post_init__(self) -> None:
        if self.prior is not None and not _names_priors(self.prior):
            raise ArgumentError(f'`prior` must be "scalar", "layer", "parameter" or None; got {shown(self.prior)}.')
        check_flag(self.noise, "noise")
        if self.prior is None and not self.noise:
            raise ArgumentError("`prior` is None and `noise` is False: there is nothing to choose.")
        check_flag(self.shift, "shift", optional=True)
        if self.every is not None:
            check_count(self.every, "every")
        check_whole(self.burn, "burn", "a number of epochs")
        check_positive(self.reach, "reach")
        if check_positive(self.until, "until") > 1.0:
            raise ArgumentError(f"`until` must be a share of the run, above 0 and at most 1; got {shown(self.until)}.")


def as_tune(value: Any) -> Tune | None:
    """``None``, a :class:`Tune`, or the name of what is chosen."""
    if value is None or isinstance(value, Tune):
        return value
    if _names_priors(value):
        return Tune(value)
    raise ArgumentError(f'`tune` must be None, "scalar", "layer", "parameter" or a Tune(...); got {shown(value)}.')


def _names_priors(value: Any) -> bool:
    return isinstance(value, str) and value in ("scalar", "layer", "parameter")


def check_tune(engine: Engine, tune: Tune, curvature: Curvature) -> None:
    """Refuse, before training, what cannot be chosen after it."""
    if without_evidence(engine):
        raise ArgumentError(_UNDEFINED)
    if tune.noise and engine.likelihood.given_noise is None:
        raise ArgumentError(
            f"`noise` can be chosen for Normal(scale=...) only; the likelihood is {engine.likelihood!r}. A scale that "
            "is learned, Normal(), is a part of θ already."
        )
    if tune.prior == "parameter" and isinstance(curvature, KFAC):
        raise ArgumentError(
            '`tune` "parameter" needs a curvature that takes a precision for each parameter: Diagonal(), '
            f"BlockDiagonal(), Lanczos() or Dense(); got {shown(curvature)}."
        )
    _gaussian_parts(engine)


def groups_of(engine: Engine, tune: Tune) -> tuple[Tensor, int]:
    """For each parameter of θ the number of its prior's factor (−1: none), and how many factors there are."""
    layout = engine.layout
    group = torch.full((layout.size,), -1, dtype=torch.long)
    if tune.prior == "scalar":
        group[: layout.network_size] = 0
    elif tune.prior == "parameter":
        group[: layout.network_size] = torch.arange(layout.network_size)
    elif tune.prior == "layer":
        numbers: dict[str, int] = {}
        for entry in layout.network_entries:
            module = entry.name.rpartition(".")[0]
            group[entry.start : entry.stop] = numbers.setdefault(module, len(numbers))
    return group, int(group.max()) + 1


class Evidence:
    """log Z as a differentiable function of log factors on the prior's precision and of log noise, in float64."""

    def __init__(self, posterior: CurvatureGaussian, group: Tensor, shift: bool | None = None) -> None:
        terms = posterior.terms
        self.shift = terms.dense if shift is None else shift
        if terms.tempered:
            raise ArgumentError(_UNDEFINED)
        if terms.prior_mean is None:
            raise ArgumentError(
                "`tune` needs a Gaussian prior with independent weights (GaussianPrior): only that has a precision to "
                "choose."
            )
        self.posterior, self.group = posterior, group.to(posterior.mean.device)
        self.blocks = [moved(block, dtype=torch.float64) for block in posterior.operator.blocks]
        self.precision = posterior.operator.prior_precision.double()
        self.gradient = terms.gradient.double()
        self.delta = posterior.mean.double() - terms.prior_mean.double()
        self.data_factor = posterior.operator.data_factor

    def precisions(self, log_factors: Tensor) -> Tensor:
        """τ for these log factors."""
        if not len(log_factors):
            return self.precision
        padded = torch.cat([log_factors, log_factors.new_zeros(1)])
        return self.precision * padded[self.group].exp()

    def log_likelihood(self, log_noise: Tensor) -> Tensor:
        """ℓ for the noise σ₀ e^η, from ℓ(σ₀) alone."""
        terms = self.posterior.terms
        assert terms.noise is not None
        constant = terms.num_targets * (math.log(terms.noise) + 0.5 * _LOG_2PI)
        squares = -(terms.log_likelihood + constant)  # Σ (y − f)² / 2σ₀²
        return -squares * torch.exp(-2 * log_noise) - constant - terms.num_targets * log_noise

    def __call__(self, log_factors: Tensor, log_noise: Tensor | None = None) -> Tensor:
        """log Z."""
        terms = self.posterior.terms
        tau = self.precisions(log_factors)
        if log_noise is None:
            rho: Tensor | float = self.data_factor
            value = torch.as_tensor(terms.log_likelihood, dtype=torch.float64)
            gradient = self.gradient - tau * self.delta
        else:
            change = torch.exp(-2 * log_noise)
            rho = self.data_factor * change
            value = self.log_likelihood(log_noise)
            gradient = change * self.gradient - tau * self.delta
        for block in self.blocks:
            own, delta, slope = (take(v, block.places) for v in (tau, self.delta, gradient))
            covariance = block.factorise(own, rho)
            value = value + 0.5 * (own.log() - own * delta.square()).sum() + 0.5 * covariance.log_det()
            if self.shift:
                value = value + 0.5 * (slope * covariance.product(slope)).sum()
        return value


@dataclass(frozen=True)
class Choice:
    """Log factors on the prior's precision by group, the log of a factor on the noise, and the evidence there."""

    log_factors: Tensor
    log_noise: float
    log_evidence: float


def choose(engine: Engine, posterior: LaplacePosterior, tune: Tune, reach: float | None = None) -> Choice:
    """The hyperparameters of largest evidence within ``reach``, by L-BFGS with exact gradients."""
    group, count = groups_of(engine, tune)
    if tune.noise and posterior.terms.noise is None:
        raise ArgumentError(
            f"`noise` can be chosen for Normal(scale=...) only; the likelihood is {engine.likelihood!r}. A scale that "
            "is learned, Normal(), is a part of θ already."
        )
    evidence = Evidence(posterior, group, tune.shift)
    limit = _REACH if reach is None else reach

    best: tuple[float, np.ndarray] | None = None

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        free = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        moved_noise = free[count] if tune.noise else None
        try:
            with torch.enable_grad():
                loss = -evidence(free[:count].to(evidence.precision.device), moved_noise)
                (slope,) = torch.autograd.grad(loss, free)
        except NumericalError:
            if best is None:
                raise
            return abs(best[0]) * 10 + 1e6, np.zeros_like(values)  # too weak a prior for the curvature: step back
        value = float(loss.detach())
        if best is None or value < best[0]:
            best = value, values.copy()
        return value, slope.cpu().numpy()

    start = np.zeros(count + int(tune.noise))
    lowest = _weakest(posterior, evidence.precision)
    weakest = [max(-limit, float(low)) for low in _per_group(lowest, group, count)]
    bounds = [(low, limit) for low in weakest] + [(-limit / 2, limit / 2)] * int(tune.noise)
    options = {"ftol": 1e-12, "maxiter": 200}
    scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if best is None or not np.isfinite(best[0]):
        raise NumericalError("`tune`: the evidence is not finite; look at the prior and at how training ended.")
    factors = torch.tensor(best[1][:count], dtype=torch.float64)
    return Choice(factors, float(best[1][count]) if tune.noise else 0.0, -best[0])


def evidence_gradient(engine: Engine, posterior: CurvatureGaussian, tune: Tune) -> dict[str, float]:
    """∂ log Z / ∂ log (prior precision) of each group (``"all"``, or a layer's name) and ∂ log Z / ∂ log σ
    (``"noise"``), at the hyperparameters of ``posterior``."""
    if tune.prior == "parameter":
        raise ArgumentError('`prior` must be "scalar" or "layer" for a gradient by name; got "parameter".')
    group, count = groups_of(engine, tune)
    free = torch.zeros(count + int(tune.noise), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        noise = free[count] if tune.noise else None
        value = Evidence(posterior, group, tune.shift)(free[:count].to(posterior.mean.device), noise)
        (slope,) = torch.autograd.grad(value, free)
    modules = dict.fromkeys(e.name.rpartition(".")[0] for e in engine.layout.network_entries)
    names = {"scalar": ["all"], "layer": list(modules)}.get(tune.prior or "", [])
    return dict(zip([*names, *(["noise"] if tune.noise else [])], slope.tolist(), strict=True))


def _weakest(posterior: LaplacePosterior, precision: Tensor) -> Tensor:
    """How far, in log, each precision may fall before rounding in a block of the posterior's dtype drowns it."""
    made = torch.full_like(precision, -math.inf)
    for block in posterior.operator.blocks:
        put(made, block.places, (block.rounding() / take(precision, block.places)).log().clamp(max=0.0))
    return made


def _per_group(values: Tensor, group: Tensor, count: int) -> list[float]:
    """The largest value of each group."""
    made = torch.full((count,), -math.inf, dtype=values.dtype)
    known = group >= 0
    return made.scatter_reduce(0, group[known], values.cpu()[known], "amax").tolist()


def tuned_target(engine: Engine, tune: Tune, log_factors: Tensor, log_noise: float) -> Engine:
    """``engine`` on a target with the prior's precision and the noise changed by these factors."""
    made = engine.target
    group, count = groups_of(engine, tune)
    if count and bool((log_factors != 0).any()):
        size = engine.layout.network_size
        padded = torch.cat([log_factors.double(), torch.zeros(1, dtype=torch.float64)])
        factor = padded[group[:size]]
        scale, mean = _gaussian_parts(engine)
        scale = scale * torch.exp(-0.5 * factor).to(scale.device)
        made = made.with_prior(GaussianPrior(_compact(scale), _compact(mean)))
    if tune.noise and log_noise:
        given = engine.likelihood.given_noise
        assert given is not None
        made = made.with_likelihood(engine.likelihood.with_noise(given * math.exp(log_noise)))
    return engine.on(made)


def _gaussian_parts(engine: Engine) -> tuple[Tensor, Tensor]:
    """Scale and mean of each of the network's weights, under a Gaussian prior."""

    size = engine.layout.network_size
    found = prior_curvature(engine, engine.target.initial_theta())
    if found.mean is None:
        raise ArgumentError("`tune` needs a Gaussian prior with independent weights (GaussianPrior).")
    return found.precision[:size].double().rsqrt(), found.mean[:size].double()


def _compact(values: Tensor) -> float | Tensor:
    """One number where all are the same."""
    return float(values[0]) if bool((values == values[0]).all()) else values.cpu()


def tuned_posterior(engine: Engine, posterior: LaplacePosterior, tune: Tune) -> LaplacePosterior:
    """``posterior`` under the hyperparameters of largest evidence; θ* stays."""
    choice = choose(engine, posterior, tune)
    group, _ = groups_of(engine, tune)
    new = tuned_target(engine, tune, choice.log_factors, choice.log_noise)
    evidence = Evidence(posterior, group, tune.shift)
    factors = choice.log_factors.to(evidence.precision.device)
    tau = evidence.precisions(factors)
    old = posterior.operator
    change = math.exp(-2 * choice.log_noise)
    operator = PosteriorCovariance(old.blocks, tau.to(old.prior_precision), old.temperature, old.data_factor * change)
    terms = _retuned_terms(posterior, evidence, operator, tau, change, choice)
    return LaplacePosterior(
        posterior.mean,
        operator,
        terms,
        posterior.buffers,
        new.target.prior if new.target.prior is not engine.target.prior else posterior.prior,
        new.likelihood if new.likelihood is not engine.likelihood else posterior.likelihood,
    )


def _retuned_terms(
    posterior: LaplacePosterior,
    evidence: Evidence,
    operator: PosteriorCovariance,
    tau: Tensor,
    change: float,
    choice: Choice,
) -> EvidenceTerms:
    """The terms under the new hyperparameters. Whether θ* was a mode where it was trained ``slack`` still says."""
    terms = posterior.terms
    log_prior, effective = 0.0, 0.0
    for block, covariance in zip(operator.blocks, operator.parts, strict=True):
        own, delta = take(tau, block.places), take(evidence.delta, block.places)
        log_prior += 0.5 * float((own.log() - _LOG_2PI - own * delta.square()).sum())
        effective += block.size - float((own * covariance.diagonal().double()).sum())
    noise_log = torch.tensor(choice.log_noise, dtype=torch.float64)
    log_likelihood = terms.log_likelihood if terms.noise is None else float(evidence.log_likelihood(noise_log))
    # log Z = ℓ + log p(θ*) + ½ P log 2π − ½ log |Λ| + what counts of the shift
    laplace = 0.5 * operator.rank * _LOG_2PI + 0.5 * float(operator.log_det().double())
    return replace(
        terms,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        gradient=terms.gradient * change,
        counted=choice.log_evidence - log_likelihood - log_prior - laplace,
        effective=effective,
        noise=None if terms.noise is None else terms.noise * math.exp(choice.log_noise),
    )
