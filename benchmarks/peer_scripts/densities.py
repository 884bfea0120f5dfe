"""Posteriors of posteriordb as users would write them, for any library of arrays: the data, no sufficient statistics.

Data are read from the folder ``posteriordb`` of ``TEMPERANCE_DATA``. NumPy only, so that every environment reads it.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("eight_schools", "kidiq", "sblrc", "arK", "low_dim_gauss_mix")
CHAINS, WARMUP, DRAWS = 4, 1000, 1000


def data(name: str) -> dict[str, Any]:
    """What posteriordb has under a name."""
    root = Path(os.environ.get("TEMPERANCE_DATA") or Path(__file__).parents[3] / "shared" / "data")
    with zipfile.ZipFile(root / "posteriordb" / "data" / f"{name}.json.zip") as archive:
        found: dict[str, Any] = json.loads(archive.read(f"{name}.json"))
    return found


def starts(name: str, size: int) -> np.ndarray:
    """Places near zero, chains × size."""
    return 0.1 * np.random.default_rng(NAMES.index(name)).normal(size=(CHAINS, size))


def density(name: str, xp: Any, array: Callable[[Any], Any], log_sigmoid: Any) -> tuple[int, Callable[[Any], Any]]:
    """How many parameters, and log p(θ) up to a constant, on an unconstrained scale. ``xp`` is torch or jax.numpy."""
    given = data(name)
    numbers = lambda key: np.asarray(given[key], dtype=float)  # noqa: E731
    if name == "eight_schools":
        y, sigma = array(numbers("y")), array(numbers("sigma"))

        def schools(x: Any) -> Any:
            z, mu, tau = x[:8], x[8], xp.exp(x[9])
            away = (y - mu - tau * z) / sigma
            return -0.5 * ((z * z).sum() + (away * away).sum() + (mu / 5) ** 2) - xp.log1p((tau / 5) ** 2) + x[9]

        return 10, schools
    if name == "low_dim_gauss_mix":
        y = array(numbers("y"))

        def mixture(x: Any) -> Any:
            first, second, one, two = x[0], x[0] + xp.exp(x[1]), xp.exp(x[2]), xp.exp(x[3])
            share, rest = log_sigmoid(x[4]), log_sigmoid(-x[4])
            a = -0.5 * ((y - first) / one) ** 2 - x[2] + share
            b = -0.5 * ((y - second) / two) ** 2 - x[3] + rest
            prior = 5 * (share + rest) - (first**2 + second**2 + one**2 + two**2) / 8
            return xp.logaddexp(a, b).sum() + prior + x[1] + x[2] + x[3]

        return 5, mixture
    if name == "kidiq":
        school, iq, y = numbers("mom_hs"), numbers("mom_iq"), array(numbers("kid_score"))
        inputs, wide = np.stack([np.ones_like(iq), school, iq, school * iq], 1), 2.5
    elif name == "sblrc":
        inputs, y, wide = numbers("X"), array(numbers("y")), None
    else:
        series, lags = numbers("y"), int(given["K"])
        past = [series[lags - k : len(series) - k] for k in range(1, lags + 1)]
        inputs, y, wide = np.stack([np.ones(len(series) - lags), *past], 1), array(series[lags:]), 2.5
    x, rows = array(inputs), len(inputs)

    def regression(theta: Any) -> Any:
        beta, log_sigma = theta[:-1], theta[-1]
        sigma = xp.exp(log_sigma)
        away = (y - x @ beta) / sigma
        prior = -0.005 * (sigma * sigma) if wide is None else -xp.log1p((sigma / wide) ** 2)
        flat = 0.0 if name == "kidiq" else 0.005
        return -0.5 * (away * away).sum() - (rows - 1) * log_sigma + prior - flat * (beta * beta).sum()

    return inputs.shape[1] + 1, regression
