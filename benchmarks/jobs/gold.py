"""What a leapfrog step of NUTS costs, trees included, beside the bare leapfrog steps of peers; and whole runs of
``tp.sample`` on densities of posteriordb, from the user's function to the draws, machine code included.

Effective samples per second, which take minutes to measure, are printed by ``peer_scripts/nuts_*.py``, one script for
each library, ours among them.
"""

from __future__ import annotations

import warnings

import torch

import temperance as tp
from benchmarks.harness import Goal, Job, Round, Script
from benchmarks.peer_scripts import densities
from benchmarks.peer_scripts import nuts_problem as problem
from benchmarks.peer_scripts.nuts_temperance import start, target_and_data
from temperance.core.seeds import generator
from temperance.engine.engine import Engine

DEPTH = 7
LEAPFROGS = problem.CHAINS * (2**DEPTH - 1)
STEP = 1e-3  # so small that no trajectory turns before its last doubling


def transitions(kernel: tp.NUTS | tp.HMC, chains: int = problem.CHAINS, count: int = 1) -> Round:
    """Rounds of ``count`` transitions of all chains."""
    target, data = target_and_data()
    batch = next(iter(data.full_pass(len(data))))
    rngs = [generator(0, "benchmark", k) for k in range(chains)]
    engine = Engine(target)
    state = kernel.init(engine, tp.Starts.at(start(0)[:chains]), rngs)

    def one_round() -> None:
        nonlocal state
        for _ in range(count):
            state, info = kernel.step(engine, state, batch)
            assert info.status.ok, info.status

    one_round()
    assert int(state.leapfrogs.sum()) * count == LEAPFROGS, state.leapfrogs
    return one_round


def contestants() -> dict[str, Round]:
    return {
        "ours": transitions(tp.NUTS(step_size=STEP, max_depth=DEPTH)),
        "one chain": transitions(tp.NUTS(step_size=STEP, max_depth=DEPTH), chains=1, count=problem.CHAINS),
        "HMC": transitions(tp.HMC(step_size=STEP, length=2**DEPTH - 1, jitter=0.0)),
    }


def peer(name: str, environment: str, versions: tuple[str, ...], **arguments: object) -> Script:
    return Script(f"peer_scripts/nuts_{name}.py", "leapfrogs", environment, arguments, versions)


def whole_run(name: str) -> Round:
    """From a density to its draws, nothing kept from the run before."""
    size, log_density = densities.density(name, torch, torch.as_tensor, torch.nn.functional.logsigmoid)
    start = torch.as_tensor(densities.starts(name, size))

    def one_round() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tp.sample(
                log_density, start, tp.NUTS(), chains=densities.CHAINS, warmup=densities.WARMUP, draws=densities.DRAWS,
                progress=False,
            )  # fmt: skip

    return one_round


def sampling(name: str) -> Job:
    peers = {
        f"blackjax, {way}": Script(
            "peer_scripts/sample_blackjax.py", "run", "jax-peers", {"name": name, "together": way == "vmap"},
            ("jax", "blackjax"),
        )
        for way in ("one by one", "vmap")
    }  # fmt: skip
    return Job(
        f"sample-{name}",
        f"A draw of `tp.sample` with NUTS from posteriordb's {name}, four chains of 1,000 draws after 1,000 steps of "
        "warm-up, compiling included.",
        lambda: {"ours": whole_run(name)},
        peers=peers,
        goals=tuple(Goal("ours", peer, at_most=2.0) for peer in peers),
        unit="draw",
        units=densities.CHAINS * densities.DRAWS,
        rounds=5,
        warmup=1,
        threads=1,
    )


JOBS = [
    *(sampling(name) for name in densities.NAMES),
    Job(
        "nuts-moons",
        "A leapfrog step of NUTS and HMC for each of four chains, trees included, 2-20-20-20-2 MLP, 500 points, one "
        "thread; of the peers, their bare leapfrog steps.",
        contestants,
        peers={
            "blackjax, one chain": peer("blackjax", "jax-peers", ("jax", "blackjax"), steps=LEAPFROGS),
            "blackjax, vmap": peer(
                "blackjax", "jax-peers", ("jax", "blackjax"), steps=2**DEPTH - 1, chains=problem.CHAINS
            ),
            "Pyro, jit": peer("pyro", "torch-peers", ("torch", "pyro-ppl"), steps=LEAPFROGS),
        },
        goals=(
            Goal("blackjax, one chain", "ours", at_least=1.0),
            Goal("blackjax, vmap", "ours", at_least=1.0),
            Goal("Pyro, jit", "ours", at_least=6.0),
        ),
        unit="leapfrog step of a chain",
        units=LEAPFROGS,
        rounds=15,
        threads=1,
    ),
]
