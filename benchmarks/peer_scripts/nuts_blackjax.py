"""NUTS of BlackJAX on the moons, with its own window adaptation: how long a leapfrog step takes, and what ESS it buys.

::

    .venvs/jax-peers/bin/python -m benchmarks.peer_scripts.nuts_blackjax --threads 1 --warmup 200 --draws 100

The chains are adapted once, each for itself, and then sampled from the same places in several ways; compiling is done
before and timed apart. ``vmap``: all chains in step, the longest tree sets the time. ``one by one``: one compiled loop,
called chain after chain. ``devices`` (with two threads): two host devices with a thread each, which share the chains
and run theirs one by one. XLA's threads within an operation are off throughout: on arrays this small they only cost.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peer_scripts import nuts_problem as problem

WAYS = {1: ("vmap", "one by one"), 2: ("devices",)}


def prepare(threads: int, core: int | None = None) -> None:
    """Set what JAX reads when it is imported."""
    problem.stay_on(core)
    quiet = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quiet}".strip()
    os.environ["JAX_NUM_CPU_DEVICES"] = str(threads)
    os.environ["JAX_PLATFORMS"] = "cpu"


def log_density() -> Callable[[Any], Any]:
    """The log posterior up to a constant, of a vector of weights."""
    import jax
    import jax.numpy as jnp

    inputs, labels = problem.data()
    x, y = jnp.asarray(inputs), jnp.asarray(labels)

    def value(theta: Any) -> Any:
        *inner, (last, last_bias) = problem.layers(theta)
        hidden = x
        for weight, bias in inner:
            hidden = jnp.tanh(hidden @ weight.T + bias)
        log_p = jax.nn.log_softmax(hidden @ last.T + last_bias)
        return jnp.take_along_axis(log_p, y[:, None], 1).sum() - 0.5 * theta @ theta

    return value


def adapt(key: Any, theta: Any, warmup: int) -> tuple[Any, dict[str, Any], float]:
    """States and parameters of all chains after the window adaptation, and the seconds it took, compiling included."""
    import blackjax
    import jax

    adaptation = blackjax.window_adaptation(
        blackjax.nuts,
        log_density(),
        is_mass_matrix_diagonal=True,
        target_acceptance_rate=problem.TARGET_ACCEPTANCE,
        max_num_doublings=problem.MAX_DEPTH,
        adaptation_info_fn=lambda *_: None,
    )

    def one(key: Any, start: Any) -> tuple[Any, Any, Any]:
        (state, parameters), _ = adaptation.run(key, start, num_steps=warmup)
        return state, parameters["step_size"], parameters["inverse_mass_matrix"]

    began = time.perf_counter()
    each = jax.jit(one)
    keys = jax.random.split(key, len(theta))
    chains = [jax.block_until_ready(each(keys[k], start)) for k, start in enumerate(theta)]
    state, step, mass = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *chains)
    return state, {"step_size": step, "inverse_mass_matrix": mass}, time.perf_counter() - began


def sampler(draws: int) -> Callable[[Any, Any, Any, Any], Any]:
    """One chain: a scan over draws. Returns weights, leapfrog steps, acceptance and divergence of each draw."""
    import blackjax
    import jax

    density = log_density()

    def one_chain(key: Any, state: Any, step: Any, mass: Any) -> Any:
        kernel = blackjax.nuts(density, step, mass, max_num_doublings=problem.MAX_DEPTH)

        def one_draw(state: Any, key: Any) -> tuple[Any, Any]:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps, info.acceptance_rate, info.is_divergent)

        return jax.lax.scan(one_draw, state, jax.random.split(key, draws))[1]

    return one_chain


def ways_to_run(draws: int, chains: int) -> dict[str, Callable[[Any], tuple[Callable[[], Any], float]]]:
    """Each takes the arguments of all chains, stacked; gives a ready call and the seconds it took to compile."""
    import jax

    one_chain = sampler(draws)

    def ready(function: Any, arguments: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        compiled = function.lower(*arguments).compile()
        return compiled, time.perf_counter() - began

    def vmap(arguments: Any) -> tuple[Callable[[], Any], float]:
        compiled, seconds = ready(jax.jit(jax.vmap(one_chain)), arguments)
        return lambda: compiled(*arguments), seconds

    def one_by_one(arguments: Any) -> tuple[Callable[[], Any], float]:
        each = [jax.tree.map(lambda leaf, k=k: leaf[k], arguments) for k in range(chains)]
        compiled, seconds = ready(jax.jit(one_chain), each[0])

        def call() -> Any:
            parts = [compiled(*part) for part in each]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)

        return call, seconds

    def devices(arguments: Any) -> tuple[Callable[[], Any], float]:
        count = jax.local_device_count()
        shared = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), arguments)
        in_turn = jax.pmap(lambda *mine: jax.lax.map(lambda part: one_chain(*part), mine))
        compiled, seconds = ready(in_turn, shared)

        def call() -> Any:
            return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, *leaf.shape[2:]), compiled(*shared))

        return call, seconds

    return {"vmap": vmap, "one by one": one_by_one, "devices": devices}


def leapfrogs(steps: int = 100, chains: int = 1, threads: int = 1) -> Callable[[], Any]:
    """A round for the harness: bare leapfrog steps of BlackJAX's integrator, without trees; ``chains`` by vmap."""
    prepare(threads)
    import jax
    import jax.numpy as jnp
    from blackjax.mcmc import integrators, metrics

    density = log_density()
    metric = metrics.default_metric(jnp.ones(problem.PARAMETERS))
    integrate = integrators.velocity_verlet(density, metric.kinetic_energy)

    def one(theta: Any, momentum: Any) -> Any:
        state = integrators.new_integrator_state(density, theta, momentum)
        return jax.lax.fori_loop(0, steps, lambda _, state: integrate(state, 1e-3), state).position

    theta = jnp.asarray(problem.starts(0, chains))
    momentum = jnp.asarray(problem.starts(1, chains)) / problem.START_SCALE
    run = jax.jit(jax.vmap(one)).lower(theta, momentum).compile()
    return lambda: jax.block_until_ready(run(theta, momentum))


