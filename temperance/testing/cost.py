"""What a method costs: declared by it, measured here."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.growing import Rows
from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.engine.energy import Energies
from temperance.engine.engine import Engine
from temperance.engine.native.mlp import NativeMLP
from temperance.inference.base import Inference, Starts
from temperance.model.likelihoods import Normal
from temperance.model.priors import GaussianPrior
from temperance.model.target import Target
from temperance.testing.checks import Report


@contextlib.contextmanager
def patched(owner: type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """A method of a class replaced for a while."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _gradients_counted() -> Iterator[list[int]]:
    """Every way in which a method can ask for a gradient, counted in the one number of the list."""
    seen = [0]

    def of_rows(original: Any) -> Any:
        def gradient(self: Engine, theta: Tensor, *args: Any, **kwargs: Any) -> Any:
            seen[0] += len(theta) if theta.dim() == 2 else 1
            return original(self, theta, *args, **kwargs)

        return gradient

    def of_energies(original: Any) -> Any:
        def energies(self: Energies, theta: Tensor, grad: Tensor | None = None) -> Tensor:
            seen[0] += 0 if grad is None else len(theta)
            found: Tensor = original(self, theta, grad)
            return found

        return energies

    def of_leapfrogs(original: Any) -> Any:
        def leapfrog(self: NativeMLP, theta: Tensor, *args: Any) -> None:
            seen[0] += len(theta) * args[5]
            original(self, theta, *args)

        return leapfrog

    with (
        patched(Engine, "gradient", of_rows),
        patched(Energies, "__call__", of_energies),
        patched(NativeMLP, "leapfrog", of_leapfrogs),
    ):
        yield seen


def check_cost(report: Report, method: Inference[Any]) -> None:
    """Gradients a step and copies of θ must not exceed what the method declares."""
    facts = method.facts()
    declared = facts.cost
    network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    target = Target(network, Normal(scale=1.0), GaussianPrior(scale=1.0))
    rng = generator(0, "check-cost")
    data = target.prepare(Data(torch.randn(64, 8, generator=rng), torch.randn(64, 2, generator=rng)))
    engine = Engine(target, data)
    state = method.init(engine, Starts(), [generator(0, "method")])
    streams = None if facts.streams == 1 or facts.reads == "full" else facts.streams
    whole = facts.reads == "full"
    batches = list(data.batches(64 if whole else 16, seed=0, streams=streams)) * (4 if whole else 1)
    batches = [
        dataclasses.replace(b, last=False, step=k, total_steps=len(batches) + 1) for k, b in enumerate(batches, start=1)
    ]
    first = dataclasses.replace(batches[0], step=0)
    state, _ = method.step(engine, state, first)  # what only the first step needs is not a cost of each step
    with _gradients_counted() as gradients:
        for batch in batches:
            state, _ = method.step(engine, state, batch)
    per_step = gradients[0] / len(batches)
    report.add(
        "declared gradients a step",
        per_step <= declared.gradients_per_step + 1e-9,
        f"{per_step:g} measured, {declared.gradients_per_step:g} declared",
    )
    copies = _numbers_held(state, {}) / target.num_parameters
    report.add(
        "declared copies of θ",
        copies <= 1.05 * declared.copies_of_theta + 0.25,  # room for what grows with the data, such as noise on targets
        f"{copies:.2f} measured, {declared.copies_of_theta:g} declared",
    )


def _numbers_held(value: Any, seen: dict[int, int]) -> int:
    """How many floating numbers a state holds, memory that is shared counted once."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            storage = value.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes() // value.element_size()
    elif isinstance(value, Target | Rows):
        pass  # draws that are kept are the result, not the cost of a step
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _numbers_held(getattr(value, field.name), seen)
    elif isinstance(value, dict):
        for entry in value.values():
            _numbers_held(entry, seen)
    elif isinstance(value, list | tuple):
        for entry in value:
            _numbers_held(entry, seen)
    elif isinstance(value, torch.optim.Optimizer):
        _numbers_held([group["params"] for group in value.param_groups], seen)
        _numbers_held(list(value.state.values()), seen)
    return sum(seen.values())
