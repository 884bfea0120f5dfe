"""The network that works: a copy of the user's, whose parameters are views into whichever θ is in use.

The user's own module is never changed. Frozen parameters are shared with it, so a large frozen model is not held twice.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from temperance.core.encoding import tensor_bytes
from temperance.core.errors import ArgumentError, NetworkError, TemperanceWarning
from temperance.data.sources import Inputs
from temperance.engine import outputs as evaluate
from temperance.model.theta import Layout, Subset, selected

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


class Workspace:
    """A network, its layout, and what it is attached to."""

    def __init__(
        self,
        network: nn.Module,
        subset: Subset,
        extras: tuple[tuple[str, tuple[int, ...]], ...],
        freeze_batch_norm: bool,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise NetworkError(f"`network` must be a torch.nn.Module; got {type(network).__name__}.")
        lazy = [name for name, p in network.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
        if lazy:
            raise NetworkError(
                f"the network must be initialised: call it once on some inputs; {lazy} have no shape yet."
            )
        chosen = {id(p) for _, p in selected(network, subset)}
        # What stays as it is shares its memory with the user's network, but collects no gradient there.
        shared: dict[int, object] = {
            id(p): nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters() if id(p) not in chosen
        }
        self.network = copy.deepcopy(network, shared)
        names = [name for name, p in network.named_parameters() if id(p) in chosen]
        self.layout = Layout.of(self.network, names, extras)
        for name, parameter in self.network.named_parameters():
            if name in names:
                parameter.requires_grad_(True)
        self.freeze_batch_norm = freeze_batch_norm
        self.initial_theta = self.layout.flatten(self.network)  # as given: later runs start here too
        self.initial_buffers = self._moving_buffers()
        self.learned: dict[str, Tensor] = {}
        self.learned_start: dict[str, Tensor] = {}
        self._attached: tuple[object, object, object] = (None, None, None)
        self._stacked: tuple[object, dict[str, Tensor]] = (None, {})
        self._only: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._training: bool | None = None
        self.example: Inputs | None = None
        self.known_rules: dict[tuple[str, ...], tuple[set[str], dict[str, list[float]]]] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Workspace:
        made = copy.copy(self)
        memo[id(self)] = made
        for name, value in vars(self).items():
            if name not in ("_attached", "_stacked", "_only", "learned"):
                setattr(made, name, copy.deepcopy(value, memo))
        made.detach()
        return made

    def with_network(self, network: nn.Module, moving: Sequence[str]) -> Workspace:
        """The same for another module with the same parameters, with some more buffers that move."""
        made = copy.copy(self)
        made.network = network
        made.initial_buffers = dict(self.initial_buffers)
        made.known_rules = {}
        made._training = None
        made.detach()
        made.expect_moving(moving)
        return made

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def to(self, device: torch.device) -> None:
        """Move the network."""
        self.network.to(device)
        self.initial_theta = self.initial_theta.to(device)
        self.initial_buffers = {name: value.to(device) for name, value in self.initial_buffers.items()}
        self.detach()

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

    def batch_norm_names(self) -> list[str]:
        """Batch norms whose output depends on the other rows of a batch in training."""
        if self.freeze_batch_norm:
            return []
        return [name for name, m in self.network.named_modules() if isinstance(m, BATCH_NORMS)]

    def running_buffers(self) -> dict[str, Tensor]:
        """Copies, as they were given, of the buffers that training changes."""
        return {name: value.clone() for name, value in self.initial_buffers.items()}

    def _moving_buffers(self) -> dict[str, Tensor]:
        """Running statistics, and the vectors of spectral norms."""
        found: dict[str, Tensor] = {}
        for prefix, module in self.network.named_modules():
            moving = getattr(module, "track_running_stats", False) and not (
                self.freeze_batch_norm and isinstance(module, BATCH_NORMS)
            )
            if moving or type(module).__name__ == "_SpectralNorm":
                for name, buffer in module.named_buffers(recurse=False):
                    found[f"{prefix}.{name}" if prefix else name] = buffer.detach().clone()
        return found

    def frozen_fingerprint(self) -> str:
        """A digest of everything that predictions depend on and θ does not hold: frozen parameters, fixed buffers."""
        moving = set(self.initial_buffers)
        inside = {e.name for e in self.layout.network_entries}
        digest = hashlib.sha256()
        for name, value in [*self.network.named_parameters(), *self.network.named_buffers()]:
            if name not in inside and name not in moving:
                digest.update(name.encode())
                digest.update(tensor_bytes(value))
        return digest.hexdigest()

    def expect_moving(self, names: Sequence[str]) -> None:
        """Treat these buffers as moving, as an earlier run has found them to be."""
        for name, buffer in self.network.named_buffers():
            if name in names:
                self.initial_buffers.setdefault(name, buffer.detach().clone())

    def notice_moving_buffers(self) -> None:
        """Find buffers that a forward pass in training mode changes (counters, moving averages of the user's own), so
        that they are kept with each setting of the weights; tried on the example rows, and undone."""
        if self.example is None:
            return
        self._own_buffers()
        before = {name: buffer.detach().clone() for name, buffer in self.network.named_buffers()}
        if not set(before) - set(self.initial_buffers):
            return
        self.set_training(True)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[] if self.device.type == "cpu" else None):
                evaluate.call(self.network, self.example)
        except (RuntimeError, ValueError):
            pass  # two rows may be too few for training mode; what is known of batch norms stays
        for name, buffer in self.network.named_buffers():
            if not torch.equal(buffer, before[name]):
                self.initial_buffers.setdefault(name, before[name])
            buffer.copy_(before[name])

    def _own_buffers(self) -> None:
        """Put buffers of our own back into the network, in place of those of a state that a run may still hold."""
        for name, value in self.initial_buffers.items():
            prefix, _, leaf_name = name.rpartition(".")
            self.network.get_submodule(prefix)._buffers[leaf_name] = value.clone()
        self.detach()

    def adopt(self, start: nn.Module) -> None:
        """Take the buffers of a trained network; refuse one whose frozen parameters are not ours."""
        theirs = {**dict(start.named_parameters()), **dict(start.named_buffers())}
        inside = {e.name for e in self.layout.network_entries}
        for name, value in self.network.named_parameters():
            same = name in inside or (name in theirs and torch.equal(theirs[name].to(value.device), value))
            if not same:
                raise ArgumentError(
                    f"`start` must share the frozen parameters of the target's network; {name!r} differs. Make the "
                    "Target from the trained network instead."
                )
        self._own_buffers()
        with torch.no_grad():
            for name, buffer in self.network.named_buffers():
                if name in theirs:
                    buffer.copy_(theirs[name])
                    if name in self.initial_buffers:
                        self.initial_buffers[name] = buffer.detach().clone()
        self.detach()

    def attach(self, theta: Tensor, grad: Tensor | None, buffers: dict[str, Tensor] | None = None) -> None:
        """Make parameters, gradients, learned extras and running buffers views into the given tensors."""
        if self._attached[0] is theta and self._attached[1] is grad and self._attached[2] is buffers:
            return
        self.layout.attach(self.network, theta, grad)
        self.learned = {}
        for entry in self.layout.entries[len(self.layout.network_entries) :]:
            leaf = theta[entry.start : entry.stop].view(entry.shape).detach().requires_grad_()
            if grad is not None:
                leaf.grad = grad[entry.start : entry.stop].view(entry.shape)
            self.learned[entry.name] = leaf
        for name, buffer in (buffers or {}).items():
            prefix, _, leaf_name = name.rpartition(".")
            self.network.get_submodule(prefix)._buffers[leaf_name] = buffer
        self._attached = (theta, grad, buffers)

    def stacked_leaves(self, theta: Tensor) -> dict[str, Tensor]:
        """Named leaves E × ..., views into θ of shape E × P, for gradients of all members at once."""
        if self._stacked[0] is not theta:
            views = self.layout.unflatten(theta.detach())
            self._stacked = (theta, {name: view.detach().requires_grad_() for name, view in views.items()})
        return self._stacked[1]

    def can_batch(self) -> bool:
        """Whether the network takes part in ``vmap`` over its weights, tried on the example rows."""
        if self.example is None or not evaluate.can_batch(self.network):
            return False
        self.set_training(True)
        theta = self.layout.flatten(self.network).expand(2, -1)
        with torch.no_grad(), torch.random.fork_rng(devices=[] if self.device.type == "cpu" else None):
            evaluate.outputs(self.network, self.layout, theta, self.example, batched=True)
        return evaluate.can_batch(self.network)

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
        self.learned = {}

    def outputs(
        self,
        theta: Tensor,
        x: Inputs,
        buffers: Mapping[str, Tensor] | None = None,
        batched: bool | None = None,
    ) -> Tensor:
        """Outputs in evaluation mode at each row of θ (S × P): S × B × C."""
        self.set_training(False)
        made = evaluate.outputs(self.network, self.layout, theta, x, buffers=buffers, batched=batched)
        return made.unsqueeze(-1) if made.dim() == 2 else made

    def fresh_theta(self, seed: int) -> Tensor:
        """θ re-initialised as the network's own modules initialise themselves, from ``seed`` alone."""
        values: dict[str, Tensor] = {}
        with torch.random.fork_rng(devices=[] if self.device.type == "cpu" else None):
            torch.manual_seed(seed)
            _reinitialise(self.network, "", values)
        kept = [e.name for e in self.layout.network_entries if e.name not in values]
        own = self.layout.unflatten(self.initial_theta, "network")
        if len(kept) == len(self.layout.network_entries):
            raise NetworkError(
                "an ensemble needs members that start apart, but no module of the network has `reset_parameters()`. "
                "Give it one, or give `start` as a matrix with one row per member."
            )
        if kept:
            warnings.warn(
                f"these parameters have no `reset_parameters()` and start alike in every member: {kept}.",
                TemperanceWarning,
                stacklevel=3,
            )
        return self.layout.flatten({**{name: own[name] for name in kept}, **values})


def _reinitialise(module: nn.Module, prefix: str, values: dict[str, Tensor]) -> None:
    """Collect fresh values, asking the outermost module that knows how to reset itself."""
    own = list(module.named_parameters(prefix.rstrip(".")))
    if not own:
        return
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        fresh = copy.deepcopy(module)
        (getattr(fresh, "reset_parameters", None) or fresh._reset_parameters)()  # type: ignore[operator]
        values.update({name: p.detach() for name, p in fresh.named_parameters(prefix.rstrip("."))})
        return
    for name, child in module.named_children():
        _reinitialise(child, f"{prefix}{name}.", values)
