"""θ is one vector.

A :class:`Layout` names the pieces of a contiguous vector θ: the trainable tensors of a network (or a subset of them),
followed by what a likelihood learns (a noise scale). In the hot path nothing is copied: :meth:`Layout.attach` makes the
network's parameters, and their gradients, views into two vectors, so that an optimiser or a sampler works on one long
tensor and the network sees the result at once.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import shown
from temperance.core.encoding import Value, setting
from temperance.core.errors import ArgumentError, NetworkError


class Selector(Value, ABC):
    """A rule that picks parameters of a network by looking at all of it."""

    @abstractmethod
    def names(self, network: nn.Module) -> list[str]:
        """Names of the parameters picked."""


@dataclass(frozen=True, eq=False)
class LastLayer(Selector):
    """The parameters of the last module, in order of registration, that has trainable ones of its own."""

    def names(self, network: nn.Module) -> list[str]:
        """See :class:`Selector`."""
        names = {id(p): name for name, p in network.named_parameters()}  # tied weights go by their first name
        for module in reversed(list(network.modules())):
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if own:
                return [names[id(p)] for p in own]
        return []


last_layer = LastLayer()
"""Selects the last layer: ``Target(..., subset=last_layer)``."""


@setting
def biases(name: str, parameter: Tensor) -> bool:
    """Selects the biases: parameters whose own name is ``bias`` or starts with ``bias_``."""
    leaf = name.rsplit(".", 1)[-1]
    return leaf == "bias" or leaf.startswith("bias_")


Subset = str | Sequence[str] | Callable[[str, Tensor], bool] | Selector | None
"""How to name a part of a network: a name, prefix or pattern (``"head"``, ``"layers.*.weight"``), several of them, a
predicate ``(name, parameter) -> bool``, or a :class:`Selector`. ``None`` is every parameter with ``requires_grad``."""


@dataclass(frozen=True)
class Entry:
    """One named tensor inside θ. ``fan_in`` is 0 for what is not a weight (biases, scales of norms)."""

    name: str
    shape: tuple[int, ...]
    start: int
    fan_in: int = 0
    role: str = "network"

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """One past its last place in θ."""
        return self.start + self.size


class Layout:
    """The names, shapes and places of the tensors inside θ.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> layout = Layout.of(network)
    >>> layout.size, [entry.name for entry in layout.entries]
    (13, ['0.weight', '0.bias', '2.weight', '2.bias'])
    >>> theta = layout.flatten(network)
    >>> bool((layout.unflatten(theta)["2.weight"] == network[2].weight).all())
    True
    """

    def __init__(self, entries: Iterable[Entry], dtype: torch.dtype = torch.float32) -> None:
        made = tuple(entries) if isinstance(entries, Iterable) and not isinstance(entries, str | bytes) else ()
        if not made or not all(isinstance(entry, Entry) for entry in made):
            raise ArgumentError(f"`entries` must be those of Layout.of(network); got {shown(entries)}.")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ArgumentError(f"`dtype` must be a floating dtype such as torch.float32; got {shown(dtype)}.")
        self.entries = made
        self.dtype = dtype
        self.size = self.entries[-1].stop if self.entries else 0
        self._by_role = {role: tuple(e for e in self.entries if e.role == role) for role in ("prior", "likelihood")}
        self._by_role["network"] = self.network_entries = tuple(e for e in self.entries if e.role == "network")
        self.network_size = self.network_entries[-1].stop if self.network_entries else 0

    @classmethod
    def of(
        cls, network: nn.Module, subset: Subset = None, extras: Sequence[tuple[str, tuple[int, ...], str]] = ()
    ) -> Layout:
        """The layout of ``network``'s trainable parameters, or of ``subset``, followed by ``extras``: names, shapes and
        roles (what the prior learns, what the likelihood learns)."""
        owners = _fan_ins(network)
        entries: list[Entry] = []
        dtypes: dict[torch.dtype, str] = {}
        place = 0
        for name, parameter in selected(network, subset):
            if not parameter.is_floating_point():
                raise NetworkError(f"parameter {name!r} must be of a floating dtype; got {parameter.dtype}.")
            dtypes.setdefault(parameter.dtype, name)
            entries.append(Entry(name, tuple(parameter.shape), place, owners.get(name, 0)))
            place += parameter.numel()
        if len(dtypes) > 1:
            raise NetworkError(
                f"the parameters of θ must share one dtype, for they live in one vector; got {dtypes}. "
                "Convert the network with .float() or .double(), or select a subset."
            )
        for name, shape, role in extras:
            entries.append(Entry(name, tuple(shape), place, 0, role))
            place += math.prod(shape)
        return cls(entries, next(iter(dtypes), torch.float32))

    def entries_of(self, role: str) -> tuple[Entry, ...]:
        """Those of the ``"network"``, or those that the ``"likelihood"`` or the ``"prior"`` learns."""
        return self._by_role[role]

    def __repr__(self) -> str:
        return f"Layout({len(self.entries)} tensors, {self.size} numbers, {self.dtype})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.entries == other.entries and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.entries, self.dtype))

    def describe(self) -> dict[str, Any]:
        """A JSON form, for the manifest of a run."""
        return {"dtype": str(self.dtype).removeprefix("torch."), "entries": [asdict(e) for e in self.entries]}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Layout:
        """The inverse of :meth:`describe`."""
        entries = [Entry(**{**e, "shape": tuple(e["shape"])}) for e in description["entries"]]
        whole = all(isinstance(n, int) and n >= 0 for e in entries for n in (*e.shape, e.start, e.fan_in))
        if not whole or not all(isinstance(e.name, str) and isinstance(e.role, str) for e in entries):
            raise TypeError("an entry must have a name, a role, and places that are whole numbers")
        return cls(entries, getattr(torch, description["dtype"]))

    def fingerprint(self) -> str:
        """A short digest of names and shapes."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()[:16]

    def __getitem__(self, name: str) -> Entry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise ArgumentError(f"`name` must be one of {[e.name for e in self.entries]}; got {shown(name)}.")

    def unflatten(self, theta: Tensor, role: str | None = None) -> dict[str, Tensor]:
        """Named views of ``theta`` (... × P), each of shape ... × its own shape."""
        if theta.shape[-1] != self.size:
            raise ArgumentError(f"`theta` must have {self.size} numbers in its last dimension; got {theta.shape[-1]}.")
        lead = theta.shape[:-1]
        return {
            e.name: theta[..., e.start : e.stop].view((*lead, *e.shape))
            for e in self.entries
            if role is None or e.role == role
        }

    def unflatten_learned(self, learned: Tensor, role: str) -> dict[str, Tensor]:
        """The same of what comes after the network's numbers alone, ... × (size - network_size): without a θ."""
        begin, lead = self.network_size, learned.shape[:-1]
        return {
            e.name: learned[..., e.start - begin : e.stop - begin].view((*lead, *e.shape))
            for e in self.entries_of(role)
        }

    def flatten(self, values: nn.Module | Mapping[str, Tensor]) -> Tensor:
        """A new vector with copies of the values of a network or of named tensors; extras left out are zero."""
        found = dict(values.named_parameters()) if isinstance(values, nn.Module) else values
        missing = [e.name for e in self.network_entries if e.name not in found]
        if missing:
            raise ArgumentError(f"`values` must hold every tensor of the layout; missing {missing}.")
        device = found[self.entries[0].name].device if self.network_entries else torch.device("cpu")
        theta = torch.zeros(self.size, dtype=self.dtype, device=device)
        for entry in self.entries:
            if entry.name in found:
                value = found[entry.name].detach()
                if tuple(value.shape) != entry.shape:
                    raise ArgumentError(f"{entry.name!r} must have shape {entry.shape}; got {tuple(value.shape)}.")
                theta[entry.start : entry.stop] = value.reshape(-1)
        return theta

    def attach(self, network: nn.Module, theta: Tensor, grad: Tensor | None = None) -> None:
        """Make ``network``'s parameters views into ``theta`` and, if given, their gradients views into ``grad``.

        ``backward()`` then adds into ``grad`` and a write to ``theta`` changes the network: no copy either way.
        """
        parameters = dict(network.named_parameters())
        for e in self.network_entries:
            parameter = parameters[e.name]
            parameter.data = theta[e.start : e.stop].view(e.shape)
            parameter.grad = None if grad is None else grad[e.start : e.stop].view(e.shape)


