"""A network that computes in half precision while its weights stay in single: what ``Target(compute=...)`` is made of.

The forward pass runs under ``torch.autocast``: products of matrices and convolutions in the narrow type, sums and
normalisations in the wide one, as PyTorch's table says. θ, its gradient, velocities, noise and moments are in float32
throughout, and so is what likelihoods see. As two hooks, so that it holds however the network is called: by itself,
under ``torch.func``, compiled, in a copy.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Narrow:
    """Before a pass of the network autocast begins, after it, whether it failed or not, it ends."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.active = True
        self._open = _Passes()

    def __deepcopy__(self, memo: dict[int, Any]) -> Narrow:
        made = Narrow(self.dtype)
        memo[id(self)] = made
        return made

    def begin(self, network: nn.Module, args: Any, kwargs: Any) -> None:
        """See the class."""
        device = next((p.device.type for p in network.parameters()), "cpu")
        entered = torch.autocast(device, dtype=self.dtype, enabled=self.active)
        entered.__enter__()
        self._open.stack.append(entered)

    def end(self, network: nn.Module, args: Any, output: Any) -> None:
        """See the class."""
        if self._open.stack:
            self._open.stack.pop().__exit__(None, None, None)


class _Passes(threading.local):
    """The passes under way of each thread: a network may call itself."""

    def __init__(self) -> None:
        self.stack: list[Any] = []


def compute_in(network: nn.Module, dtype: torch.dtype) -> None:
    """Have ``network`` compute in ``dtype``, from now on and in its copies."""
    rule = Narrow(dtype)
    network.register_forward_pre_hook(rule.begin, with_kwargs=True, prepend=True)
    network.register_forward_hook(rule.end, always_call=True)


def plain_copy(network: nn.Module) -> nn.Module:
    """A copy that computes in the precision of its weights."""
    made = copy.deepcopy(network)
    for module in made.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), Narrow)]:
                hooks.pop(key)
                for told in (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called):
                    told.pop(key, None)
    return made


def computes_coarsely(network: nn.Module) -> bool:
    """Whether some weights are in half precision, so that what is computed is too."""
    return any(p.is_floating_point() and p.dtype.itemsize < 4 for p in network.parameters())


@contextlib.contextmanager
def full_precision(network: nn.Module) -> Iterator[None]:
    """While this lasts, the network computes in the precision of its weights; unless some of them (frozen ones) are in
    half precision, which do not go together with others but under autocast."""
    if computes_coarsely(network):
        yield
        return
    rules = [rule for module in network.modules() for rule in _rules(module) if rule.active]
    for rule in rules:
        rule.active = False
    try:
        yield
    finally:
        for rule in rules:
            rule.active = True


def _rules(module: nn.Module) -> list[Narrow]:
    owners = (getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values())
    return [owner for owner in owners if isinstance(owner, Narrow)]
