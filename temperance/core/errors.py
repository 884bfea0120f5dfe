"""Errors that say what is wrong, which rule was broken, what was got, and where possible what to do.

Every error raised on purpose by Temperance derives from :class:`TemperanceError`; each also derives from the
built-in exception that a Python programmer would expect in its place.
"""

from __future__ import annotations


class TemperanceError(Exception):
    """Base of every error that Temperance raises on purpose."""


class ArgumentError(TemperanceError, ValueError):
    """An argument breaks its rule. The message names the argument, the rule and what was got."""


class DataError(ArgumentError):
    """Data that cannot be learned from: empty, of unequal lengths, non-finite, or labels outside the classes."""


class NetworkError(ArgumentError):
    """A network that a method or a likelihood cannot work with."""


class MissingDataSetError(TemperanceError, FileNotFoundError):
    """A named data set was not found; the message says where it was looked for and how to provide it."""


class StoreError(TemperanceError, OSError):
    """A run could not be written or read. ``fitted`` holds the result where a finished run could not be saved."""

    fitted: object | None = None


class CorruptRunError(StoreError):
    """A file of a saved run is damaged or incomplete."""


class MismatchError(StoreError):
    """A saved run belongs to another network, data set, method or target than the ones given."""


class NumericalError(TemperanceError, ArithmeticError):
    """A computation stopped being finite. ``fitted`` holds what was learned before, where there is anything."""

    def __init__(self, message: str, fitted: object | None = None) -> None:
        super().__init__(message)
        self.fitted = fitted


class TemperanceWarning(UserWarning):
    """Something a user should know, which does not make the result wrong."""


class MethodWarning(TemperanceWarning):
    """Something that whoever chose a method and its settings could choose better. Not said where we chose."""
