"""The network that works: a copy of the target's, whose parameters are views into whichever θ is in use.

The user's own module is never changed. Frozen parameters are shared with it, so a large frozen model is not held twice.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from temperance.core.errors import NetworkError, TemperanceWarning
from temperance.data.sources import Inputs
from temperance.engine import outputs as forward
from temperance.engine.stacked import StackedChain
from temperance.model.theta import Layout

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


def working_copy(network: nn.Module, names: Collection[str]) -> nn.Module:
    """A copy of ``network`` in which the parameters ``names`` are its own and collect gradients; all others share their
    memory with the original, but collect no gradient there."""
    chosen = {id(p) for name, p in network.named_parameters() if name in names}
    shared: dict[int, object] = {
        id(p): nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters() if id(p) not in chosen
    }
    try:
        made = copy.deepcopy(network, shared)
    except RuntimeError as error:
        raise NetworkError(
            f"the network cannot be copied: {error} Old-style `torch.nn.utils.weight_norm` is of that kind; use "
            "torch.nn.utils.parametrizations.weight_norm."
        ) from error
    for name, parameter in made.named_parameters():
        if name in names:
            parameter.requires_grad_(True)
            parameter.grad = None
    return made


def moving_buffers(network: nn.Module, freeze_batch_norm: bool) -> dict[str, Tensor]:
    """Copies of the buffers that training is known to change: running statistics, the vectors of spectral norms."""
    found: dict[str, Tensor] = {}
    for prefix, module in network.named_modules():
        moving = getattr(module, "track_running_stats", False) and not (
            freeze_batch_norm and isinstance(module, BATCH_NORMS)
        )
        if moving or type(module).__name__ == "_SpectralNorm":
            for name, buffer in module.named_buffers(recurse=False):
                found[f"{prefix}.{name}" if prefix else name] = buffer.detach().clone()
    return found


def fresh_values(network: nn.Module, layout: Layout, seed: int) -> dict[str, Tensor]:
    """The network's tensors of θ, re-initialised as its own modules initialise themselves, from ``seed`` alone."""
    device = next(network.parameters()).device
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else None):
        torch.manual_seed(seed)
        fresh = reinitialised(network)
    given, found = dict(network.named_parameters()), dict(fresh.named_parameters())
    names = [e.name for e in layout.network_entries]
    kept = [name for name in names if bool(found[name].isnan().any())]
    if len(kept) == len(names):
        raise NetworkError(
            "an ensemble needs members that start apart, but no module of the network has `reset_parameters()`. "
            "Give it one, or give `start` as a matrix with one row per member."
        )
    if kept:
        warnings.warn(
            f"these parameters have no `reset_parameters()` and start alike in every member: {kept}.",
            TemperanceWarning,
            stacklevel=4,
        )
    return {name: (given if name in kept else found)[name].detach() for name in names}


def reinitialised(network: nn.Module) -> nn.Module:
    """A copy in which every module that knows how has reset itself: parts before the whole, which has the last word.
    What nobody has reset is NaN."""
    made = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(torch.nan)
    for module in _parts_first(made):
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if not callable(reset):
            continue
        if not parametrize.is_parametrized(module):
            reset()
            continue
        # A parametrised weight is made anew at each use, and what is written into it is lost: reset a plain twin, and
        # hand over its values by the parametrisation's own inverse.
        held = list(module.parametrizations)  # type: ignore[arg-type]
        twin = copy.deepcopy(module)
        # (torch's own way back to a plain module changes the class, which the twin shares with the module)
        del twin._modules["parametrizations"]
        twin.__class__ = parametrize.type_before_parametrizations(module)
        for name in held:
            twin.register_parameter(name, nn.Parameter(getattr(module, name).detach().clone()))
        (getattr(twin, "reset_parameters", None) or twin._reset_parameters)()  # type: ignore[operator]
        with torch.no_grad():
            for name, value in twin.named_parameters(recurse=False):
                if name in held:
                    _hand_over(module, name, value.detach().clone())
                else:
                    getattr(module, name).copy_(value)
    return made


def _hand_over(module: nn.Module, name: str, value: Tensor) -> None:
    """Make the parametrised weight ``name`` be ``value``, if that is a matter of its parameters alone; one that has no
    inverse, or keeps its place in a buffer, which is no part of θ, stays NaN."""
    part: nn.Module = module.parametrizations[name]  # type: ignore[index, assignment]
    before = {key: buffer.clone() for key, buffer in part.named_buffers()}
    with contextlib.suppress(NotImplementedError, RuntimeError):
        setattr(module, name, value)
    if any(not torch.equal(buffer, before[key]) for key, buffer in part.named_buffers()):
        for parameter in part.parameters():
            parameter.fill_(torch.nan)


def _parts_first(module: nn.Module) -> Iterator[nn.Module]:
    for name, child in module.named_children():
        if name != "parametrizations":
            yield from _parts_first(child)
    yield module


