"""The posterior predictive as a plain module, in operations that exporters and compilers can write down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.core.outcomes import Categories, Counts, Quantities, Reals
from temperance.core.registry import ByOutcome
from temperance.data.data import DataInfo
from temperance.data.sources import Inputs, map_tensors
from temperance.engine import outputs as forward
from temperance.model.likelihoods import RealLikelihood
from temperance.model.likelihoods.base import LearnedValues, Likelihood

_COUNT_BITS = 30  # quantiles of counts are below 2³⁰
_LARGEST_LOG_RATE = 20.0


class ExportablePredictive(nn.Module):
    """p(y | x, D) = Σ_s w_s p(y | x, member s) in operations that ``torch.export`` can write down, and the statistics
    of :class:`temperance.predict.Predictive` as a dictionary of tensors.

    Made by ``temperance.apps.integrations.export.predictive_module``; ``export_predictive`` lists what it returns.
    """

    def __init__(self, likelihood: Likelihood, weights: Tensor, levels: Sequence[float], units: DataInfo) -> None:
        super().__init__()
        self.likelihood, self.member_likelihood, self.levels = likelihood, likelihood, tuple(levels)
        self.at_once = False
        self.register_buffer("weights", weights)
        for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
            given = getattr(units, name)
            if given is None:  # not a buffer of None: torch.export counts such among the others
                setattr(self, name, None)
            else:
                self.register_buffer(name, given.to(weights))

    def ways(self) -> tuple[bool, ...]:
        """The values of ``at_once`` to try, best first."""
        return (False,)

    def members(self, x: Inputs) -> tuple[Tensor, LearnedValues]:
        """Outputs of all members, S × B × C, and what the likelihood learned in each. A member whose location is itself
        Gaussian has its variance under ``"epistemic"``."""
        raise NotImplementedError

    def forward(self, x: Any) -> dict[str, Tensor]:
        """Statistics of y at the rows of ``x``: a tensor, or a tuple or dictionary of tensors as the network takes."""
        weights: Any = self.weights
        x = map_tensors(lambda t: t.to(weights.dtype) if t.is_floating_point() else t, x)
        if isinstance(self.x_mean, Tensor):
            x = (x - self.x_mean) / self.x_scale
        outputs, learned = self.members(x)
        each = self.likelihood.mean(outputs, learned)
        mean = torch.tensordot(weights, each, dims=1)
        epistemic = torch.tensordot(weights, (each - mean).square(), dims=1)
        if "epistemic" in learned:
            epistemic = epistemic + torch.tensordot(weights, learned["epistemic"], dims=1)
        return STATISTICS.of(self.likelihood.outcome)(self, mean, epistemic, outputs, learned)

    def in_units(self, y: Tensor) -> Tensor:
        """Back from the standardised targets that were learned."""
        shift: Any = self.y_mean
        scale: Any = self.y_scale
        return y if shift is None else y * scale + shift

    def spread_in_units(self, std: Tensor) -> Tensor:
        """The same of a spread."""
        scale: Any = self.y_scale
        return std if scale is None else std * scale


class ExportableDraws(ExportablePredictive):
    """Members are S settings of the weights, stacked; ``at_once`` batches them by ``vmap``."""

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        weights: Tensor,
        values: dict[str, Tensor],
        learned: dict[str, Tensor],
        levels: Sequence[float],
        units: DataInfo,
    ) -> None:
        super().__init__(likelihood, weights, levels, units)
        self.network = network
        self.values, self.learned = list(values), list(learned)
        self.places: dict[str, list[str]] = {name: [name] for name in self.values}
        for k, value in enumerate([*values.values(), *learned.values()]):
            self.register_buffer(f"stack_{k}", value)

    def ways(self) -> tuple[bool, ...]:
        """At once if that can be. Not with recurrent layers, whose one operation ``vmap`` takes apart into several for
        each step in time: draw by draw it stays what it is."""
        return (False,) if any(isinstance(part, nn.RNNBase) for part in self.network.modules()) else (True, False)

    def members(self, x: Inputs) -> tuple[Tensor, LearnedValues]:
        """See :class:`ExportablePredictive`."""
        stacks: list[Any] = [getattr(self, f"stack_{k}") for k in range(len(self.values) + len(self.learned))]
        values = {place: stack for name, stack in zip(self.values, stacks, strict=False) for place in self.places[name]}
        return self._outputs(values, x), dict(zip(self.learned, stacks[len(self.values) :], strict=True))

    def _outputs(self, values: dict[str, Tensor], x: Inputs) -> Tensor:
        if self.at_once:
            made = forward.at_once(self.network, values, x, stacked_inputs=False)
        else:
            count = len(next(iter(values.values())))
            rows = [{name: value[s] for name, value in values.items()} for s in range(count)]
            made = torch.stack([forward.functional(self.network, row, x) for row in rows])
        return self.likelihood.arrange(made, 2)


class ExportableLinearised(ExportablePredictive):
    """Members are points of each row's Gaussian over the outputs, f(x) + R(x) z_s with R Rᵀ = J Σ Jᵀ; where noise adds
    to the outputs they are the Gaussian itself. ``laws`` are graphs from inputs to its mean and covariance, one for
    each component of a mixture; of ``points`` each component has as many as of the others, K × S × C."""

    def __init__(
        self,
        laws: Sequence[nn.Module],
        points: Tensor | None,
        likelihood: Likelihood,
        member_likelihood: Likelihood,
        weights: Tensor,
        learned: dict[str, Tensor],
        levels: Sequence[float],
        units: DataInfo,
    ) -> None:
        super().__init__(likelihood, weights, levels, units)
        self.member_likelihood = member_likelihood
        self.laws, self.learned = nn.ModuleList(laws), list(learned)
        if points is None:
            self.points = None
        else:
            self.register_buffer("points", points)
        for k, value in enumerate(learned.values()):
            self.register_buffer(f"learned_{k}", value)

    def members(self, x: Inputs) -> tuple[Tensor, LearnedValues]:
        """See :class:`ExportablePredictive`."""
        learned = {name: getattr(self, f"learned_{k}") for k, name in enumerate(self.learned)}
        moments = [law(x) for law in self.laws]
        if isinstance(self.points, Tensor):
            made = [
                mean + torch.einsum("bij,sj->sbi", _root(covariance), z)
                for (mean, covariance), z in zip(moments, self.points, strict=True)
            ]
            return torch.cat(made), learned
        weights: Any = self.weights
        each = len(weights) // len(moments)
        variances = [covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0.0) for _, covariance in moments]
        learned["epistemic"] = torch.cat([v.expand(each, *v.shape) for v in variances])
        return torch.cat([mean.expand(each, *mean.shape) for mean, _ in moments]), learned


def _root(covariance: Tensor) -> Tensor:
    """R with R Rᵀ = covariance, lower triangular; a trace of noise keeps a singular one from failing."""
    wide = covariance.double()
    size = wide.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    eye = torch.eye(wide.shape[-1], dtype=wide.dtype, device=wide.device)
    floor = 1e-7 if covariance.dtype == torch.float32 else 1e-13
    return torch.linalg.cholesky_ex(wide + (floor * size + 1e-30) * eye).L.to(covariance)


Statistics = Callable[[ExportablePredictive, Tensor, Tensor, Tensor, LearnedValues], dict[str, Tensor]]

STATISTICS: ByOutcome[Statistics] = ByOutcome(
    "exported statistics", "temperance.apps.integrations.exportable.STATISTICS"
)
"""What the artefact returns of each outcome: of the module, the mean and epistemic variance of the members, their
outputs, and what the likelihood has learned."""

QUANTILES: ByOutcome[Callable[[ExportablePredictive, Tensor, LearnedValues], Tensor]] = ByOutcome(
    "exported quantiles", "temperance.apps.integrations.exportable.QUANTILES"
)
"""The mixture's quantiles of each outcome, levels × rows × outputs."""


