"""The predictive of classes and of yes/no labels."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories, Classes
from temperance.predict import scores
from temperance.predict.predictive import PREDICTIVES, SCORES, Predictive


class CategoryPredictive(Predictive):
    """Whatever has probabilities of classes, or of yes/no labels; subclasses say where they come from.

    Of several yes/no labels, entropy, aleatoric part and mutual information are sums over the labels.
    """

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """Probabilities: rows × classes, or rows × labels for ``Bernoulli``."""

    @property
    def outcome(self) -> Categories:
        """Classes, or yes/no labels."""
        return cast(Categories, self.likelihood.outcome)

    @property
    def exclusive(self) -> bool:
        """Whether exactly one class is true, or each label on its own."""
        return self.outcome.exclusive

    def log_prob(self, y: Any) -> Tensor:
        """log p(y | x, D) per row; of class probabilities (rows × classes), Σ_c y_c log p(c | x, D)."""
        soft = self._expected_log_prob(y)
        return super().log_prob(y) if soft is None else soft

    def _expected_log_prob(self, y: Any) -> Tensor | None:
        """Over the classes, where the targets are probabilities of these."""
        targets = self._targets(y)
        if not self.exclusive or not targets.is_floating_point():
            return None
        every = [self.log_prob(torch.full((len(self),), k)) for k in range(targets.shape[1])]
        return torch.where(targets > 0, targets * torch.stack(every, dim=1), 0.0).sum(1)

    def known_classes(self, y: Any) -> Tensor:
        """Prepared targets, each a class (or yes/no labels): refused where they are probabilities."""
        targets = self._targets(y)
        if self.exclusive and targets.is_floating_point():
            raise ArgumentError("`y` must hold a class for each row here, not class probabilities.")
        return targets

    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities; of several yes/no labels, the sum over labels."""
        p = self.probs
        terms = -torch.special.xlogy(p, p)
        if not self.exclusive:
            terms = terms - torch.special.xlogy(1 - p, 1 - p)
        return terms.sum(-1)

    def std(self) -> Tensor:
        """How far the members' probabilities spread around their average: √epistemic variance, rows × classes."""
        return self.epistemic_variance().sqrt()

    def imprecision(self) -> Tensor:
        """:meth:`monte_carlo_error` of the probabilities."""
        return self.monte_carlo_error()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central interval of each class's probability over the members: (low, high), rows × classes."""
        tail = (1 - check_level(level)) / 2

        def ends(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            probs, order = self.likelihood.mean(outputs, learned).sort(0)
            mass = self.weights[order].cumsum(0)
            low = (mass < tail - 1e-6).sum(0, keepdim=True).clamp(max=len(probs) - 1)
            high = (mass < 1 - tail - 1e-6).sum(0, keepdim=True).clamp(max=len(probs) - 1)
            return torch.stack([probs.gather(0, low)[0], probs.gather(0, high)[0]], dim=1)

        both = self._over_rows(ends)
        return both[:, 0], both[:, 1]

    def predict(self) -> Tensor:
        """The most probable class per row; for ``Bernoulli``, each label's more probable answer."""
        return self.outcome.answers(self.probs)


class ClassPredictive(CategoryPredictive):
    """For classes (``Categorical``) and yes/no labels (``Bernoulli``)."""

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities: rows × classes, or rows × labels for ``Bernoulli``."""
        return self.mean().clamp(0.0, 1.0)  # the average of ones may round to more than one


def class_scores(predictive: CategoryPredictive, y: Tensor) -> dict[str, float]:
    """``accuracy``, ``brier`` and ``ece`` of classes; expected ones, where y has probabilities of classes."""
    probs = predictive.probs
    labels = y if y.is_floating_point() and y.shape == probs.shape else y.reshape(-1)
    return {
        "accuracy": scores.accuracy(probs, labels),
        "brier": scores.brier(probs, labels),
        "ece": scores.reliability_curve(probs, labels).expected_error,
    }


PREDICTIVES.register(Categories, ClassPredictive)
SCORES.register(Classes, class_scores)
