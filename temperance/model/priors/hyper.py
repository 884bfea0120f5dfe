"""Hyper-priors: what is believed of a scale that is learned, as the law of its logarithm u."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_positive
from temperance.core.encoding import Value


class HyperPrior(Value, ABC):
    """The law of u, the logarithm of a factor e^u on a prior's scale. Densities are in u, the Jacobian included."""

    @abstractmethod
    def log_density(self, u: Tensor) -> Tensor:
        """log p(u), elementwise."""

    @abstractmethod
    def score(self, u: Tensor) -> Tensor:
        """d log p(u) / du, elementwise."""

    @abstractmethod
    def of_normal(self, v: Tensor) -> Tensor:
        """The increasing map that makes u of v ~ N(0, 1): F⁻¹(Φ(v)), differentiable."""

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Independent draws of u, in float64."""
        return self.of_normal(torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float64))

    @property
    def median(self) -> float:
        """The middle of u."""
        return float(self.of_normal(torch.zeros((), dtype=torch.float64)))

    @property
    def inverse_gamma(self) -> tuple[float, float] | None:
        """Shape and rate, where the variance e^{2u} has an inverse gamma law: then so it has given Gaussian weights."""
        return None


@dataclass(frozen=True, eq=False)
class LogNormal(HyperPrior):
    """u ~ N(0, ``spread``²): the scale is within a factor e^``spread`` of its median, two times in three.

    >>> LogNormal(spread=0.5).of_normal(torch.tensor(2.0))
    tensor(1.)
    """

    spread: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.spread, "spread")

    def log_density(self, u: Tensor) -> Tensor:
        """−(u / s)² / 2 − log s − log √(2π)."""
        return -0.5 * (u / self.spread).square() - math.log(self.spread) - 0.5 * math.log(2 * math.pi)

    def score(self, u: Tensor) -> Tensor:
        """−u / s²."""
        return -u / self.spread**2

    def of_normal(self, v: Tensor) -> Tensor:
        """s v."""
        return self.spread * v


@dataclass(frozen=True, eq=False)
class HalfCauchy(HyperPrior):
    """A half-Cauchy law of the scale σ = e^u, with median γ = ``scale`` (Gelman, 2006): p(σ) = 2 / (π γ (1 + σ²/γ²)).

    It does not forbid a scale near zero, and its tail lets a few groups be far larger than others. With x = u − log γ,

        p(u) = 1 / (π cosh x),     u = log γ + log tan(½ π Φ(v)).

    With :class:`Learned` and a temperature below 1 − 1/n, n the weights of a group, there is no posterior: the
    tempered density of vanishing scales has no finite sum. With :class:`~temperance.NonCentred` there is one.

    >>> round(HalfCauchy(scale=2.0).median, 6) == round(math.log(2.0), 6)
    True
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")

    def log_density(self, u: Tensor) -> Tensor:
        """−log cosh x − log π."""
        x = u - math.log(self.scale)
        return math.log(2.0 / math.pi) - torch.logaddexp(x, -x)

    def score(self, u: Tensor) -> Tensor:
        """−tanh x."""
        return -torch.tanh(u - math.log(self.scale))

    def of_normal(self, v: Tensor) -> Tensor:
        """x is odd in v; on the side where Φ is small, log tan p = log p + log (tan p / p) loses nothing."""
        log_p = _log_tail(torch.where(v < 0, -v, v)) + math.log(math.pi / 2)  # (|v| has no slope at 0)
        p = log_p.exp()
        tiny = p < 1e-4  # tan p / p = 1 + p²/3 to rounding, and no 0 / 0 where p underflows
        safe = torch.where(tiny, torch.ones_like(p), p)
        away = log_p + torch.where(tiny, p.square() / 3, torch.log(torch.tan(safe) / safe))
        return math.log(self.scale) + torch.where(v < 0, away, -away)


@dataclass(frozen=True, eq=False)
class InverseGamma(HyperPrior):
    """An inverse gamma law of the variance s = e^{2u}: p(s) ∝ s^{−a−1} e^{−b/s}, a = ``shape``, b = ``rate``.

    It is conjugate: given Gaussian weights the variance is inverse gamma again, which :class:`Gibbs` draws exactly. In
    u, p(u) = 2 b^a / Γ(a) · e^{−2 a u − b e^{−2u}}. The mean of s is b / (a − 1) for a > 1.

    >>> InverseGamma(2.0, 1.0).inverse_gamma
    (2.0, 1.0)
    """

    shape: float
    rate: float

    def __post_init__(self) -> None:
        check_positive(self.shape, "shape")
        check_positive(self.rate, "rate")

    def log_density(self, u: Tensor) -> Tensor:
        """log 2 + a log b − log Γ(a) − 2 a u − b e^{−2u}."""
        a, b = float(self.shape), float(self.rate)
        return math.log(2.0) + a * math.log(b) - math.lgamma(a) - 2 * a * u - b * torch.exp(-2 * u)

    def score(self, u: Tensor) -> Tensor:
        """2 b e^{−2u} − 2 a."""
        return 2 * self.rate * torch.exp(-2 * u) - 2 * self.shape

    def of_normal(self, v: Tensor) -> Tensor:
        """With t = b / s, which is Gamma(a, 1): u = ½ (log b − log t), Q(a, t) = Φ(v)."""
        log_t: Tensor = _LogGammaQuantile.apply(v, float(self.shape))
        return 0.5 * (math.log(self.rate) - log_t)

    @property
    def inverse_gamma(self) -> tuple[float, float]:
        """Its own."""
        return float(self.shape), float(self.rate)


