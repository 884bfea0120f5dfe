"""NUTS of this library on the problem of ``nuts_problem``: the same numbers as the peers' scripts print.

python -m benchmarks.peer_scripts.nuts_temperance --warmup 200 --draws 100 [--threads 2]
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import temperance as tp
from benchmarks.peer_scripts import nuts_problem as problem
from temperance.core.seeds import generator
from temperance.engine.engine import Engine


def target_and_data() -> tuple[tp.Target, tp.data.Data]:
    """The network, and the data as a target takes them."""
    x, y = problem.data()
    network = tp.nn.MLP(problem.SIZES[0], list(problem.SIZES[1:-1]), problem.SIZES[-1], nn.Tanh)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    assert target.num_parameters == problem.PARAMETERS
    return target, target.prepare(tp.data.Data(torch.from_numpy(x), torch.from_numpy(y)))


def start(seed: int) -> torch.Tensor:
    """Where the chains begin."""
    return torch.from_numpy(problem.starts(seed))


def measure(warmup: int, draws: int, chains: int, seed: int) -> dict[str, Any]:
    """Warm up, then sample; only the latter is timed."""
    target, data = target_and_data()
    batch = next(iter(data.full_pass(len(data))))
    method = tp.Warmup(tp.NUTS(max_depth=problem.MAX_DEPTH), warmup, accept=problem.TARGET_ACCEPTANCE)
    rngs = [generator(seed, "benchmark", k) for k in range(chains)]
    engine = Engine(target)
    state = method.init(engine, tp.Starts.at(start(seed)[:chains]), rngs)
    began = time.perf_counter()
    for step in range(warmup):
        state, info = method.step(engine, state, replace(batch, step=step))
        assert info.status.ok, info.status
    warmup_seconds = time.perf_counter() - began
    rows, told = [], []
    wall, cpu = time.perf_counter(), time.process_time()
    for step in range(warmup, warmup + draws):
        state, info = method.step(engine, state, replace(batch, step=step))
        rows.append(state.base.chain.theta.clone())
        told.append((state.base.leapfrogs.clone(), state.base.acceptance.clone(), state.base.divergent.clone()))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    leapfrogs, acceptance, divergent = (np.stack([t[k].numpy() for t in told], 1) for k in range(3))
    theta = torch.stack(rows, 1).numpy()
    found = problem.summary(theta, leapfrogs, acceptance, divergent, wall=wall, cpu=cpu)
    steps = state.base.step_size.tolist()
    return {"warmup": warmup, "warmup_seconds": warmup_seconds, "step_sizes": steps, "ways": {"batched": found}}


def main() -> None:
    """Read the command line, measure, print JSON."""
    chosen = problem.options(__doc__)
    problem.stay_on(chosen.core)
    torch.set_num_threads(chosen.threads)
    found = measure(chosen.warmup, chosen.draws, chosen.chains, chosen.seed)
    versions = {"temperance": tp.__version__, "torch": torch.__version__}
    problem.report({"versions": versions, "threads": chosen.threads, "seed": chosen.seed, **found})


if __name__ == "__main__":
    main()
