"""A predictive in other units: y' = shift + scale · y.

For targets that were standardised before training, back in their own units, and for spreads that are widened or
narrowed about the mean. Everything follows from the base without approximation:

    log p'(y') = log p((y' − shift) / scale) − Σ_d log scale_d,
    H' = H + Σ_d log scale_d,      I' = I,      F'(y') = F((y' − shift) / scale),      q'(α) = shift + scale · q(α).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.model.likelihoods import RealLikelihood
from temperance.model.likelihoods.base import LearnedValues
from temperance.predict.forms import OfForm
from temperance.predict.quantities import ValuePredictive
from temperance.predict.source import MappedOutputs, OutputBlock, Outputs


@dataclass(frozen=True, eq=False)
class Rescaled(OfForm):
    """The likelihood of an :class:`AffineSource`: outputs are D locations, then D log noise scales, in the new units;
    the noise has the form of ``family``."""

    family: RealLikelihood

    @property
    def form(self) -> RealLikelihood:
        """``family``."""
        return self.family

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`~temperance.model.likelihoods.Likelihood`."""
        return super().prepare(y, num_outputs // 2, dtype)

    def location(self, outputs: Tensor) -> Tensor:
        """The first half of the outputs."""
        return outputs[..., : outputs.shape[-1] // 2]

    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """exp of the second half."""
        return outputs[..., outputs.shape[-1] // 2 :].exp()


class AffineSource(MappedOutputs):
    """The members of ``base`` in the new units, in the form that :class:`Rescaled` reads."""

    def __init__(self, base: Outputs, family: RealLikelihood, shift: Tensor, scale: Tensor) -> None:
        self.base, self.family, self.shift, self.scale = base, family, shift, scale
        self.engine, self.rows, self.weights = base.engine, base.rows, base.weights
        self.num_outputs = 2 * shift.shape[-1]

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""
        for rows, outputs, learned in self.base.blocks():
            location = self.family.location(outputs)
            noise = self.family.noise_scale(outputs, learned).expand_as(location)
            made = (self.shift[rows] + self.scale[rows] * location, (self.scale[rows] * noise).log())
            yield rows, torch.cat(made, dim=-1), learned


class AffinePredictive(ValuePredictive):
    """The predictive of y' = shift + scale · y, for y of ``base``.

    ``shift`` and ``scale`` are numbers, one for each output, or rows × outputs; scale > 0. Given as float64 tensors or
    arrays they make means, quantiles and draws float64 too, which keeps targets far from zero sharp.

    ``source`` and ``likelihood`` speak of the members in the new units (``likelihood.mean(outputs, learned)``; outputs
    are locations and log noise scales); what only the base has, such as ``output_functions()``, is in the base's units
    at ``predictive.base``. Counts have no other units and are refused.

    >>> import temperance as tp
    >>> from temperance.engine import Engine
    >>> from temperance.posteriors import Point
    >>> from temperance.predict import predict
    >>> target = tp.Target(torch.nn.Linear(1, 1, bias=False), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    >>> standardised = predict(Engine(target), Point(torch.tensor([2.0])), torch.tensor([[1.0]]))
    >>> in_units = AffinePredictive(standardised, shift=100.0, scale=10.0)
    >>> in_units.mean(), in_units.std()
    (tensor([[120.]]), tensor([[10.]]))
    >>> standardised.log_prob([[2.0]]), in_units.log_prob([[120.0]])  # smaller by log 10
    (tensor([-0.9189]), tensor([-3.2215]))
    """

    def __init__(self, base: ValuePredictive, shift: Any, scale: Any) -> None:
        family = getattr(base, "likelihood", None)
        if not isinstance(base, ValuePredictive) or not isinstance(family, RealLikelihood):
            what = f"{type(base).__name__} of {family!r}" if isinstance(base, ValuePredictive) else repr(base)
            raise ArgumentError(f"`base` must be the predictive of real targets, not of counts or classes; got {what}.")
        self.base = base
        like = base.weights
        width = family.location(like.new_zeros(1, base.source.num_outputs)).shape[-1]
        self.shift = _spread_out(shift, "shift", len(base), width, like)
        self.scale = _spread_out(scale, "scale", len(base), width, like)
        if not bool((self.scale > 0).all()):
            raise ArgumentError(f"`scale` must be positive; got {float(self.scale.min()):.3g}.")
        self._log_volume = self.scale.double().log().sum(-1)
        super().__init__(AffineSource(base.source, family, self.shift, self.scale), Rescaled(family))

    def _in_base(self, y: Any) -> Tensor:
        """(y − shift) / scale in float64, after the checks that any targets get."""
        given = torch.as_tensor(y)
        wide = given if given.is_complex() else given.double()
        dtype, engine = torch.float64, wide.to(self.weights.device)
        if engine.dim() == 0 or len(engine) != len(self):
            raise ArgumentError(f"`y` must have one entry for each of the {len(self)} rows; got {tuple(engine.shape)}.")
        prepared = self.likelihood.prepare(engine, self.source.num_outputs, dtype)
        return (prepared - self.shift.double()) / self.scale.double()

    def _in_units(self, y: Tensor) -> Tensor:
        return self.shift + self.scale * y

    def log_prob(self, y: Any) -> Tensor:
        """log p(y' | x, D) per row."""
        found = self.base.log_prob(self._in_base(y))
        return (found.double() - self._log_volume).to(found.dtype)

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p of all rows together."""
        found = self.base.joint_log_prob(self._in_base(y))
        return (found.double() - self._log_volume.sum()).to(found.dtype)

    def mean(self) -> Tensor:
        """shift + scale · E[y]."""
        return self._in_units(self.base.mean())

    def aleatoric_variance(self) -> Tensor:
        """scale² times the base's."""
        return self.scale.square() * self.base.aleatoric_variance()

    def epistemic_variance(self) -> Tensor:
        """scale² times the base's."""
        return self.scale.square() * self.base.epistemic_variance()

    def variance(self) -> Tensor:
        """scale² times the base's."""
        return self.scale.square() * self.base.variance()

    def std(self) -> Tensor:
        """scale times the base's."""
        return self.scale * self.base.std()

    def epistemic_std(self) -> Tensor:
        """scale times the base's."""
        return self.scale * self.base.epistemic_std()

    def monte_carlo_error(self) -> Tensor:
        """scale times the base's."""
        return self.scale * self.base.monte_carlo_error()

    def _plus_volume(self, nats: Tensor) -> Tensor:
        return (nats.double() + self._log_volume).to(nats.dtype)

    def aleatoric(self) -> Tensor:
        """The base's plus Σ log scale."""
        return self._plus_volume(self.base.aleatoric())

    def entropy(self) -> Tensor:
        """The base's plus Σ log scale."""
        return self._plus_volume(self.base.entropy())

    def mutual_information(self) -> Tensor:
        """The base's: units tell nothing of θ."""
        return self.base.mutual_information()

    def cdf(self, y: Any) -> Tensor:
        """P(Y' ≤ y'), rows × outputs."""
        return self.base.cdf(self._in_base(y))

    def quantile(self, level: float) -> Tensor:
        """shift + scale times the base's."""
        return self._in_units(self.base.quantile(level))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The base's, in the new units."""
        low, high = self.base.interval(level)
        return self._in_units(low), self._in_units(high)

    def reshaped(self, law: RealLikelihood) -> AffinePredictive | None:
        """The base's, in the new units."""
        base = self.base.reshaped(law)
        return None if base is None else AffinePredictive(base, self.shift, self.scale)

    def as_functions(self) -> AffinePredictive:
        """The base's, in the new units."""
        base = self.base.as_functions()
        assert isinstance(base, ValuePredictive)
        return self if base is self.base else AffinePredictive(base, self.shift, self.scale)

    def joint_moments(self, by_draws: bool = False) -> tuple[Tensor, Tensor]:
        """The base's, in the new units."""
        factor, noise = self.base.joint_moments(by_draws)
        scale = self.scale.to(noise)
        return factor * scale.unsqueeze(-1), noise * scale.square()

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """The base's draws, in the new units."""
        return self._in_units(self.base.sample(n, seed))


def _spread_out(value: Any, argument: str, rows: int, width: int, like: Tensor) -> Tensor:
    """A number, one for each output, or rows × outputs, as rows × outputs."""
    if isinstance(value, np.ndarray | Tensor):
        made = torch.as_tensor(value).to(like.device)
        made = made if made.dtype == torch.float64 else made.to(like.dtype)
    else:
        try:
            made = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"`{argument}` must be a number or an array of numbers; got {shown(value)}.") from error
    try:
        made = made.broadcast_to(rows, width)
    except RuntimeError as error:
        raise ArgumentError(
            f"`{argument}` must be a number, one for each of the {width} outputs, or of shape ({rows}, {width}); got "
            f"shape {tuple(made.shape)}."
        ) from error
    if not bool(torch.isfinite(made).all()):
        raise ArgumentError(f"`{argument}` must be finite; got NaN or infinity.")
    return made
