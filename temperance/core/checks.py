"""Checks of arguments: each names the argument, the rule and what was got."""

from __future__ import annotations

import math
import numbers
import os
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, NumericalError

LARGEST = 2**63 - 1
"""The largest count: what torch keeps a size in. More is a slip of the hand, and is refused where it was written."""

_LETTERS = 200


def shown(value: object) -> str:
    """What was got, as an error says it: its ``repr``, shortened. Python refuses to write an integer of 4,300 digits,
    and an object's own ``repr`` may raise: an error message must not fail for that.

    >>> shown("banana"), shown(torch.zeros(1000, 3)), len(shown(10**5000)) < 30
    ("'banana'", '1000×3 tensor of torch.float32', True)
    """
    if isinstance(value, Tensor) and value.numel() > 4:
        return f"{'×'.join(map(str, value.shape))} tensor of {value.dtype}"
    if isinstance(value, int) and abs(value) > 10**100:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:
        text = reprlib.repr(value)
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def check_count(value: object, argument: str) -> int:
    """A positive integer.

    >>> check_count(0, "draws")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `draws` must be a positive integer; got 0.
    """
    if not is_whole(value, 1):
        raise ArgumentError(f"`{argument}` must be a positive integer{_beyond(value)}; got {shown(value)}.")
    return int(value)  # type: ignore[call-overload]


def is_whole(value: object, least: int = 0) -> bool:
    """Whether ``value`` is an integer (of Python or numpy, no truth value) from ``least`` up to :data:`LARGEST`.

    >>> is_whole(3), is_whole(True), is_whole(1.0), is_whole(10**30)
    (True, False, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and least <= int(value) <= LARGEST


def check_whole(value: object, argument: str, what: str = "an integer", least: int = 0) -> int:
    """An integer from ``least`` on; ``what`` says of what it is the number.

    >>> check_whole(-1, "start", "a number of steps")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `start` must be a number of steps, 0 or more; got -1.
    """
    if not is_whole(value, least):
        raise ArgumentError(f"`{argument}` must be {what}, {least} or more{_beyond(value)}; got {shown(value)}.")
    return int(value)  # type: ignore[call-overload]


def check_flag(value: object, argument: str, *, optional: bool = False) -> None:
    """``True`` or ``False`` (or ``None``, where it is ``optional``): "no" and 0 are not taken for what they mean.

    >>> check_flag("no", "adjusted")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `adjusted` must be True or False; got 'no'.
    """
    if not (isinstance(value, bool | np.bool_) or (optional and value is None)):
        raise ArgumentError(f"`{argument}` must be True or False{', or None' * optional}; got {shown(value)}.")


def check_choice(value: object, argument: str, choices: Collection[str]) -> None:
    """One of some words.

    >>> check_choice("banana", "mass", ("diagonal", "none"))
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `mass` must be 'diagonal' or 'none'; got 'banana'.
    """
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ArgumentError(f"`{argument}` must be {', '.join(others)} or {last}; got {shown(value)}.")


def check_mapping(value: object, argument: str, what: str = "a dict of keyword arguments") -> None:
    """A mapping whose keys are text.

    >>> check_mapping(7, "scheduler_args")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `scheduler_args` must be a dict of keyword arguments; got 7.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"`{argument}` must be {what}; got {shown(value)}.")


def check_instance(value: object, argument: str, kind: type, what: str, *, optional: bool = False) -> None:
    """An object of a class; ``what`` says it in words, with an example.

    >>> check_instance(3, "info", dict, "a dict", optional=True)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `info` must be a dict, or None; got 3.
    """
    if not (isinstance(value, kind) or (optional and value is None)):
        raise ArgumentError(f"`{argument}` must be {what}{', or None' * optional}; got {shown(value)}.")


def check_maker(make: Any, argument: str, kind: type, what: str, *arguments: Any) -> Any:
    """What ``make(*arguments)`` gives, which must be a ``kind``: for functions and classes that are handed over to make
    something, called here so that what is wrong with them is said where they were given.

    >>> check_maker(int, "activation", torch.nn.Module, "a function that makes a module, such as nn.ReLU")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `activation` must be a function that makes a module, such as nn.ReLU; ...
    """
    rule = f"`{argument}` must be {what}; got {shown(make)}"
    if not callable(make):
        raise ArgumentError(f"{rule}.")
    try:
        made = make(*arguments)
    except Exception as error:  # whatever code of the user's raises
        raise ArgumentError(f"{rule}, which raised {type(error).__name__}: {error}") from error
    if not isinstance(made, kind):
        raise ArgumentError(f"{rule}, which gave {shown(made)}.")
    return made


def check_path(value: object, argument: str, what: str = "folder") -> Path:
    """A name that the system can be asked about.

    >>> check_path(None, "checkpoint")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `checkpoint` must be the name of a folder; got None.
    """
    if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
        raise ArgumentError(f"`{argument}` must be the name of a {what}; got {shown(value)}.")
    return Path(value)


