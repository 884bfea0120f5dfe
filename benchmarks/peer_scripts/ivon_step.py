"""Steps of the public IVON optimiser, used as its documentation says."""

from __future__ import annotations

from collections.abc import Callable

import ivon
import torch

from benchmarks.peer_scripts.networks import problem

EXAMPLES = 50_000
STEP = 1e-6  # so small that every round works on the same weights


def step(network: str = "mlp", steps: int = 1) -> Callable[[], None]:
    """Return a round of that many steps."""
    net, x, y = problem(network)
    optimiser = ivon.IVON(net.parameters(), lr=STEP, ess=EXAMPLES, weight_decay=1 / EXAMPLES)

    def round_of_steps() -> None:
        for _ in range(steps):
            with optimiser.sampled_params(train=True):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()

    return round_of_steps
