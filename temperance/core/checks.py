"""Checks of arguments: each names the argument, the rule and what was got."""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, NumericalError


def check_count(value: object, argument: str) -> int:
    """A positive integer.

    >>> check_count(0, "draws")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `draws` must be a positive integer; got 0.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ArgumentError(f"`{argument}` must be a positive integer; got {value!r}.")
    return int(value)


def check_positive(value: object, argument: str) -> float:
    """A positive finite number."""
    number = _number(value)
    if not 0.0 < number < float("inf"):
        raise ArgumentError(f"`{argument}` must be a positive finite number; got {value!r}.")
    return number


def check_fraction(value: object, argument: str) -> float:
    """A part of a run: a number from 0 up to, not including, 1."""
    number = _number(value)
    if not 0 <= number < 1:
        raise ArgumentError(f"`{argument}` must be a fraction of the run, from 0 up to 1; got {value!r}.")
    return number


def check_level(value: object, argument: str = "level") -> float:
    """A probability strictly between 0 and 1."""
    number = _number(value)
    if not 0 < number < 1:
        raise ArgumentError(f"`{argument}` must lie strictly between 0 and 1; got {value!r}.")
    return number


def check_finite(value: Tensor, what: str) -> None:
    """A NaN never becomes a posterior."""
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        raise NumericalError(f"{what} must be finite; {bad} of {value.numel()} numbers are NaN or infinite.")


def check_counts(**arguments: object) -> None:
    """Each a positive integer.

    >>> check_counts(depth=20, width=0)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `width` must be a positive integer; got 0.
    """
    for name, value in arguments.items():
        check_count(value, name)


def _number(value: object) -> float:
    """A real number; NaN for anything else."""
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else float("nan")
