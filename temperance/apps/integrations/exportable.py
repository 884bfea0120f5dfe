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
from temperance.model.likelihoods.base import Likelihood

_COUNT_BITS = 30  # quantiles of counts are below 2³⁰
_LARGEST_LOG_RATE = 20.0


class ExportablePredictive(nn.Module):
    """p(y | x, D) = Σ_s w_s p(y | x, θ_s) in operations that ``torch.export`` can write down: S settings of the
    weights, stacked, and the statistics of :class:`temperance.predict.Predictive` as a dictionary of tensors.

    Made by ``temperance.apps.integrations.export.predictive_module``; ``export_predictive`` lists what it returns.
    """

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
        super().__init__()
        self.network = network
        self.likelihood, self.levels, self.at_once = likelihood, tuple(levels), False
        self.values, self.learned = list(values), list(learned)
        for k, value in enumerate([*values.values(), *learned.values()]):
            self.register_buffer(f"stack_{k}", value)
        self.register_buffer("weights", weights)
        for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
            given = getattr(units, name)
            self.register_buffer(name, None if given is None else given.to(weights))

    def forward(self, x: Any) -> dict[str, Tensor]:
        """Statistics of y at the rows of ``x``: a tensor, or a tuple or dictionary of tensors as the network takes."""
        weights: Any = self.weights
        x = map_tensors(lambda t: t.to(weights.dtype) if t.is_floating_point() else t, x)
        if isinstance(self.x_mean, Tensor):
            x = (x - self.x_mean) / self.x_scale
        stacks: list[Any] = [getattr(self, f"stack_{k}") for k in range(len(self.values) + len(self.learned))]
        values = dict(zip(self.values, stacks, strict=False))
        learned = dict(zip(self.learned, stacks[len(self.values) :], strict=True))
        outputs = self._outputs(values, x)
        each = self.likelihood.mean(outputs, learned)
        mean = torch.tensordot(weights, each, dims=1)
        epistemic = torch.tensordot(weights, (each - mean).square(), dims=1)
        return STATISTICS.of(self.likelihood.outcome)(self, mean, epistemic, outputs, learned)

    def _outputs(self, values: dict[str, Tensor], x: Inputs) -> Tensor:
        if self.at_once:
            made = forward.at_once(self.network, values, x, stacked_inputs=False)
        else:
            count = len(next(iter(values.values())))
            rows = [{name: value[s] for name, value in values.items()} for s in range(count)]
            made = torch.stack([forward.functional(self.network, row, x) for row in rows])
        return self.likelihood.arrange(made, 2)

    def in_units(self, y: Tensor) -> Tensor:
        """Back from the standardised targets that were learned."""
        shift: Any = self.y_mean
        scale: Any = self.y_scale
        return y if shift is None else y * scale + shift

    def spread_in_units(self, std: Tensor) -> Tensor:
        """The same of a spread."""
        scale: Any = self.y_scale
        return std if scale is None else std * scale


LearnedValues = dict[str, Tensor]
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
    family = cast(RealLikelihood, module.likelihood)
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
