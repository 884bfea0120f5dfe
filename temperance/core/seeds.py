"""Seeds that reproduce, independent of global random state.

Every random choice in the library comes from a generator made here, from the user's integer seed and a path of labels
(``"shuffle", stream, epoch``). Two paths never share a stream, so adding a random choice somewhere does not move the
others, and any of them can be made again from the numbers alone: that is what makes resuming exact.
"""

from __future__ import annotations

import hashlib
import numbers

import torch

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError


def check_seed(seed: object, argument: str = "seed") -> int:
    """Return ``seed`` as an ``int``, or say why it cannot be one.

    >>> check_seed(3)
    3
    >>> check_seed("3")
    Traceback (most recent call last):
    ...
    temperance.core.errors.ArgumentError: `seed` must be an integer from 0 to 2**63 - 1; got '3' (str).
    """
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**63:
        raise ArgumentError(
            f"`{argument}` must be an integer from 0 to 2**63 - 1; got {shown(seed)} ({type(seed).__name__})."
        )
    return int(seed)


def derive_seed(seed: int, *path: int | str) -> int:
    """A seed for one purpose, from the run's seed and a path of labels.

    >>> derive_seed(0, "shuffle", 1) == derive_seed(0, "shuffle", 1)
    True
    >>> derive_seed(0, "shuffle", 1) == derive_seed(0, "shuffle", 2)
    False
    """
    text = repr((int(seed), *path)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh ``torch.Generator`` for one purpose (see :func:`derive_seed`)."""
    made = torch.Generator(device=device)
    made.manual_seed(derive_seed(seed, *path))
    return made


def spawn(rng: torch.Generator) -> int:
    """Take one integer from ``rng`` that can seed something else."""
    return int(torch.randint(0, 2**62, (), generator=rng, device=rng.device, dtype=torch.int64))