def check_subset(subset: object, argument: str) -> None:
    """Something that can name parameters, or ``None`` for all."""
    names = isinstance(subset, str | tuple | list) and bool(subset) and all(isinstance(name, str) for name in subset)
    judges = callable(subset) and not isinstance(subset, type)  # a function of (name, parameter)
    if not (subset is None or names or isinstance(subset, Selector) or judges):
        raise ArgumentError(f"`{argument}` must name parameters, e.g. last_layer or 'head'; got {shown(subset)}.")


def selected(network: nn.Module, subset: Subset = None) -> list[tuple[str, nn.Parameter]]:
    """The parameters that ``subset`` names, in the network's own order; tied weights appear once.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> [name for name, _ in selected(network, last_layer)], [name for name, _ in selected(network, biases)]
    (['1.weight', '1.bias'], ['0.bias', '1.bias'])
    """
    everything = list(network.named_parameters())
    if subset is None:
        found = [(name, p) for name, p in everything if p.requires_grad]
        if not found:
            raise NetworkError("the network must have at least one parameter with requires_grad=True; got none.")
        return found
    if isinstance(subset, Selector):
        wanted = set(subset.names(network))
        found = [(name, p) for name, p in everything if name in wanted]
    elif callable(subset):
        found = [(name, p) for name, p in everything if subset(name, p)]
    else:
        patterns = [subset] if isinstance(subset, str) else list(subset)
        for pattern in patterns:
            if not any(matches(name, pattern) for name, _ in everything):
                raise ArgumentError(
                    f"`subset` must name parameters of the network; nothing matches {pattern!r}. "
                    f"There are {[name for name, _ in everything]}."
                )
        found = [(name, p) for name, p in everything if any(matches(name, pattern) for pattern in patterns)]
    if not found:
        raise ArgumentError(f"`subset` must select at least one parameter; {subset!r} selects none.")
    return found


def matches(name: str, pattern: str) -> bool:
    """Whether ``pattern`` names ``name``: exactly, as a module prefix, or with wildcards."""
    return name == pattern or name.startswith(pattern + ".") or fnmatch.fnmatchcase(name, pattern)


_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def _fan_ins(network: nn.Module) -> dict[str, int]:
    """Inputs of one unit for each weight. An embedding's unit sees one row at a time; a transposed convolution stores
    its weight the other way round."""
    found: dict[str, int] = {}
    for prefix, module in network.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if p.dim() < 2 or isinstance(module, _NORMS):
                continue
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                fan = 1
            elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
                fan = p.shape[0] // module.groups * math.prod(p.shape[2:])
            else:
                fan = math.prod(p.shape[1:])
            found[f"{prefix}.{name}" if prefix else name] = fan
    return found