def _log_tail(v: Tensor) -> Tensor:
    """log Φ(−v) for v ≥ 0. (PyTorch's ``log_ndtr`` is no part of ``vmap``.)"""
    return torch.special.erfcx(v / math.sqrt(2.0)).log() - 0.5 * v.square() - math.log(2.0)


# ---------------------------------------------------------------------- quantiles of the gamma law

_FAR = 37.0  # Φ(−37) is about the smallest number of float64
_GRID = 1 / 64  # a polynomial of fifth degree between points so far apart is good to rounding


class _LogGammaQuantile(torch.autograd.Function):
    """log t of v, where t has the gamma law of ``shape`` and its upper tail Q(shape, t) is Φ(v).

    Its derivative is that of an implicit function, −φ(v) / (t p(t)), which no solver has to be differentiated for.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, shape: float) -> Tensor:
        inside = v.detach().double().clamp(-_FAR, _FAR)
        log_t = _solve(inside, shape)
        beyond = v.detach().double() - inside  # a straight line goes on from where tails underflow
        return (log_t + torch.where(beyond == 0, torch.zeros_like(beyond), beyond * _slope(inside, log_t, shape))).to(v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)
        ctx.shape = inputs[1]

    @staticmethod
    def _slope_at(ctx: Any) -> Tensor:
        v, log_t = ctx.saved_tensors
        table = _table(ctx.shape)
        first, last = float(table[0, 0]), float(table[-1, 0])  # v rises and log t falls
        return _slope(v.double().clamp(-_FAR, _FAR), log_t.double().clamp(last, first), ctx.shape).to(v)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * _LogGammaQuantile._slope_at(ctx), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return tangents[0] * _LogGammaQuantile._slope_at(ctx)


def _slope(v: Tensor, log_t: Tensor, shape: float) -> Tensor:
    """d log t / dv = −φ(v) / (t p(t)), by logarithms."""
    log_normal = -0.5 * v.square() - 0.5 * math.log(2 * math.pi)
    return -torch.exp(log_normal - shape * log_t + log_t.exp() + math.lgamma(shape))


def _log_tails(log_t: Tensor, shape: float) -> tuple[Tensor, Tensor]:
    """log P(shape, t), of what lies below t, and log Q of what lies above."""
    a, t = torch.full_like(log_t, shape), log_t.exp()
    below = torch.special.gammainc(a, t).log()
    series = shape * log_t - math.lgamma(shape + 1) - t * shape / (shape + 1)  # where t itself may underflow
    return torch.where(log_t < -18, series, below), torch.special.gammaincc(a, t).log()


def _solve(v: Tensor, shape: float) -> Tensor:
    """A polynomial of fifth degree between the points of a table."""
    table = _table(shape).to(v.device)
    place = (v + _FAR) / _GRID
    k = place.floor().clamp(0, len(table) - 2).long()
    by, *rest = nn.functional.embedding(k, table).unbind(-1)[::-1]
    s = place - k
    for coefficient in rest:
        by = by * s + coefficient
    return by


@functools.lru_cache(maxsize=64)
def _table(shape: float) -> Tensor:
    """At points of v from −37 to 37, log t by bisection, and the polynomial from there to the next point: the one that
    has the values, slopes and curvatures of log t at both ends."""
    v = torch.arange(round(2 * _FAR / _GRID) + 1, dtype=torch.float64) * _GRID - _FAR
    log_tail = _log_tail(v.abs())
    # P ≤ t^a / Γ(a + 1) bounds t from below; far above the mean the upper tail is smaller than any number
    low = torch.full_like(v, (float(log_tail[0]) + math.lgamma(shape + 1)) / shape - 1)
    high = torch.full_like(v, math.log(shape + 60 * math.sqrt(shape) + 1000))
    for _ in range(70):
        middle = 0.5 * (low + high)
        below, above = _log_tails(middle, shape)
        too_high = torch.where(v > 0, below > log_tail, above < log_tail)
        low, high = torch.where(too_high, low, middle), torch.where(too_high, middle, high)
    value = 0.5 * (low + high)
    slope = _slope(v, value, shape)
    bend = slope * (-v - shape * slope + value.exp() * slope)
    one, two = _GRID * slope, 0.5 * _GRID**2 * bend
    after = [x.roll(-1) for x in (value, one, two)]
    a = after[0] - value - one - two
    b = after[1] - one - 2 * two
    c = after[2] - two
    return torch.stack([value, one, two, 10 * a - 4 * b + c, -15 * a + 7 * b - 2 * c, 6 * a - 3 * b + c], dim=1)
