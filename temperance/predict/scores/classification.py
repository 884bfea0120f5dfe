"""Scores of class probabilities, and the checks at the door that all scores share.

Throughout, ``probs`` is N × C with rows that sum to one, and ``y`` holds N labels from 0 to C - 1, or, for the log
loss, accuracy, Brier score and calibration errors, N × C probabilities of classes: these scores are then expectations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError

Array = ArrayLike | Tensor
"""What a score takes: a tensor, an array or (nested) lists of numbers."""

SUM_TOLERANCE = 1e-4
"""How far a row of probabilities may be from summing to one: single-precision softmax is well inside."""


def as_float64(name: str, value: Array, *, dims: int | None = None, finite: bool = True) -> Tensor:
    """``value`` as a float64 tensor on the CPU, after a look at what it holds. Infinities pass if not ``finite``.

    >>> as_float64("mean", [1, 2])
    tensor([1., 2.], dtype=torch.float64)
    >>> as_float64("mean", [1.0, float("nan")])
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `mean` must hold finite numbers; got 1 that is not, of 2.
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise ArgumentError(f"`{name}` must hold real numbers; got {value.dtype}.")
        tensor = value.detach().to(device="cpu", dtype=torch.float64)
    else:
        try:
            tensor = torch.from_numpy(np.array(value, dtype=np.float64, order="C"))
        except (TypeError, ValueError) as problem:
            raise ArgumentError(f"`{name}` must hold numbers in a rectangular array; got {value!r:.80}.") from problem
    if tensor.numel() == 0:
        raise ArgumentError(f"`{name}` must not be empty; got shape {tuple(tensor.shape)}.")
    if dims is not None and tensor.dim() != dims:
        raise ArgumentError(f"`{name}` must have {dims} dimension(s); got shape {tuple(tensor.shape)}.")
    bad = int((~torch.isfinite(tensor) if finite else torch.isnan(tensor)).sum())
    if bad:
        rule = "finite numbers" if finite else "numbers, not NaN"
        raise ArgumentError(
            f"`{name}` must hold {rule}; got {bad} that {'is' if bad == 1 else 'are'} not, of {tensor.numel()}."
        )
    return tensor


def as_probs(name: str, value: Array) -> Tensor:
    """``value`` as N × C probabilities, after a look at signs and sums; it is not renormalised.

    >>> as_probs("probs", [[0.2, 0.7]])
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `probs` must have rows that sum to 1; got a row that sums to 0.9.
    """
    probs = as_float64(name, value)
    if probs.dim() != 2 or probs.shape[1] < 2:
        raise ArgumentError(
            f"`{name}` must be N x C, one column for each of at least two classes; got shape {tuple(probs.shape)}."
        )
    if (probs < 0).any():
        raise ArgumentError(f"`{name}` must not be negative; got {probs.min().item():.6g} (logits, perhaps?).")
    sums = probs.sum(1)
    worst = sums[(sums - 1).abs().argmax()].item()
    if abs(worst - 1) > SUM_TOLERANCE:
        raise ArgumentError(f"`{name}` must have rows that sum to 1; got a row that sums to {worst:.6g}.")
    return probs


def as_labels(name: str, value: Array, length: int, classes: int) -> Tensor:
    """``value`` as ``length`` integer labels from 0 to ``classes - 1``.

    >>> as_labels("y", [0, 2], length=2, classes=2)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `y` must hold whole numbers from 0 to 1; got 2.
    """
    labels = as_float64(name, value, dims=1)
    check_length(name, labels, length)
    wrong = (labels != labels.round()) | (labels < 0) | (labels >= classes)
    if wrong.any():
        raise ArgumentError(
            f"`{name}` must hold whole numbers from 0 to {classes - 1}; got {labels[wrong][0].item():g}."
        )
    return labels.long()


