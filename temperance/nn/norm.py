"""Normalisation that treats each example alone, so that the likelihood stays a product over examples.

Batch normalisation makes the output for one example depend on the others of its batch: then the likelihood no longer
factorises and a posterior is not well defined. The layers here do not mix examples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from temperance.core.checks import check_counts, check_flag, real, shown
from temperance.core.errors import ArgumentError

NormFactory = Callable[[int], nn.Module]
"""What a network asks of a norm: given the number of channels, the layer. ``nn.BatchNorm2d`` is one."""


class OwnGradients(nn.Module):
    """A module that knows the gradients of its own parameters, each of which is a number for each channel (dimension 1
    of its input): what curvature is made of. (A module without it has its gradients from automatic differentiation,
    example by example, which costs more.)"""

    @abstractmethod
    def channel_gradients(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """By name of the parameter, what each place of ``x`` adds to its gradient, given the gradient ``g`` at the
        output; all of the shape of ``x``."""


class FilterResponseNorm(OwnGradients):
    """Filter response normalisation, with the thresholded linear unit (Singh & Krishnan 2020).

    For each example and channel, with ν² the mean of x² over space::

        y = γ · x / √(ν² + eps) + β,     output = max(y, τ) with ``threshold``, else y

    γ (``scale``), β (``shift``) and τ (``cutoff``) are one number per channel; they start at 1, 0 and 0, so that the
    threshold starts as a ReLU. With ``threshold=True`` no other activation is needed after this layer; a ReLU after it
    hides every τ below 0.

    Args:
        channels: size of dimension 1 of the input, which is N × channels × space, with 1, 2 or 3 dimensions of space.
        eps: added to ν²; it matters only where space is small or the channel is silent.
        threshold: whether the thresholded linear unit follows.

    >>> layer = FilterResponseNorm(1, eps=0.0, threshold=False)
    >>> layer(torch.tensor([[[3.0, -4.0]]])).detach()        # ν² = 12.5
    tensor([[[ 0.8485, -1.1314]]])
    """

    def __init__(self, channels: int, eps: float = 1e-6, threshold: bool = True) -> None:
        super().__init__()
        check_counts(channels=channels)
        if not 0.0 <= real(eps) < math.inf:
            raise ArgumentError(f"`eps` must be at least 0; got {shown(eps)}.")
        check_flag(threshold, "threshold")
        self.channels = channels
        self.eps = eps
        self.scale = nn.Parameter(torch.empty(channels))
        self.shift = nn.Parameter(torch.empty(channels))
        self.cutoff = nn.Parameter(torch.empty(channels)) if threshold else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Put γ = 1, β = 0, τ = 0."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.shift)
        if self.cutoff is not None:
            nn.init.zeros_(self.cutoff)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``, of shape N × channels × space."""
        if x.dim() not in (3, 4, 5) or x.shape[1] != self.channels:
            raise ArgumentError(
                f"`x` must be N x {self.channels} channels x 1 to 3 dimensions of space; got shape {tuple(x.shape)}."
            )
        per_channel = (self.channels,) + (1,) * (x.dim() - 2)
        y = self._normalised(x) * self.scale.view(per_channel) + self.shift.view(per_channel)
        return y if self.cutoff is None else torch.maximum(y, self.cutoff.view(per_channel))

    def _normalised(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(tuple(range(2, x.dim())), keepdim=True) + self.eps)

    def channel_gradients(self, x: Tensor, g: Tensor) -> dict[str, Tensor]:
        """The gradient of γ and β comes only from places above the threshold τ, that of τ from those below."""
        normal = self._normalised(x)
        if self.cutoff is None:
            return {"scale": g * normal, "shift": g}
        shape = (-1,) + (1,) * (x.dim() - 2)
        y, cutoff = normal * self.scale.view(shape) + self.shift.view(shape), self.cutoff.view(shape)
        above = (y > cutoff).to(g.dtype) + 0.5 * (y == cutoff).to(g.dtype)
        return {"scale": g * above * normal, "shift": g * above, "cutoff": g * (1 - above)}

    def extra_repr(self) -> str:
        """Show the arguments of the constructor."""
        return f"{self.channels}, eps={self.eps}, threshold={self.cutoff is not None}"


def group_norm(groups: int = 8) -> NormFactory:
    """A factory of ``nn.GroupNorm`` layers with a fixed number of groups, to be given to a network as its norm.

    >>> group_norm(4)(16).num_groups
    4
    """
    check_counts(groups=groups)

    def make(channels: int) -> nn.Module:
        if channels % groups:
            raise ArgumentError(f"`groups` must divide the number of channels; got {groups} and {channels} channels.")
        return nn.GroupNorm(groups, channels)

    return make
