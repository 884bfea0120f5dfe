"""Classes whose labels are nearly free of noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_flag, check_positive
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.model.likelihoods.base import LearnedValues, Likelihood, diagonal, diagonal_columns
from temperance.model.likelihoods.categorical import Categorical
from temperance.model.likelihoods.classes import ClassLikelihood, softmax_fisher

_PLAIN = Categorical()


@dataclass(frozen=True, eq=False)
class NoisyDirichlet(ClassLikelihood):
    """The noisy Dirichlet model of labels that hardly err (Milios et al. 2018; Kapoor et al. 2022): of a row labelled y
    the class probabilities p = softmax(f) are Dirichlet with concentration a = α + e_y,

        log p(y | f) = Σ_c (a_c − 1) log p_c + constant.

    The smaller α = ``alpha``, the surer a label is taken to be. **This is no distribution of y.** It is p_y · h(f) with
    h = Π_c p_c^{α−1}, which is the same for every y: divided by its sum over y it is ``Categorical()`` again. What it
    adds is a prior of functions, h, at each training input (Kapoor et al. say why that is what a cold posterior has in
    mind). So it is a factor for θ (``normalised`` is false), and predictions, draws and ``evaluate`` are those of
    ``Categorical()``, softmax(f) averaged over θ.

    With α < 1, h has no upper bound: it grows like e^{(1−α)|f|}, faster than a Gaussian prior of the weights of two or
    more layers can hold, so that the posterior may have no normaliser and a point method no end. Therefore the usual
    form, ``gaussian=True``, is that of both papers: p is proportional to independent gamma variables, each of which is
    taken for log-normal with the same mean and variance, which is a regression of the logits,

        log p(y | f) = Σ_c log N(f_c; log a_c − s_c² / 2, s_c²),     s_c² = log(1 + 1/a_c),

    bounded, and with positive curvature. ``gaussian=False`` is the Dirichlet itself, for samplers at your own risk: its
    Hessian is (C(α − 1) + 1)(diag p − p pᵀ), negative for α < 1 − 1/C, and Laplace methods then refuse it.

    The Fisher information is the Hessian's average over y ~ softmax(f).

    >>> likelihood = NoisyDirichlet(alpha=0.1)
    >>> likelihood.log_prob(torch.tensor([[0.0, -4.0]]), torch.tensor([0]), {})
    tensor([-2.1492])
    >>> likelihood.for_new_rows, likelihood.normalised
    (Categorical(), False)
    """

    alpha: float = 0.01
    gaussian: bool = True

    def __post_init__(self) -> None:
        check_positive(self.alpha, "alpha")
        check_flag(self.gaussian, "gaussian")

    @property
    def normalised(self) -> bool:
        """It is a density in f, not in y."""
        return False

    @property
    def for_new_rows(self) -> Likelihood:
        """softmax(f)."""
        return _PLAIN

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Warn of an energy without a floor."""
        if not self.gaussian and self.alpha < 1:
            warnings.warn(
                f"{self!r} has no upper bound in the logits: with two or more layers the posterior may not exist, and "
                "point methods run away. Use gaussian=True, or `alpha` from 1 on.",
                TemperanceWarning,
                stacklevel=4,
            )
        return {}

    def _moments(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Mean and variance of the logit of the labelled class, and of another."""

        def of(a: float) -> tuple[float, float]:
            variance = math.log1p(1 / a)
            return math.log(a) - variance / 2, variance

        return of(1 + self.alpha), of(self.alpha)

    def _by_label(self, outputs: Tensor, y: Tensor, labelled: float, other: float) -> Tensor:
        """``labelled`` at y, ``other`` elsewhere, ... × B × C."""
        made = torch.full_like(outputs, other)
        return made.scatter(-1, y.expand(outputs.shape[:-1]).unsqueeze(-1), labelled)

    def _weight(self, classes: int) -> float:
        """C(α − 1) + 1, of the Dirichlet's Hessian."""
        return classes * (self.alpha - 1) + 1

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """See the class."""
        classes, a = outputs.shape[-1], self.alpha
        if not self.gaussian:
            logs = outputs.log_softmax(-1)
            norm = math.lgamma(classes * a + 1) - math.lgamma(a + 1) - (classes - 1) * math.lgamma(a)
            return _PLAIN.log_prob(outputs, y, learned) + (a - 1) * logs.sum(-1) + norm
        (mean, variance), (other, spread) = self._moments()
        z2 = (outputs - self._by_label(outputs, y, mean, other)).square() / self._by_label(outputs, y, variance, spread)
        norm = math.log(variance) + (classes - 1) * math.log(spread) + classes * math.log(2 * math.pi)
        return -0.5 * (z2.sum(-1) + norm)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """diag(1 / s²); of the Dirichlet (C(α − 1) + 1)(diag p − p pᵀ)."""
        if not self.gaussian:
            return self._weight(outputs.shape[-1]) * softmax_fisher(outputs)
        (_, variance), (_, spread) = self._moments()
        return diagonal(self._by_label(outputs, y, 1 / variance, 1 / spread))

    def _expected(self, outputs: Tensor) -> Tensor:
        """p_c / s²(labelled) + (1 − p_c) / s²(other): the expected curvature, ... × B × C."""
        (_, variance), (_, spread) = self._moments()
        p = outputs.softmax(-1)
        return p / variance + (1 - p) / spread

    def _positive_weight(self, classes: int) -> float:
        weight = self._weight(classes)
        if weight < 0:
            raise ArgumentError(
                f"`alpha` must be at least 1 − 1/{classes} for curvature under the Dirichlet itself, whose log density "
                f"is convex below that; got {self.alpha!r}. Use NoisyDirichlet(alpha={self.alpha!r}, gaussian=True)."
            )
        return weight

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """See the class."""
        if self.gaussian:
            return diagonal(self._expected(outputs))
        return self._positive_weight(outputs.shape[-1]) * softmax_fisher(outputs)

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """Of a diagonal, or √(C(α − 1) + 1) times those of ``Categorical``."""
        if self.gaussian:
            yield from diagonal_columns(self._expected(outputs))
            return
        root = self._positive_weight(outputs.shape[-1]) ** 0.5
        for column in _PLAIN.fisher_columns(outputs, learned):
            yield root * column

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """Without a matrix."""
        if self.gaussian:
            return self._expected(outputs) * v
        return self._positive_weight(outputs.shape[-1]) * _PLAIN.fisher_product(outputs, learned, v)

    def fisher_draw(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """The root of the diagonal with random signs; or a score of ``Categorical``."""
        if not self.gaussian:
            root = self._positive_weight(outputs.shape[-1]) ** 0.5
            return root * _PLAIN.fisher_draw(outputs, learned, rng)
        sign = 2 * torch.randint(0, 2, outputs.shape, generator=rng, device=outputs.device).to(outputs) - 1
        return sign * self._expected(outputs).sqrt()
