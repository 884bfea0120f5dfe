"""Whole runs of BlackJAX's NUTS on densities of posteriordb: window adaptation, draws and compiling, each time anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from benchmarks.peer_scripts import densities


def run(name: str, together: bool) -> Callable[[], Any]:
    """A round: from the density to the draws of all chains, ``together`` by vmap or one chain after the other."""
    quiet = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quiet}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    size, log_density = densities.density(name, jnp, jnp.asarray, jax.nn.log_sigmoid)
    start = jnp.asarray(densities.starts(name, size))
    keys = jax.random.split(jax.random.key(0), densities.CHAINS)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, adaptation_info_fn=lambda *_: None)

    def chain(key: Any, place: Any) -> Any:
        first, second = jax.random.split(key)
        (state, parameters), _ = adaptation.run(first, place, num_steps=densities.WARMUP)
        kernel = blackjax.nuts(log_density, **parameters)

        def draw(state: Any, key: Any) -> tuple[Any, Any]:
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(draw, state, jax.random.split(second, densities.DRAWS))[1]

    def one_round() -> None:
        jax.clear_caches()
        if together:
            jax.block_until_ready(jax.jit(jax.vmap(chain))(keys, start))
            return
        compiled = jax.jit(chain).lower(keys[0], start[0]).compile()
        for key, place in zip(keys, start, strict=True):
            jax.block_until_ready(compiled(key, place))

    return one_round