def class_statistics(
    module: ExportablePredictive, mean: Tensor, epistemic: Tensor, outputs: Tensor, learned: LearnedValues
) -> dict[str, Tensor]:
    """Of classes and labels."""
    weights: Any = module.weights
    probs = mean.clamp(0.0, 1.0)
    terms = -torch.special.xlogy(probs, probs)
    if not cast(Categories, module.likelihood.outcome).exclusive:
        terms = terms - torch.special.xlogy(1 - probs, 1 - probs)
    entropy = terms.sum(-1)
    aleatoric = torch.tensordot(weights, module.likelihood.entropy(outputs, learned), dims=1)
    return {
        "probs": probs,
        "std": epistemic.sqrt(),
        "entropy": entropy,
        "aleatoric": aleatoric,
        "mutual_information": entropy - aleatoric,
    }


def quantity_statistics(
    module: ExportablePredictive, mean: Tensor, epistemic: Tensor, outputs: Tensor, learned: LearnedValues
) -> dict[str, Tensor]:
    """Of numbers."""
    weights: Any = module.weights
    aleatoric = torch.tensordot(weights, module.likelihood.variance(outputs, learned), dims=1)
    made = {
        "mean": module.in_units(mean),
        "std": module.spread_in_units((aleatoric + epistemic).sqrt()),
        "epistemic_std": module.spread_in_units(epistemic.sqrt()),
        "aleatoric_std": module.spread_in_units(aleatoric.sqrt()),
    }
    if module.levels:
        quantiles = QUANTILES.of(module.likelihood.outcome)
        made["quantiles"] = module.in_units(quantiles(module, outputs, learned))
    return made


