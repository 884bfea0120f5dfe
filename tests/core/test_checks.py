"""Checks of arguments: what passes, what does not, and whose name is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from temperance.core.checks import (
    check_count,
    check_counts,
    check_finite,
    check_fraction,
    check_level,
    check_positive,
    shown,
)
from temperance.core.errors import ArgumentError, NumericalError

NAN, INF = float("nan"), float("inf")
NO_NUMBERS = ["1", None, True, [1], torch.tensor([1.0, 2.0]), 1j]

TABLE = {
    "count": (check_count, [1, 2**63 - 1, np.int64(3)], [0, -1, 2**63, 10**5000, 1.0, NAN, np.float64(2), *NO_NUMBERS]),
    "positive": (check_positive, [1e-300, 1, np.float32(2)], [10**400, 0.0, -1.0, NAN, INF, *NO_NUMBERS]),
    "fraction": (check_fraction, [0, 0.5, 1 - 2**-53], [1.0, 1, -1e-300, NAN, INF, *NO_NUMBERS]),
    "level": (check_level, [1e-300, 0.5, 1 - 2**-53], [0, 0.0, 1, 1.0, NAN, *NO_NUMBERS]),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_passes_comes_back_as_a_plain_number(name):
    check, good, _ = TABLE[name]
    for value in good:
        found = check(value, "width")
        assert found == value
        assert type(found) is (int if name == "count" else float)


@pytest.mark.parametrize("name", TABLE)
def test_what_does_not_is_named(name):
    check, _, bad = TABLE[name]
    for value in bad:
        with pytest.raises(ArgumentError, match=r"^`width` must ") as caught:
            check(value, "width")
        assert str(caught.value).endswith(f"got {shown(value)}.")


def test_the_first_bad_count_of_several():
    check_counts(depth=1, width=2)
    with pytest.raises(ArgumentError, match="`width` must be a positive integer; got 0"):
        check_counts(depth=1, width=0, height=-1)


def test_finite():
    check_finite(torch.tensor([1.0, -1e30]), "the mean")
    check_finite(torch.empty(0), "nothing")
    with pytest.raises(NumericalError, match=r"the mean must be finite; 2 of 4 numbers are NaN or infinite"):
        check_finite(torch.tensor([[1.0, NAN], [-INF, 0.0]]), "the mean")
