"""A network that computes in half precision while its weights stay in single: what ``Target(compute=...)`` is made of.

The forward pass runs under ``torch.autocast``: products of matrices and convolutions in the narrow type, sums and
normalisations in the wide one, as PyTorch's table says. θ, its gradient, velocities, noise and moments are in float32
throughout, and so is what likelihoods see. It is the network's own ``forward`` that does it, so that it holds however
the network is called: by itself, under ``torch.func``, compiled, in a copy.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


class Narrow:
    """The ``forward`` of one network, under autocast. (Not a pair of hooks: a Ctrl-C would skip the second, and leave
    the whole process computing in half precision.)"""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        self.network, self.dtype, self.active = network, dtype, True
        self.own = network.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's own ``forward``."""
        forward = self._plain()
        if not self.active:
            return forward(*args, **kwargs)
        device = next((p.device.type for p in self.network.parameters()), "cpu")
        with torch.autocast(device, dtype=self.dtype):
            return forward(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the network's own, by which a dict of inputs is taken apart."""
        return inspect.signature(self._plain())

    def _plain(self) -> Callable[..., Any]:
        return types.MethodType(type(self.network).forward, self.network) if self.own is None else self.own


def compute_in(network: nn.Module, dtype: torch.dtype) -> None:
    """Have ``network`` compute in ``dtype``, from now on and in its copies."""
    if _rule_of(network) is None:
        network.__dict__["forward"] = Narrow(network, dtype)


def computes_narrowly(network: nn.Module) -> bool:
    """Whether it, or a part of it, has been told to."""
    return any(_rule_of(module) is not None for module in network.modules())


def plain_copy(network: nn.Module) -> nn.Module:
    """A copy that computes in the precision of its weights."""
    made = copy.deepcopy(network)
    for module in made.modules():
        rule = _rule_of(module)
        if rule is not None:
            del module.__dict__["forward"]
            if rule.own is not None:
                module.__dict__["forward"] = rule.own
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
    found = (_rule_of(module) for module in network.modules())
    rules = [rule for rule in found if rule is not None and rule.active]
    for rule in rules:
        rule.active = False
    try:
        yield
    finally:
        for rule in rules:
            rule.active = True


def _rule_of(module: nn.Module) -> Narrow | None:
    found = module.__dict__.get("forward")
    return found if isinstance(found, Narrow) else None