def _shares(module: ExportablePredictive, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and levels, in shapes draws × points × levels × rows × outputs."""
    weights = module.weights
    assert isinstance(weights, Tensor)
    shares = (weights.double() / weights.double().sum()).view(-1, 1, 1, 1, 1)
    return shares, torch.tensor(module.levels, dtype=torch.float64, device=outputs.device).view(-1, 1, 1)


def real_quantiles(module: ExportablePredictive, outputs: Tensor, learned: LearnedValues) -> Tensor:
    """Between the least and the greatest of the members' quantiles."""
    family = cast(RealLikelihood, module.member_likelihood)
    shares, levels = _shares(module, outputs)
    location = family.location(outputs).double()
    scale = family.noise_scale(outputs, learned).double().expand_as(location)[:, None, None]
    location = location[:, None, None]
    each = location + scale * family.standard_quantile(levels)
    low, high = each.amin(0)[0], each.amax(0)[0]
    count = 33 if outputs.dtype == torch.float32 else 54

    def mass(y: Tensor) -> Tensor:
        return (shares * family.standard_cdf((y - location) / scale)).sum(0)

    return _search(mass, levels, low, high - low, count, 3).to(outputs.dtype)


def count_quantiles(module: ExportablePredictive, outputs: Tensor, learned: LearnedValues) -> Tensor:
    """Whole numbers."""
    shares, levels = _shares(module, outputs)
    rates = outputs.double().clamp(max=_LARGEST_LOG_RATE).exp()[:, None, None]

    def mass_below(k: Tensor) -> Tensor:  # P(Y < k), which is 0 for k = 0
        return (shares * torch.special.gammaincc(k, rates)).sum(0)

    start = torch.zeros_like(rates[0, 0]).expand(len(module.levels), -1, -1)
    return _search(mass_below, levels, start, 2.0**_COUNT_BITS, _COUNT_BITS, 2).to(outputs.dtype)


def _search(
    mass: Callable[[Tensor], Tensor], level: Tensor, low: Tensor, width: Tensor | float, bits: int, each: int
) -> Tensor:
    """The greatest y of a grid of 2^bits points from ``low`` on with mass(y) < level: ``each`` bits at a time, in few
    operations, for each one is written into the artefact."""
    steps = torch.arange(1, 2**each, dtype=torch.float64, device=low.device).view(-1, 1, 1, 1)
    for done in range(each, bits + 1, each):
        step = width * 0.5**done
        low = low + step * (mass(low + step * steps) < level).sum(0)
    return low


STATISTICS.register(Categories, class_statistics)
STATISTICS.register(Quantities, quantity_statistics)
QUANTILES.register(Reals, real_quantiles)
QUANTILES.register(Counts, count_quantiles)
