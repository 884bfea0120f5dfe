"""What to say of draws whose chains have not agreed, or which are worth few."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from temperance.judge.diagnose.checks import rhat_by_chance
from temperance.judge.diagnose.mixing import ess, rhat

LARGEST_RHAT = 1.05
LEAST_ESS = 100.0
_FEWEST = 50  # draws of a chain, below which its R-hat says little
_ENOUGH = 400  # draws in all, of which a hundred should be independent
_LOOKED_AT = 1000  # coordinates: a tenth of a second for each hundred
_RANKED = 100  # of these, the ones worth least, whose R-hat is computed
_REASONS = (
    "Chains that are still on their way need a longer warm-up or more draws; slow ones other coordinates (a logarithm, "
    "a scale multiplied in afterwards) or Warmup(NUTS(), 1000, mass='dense'); chains that stay apart sit in different "
    "modes. And draws that wander off without bound mean that the density cannot be normalised: give every coordinate "
    "a prior."
)


def mixing_remarks(theta: Tensor) -> list[str]:
    """Of ``theta``, chains × draws × P: the worst R-hat and the least effective number of draws, where they are bad
    enough that no mean should be believed; nothing where there are too few draws to tell.

    >>> x = torch.randn(4, 500, 2, generator=torch.Generator().manual_seed(0))
    >>> mixing_remarks(x)
    []
    >>> mixing_remarks(x.cumsum(1))[0][:20]
    'R-hat of theta[1] is'
    """
    chains, draws, size = theta.shape
    if draws < _FEWEST or not size or not bool(torch.isfinite(theta).all()):
        return []
    numbers = torch.arange(0, size, -(-size // _LOOKED_AT))
    looked = theta[..., numbers].double()
    moved = (looked != looked[:1, :1]).flatten(0, 1).any(0)
    if not bool(moved.any()):
        return [f"all {chains * draws} draws are the same: no proposal was accepted. Lower `step_size`, or warm up."]
    numbers, looked = numbers[moved], looked[..., moved]
    worth = ess(looked).nan_to_num(math.inf)
    least = int(worth.argmin())
    worst = worth.argsort()[:_RANKED]
    ratios = rhat(looked[..., worst]).nan_to_num(0.0, posinf=math.inf)
    limit = max(LARGEST_RHAT, rhat_by_chance(chains, draws))
    said = []
    if float(ratios.max()) > limit:
        of = f"theta[{int(numbers[worst[int(ratios.argmax())]])}]"
        compared = "the halves of the chain" if chains == 1 else "the chains"
        said.append(
            f"R-hat of {of} is {float(ratios.max()):.3g}, above {limit:.2f}: {compared} have drawn different things."
        )
    if chains * draws >= _ENOUGH and float(worth[least]) < LEAST_ESS:
        of = f"theta[{int(numbers[least])}]"
        said.append(f"The {chains * draws} draws of {of} are worth {float(worth[least]):.0f} independent ones.")
    return [" ".join([*said, _REASONS])] if said else []
