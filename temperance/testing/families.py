"""Checks of priors and likelihoods: proper densities, true derivatives, draws that agree with both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor, nn

from temperance.core.outcomes import ByPosition, Classes, Counts, Labels, Quantities
from temperance.core.registry import ByOutcome
from temperance.core.seeds import generator
from temperance.model.likelihoods import Likelihood, PerPosition, QuantityLikelihood
from temperance.model.priors import Prior
from temperance.model.theta import Layout
from temperance.testing.checks import Report
from temperance.testing.tolerance import critical_value

_DRAWS = 20_000


def check_prior(prior: Prior, network: nn.Module | None = None, false_alarm: float = 1e-6) -> Report:
    """Check that ``prior`` is a proper density with the right gradient and draws that follow it.

    * each elementwise density integrates to one (adaptive quadrature);
    * the gradient equals the derivative of the log density (autograd, float64);
    * draws follow the density: a Kolmogorov–Smirnov test against the integrated density, element by element; where
      numbers depend on each other (scales that are learned), E[θᵢ ∂ᵢ log p(θ)] = −1 for each of them.

    >>> from temperance import GaussianPrior
    >>> check_prior(GaussianPrior(scale=0.5)).passed
    True
    """
    network = (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)) if network is None else network).double()
    layout = Layout.of(network)
    learned = [(p.name, p.shape, "prior") for p in prior.learned_parameters(layout.network_entries)]
    layout = Layout.of(network, None, learned)
    bound = prior.bind(layout)
    report = Report(repr(prior))
    rng = generator(0, "check-prior")
    theta = torch.randn(5, layout.size, generator=rng, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(bound.log_prob(theta).sum(), theta)
    grad = torch.full_like(theta, 2.0)
    bound.add_gradient(theta.detach(), grad, factor=0.5)
    error = float((grad - 2.0 - 0.5 * expected).abs().max())
    report.add("gradient", error < 1e-9, f"largest error {error:.1e}")
    draws = bound.sample(_DRAWS, rng)
    report.add("shape of draws", tuple(draws.shape) == (_DRAWS, layout.size), str(tuple(draws.shape)))
    other = bound.sample(_DRAWS, generator(1, "check-prior"))
    report.add("draws depend on the generator", not torch.equal(draws, other))
    checked: set[tuple[object, ...]] = set()
    for entry in layout.network_entries:
        place = entry.start
        column = draws[:, place].double().sort().values

        def log_density(values: Tensor, place: int = place) -> Tensor:
            rows = theta.detach()[:1].repeat(len(values), 1)
            rows[:, place] = values
            piece, density = next((p, d) for p, d in bound.pieces if p.start <= place < p.stop)
            return density.log_density(rows[:, piece])[:, place - piece.start]

        key = tuple(log_density(torch.tensor([0.1, 1.0], dtype=torch.float64)).tolist())
        if key in checked:
            continue
        checked.add(key)

        def density(t: float, log_density: object = log_density) -> float:
            return float(log_density(torch.tensor([t], dtype=torch.float64)).exp())  # type: ignore[operator]

        total = sum(
            scipy.integrate.quad(density, a, b, limit=400)[0]
            for a, b in ((-np.inf, -1), (-1, -0.01), (-0.01, 0), (0, 0.01), (0.01, 1), (1, np.inf))
        )
        report.add(f"{entry.name} integrates to one", abs(total - 1) < 1e-5, f"{total:.8f}")
        if prior.learns:
            continue
        probability = _ks_probability(column.numpy(), log_density)
        report.add(f"{entry.name} draws follow the density", probability > false_alarm, f"p = {probability:.2g}")
    if prior.learns:
        slope = torch.zeros_like(draws)
        bound.add_gradient(draws, slope)
        virial = (draws * slope).double() + 1
        error = float((virial.mean(0) / (virial.std(0) / len(virial) ** 0.5)).abs().max())
        limit = critical_value(layout.size, false_alarm)
        report.add("draws follow the density", error < limit, f"largest deviation {error:.1f} of {limit:.1f} errors")
    return report.raise_if_failed()


def _ks_probability(column: np.ndarray, log_density: object) -> float:
    """Kolmogorov–Smirnov, with the distribution function integrated on the quantiles of the draws."""
    inner = np.quantile(column, np.linspace(0.001, 0.999, 4001))
    values = np.exp(log_density(torch.from_numpy(inner)).numpy())  # type: ignore[operator]
    mass = np.concatenate([[0], np.cumsum(np.diff(inner) * (values[1:] + values[:-1]) / 2)])
    kept = column[(column >= inner[0]) & (column <= inner[-1])]
    uniform = np.interp(kept, inner, mass / mass[-1])
    return float(scipy.stats.kstest(uniform, "uniform").pvalue)


def check_likelihood(likelihood: Likelihood, num_outputs: int = 2, false_alarm: float = 1e-6) -> Report:
    """Check that ``likelihood`` is a proper density in y, has the derivatives it claims, and draws that follow it.

    * p(y | outputs) sums or integrates to one; where it says that it does not (``normalised``), that is true, and what
      it predicts by (``for_new_rows``) does, and has its moments;
    * ``log_prob`` takes a leading dimension of draws; ``hessian`` is the second derivative in the outputs (autograd);
    * ``fisher`` is the Hessian's expectation, ``mean``, ``variance`` and ``entropy`` are those of the draws, to
      Monte-Carlo error.

    >>> from temperance import Categorical
    >>> check_likelihood(Categorical(), num_outputs=3).passed
    True
    """
    report = Report(repr(likelihood))
    rng = generator(0, "check-likelihood")
    outputs = torch.randn(3, num_outputs, generator=rng, dtype=torch.float64) * 0.7
    learned = {p.name: torch.full(p.shape, 0.2, dtype=torch.float64) for p in likelihood.learned_parameters()}
    law = likelihood if likelihood.normalised else likelihood.for_new_rows
    if not likelihood.normalised:
        wrong, total = _normalised(likelihood, outputs[:1], learned)
        report.add("does not integrate to one, as it says", not wrong, total)
    report.add("integrates to one", *_normalised(law, outputs[:1], learned))
    wide = outputs.unsqueeze(0).expand(_DRAWS, -1, -1)
    many = {name: value.expand(_DRAWS, *value.shape) for name, value in learned.items()}
    y = likelihood.sample(wide, many, rng)
    y = y.to(torch.float64) if y.is_floating_point() else y
    log_p = torch.stack([likelihood.log_prob(outputs, row, learned) for row in y[:2000]])
    together = likelihood.log_prob(
        outputs.expand(2, -1, -1), y[0], {k: v.expand(2, *v.shape) for k, v in learned.items()}
    )
    report.add("batched over draws", torch.allclose(together[1], log_p[0]))
    report.add("summed", torch.allclose(likelihood.negative_log_likelihood(outputs, y[0], learned), -log_p[0].sum()))
    _check_curvature(report, likelihood, outputs, y, learned, false_alarm)
    if law is not likelihood:
        log_p = torch.stack([law.log_prob(outputs, row, learned) for row in y[:2000]])
    _check_moments(report, likelihood, outputs, y, log_p, learned, false_alarm)
    return report.raise_if_failed()


def _check_curvature(
    report: Report, likelihood: Likelihood, outputs: Tensor, y: Tensor, learned: dict[str, Tensor], false_alarm: float
) -> None:
    errors = []
    for row in range(len(outputs)):

        def negative(f: Tensor, row: int = row) -> Tensor:
            return -likelihood.log_prob(f.unsqueeze(0), y[0, row : row + 1], learned)[0]

        expected = torch.autograd.functional.hessian(negative, outputs[row])
        claimed = likelihood.hessian(outputs[row : row + 1], y[0, row : row + 1], learned)[0]
        errors.append(float((expected - claimed).abs().max()))
    report.add("hessian", max(errors) < 1e-8, f"largest error {max(errors):.1e}")
    sampled = torch.stack([likelihood.hessian(outputs, row, learned) for row in y[:4000]])
    fisher = likelihood.fisher(outputs, learned)
    spread = sampled.std(0) / len(sampled) ** 0.5
    deviation = ((sampled.mean(0) - fisher).abs() / (spread + 1e-9)).max()
    limit = critical_value(fisher.numel(), false_alarm)
    report.add("fisher is the expected hessian", float(deviation) < limit, f"{float(deviation):.1f} standard errors")
    lowest = float(torch.linalg.eigvalsh(fisher).min())
    report.add("fisher is positive semi-definite", lowest > -1e-10, f"smallest eigenvalue {lowest:.1e}")
    columns = torch.stack(list(likelihood.fisher_columns(outputs, learned)), -1)
    error = float((columns @ columns.mT - fisher).abs().max())
    report.add("columns of the fisher", error < 1e-8, f"largest error {error:.1e}")
    many = likelihood.fisher_draw(outputs.repeat(4000, 1), learned, generator(0, "check-fisher"))
    drawn = many.view(4000, *outputs.shape)
    squares = drawn.unsqueeze(-1) * drawn.unsqueeze(-2)
    deviation = ((squares.mean(0) - fisher).abs() / (squares.std(0) / len(squares) ** 0.5 + 1e-9)).max()
    report.add("draws of the fisher", float(deviation) < limit, f"{float(deviation):.1f} standard errors")


def _check_moments(
    report: Report,
    likelihood: Likelihood,
    outputs: Tensor,
    y: Tensor,
    log_p: Tensor,
    learned: dict[str, Tensor],
    false_alarm: float,
) -> None:
    mean, variance = likelihood.mean(outputs, learned), likelihood.variance(outputs, learned)
    values = _indicators(likelihood, y, mean.shape[-1])
    limit = critical_value(2 * mean.numel(), false_alarm)
    error = ((values.mean(0) - mean) / (values.var(0) / len(values)).sqrt()).abs().max()
    report.add("mean of draws", float(error) < limit, f"{float(error):.1f} standard errors")
    squares = (values - mean).square()
    error = ((squares.mean(0) - variance) / (squares.var(0) / len(values)).sqrt()).abs().max()
    if bool(torch.isfinite(variance).all()):
        report.add("variance of draws", float(error) < limit, f"{float(error):.1f} standard errors")
    entropy = likelihood.entropy(outputs, learned)
    error = ((-log_p.mean(0) - entropy) / (log_p.std(0) / len(log_p) ** 0.5 + 1e-9)).abs().max()
    report.add(
        "entropy", float(error) < critical_value(len(entropy), false_alarm), f"{float(error):.1f} standard errors"
    )
    if isinstance(likelihood, QuantityLikelihood):
        at = mean + 0.3
        share = (y <= at).double()
        claimed = likelihood.cdf(outputs, at, learned).expand_as(mean)
        error = ((share.mean(0) - claimed) / (claimed * (1 - claimed) / len(share)).sqrt()).abs().max()
        report.add("distribution function", float(error) < limit, f"{float(error):.1f} standard errors")


def _normalised(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> tuple[bool, str]:
    """Σ or ∫ p(y | outputs) dy for one row (for real and count targets: along the first target, per target)."""
    total = TOTALS.of(likelihood.outcome)(likelihood, outputs, learned)
    return abs(total - 1) < 1e-6, f"{total:.8f}"


def _total_of_classes(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> float:
    labels = range(likelihood.mean(outputs, learned).shape[-1])
    return sum(float(likelihood.log_prob(outputs, torch.tensor([k]), learned).exp()) for k in labels)


def _indicators(likelihood: Likelihood, y: Tensor, width: int) -> Tensor:
    """Draws as numbers whose mean is ``likelihood.mean``: of classes, of each class whether it is the one."""
    if isinstance(likelihood.outcome, Classes):
        return nn.functional.one_hot(y, width).double()
    if isinstance(likelihood.outcome, ByPosition) and isinstance(likelihood.outcome.of, Classes):
        return nn.functional.one_hot(y, width // y.shape[-1]).double().flatten(-2)
    return y


def _total_by_position(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> float:
    """Over all that the positions of a row may have together; of numbers, those of its first position."""
    outcome, law = cast(ByPosition, likelihood.outcome), cast(PerPosition, likelihood)
    if isinstance(outcome.of, Labels):
        return _total_of_labels(likelihood, outputs, learned)
    width = outputs.shape[-1] // math.prod(law.positions)
    if not isinstance(outcome.of, Classes):
        return TOTALS.of(outcome.of)(law.each, outputs[:, :width], learned)
    every = torch.cartesian_prod(*[torch.arange(width)] * math.prod(law.positions))
    return sum(float(likelihood.log_prob(outputs, row.view(1, -1), learned).exp()) for row in every)


def _total_of_labels(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> float:
    grid = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * outputs.shape[-1])
    grid = grid.view(-1, outputs.shape[-1])
    return sum(float(likelihood.log_prob(outputs, row.unsqueeze(0), learned).exp()) for row in grid)


def _density(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> Callable[[float], float]:
    """p of the first target alone."""
    first = {name: value[:1] for name, value in learned.items()}
    each = likelihood.outputs_for(1)
    own = outputs[:, :: outputs.shape[-1] // each][:, :each]  # of a mean and a log scale, the first of each

    def density(t: float) -> float:
        y = torch.full((1, 1), t, dtype=torch.float64)
        return float(likelihood.log_prob(own, y, first).exp())

    return density


def _total_of_counts(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> float:
    density = _density(likelihood, outputs, learned)
    return sum(density(float(k)) for k in range(200))


def _total_of_quantities(likelihood: Likelihood, outputs: Tensor, learned: dict[str, Tensor]) -> float:
    density, least = _density(likelihood, outputs, learned), cast(Quantities, likelihood.outcome).least
    pieces = ((-np.inf, -5), (-5, 0), (0, 5), (5, np.inf))
    return sum(scipy.integrate.quad(density, max(a, least), b, limit=400)[0] for a, b in pieces if b > least)


TOTALS: ByOutcome[Callable[[Likelihood, Tensor, dict[str, Tensor]], float]] = ByOutcome(
    "sums over all outcomes", "temperance.testing.families.TOTALS"
)
"""Σ or ∫ p(y | outputs) dy, which must be one."""
TOTALS.register(Classes, _total_of_classes)
TOTALS.register(Labels, _total_of_labels)
TOTALS.register(Counts, _total_of_counts)
TOTALS.register(Quantities, _total_of_quantities)
TOTALS.register(ByPosition, _total_by_position)