def check_length(name: str, tensor: Tensor, length: int) -> None:
    """Raise :class:`ArgumentError` unless ``tensor`` has ``length`` rows.

    >>> check_length("y", torch.zeros(3), 4)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `y` must have one entry for each of the 4 forecasts; got 3.
    """
    if len(tensor) != length:
        raise ArgumentError(f"`{name}` must have one entry for each of the {length} forecasts; got {len(tensor)}.")


def _forecasts(probs: Array, y: Array) -> tuple[Tensor, Tensor]:
    p = as_probs("probs", probs)
    return p, as_labels("y", y, *p.shape)


def shares_of(p: Tensor, y: Array) -> Tensor | None:
    """Targets that are probabilities of classes, N × C, in place of labels; ``None`` for labels. Scores are then
    expectations over the true class.

    >>> accuracy([[0.9, 0.1]], [[0.6, 0.4]])
    0.6
    """
    if np.ndim(y) != 2 or np.shape(y)[1] < 2:
        return None
    q = as_probs("y", y)
    if q.shape != p.shape:
        raise ArgumentError(f"`y` must have the shape of `probs`, {tuple(p.shape)}; got {tuple(q.shape)}.")
    return q


def log_loss(probs: Array, y: Array) -> float:
    """Mean of -log p(y), in nats. A true class that was given probability zero makes it infinite: nothing is clipped.
    ``y`` has N labels, or N × C probabilities of classes, here and in the other scores.

    >>> round(log_loss([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p = as_probs("probs", probs)
    q = shares_of(p, y)
    if q is not None:
        return float(-torch.special.xlogy(q, p).sum(1).mean())
    labels = as_labels("y", y, *p.shape)
    return float(-p.gather(1, labels[:, None]).log().mean())


def accuracy(probs: Array, y: Array) -> float:
    """Fraction of examples whose most probable class is the true one; of equal probabilities the first class counts.

    >>> accuracy([[0.9, 0.1], [0.3, 0.7]], [0, 0])
    0.5
    """
    p = as_probs("probs", probs)
    q = shares_of(p, y)
    if q is not None:
        return float(q.gather(1, p.argmax(1, keepdim=True)).mean())
    labels = as_labels("y", y, *p.shape)
    return float((p.argmax(1) == labels).double().mean())


def brier(probs: Array, y: Array) -> float:
    """Mean over examples of Σₖ (pₖ - 1[y = k])², summed over all classes: from 0 to 2.

    For two classes this is twice the score that looks at the second class alone.

    >>> round(brier([[0.5, 0.5], [0.0, 1.0]], [0, 1]), 4)
    0.25
    """
    p = as_probs("probs", probs)
    q = shares_of(p, y)
    if q is not None:
        return float((p.square() - 2 * p * q + q).sum(1).mean())
    labels = as_labels("y", y, *p.shape)
    return float((p.square().sum(1) - 2 * p.gather(1, labels[:, None])[:, 0] + 1).mean())


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, classes).double()


def equal_width_bin(values: Tensor, bins: int) -> Tensor:
    """Number of the bin ((b / bins), (b + 1) / bins] that holds each value; 0 goes to the first bin.

    >>> equal_width_bin(torch.tensor([0.0, 0.5, 0.51, 1.0]), 2)
    tensor([0, 0, 1, 1])
    """
    inner_edges = torch.arange(1, bins, dtype=torch.float64) / bins
    return torch.bucketize(values.double(), inner_edges)


@dataclass(frozen=True)
class BrierDecomposition:
    """The parts of a Brier score; see :func:`brier_decomposition`.

    >>> BrierDecomposition(0.5, 0.25, 0.125, 0.0, 0.0).brier
    0.375
    """

    uncertainty: float
    resolution: float
    reliability: float
    within_bin_variance: float
    within_bin_covariance: float

    @property
    def binned_brier(self) -> float:
        """Uncertainty - resolution + reliability: the score of the forecast that says the mean of its bin."""
        return self.uncertainty - self.resolution + self.reliability

    @property
    def brier(self) -> float:
        """All five parts together: the Brier score of the forecast as it was given."""
        return self.binned_brier + self.within_bin_variance - self.within_bin_covariance


def brier_decomposition(probs: Array, y: Array, bins: int | None = 10) -> BrierDecomposition:
    """Murphy's split of the Brier score, with the terms that make it exact for forecasts that vary within a bin.

    Let e be the one-hot label, g the bin of an example for a class, p̄_g and ē_g means over a bin, and ē the mean of e
    over all examples. Sums run over classes, means over examples::

        uncertainty            Σ ē (1 - ē)                  what the base rates leave open
        resolution             mean Σ (ē_g - ē)²            how far bins are from the base rates: more is better
        reliability            mean Σ (p̄_g - ē_g)²          how far forecasts are from frequencies: less is better
        within_bin_variance    mean Σ (p - p̄_g)²
        within_bin_covariance  2 mean Σ (p - p̄_g)(e - ē_g)

    Always, uncertainty - resolution + reliability = mean Σ (p̄_g - e)², the Brier score of the *binned* forecast, which
    says p̄_g in place of p (its rows need not sum to one). Adding the variance and taking away the covariance gives the
    Brier score of p itself (Stephenson et al. 2008). Where all forecasts of a bin are equal these two are zero, and
    the classical three terms (Murphy 1973) suffice.

    Args:
        probs: N × C probabilities.
        y: N labels.
        bins: bins of equal width for the probability of each class by itself; None puts examples with the same most
            probable class together, one bin a class (the partition used with Bröcker's decomposition by Wenzel 2020).

    >>> parts = brier_decomposition([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> round(parts.uncertainty, 4), round(parts.resolution, 4), round(parts.reliability, 4)
    (0.4444, 0.1111, 0.18)
    >>> round(parts.brier, 4) == round(brier([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    True
    """
    p, labels = _forecasts(probs, y)
    classes = p.shape[1]
    if bins is None:
        group, groups = p.argmax(1, keepdim=True).expand_as(p), classes
    else:
        check_count(bins, "bins")
        group, groups = equal_width_bin(p, bins), bins
    hit = _one_hot(labels, classes)
    key = group + groups * torch.arange(classes)
    count = torch.bincount(key.flatten(), minlength=groups * classes).clamp(min=1)

    def mean_of_bin(values: Tensor) -> Tensor:
        return (torch.bincount(key.flatten(), values.flatten(), minlength=groups * classes) / count)[key]

    base, p_bin, hit_bin = hit.mean(0), mean_of_bin(p), mean_of_bin(hit)
    return BrierDecomposition(
        uncertainty=float((base * (1 - base)).sum()),
        resolution=float((hit_bin - base).square().sum(1).mean()),
        reliability=float((p_bin - hit_bin).square().sum(1).mean()),
        within_bin_variance=float((p - p_bin).square().sum(1).mean()),
        within_bin_covariance=float(2 * ((p - p_bin) * (hit - hit_bin)).sum(1).mean()),
    )


def _pair(p: Array, q: Array) -> tuple[Tensor, Tensor]:
    first, second = as_probs("p", p), as_probs("q", q)
    if first.shape != second.shape:
        raise ArgumentError(f"`q` must have the shape of `p`, {tuple(first.shape)}; got {tuple(second.shape)}.")
    return first, second


def agreement(p: Array, q: Array) -> float:
    """Fraction of examples on which two forecasts have the same most probable class.

    >>> agreement([[0.9, 0.1], [0.3, 0.7]], [[0.6, 0.4], [0.6, 0.4]])
    0.5
    """
    first, second = _pair(p, q)
    return float((first.argmax(1) == second.argmax(1)).double().mean())


def total_variation(p: Array, q: Array) -> float:
    """Mean over examples of ½ Σₖ |pₖ - qₖ|: 0 for equal forecasts, 1 for forecasts that exclude each other.

    >>> round(total_variation([[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]), 4)
    0.2
    """
    first, second = _pair(p, q)
    return float((first - second).abs().sum(1).mean() / 2)