def measure(warmup: int, draws: int, chains: int, seed: int, names: list[str]) -> dict[str, Any]:
    """Adapt, then sample in each way."""
    import jax

    adapt_key, sample_key = jax.random.split(jax.random.key(seed))
    state, parameters, warmup_seconds = adapt(adapt_key, jax.numpy.asarray(problem.starts(seed, chains)), warmup)
    step, mass = parameters["step_size"], parameters["inverse_mass_matrix"]
    arguments = (jax.random.split(sample_key, chains), state, step, mass)
    ways = ways_to_run(draws, chains)
    results = {}
    for name in names:
        call, compile_seconds = ways[name](arguments)
        wall, cpu = time.perf_counter(), time.process_time()
        found = jax.block_until_ready(call())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        results[name] = {"compile_seconds": compile_seconds}
        results[name] |= problem.summary(*(np.asarray(part) for part in found), wall=wall, cpu=cpu)
    best = min(results, key=lambda name: results[name]["microseconds_per_leapfrog"])
    return {
        "warmup": warmup,
        "warmup_seconds": warmup_seconds,
        "step_sizes": [float(value) for value in step],
        "best": best,
        "ways": results,
    }


def main() -> None:
    """Read the command line, measure, print JSON."""
    chosen = problem.options(__doc__)
    prepare(chosen.threads, chosen.core)
    names = chosen.ways or list(WAYS[chosen.threads])
    found = measure(chosen.warmup, chosen.draws, chosen.chains, chosen.seed, names)
    versions = {name: importlib.metadata.version(name) for name in ("blackjax", "jax")}
    problem.report({"versions": versions, "threads": chosen.threads, "seed": chosen.seed, **found})


if __name__ == "__main__":
    main()
