"""NUTS of Pyro on the moons, with its own window adaptation: how long a leapfrog step takes, and what ESS it buys.

::

    .venvs/torch-peers/bin/python -m benchmarks.peer_scripts.nuts_pyro --warmup 100 --draws 20

The chains run one after the other in this process. ``jit``: ``jit_compile=True``, the log density traced by
``torch.jit``; its first draw after the warm-up comes long after the tracing. ``plain``: without it.
"""

from __future__ import annotations

import importlib.metadata
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro.infer.mcmc import MCMC, NUTS
from pyro.ops.integrator import velocity_verlet

from benchmarks.peer_scripts import nuts_problem as problem

WAYS = {"jit": True, "plain": False}


class CountingNUTS(NUTS):
    """NUTS that counts its leapfrog steps: each leaf of a tree is one."""

    leapfrogs = 0

    def _build_basetree(self, *arguments: Any) -> Any:
        self.leapfrogs += 1
        return super()._build_basetree(*arguments)


def network(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Logits of the rows of ``x``."""
    *inner, (last, last_bias) = problem.layers(theta)
    for weight, bias in inner:
        x = torch.tanh(torch.nn.functional.linear(x, weight, bias))
    return torch.nn.functional.linear(x, last, last_bias)


def moons() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = problem.data()
    return torch.from_numpy(x), torch.from_numpy(y)


def model() -> Callable[[], None]:
    """The network as Pyro's documentation writes a model: one site for the weights, one for the labels."""
    x, y = moons()
    zeros, ones = torch.zeros(problem.PARAMETERS), torch.ones(problem.PARAMETERS)

    def stochastic() -> None:
        theta = pyro.sample("theta", dist.Normal(zeros, ones).to_event(1))
        pyro.sample("y", dist.Categorical(logits=network(theta, x)).to_event(1), obs=y)

    return stochastic


def chain(start: torch.Tensor, warmup: int, draws: int, jit: bool, seed: int) -> dict[str, Any]:
    """One chain: its draws, what each cost, and the seconds of warm-up and sampling."""
    pyro.set_rng_seed(seed)
    kernel = CountingNUTS(
        model(),
        jit_compile=jit,
        ignore_jit_warnings=True,
        target_accept_prob=problem.TARGET_ACCEPTANCE,
        max_tree_depth=problem.MAX_DEPTH,
    )
    marks = [(time.perf_counter(), time.process_time(), 0)]
    acceptance = [0.0]

    def note(kernel: Any, params: Any, stage: str, index: int) -> None:
        marks.append((time.perf_counter(), time.process_time(), kernel.leapfrogs))
        acceptance[0] = float(kernel._mean_accept_prob)

    run = MCMC(
        kernel,
        num_samples=draws,
        warmup_steps=warmup,
        initial_params={"theta": start},
        hook_fn=note,
        disable_progbar=True,
    )
    run.run()
    wall, cpu, leapfrogs = (np.array(values, dtype=float) for values in zip(*marks, strict=True))
    return {
        "theta": run.get_samples()["theta"].numpy(),
        "leapfrogs": np.diff(leapfrogs)[warmup:],
        "acceptance": acceptance[0],
        "divergences": len(run.diagnostics()["divergences"]["chain 0"]),
        "warmup": wall[warmup] - wall[0],
        "wall": wall[-1] - wall[warmup],
        "cpu": cpu[-1] - cpu[warmup],
    }


def measure(warmup: int, draws: int, chains: int, seed: int, names: list[str]) -> dict[str, Any]:
    """All chains, in each way."""
    starts = torch.from_numpy(problem.starts(seed, chains))
    results = {}
    for name in names:
        done = [chain(starts[k], warmup, draws, WAYS[name], seed * chains + k) for k in range(chains)]
        together = {key: np.stack([one[key] for one in done]) for key in done[0]}
        results[name] = {"warmup_seconds": float(together["warmup"].sum())}
        results[name] |= problem.summary(
            together["theta"],
            together["leapfrogs"],
            together["acceptance"],
            together["divergences"],
            wall=float(together["wall"].sum()),
            cpu=float(together["cpu"].sum()),
        )
    best = min(results, key=lambda name: results[name]["microseconds_per_leapfrog"])
    return {"warmup": warmup, "best": best, "ways": results}


def leapfrogs(steps: int = 100, jit: bool = True) -> Callable[[], Any]:
    """A round for the harness: bare leapfrog steps of Pyro's integrator, without trees."""
    kernel = CountingNUTS(model(), jit_compile=jit, ignore_jit_warnings=True)
    kernel.initial_params = {"theta": torch.from_numpy(problem.starts(0, 1)[0])}
    kernel.setup(warmup_steps=1)
    momenta = {"theta": torch.from_numpy(problem.starts(1, 1)[0]) / problem.START_SCALE}
    position, _, gradient = kernel._fetch_from_cache()

    def kinetic(momentum: Any) -> Any:
        return kernel.mass_matrix_adapter.kinetic_grad(momentum)

    def round_of_steps() -> None:
        velocity_verlet(position, momenta, kernel.potential_fn, kinetic, 1e-3, steps, z_grads=gradient)

    return round_of_steps


def main() -> None:
    """Read the command line, measure, print JSON."""
    chosen = problem.options(__doc__)
    problem.stay_on(chosen.core)
    torch.set_num_threads(chosen.threads)
    warnings.simplefilter("ignore")
    found = measure(chosen.warmup, chosen.draws, chosen.chains, chosen.seed, chosen.ways or list(WAYS))
    versions = {"pyro-ppl": importlib.metadata.version("pyro-ppl"), "torch": torch.__version__}
    problem.report({"versions": versions, "threads": chosen.threads, "seed": chosen.seed, **found})


if __name__ == "__main__":
    main()
