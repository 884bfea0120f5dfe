"""The parameters of a group side by side in flat vectors, so that a rule moves all of them by a few long operations.

The user's parameters stay where they are: θ and the gradient are copied in, θ is copied out. What a rule keeps beside θ
(a velocity, a thermostat) lives in flat vectors too, and ``optimizer.state[p]`` holds views of them in the shape of p.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.inference.langevin.sampler import ChainState
from temperance.model.theta import Entry, Layout

Signature = list[tuple[int, torch.device, torch.dtype, torch.Size]]
States = MutableMapping[Tensor, dict[str, Any]]
Slots = Callable[[Tensor], dict[str, Tensor]]

STEP = "step"  # the one name that torch's load_state_dict does not cast to the dtype of the parameter


def signature_of(params: Sequence[Tensor]) -> Signature:
    """Which tensors, where and of which kind: as long as it is the same, blocks can be used again."""
    return [(id(p), p.device, p.dtype, p.shape) for p in params]


@dataclass
class ParameterBlock:
    """Parameters of one group, device and dtype, and the chain that moves them.

    ``fresh`` are the places of those that had no state before. ``counter`` is a rule's count of steps, if it has one.
    """

    params: list[Tensor]
    chain: ChainState
    theta: list[Tensor]
    grad: list[Tensor]
    slots: dict[str, list[Tensor]]
    fresh: list[int]
    counter: Tensor | None

    def read_theta(self) -> None:
        """Copy the parameters in."""
        torch._foreach_copy_(self.theta, self.params)

    def write_theta(self) -> None:
        """Copy the parameters out."""
        torch._foreach_copy_(self.params, self.theta)

    def read_grad(self) -> None:
        """Copy the gradients in; every parameter must have one."""
        torch._foreach_copy_(self.grad, [p.grad for p in self.params if p.grad is not None])

    def holds_theta(self) -> bool:
        """Whether the parameters are what was last copied in or out."""
        same = signature_of(self.theta), signature_of(self.params)
        return [x[1:] for x in same[0]] == [x[1:] for x in same[1]] and all(map(torch.equal, self.theta, self.params))

    def intact(self, states: States) -> bool:
        """Whether the state still holds this block's own views: nobody has cleared or replaced it."""
        for name, views in self.slots.items():
            for p, view in zip(self.params, views, strict=True):
                if (states.get(p) or {}).get(name) is not view:
                    return False
        return True

    def release(self, states: States, kept: set[int]) -> None:
        """Give the parameters that leave copies of their own, so that the flat vectors can be freed."""
        for name, views in self.slots.items():
            for p, view in zip(self.params, views, strict=True):
                if id(p) not in kept and (states.get(p) or {}).get(name) is view:
                    states[p][name] = view.clone()


def build(active: Sequence[Tensor], states: States, make_slots: Slots) -> list[ParameterBlock]:
    """Blocks for the parameters given, with what their states hold; new states are started by ``make_slots``."""
    buckets: dict[tuple[Any, ...], list[Tensor]] = {}
    for p in active:
        # A rule's count of steps is one number for a block: late-comers get a block of their own.
        buckets.setdefault((p.device, p.dtype, states.get(p, {}).get(STEP, 0)), []).append(p)
    return [_block(params, states, make_slots, step) for (_, _, step), params in buckets.items()]


def _block(params: list[Tensor], states: States, make_slots: Slots, step: int) -> ParameterBlock:
    size = sum(p.numel() for p in params)
    theta = torch.empty(size, dtype=params[0].dtype, device=params[0].device)
    grad, slots = torch.zeros_like(theta), make_slots(theta)
    chain = ChainState(
        theta=theta,
        grad=grad,
        noise=torch.zeros_like(theta),
        slots=slots,
        streams=[],
        buffers={},
        layout=Layout([Entry("block", (size,), 0)], theta.dtype),
    )
    counters = [slot for slot in slots.values() if slot.dim() == 0]
    for counter in counters:
        counter.fill_(step)
    views = {name: views_of(slot, params) for name, slot in slots.items() if slot.dim() == 1}
    fresh = [i for i, p in enumerate(params) if any(name not in states.get(p, {}) for name in views)]
    for name, pieces in views.items():
        for p, view in zip(params, pieces, strict=True):
            if name in states[p]:
                view.copy_(states[p][name])
            states[p][name] = view
    return ParameterBlock(
        params, chain, views_of(theta, params), views_of(grad, params), views, fresh, counters[0] if counters else None
    )


def views_of(flat: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """The pieces of a flat vector, in the parameters' shapes."""
    pieces = flat.split([p.numel() for p in params])
    return [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
