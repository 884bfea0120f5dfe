"""Class probabilities of the linearised network: by points of each row's Gaussian, or in closed form."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories
from temperance.model.likelihoods import Likelihood
from temperance.predict.classes import ClassPredictive
from temperance.predict.gaussian_sources import MarginalSource
from temperance.predict.linearised import CLOSED_FORMS, LINEARISED, LinearisedMixin
from temperance.predict.links import bridge_probabilities, probit_logits, probit_probabilities


class LinearisedClassPredictive(LinearisedMixin, ClassPredictive):
    """Classes and yes/no labels. ``link`` says how probabilities come of the Gaussian over the outputs; with a closed
    form, ``probs``, ``mean``, ``entropy`` and ``log_prob`` are its own, the rest (``aleatoric``, ``std``, ``interval``)
    that of the points."""

    plain = ClassPredictive
    points = 128
    link: str = "points"

    @classmethod
    def check_form(cls, by: str, likelihood: Likelihood) -> None:
        """See :class:`LinearisedMixin`."""
        if by == "bridge" and not cast(Categories, likelihood.outcome).exclusive:
            raise ArgumentError("`by` 'bridge' is for Categorical; for yes/no labels use 'probit'.")
        if by in CLOSED_FORMS and not likelihood.closed_links:
            raise ArgumentError(
                f"`by` {by!r} is for probabilities that are a softmax of the outputs; those of {likelihood!r} are not. "
                "Use 'linearised'."
            )

    @classmethod
    def of_points(cls, source: MarginalSource, likelihood: Likelihood, by: str) -> LinearisedMixin:
        """See :class:`LinearisedMixin`."""
        made = cls(source, likelihood)
        if by in CLOSED_FORMS:
            made.link = by
        return made

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities, rows × classes."""
        if self.link == "points":
            return super().mean().clamp(0.0, 1.0)
        parts = []
        for _, means, covariances in self._marginals():
            found = []
            for mean, covariance in zip(means, covariances, strict=True):
                if self.link == "probit":
                    variance = covariance.diagonal(dim1=-2, dim2=-1)
                    found.append(probit_probabilities(mean, variance, not self.exclusive))
                else:
                    found.append(bridge_probabilities(mean, covariance))
            parts.append(self._mixed(found))
        return torch.cat(parts)

    def mean(self) -> Tensor:
        """The averaged probabilities."""
        return self.probs

    def monte_carlo_error(self) -> Tensor:
        """Of a closed form, none; otherwise see :class:`Predictive`."""
        return super().monte_carlo_error() if self.link == "points" else torch.zeros_like(self.probs)

    def log_prob(self, y: Any) -> Tensor:
        """log p(y | x, D) per row, by the link."""
        if self.link == "points":
            return super().log_prob(y)
        soft = self._expected_log_prob(y)
        if soft is not None:
            return soft
        engine = self._targets(y)
        parts = []
        for rows, means, covariances in self._marginals():
            found = []
            for mean, covariance, share in zip(means, covariances, self.source.shares, strict=True):
                found.append(self._link_log_prob(mean, covariance, engine[rows]) + math.log(share))
            parts.append(torch.stack(found).logsumexp(0))
        return torch.cat(parts)

    def _link_log_prob(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        if self.link == "bridge":
            log_probs = bridge_probabilities(mean, covariance).clamp(min=torch.finfo(mean.dtype).tiny).log()
        else:
            logits = probit_logits(mean, covariance.diagonal(dim1=-2, dim2=-1))
            if not self.exclusive:
                return (y * F.logsigmoid(logits) + (1 - y) * F.logsigmoid(-logits)).sum(-1)
            log_probs = logits.log_softmax(-1)
        return log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def mutual_information(self) -> Tensor:
        """Entropy − aleatoric; a closed form of the probabilities may put it below zero, which counts as zero."""
        found = super().mutual_information()
        return found if self.link == "points" else found.clamp(min=0.0)


LINEARISED[ClassPredictive] = LinearisedClassPredictive