class Workspace:
    """A network, its layout, and what it is attached to."""

    def __init__(self, network: nn.Module, layout: Layout, freeze_batch_norm: bool, example: Inputs | None) -> None:
        self.network = working_copy(network, {e.name for e in layout.network_entries})
        self.layout, self.freeze_batch_norm, self.example = layout, freeze_batch_norm, example
        self.learned: dict[str, Tensor] = {}
        self._attached: tuple[object, object, MutableMapping[str, Tensor] | None] = (None, None, None)
        self._stacked: tuple[object, dict[str, Tensor]] = (None, {})
        self._chain: tuple[object, object, StackedChain | None] = (None, None, None)
        self._only: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._training: bool | None = None
        self.known_rules: dict[tuple[str, ...], tuple[set[str], dict[str, list[float]], set[str]]] = {}

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def set_training(self, training: bool) -> None:
        """Train or evaluation mode; frozen batch norms stay in evaluation mode."""
        if self._training is training:
            return
        self.network.train(training)
        if self.freeze_batch_norm:
            for module in self.network.modules():
                if isinstance(module, BATCH_NORMS):
                    module.eval()
        self._training = training

    def notice_moving_buffers(self) -> list[str]:
        """The buffers that a forward pass in training mode changes (counters, moving averages of the user's own), so
        that they are kept with each setting of the weights; tried on the example rows, and undone."""
        held = dict(self.network.named_buffers())
        before = {name: buffer.detach().clone() for name, buffer in held.items()}
        if self.example is None or not before:
            return []
        self.set_training(True)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[] if self.device.type == "cpu" else None):
                forward.call(self.network, self.example)
        except (RuntimeError, ValueError):
            pass  # two rows may be too few for training mode; what is known of batch norms stays
        found, replaced = [], []
        for name, buffer in self.network.named_buffers():
            if buffer is not held[name]:
                replaced.append(name)
            if not torch.equal(buffer, before[name]):
                found.append(name)
            self._put(name, before[name])
        if replaced:
            self.network.register_forward_hook(_KeepBuffers(self, replaced))
        return found

    def _put(self, name: str, buffer: Tensor) -> None:
        prefix, _, leaf_name = name.rpartition(".")
        self.network.get_submodule(prefix)._buffers[leaf_name] = buffer

    def keep(self, names: Collection[str]) -> None:
        """After a pass in training: what the network put into the place of a buffer belongs to the state attached."""
        buffers = self._attached[2]
        if buffers is None or not self._training:
            return
        now = dict(self.network.named_buffers())
        for name in names:
            if name in buffers:
                buffers[name] = now[name].detach()

    def attach(self, theta: Tensor, grad: Tensor | None, buffers: MutableMapping[str, Tensor] | None = None) -> None:
        """Make parameters, gradients, learned extras and running buffers views into the given tensors."""
        if self._attached[0] is theta and self._attached[1] is grad and self._attached[2] is buffers:
            return
        self.layout.attach(self.network, theta, grad)
        self.learned = {}
        for entry in self.layout.entries_of("likelihood"):
            leaf = theta[entry.start : entry.stop].view(entry.shape).detach().requires_grad_()
            if grad is not None:
                leaf.grad = grad[entry.start : entry.stop].view(entry.shape)
            self.learned[entry.name] = leaf
        for name, buffer in (buffers or {}).items():
            self._put(name, buffer)
        self._attached = (theta, grad, buffers)

    def stacked_leaves(self, theta: Tensor) -> dict[str, Tensor]:
        """Named leaves E × ..., views into θ of shape E × P, for gradients of all members at once."""
        if self._stacked[0] is not theta:
            views = self.layout.unflatten(theta.detach())
            self._stacked = (theta, {name: view.detach().requires_grad_() for name, view in views.items()})
        return self._stacked[1]

    def chain(self, theta: Tensor, grad: Tensor) -> StackedChain | None:
        """The network as a chain at the rows of θ, made once for these tensors; ``None`` where it is none."""
        if self._chain[0] is not theta or self._chain[1] is not grad:
            self._chain = (theta, grad, StackedChain.of(self.network, self.layout, theta, grad))
        found = self._chain[2]
        return found if found is not None and found.untouched() else None

    def can_batch(self) -> bool:
        """Whether the network takes part in ``vmap`` over its weights, tried on the example rows."""
        if self.example is None or not forward.can_batch(self.network):
            return False
        self.set_training(True)
        theta = self.layout.flatten(self.network).expand(2, -1)
        with torch.no_grad(), torch.random.fork_rng(devices=[] if self.device.type == "cpu" else None):
            forward.outputs(self.network, self.layout, theta, self.example, batched=True)
        return forward.can_batch(self.network)

    def only_rows(self, theta: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of matrices that have one, as the same objects each time, so that they stay attached."""
        if self._only is None or self._only[0] is not theta or self._only[1] is not grad:
            self._only = (theta, grad, theta[0], grad[0])
        return self._only[2], self._only[3]

    def detach(self) -> None:
        """Forget what is attached, so that the next use attaches anew."""
        self._only = None
        self._attached = (None, None, None)
        self._stacked = (None, {})
        self._chain = (None, None, None)
        self.learned = {}

    def outputs(
        self,
        theta: Tensor,
        x: Inputs,
        buffers: Mapping[str, Tensor] | None = None,
        batched: bool | None = None,
    ) -> Tensor:
        """What the network answers in evaluation mode at each row of θ (S × P): S × B × ...."""
        self.set_training(False)
        return forward.outputs(self.network, self.layout, theta, x, buffers=buffers, batched=batched)


class _KeepBuffers:
    """A forward hook for networks that assign to their buffers (``self.m = ...``) in place of writing into them."""

    def __init__(self, workspace: Workspace, names: list[str]) -> None:
        self.workspace, self.names = workspace, names

    def __call__(self, network: nn.Module, args: Any, output: Any) -> None:
        self.workspace.keep(self.names)
