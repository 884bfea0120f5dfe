"""Steps of a hand-written PyTorch loop with its own optimisers: the floor, in whatever environment runs it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.peer_scripts.networks import problem

STEP = 1e-6  # so small that every round works on the same weights: a memorised batch would leave denormal gradients

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=STEP),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=STEP, momentum=0.9),
}


def step(network: str = "mlp", method: str = "adam", steps: int = 1) -> Callable[[], None]:
    """Return a round of that many steps; ``method`` is one of ``OPTIMISERS``."""
    net, x, y = problem(network)
    optimiser = OPTIMISERS[method](net.parameters())

    def round_of_steps() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()

    return round_of_steps
