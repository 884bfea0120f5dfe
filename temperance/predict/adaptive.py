"""As many draws as a wanted precision takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.predict.predictive import Predictive

FIRST_DRAWS = 32
LIMIT = 4096


def check_precision(draws: int | None, precision: float | None, limit: int | None) -> int:
    """The most draws to take; raise where ``draws``, ``precision`` and ``limit`` do not go together."""
    if draws is not None:
        check_count(draws, "draws")
    if precision is None:
        if limit is not None:
            raise ArgumentError(f"`limit` is for `precision`, which is not given; got {limit!r}. Use draws={limit!r}.")
        return LIMIT
    check_positive(precision, "precision")
    if draws is not None:
        raise ArgumentError(
            f"`draws` and `precision` both say how many draws to take; got draws={draws} and precision={precision}. "
            "Give one of them; `limit` says how many draws `precision` may take."
        )
    return LIMIT if limit is None else check_count(limit, "limit")


def precise(
    make: Callable[[int], Predictive], precision: float, limit: int, *, choice: bool = True, first: int = FIRST_DRAWS
) -> Predictive:
    """The predictive ``make(n)`` of the fewest n = 32, 64, 128, … draws (from ``first`` on), at most ``limit``, whose
    ``imprecision()`` is at most ``precision`` in every row and class.

    Without a ``choice`` (a sampler's draws, an ensemble) what there is is taken, and precise or not. Otherwise, where
    the limit comes first, or the posterior has no more draws to predict with, a warning tells how far it came.
    """
    wanted = min(first, limit)
    made = make(wanted)
    if not choice:
        return made
    worst = float(made.imprecision().max())
    exhausted = False
    while worst > precision and wanted < limit and not exhausted:
        wanted = min(2 * wanted, limit)
        more = make(wanted)
        exhausted = more.num_draws <= made.num_draws
        if not exhausted:
            made, worst = more, float(more.imprecision().max())
    if worst > precision:
        remedy = "the posterior has no more to predict with. Ask for more where the method is made (`draws=`)."
        if not exhausted:
            about = made.num_draws * (worst / precision) ** 2
            remedy = f"that takes about {about:,.0f}: raise `limit`, or ask for less."
        warnings.warn(
            f"`precision` {precision:g} was not reached by {made.num_draws} draws, with which the largest standard "
            f"error is {worst:.2g}; {remedy}",
            TemperanceWarning,
            stacklevel=4,
        )
    return made
