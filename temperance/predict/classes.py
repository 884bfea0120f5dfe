"""The predictive of classes and of yes/no labels."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from temperance.core.checks import check_level
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
    """``accuracy``, ``brier`` and ``ece`` of classes."""
    probs, labels = predictive.probs, y.reshape(-1)
    return {
        "accuracy": scores.accuracy(probs, labels),
        "brier": scores.brier(probs, labels),
        "ece": scores.ece(probs, labels).value,
    }


PREDICTIVES.register(Categories, ClassPredictive)
SCORES.register(Classes, class_scores)
