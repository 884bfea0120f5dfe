"""The noise of minibatch gradients: how large, and how heavy its tails.

A sum of K independent draws of a symmetric α-stable law is K^{1/α} times a single one in distribution, so that

    1/α̂ = (mean log |sum of a piece of K| − mean log |x|) / log K.

α = 2 is the Gaussian: samplers take the noise of gradients for that. Gradients of few examples may be nearer α = 1.

Reference: Mohammadi, Mohammadpour and Ogata, "On estimating the tail index and the spectral measure of multivariate
α-stable distributions", 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.model.target import Target


def tail_index(samples: Any, piece_size: int | None = None) -> float:
    """α̂ of independent samples of a symmetric law around zero, split into pieces of K = ``piece_size`` (16, or the
    root of their number where they are few); samples that fill no piece are left out, zeros too.

    A matrix holds one sequence in each row: pieces do not cross rows, so rows may differ in scale.

    >>> x = torch.randn(2**16, generator=torch.Generator().manual_seed(0))
    >>> round(tail_index(x), 1)
    2.0
    """
    values = torch.as_tensor(samples).detach().double()
    values = values.unsqueeze(0) if values.dim() == 1 else values
    if values.dim() != 2 or values.shape[1] < 4 or not bool(torch.isfinite(values).all()):
        raise ArgumentError(
            f"`samples` must be four or more finite numbers, or rows of such; got shape {tuple(values.shape)}."
        )
    size = min(16, math.isqrt(values.shape[1])) if piece_size is None else check_count(piece_size, "piece_size")
    pieces = values.shape[1] // size
    if size < 2 or pieces < 1:
        raise ArgumentError(
            f"`piece_size` must be from 2 to the number of samples in a row, {values.shape[1]}; got {size}."
        )
    used = values[:, : pieces * size].reshape(len(values), pieces, size)
    used = used[(used != 0).all(-1).all(-1)]  # a parameter that a network never uses has no noise
    if len(used) == 0:
        raise ArgumentError("`samples` must not be zero; in every row some are.")
    growth = used.sum(-1).abs().log().mean() - used.abs().log().mean()
    return float(math.log(size) / growth)


@dataclass(frozen=True, eq=False)
class GradientNoise:
    """The noise of ∇G̃ (the gradient of the loss per datum) at one θ.

    Attributes:
        names: of the tensors of θ.
        variance: of each tensor, the variance of one element of the noise, averaged over its elements.
        tail_index: of each tensor; NaN where the gradient has no noise.
        whole_tail_index: of all elements together.
        batch_size: B.
        batches: how many batches were drawn.
    """

    names: tuple[str, ...]
    variance: Tensor
    tail_index: Tensor
    whole_tail_index: float
    batch_size: int
    batches: int

    def __str__(self) -> str:
        width = max(len("whole network"), *(len(name) for name in self.names))
        rows = zip(self.names, self.variance.tolist(), self.tail_index.tolist(), strict=True)
        lines = [f"  {name:<{width}}  variance {v:9.3g}   tail index {a:.2f}" for name, v, a in rows]
        head = f"gradient noise, {self.batches} batches of {self.batch_size} rows"
        return "\n".join([head, *lines, f"  {'whole network':<{width}}  tail index {self.whole_tail_index:.2f}"])


def gradient_noise(
    target: Target, theta: Tensor, data: Any, batch_size: int = 128, *, batches: int = 64, seed: int = 0
) -> GradientNoise:
    """Variance and tail index of ∇G̃ on random batches, less its mean over the whole data, at ``theta``.

    Batches are drawn independently of one another: those of one epoch sum to the whole, and the noise of their sum
    would vanish.

    >>> import temperance as tp
    >>> problem = tp.testing.linear_gaussian()
    >>> found = gradient_noise(problem.target, problem.mean, problem.data, batch_size=10)
    >>> found.names
    ('scalar', 'vector', 'matrix', 'kernel')
    """
    ready = target.prepare(Data.of(data))
    check_count(batch_size, "batch_size")
    if batch_size >= len(ready):
        raise ArgumentError(
            f"`batch_size` must be below the number of rows, {len(ready)}, for there to be noise; got {batch_size}."
        )
    if check_count(batches, "batches") < 4:
        raise ArgumentError(f"`batches` must be at least 4; got {batches}.")
    here, engine = target.theta_of(theta), Engine(target)
    if here.dim() != 1:
        raise ArgumentError(f"`theta` must be one vector; got shape {tuple(here.shape)}.")
    grad, whole = torch.zeros_like(here), torch.zeros_like(here, dtype=torch.float64)
    for batch in ready.full_pass():
        engine.gradient(here, batch.to(target.device), grad)
        whole.add_(grad.double(), alpha=batch.size / len(ready))
    noise = torch.empty(len(here), batches, dtype=torch.float64)
    for k in range(batches):
        batch = next(iter(ready.batches(batch_size, seed=seed, epoch=k)))
        engine.gradient(here, batch.to(target.device), grad)
        noise[:, k] = (grad.double() - whole).cpu()
    entries = target.layout.entries
    parts = [noise[e.start : e.stop] for e in entries]
    variance = torch.stack([part.square().mean() for part in parts])
    return GradientNoise(
        tuple(e.name for e in entries),
        variance,
        torch.tensor([_index(part) for part in parts], dtype=torch.float64),
        _index(noise),
        batch_size,
        batches,
    )


def _index(noise: Tensor) -> float:
    """NaN for what has no noise."""
    moving = noise[(noise != 0).all(1)]
    return tail_index(moving) if len(moving) else float("nan")