def check_function(function: object, argument: str, what: str) -> Callable[[float], float]:
    """A function from [0, 1) to numbers from 0 on: a schedule, tried at 0.

    >>> check_function("banana", "shape", "a function from [0, 1) to [0, 1]")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `shape` must be a function from [0, 1) to [0, 1]; got 'banana'.
    """
    first = check_maker(function, argument, object, what, 0.0)
    if not 0.0 <= real(first) < math.inf:
        raise ArgumentError(f"`{argument}` must be {what}; got {shown(function)}, which gives {shown(first)} at 0.")
    return function  # type: ignore[return-value]


def check_sizes(value: object, argument: str) -> tuple[int, ...]:
    """A list or tuple of positive integers, perhaps of none.

    >>> check_sizes([50, 0], "hidden")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `hidden[1]` must be a positive integer; got 0.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ArgumentError(f"`{argument}` must be a list of positive integers; got {shown(value)}.")
    return tuple(check_count(size, f"{argument}[{k}]") for k, size in enumerate(value))


def check_real_tensor(value: Tensor, argument: str) -> None:
    """Finite real numbers: neither truth values nor complex ones, which compare and add in ways of their own.

    >>> check_real_tensor(torch.tensor([True]), "scale")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `scale` must hold real numbers; got a tensor of torch.bool.
    """
    if value.dtype == torch.bool or value.is_complex():
        raise ArgumentError(f"`{argument}` must hold real numbers; got a tensor of {value.dtype}.")
    if not bool(torch.isfinite(value).all()):
        raise ArgumentError(f"`{argument}` must be finite everywhere; got NaN or infinity.")


def check_vector(value: Tensor, argument: str) -> None:
    """A vector of floating-point numbers.

    >>> check_vector(torch.zeros(2, 3), "theta")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `theta` must be a vector of floating-point numbers; got shape (2, 3) of ...
    """
    if value.dim() != 1 or not value.is_floating_point():
        raise ArgumentError(
            f"`{argument}` must be a vector of floating-point numbers; got shape {tuple(value.shape)} of {value.dtype}."
        )


def check_shape(value: Tensor | None, argument: str, *shape: int, dtype: torch.dtype | None = None) -> None:
    """A tensor whose last dimensions are these, of a dtype if one is named; nothing is asked of ``None``.

    >>> check_shape(torch.zeros(3), "factor", 3, 2)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `factor` must have the shape 3 × 2; got (3,).
    """
    if value is None:
        return
    if value.shape[-len(shape) :] != shape:
        wanted = " × ".join(map(str, shape))
        raise ArgumentError(f"`{argument}` must have the shape {wanted}; got {tuple(value.shape)}.")
    if dtype is not None and value.dtype != dtype:
        raise ArgumentError(f"`{argument}` must be of {dtype}, as what is beside it; got {value.dtype}.")


def check_square(value: Tensor, argument: str) -> None:
    """A square matrix of floating-point numbers (or several, behind each other)."""
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or not value.is_floating_point():
        raise ArgumentError(
            f"`{argument}` must be a square matrix of floating-point numbers; got shape {tuple(value.shape)} of "
            f"{value.dtype}."
        )


def check_positive(value: object, argument: str) -> float:
    """A positive finite number."""
    number = real(value)
    if not 0.0 < number < float("inf"):
        raise ArgumentError(f"`{argument}` must be a positive finite number; got {shown(value)}.")
    return number


def check_fraction(value: object, argument: str) -> float:
    """A part of a run: a number from 0 up to, not including, 1."""
    number = real(value)
    if not 0 <= number < 1:
        raise ArgumentError(f"`{argument}` must be a fraction of the run, from 0 up to 1; got {shown(value)}.")
    return number


def check_level(value: object, argument: str = "level") -> float:
    """A probability strictly between 0 and 1."""
    number = real(value)
    if not 0 < number < 1:
        raise ArgumentError(f"`{argument}` must lie strictly between 0 and 1; got {shown(value)}.")
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


def check_part(value: object, argument: str) -> float:
    """A number from 0 up to, not including, 1.

    >>> check_part("x", "decay")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `decay` must lie in [0, 1); got 'x'.
    """
    number = real(value)
    if not 0.0 <= number < 1.0:
        raise ArgumentError(f"`{argument}` must lie in [0, 1); got {shown(value)}.")
    return number


def real(value: object) -> float:
    """A real number; NaN for anything else, integers too large for a float among them.

    >>> real(3), real("3"), real(True), real(10**400)
    (3.0, nan, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _beyond(value: object) -> str:
    """A word on the upper limit, where it is what was broken."""
    return " below 2**63" if isinstance(value, int) and value > LARGEST else ""
