"""How many draws of a Gaussian posterior a prediction needs, and of which kind: ``python -m benchmarks.jobs.draws``.

For four posteriors of three problems, class probabilities (of a regression, the mean in units of the predictive
standard deviation) by n draws are compared with those by 10,000 plain ones: the root of the mean squared error over
rows, classes and repetitions. Draws are mean + R z, with z

* plain: independent;
* antithetic: z, −z, z', −z', …;
* sobol: a scrambled Sobol sequence in the 16 coordinates of z that move θ most, independent in the others;
* both: a Sobol sequence in these, and each z followed by −z.

The second table is of the members' spread (√epistemic variance), which antithetic draws do not see better. Last come
the largest standard error of 30 draws as ``predict`` takes them, and how many draws ``precision`` takes, at what time
in units of that of 30.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.core.seeds import derive_seed, generator
from temperance.linalg.operator import Covariance

COUNTS = (8, 16, 32, 64, 128)
LEADING = 16
Noise = Callable[[Covariance, int, int], Tensor]


def plain(operator: Covariance, count: int, seed: int) -> Tensor:
    return torch.randn(count, sum(operator.noise_sizes), generator=generator(seed, "plain"))


def antithetic(operator: Covariance, count: int, seed: int) -> Tensor:
    half = plain(operator, count // 2, seed)
    return torch.stack([half, -half], dim=1).flatten(0, 1)


def sobol(operator: Covariance, count: int, seed: int) -> Tensor:
    made = plain(operator, count, seed)
    engine = torch.quasirandom.SobolEngine(LEADING, scramble=True, seed=derive_seed(seed, "sobol") % 2**31)
    uniform = engine.draw(count, dtype=torch.float64).clamp(1e-7, 1 - 1e-7)
    made[:, _leading(operator)] = torch.special.ndtri(uniform).to(made)
    return made


def both(operator: Covariance, count: int, seed: int) -> Tensor:
    half = sobol(operator, count // 2, seed)
    return torch.stack([half, -half], dim=1).flatten(0, 1)


_found: dict[int, Tensor] = {}


def _leading(operator: Covariance) -> Tensor:
    """The coordinates of z whose columns of R are longest, by Hutchinson's estimate of their squares."""
    if id(operator) not in _found:
        probes = torch.randn(64, operator.size, generator=generator(0, "probes"))
        _found[id(operator)] = operator.half(probes).square().mean(0).topk(LEADING).indices
    return _found[id(operator)]


SCHEMES: dict[str, Noise] = {"plain": plain, "antithetic": antithetic, "sobol": sobol, "both": both}


def problems() -> Iterator[tuple[str, tp.Target, Any, Any, int]]:
    torch.manual_seed(0)  # of the networks' first weights
    train, test = tp.data.load("digits")
    yield "digits", tp.Target(tp.nn.MLP(64, [128, 128], 10), tp.Categorical(), tp.GaussianPrior(1.0)), train, test, 20
    train, test = tp.data.load("wine")
    yield "wine", tp.Target(tp.nn.MLP(13, [50], 3), tp.Categorical(), tp.GaussianPrior(1.0)), train, test, 150
    train, test = tp.data.load("diabetes")
    yield "diabetes", tp.Target(tp.nn.MLP(10, [50], 1), tp.Normal(), tp.GaussianPrior(1.0)), train, test, 100


METHODS = {
    "Variational": lambda: tp.Variational(tp.MeanField(), lr=1e-2),
    "SWAG": lambda: tp.SWAG(tp.MAP(lr=1e-2)),
    "IVON": lambda: tp.IVON(lr=0.1),
    "Laplace": lambda: tp.Laplace(tp.MAP(lr=1e-2)),
}


def members(fitted: tp.Fitted, x: Any, theta: Tensor) -> Tensor:
    """The members' means, draws × rows × outputs, in float64."""
    found = []
    for rows in theta.split(250):
        made = tp.Fitted(fitted.target, tp.posteriors.Draws(rows), fitted.info).predict(x)
        for _, outputs, learned in made.source.blocks():
            found.append(made.likelihood.mean(outputs, learned).double())
    return torch.cat(found)


def measure(fitted: tp.Fitted, x: Any, reference: int, repeats: int) -> dict[str, dict[int, tuple[float, float]]]:
    posterior = fitted.posterior
    operator = posterior.operator
    first = second = torch.zeros(())
    for k in range(reference // 500):
        made = members(fitted, x, posterior.mean + operator.root(plain(operator, 500, 10_000 + k)))
        first, second = first + made.sum(0) / reference, second + made.square().sum(0) / reference
    spread = (second - first.square()).clamp(min=0.0).sqrt()
    unit = torch.ones(())
    if fitted.target.likelihood.outcome.has_units:
        unit = fitted.predict(x, by="network", draws=500).std().double()
    table: dict[str, dict[int, tuple[float, float]]] = {}
    for name, scheme in SCHEMES.items():
        table[name] = {}
        for count in COUNTS:
            errors, spreads = [], []
            for seed in range(repeats):
                made = members(fitted, x, posterior.mean + operator.root(scheme(operator, count, seed)))
                errors.append(((made.mean(0) - first) / unit).square().mean())
                spreads.append(((made.var(0, correction=0).sqrt() - spread) / unit).square().mean())
            table[name][count] = float(torch.stack(errors).mean().sqrt()), float(torch.stack(spreads).mean().sqrt())
    return table


def costs(fitted: tp.Fitted, x: Any) -> str:
    def timed(**options: Any) -> tuple[float, Any]:
        found = []
        for _ in range(3):
            started = time.perf_counter()
            made = fitted.predict(x, by="network", **options)
            made.mean()
            found.append(time.perf_counter() - started)
        return min(found), made

    usual, made = timed()
    line = [f"30 draws: {float(made.imprecision().max()):.3f}"]
    for precision in (0.05, 0.02, 0.01):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            seconds, made = timed(precision=precision)
        line.append(f"{precision}: {made.num_draws}{'+' if told else ''} draws, {seconds / usual:.1f} ×")
    return "; ".join(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--only", default="", help="problem/method, or a part of it")
    chosen = parser.parse_args()
    for problem, target, train, test, epochs in problems():
        for method, make in METHODS.items():
            if chosen.only not in f"{problem}/{method}":
                continue
            started = time.perf_counter()
            fitted = tp.fit(target, make(), train, epochs=epochs, seed=0, progress=False)
            table = measure(fitted, test.x, chosen.reference, chosen.repeats)
            print(f"\n{problem} / {method} ({time.perf_counter() - started:.0f} s)", flush=True)
            print("error of the mean   " + "".join(f"{count:>9}" for count in COUNTS))
            for name, row in table.items():
                print(f"  {name:<18}" + "".join(f"{row[count][0]:9.4f}" for count in COUNTS))
            print("error of the spread")
            for name, row in table.items():
                print(f"  {name:<18}" + "".join(f"{row[count][1]:9.4f}" for count in COUNTS), flush=True)
            print(costs(fitted, test.x), flush=True)


if __name__ == "__main__":
    main()
