"""Quantiles of a mixture whose members are location + scale · z, by Newton steps kept inside a bracket."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from temperance.model.likelihoods.real import RealLikelihood

_AT_ONCE = 2**17  # member densities worked on at once: they stay in the processor's cache
_STEPS = 2000  # at most: halving the bracket alone would need some hundred
_CLOSE = 1e-10  # relative error of the mass at which to stop, after one more of Newton's steps


def mixture_quantile(family: RealLikelihood, location: Tensor, scale: Tensor, weights: Tensor, level: float) -> Tensor:
    """q with Σ_s w_s F((q − location_s) / scale_s) = level, for S × … locations and scales; in float64.

    The quantile of a mixture lies between the least and the greatest of its members' quantiles: the first bracket. Each
    step evaluates distribution function and density, narrows the bracket, and takes Newton's step where it stays
    inside, the middle of the bracket where it does not.
    """
    shape = location.shape[1:]
    members = len(location)
    place, width = location.double().reshape(members, -1), scale.double().expand_as(location).reshape(members, -1)
    share = (weights.double() / weights.double().sum()).to(place.device)
    member_z = family.standard_quantile(torch.tensor(level, dtype=torch.float64)).to(place.device)
    parts = [
        _solve(family, at, wide, share, member_z, level)
        for at, wide in zip(
            place.split(max(1, _AT_ONCE // members), 1), width.split(max(1, _AT_ONCE // members), 1), strict=True
        )
    ]
    return torch.cat(parts).reshape(shape)


def _distribution(family: RealLikelihood, level: float) -> Callable[[Tensor], Tensor]:
    """F. Of Gaussian noise away from the tails by the error function, which is six times as fast as what is exact to
    the last digit in the tails too."""
    if type(family).standard_cdf is RealLikelihood.standard_cdf and min(level, 1 - level) > 1e-5:
        return lambda z: torch.erf(z * 0.5**0.5).add_(1.0).mul_(0.5)
    return family.standard_cdf


def _solve(
    family: RealLikelihood, place: Tensor, width: Tensor, share: Tensor, member_z: Tensor, level: float
) -> Tensor:
    own = place + width * member_z
    low, high = own.amin(0), own.amax(0)
    centre = share @ place
    spread = (share @ (width.square() + (place - centre).square())).sqrt()
    found = torch.minimum(torch.maximum(centre + member_z * spread, low), high)
    near = _CLOSE * min(level, 1 - level)
    distribution = _distribution(family, level)
    rows = torch.arange(place.shape[1], device=place.device)
    answer = found.clone()
    for _ in range(_STEPS):
        z = (found - place) / width
        mass = share @ distribution(z)
        density = share @ (family.standard_log_density(z).exp() / width)
        below = mass < level
        low, high = torch.where(below, found, low), torch.where(below, high, found)
        better = found - (mass - level) / density
        inside = (better > low) & (better < high)  # false for a step that is not finite
        better = torch.where(inside, better, low + (high - low) / 2)
        closed = (better <= low) | (better >= high)
        done = closed | ((mass - level).abs() <= near)
        answer[rows] = torch.where((mass == level) | ~inside & done, found, better)
        if bool(done.all()):
            break
        found = better
        if int(done.sum()) * 4 > len(done):
            go = ~done
            rows, found, low, high = rows[go], found[go], low[go], high[go]
            place, width = place[:, go], width[:, go]
    return answer
