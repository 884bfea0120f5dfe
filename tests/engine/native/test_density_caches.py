"""Functions that keep tensors of one call for another, and become machine code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.native.build import compiled_fill
from temperance.engine.native.density import NativeDensity, Unknown

pytestmark = pytest.mark.skipif(compiled_fill() is None, reason="needs a C compiler")


def _caching(at_call: int, calls: list[int]) -> Callable[[Tensor], Tensor]:
    cache: dict[str, Tensor] = {}

    def density(t: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] >= at_call and "eye" not in cache:
            cache["eye"] = torch.eye(2, dtype=t.dtype)
        return -0.5 * (cache["eye"] @ t if cache else t).square().sum()

    return density


def test_what_the_first_call_caches_is_real():
    density = _caching(1, [0])
    NativeDensity.of(density, torch.zeros(1, 2, dtype=torch.float64))
    assert float(density(torch.ones(2, dtype=torch.float64))) == -1.0


def test_a_cache_that_is_filled_while_tracing_is_said():
    """PyTorch's own words would be an internal assertion, and that in the middle of the run."""
    with pytest.raises(ArgumentError, match=r"must not keep tensors of one call.*compile=False"):
        NativeDensity.of(_caching(2, [0]), torch.zeros(1, 2, dtype=torch.float64))
    before_tracing = 8 + 1  # tp.sample looks at value and slope of each start, and then here once more
    with pytest.raises(ArgumentError, match="has kept tensors of the tracing"):
        tp.sample(_caching(before_tracing + 1, [0]), torch.ones(2).double(), tp.NUTS(), compile=True, progress=False)


def test_an_error_of_the_functions_own_is_no_leak():
    """It worked once, and says something else now."""
    calls = [0]

    def density(t: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] > 2:
            raise TimeoutError("too long")
        return -t.square().sum()

    with pytest.raises(Unknown, match=r"TimeoutError|differs"):
        NativeDensity.of(density, torch.zeros(1, 2, dtype=torch.float64))
