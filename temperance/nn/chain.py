"""Networks that are chains: layers applied one after another. The one place that says which networks are.

- :func:`called` takes a network apart into the modules that it applies, in order and by name, as far as that can be
  seen from outside: ``nn.Sequential``, :class:`MLP` and :class:`CNN`, nested as one likes. What the modules are is for
  the caller to look at. The symmetries of weight space (``judge.symmetry``), local products
  (``judge.diagnose.product``) and the energy in C (``engine.native.mlp``) read networks by it.
- :func:`plain_chain` is the strict form: linear layers and elementwise activations, nothing used twice, nobody
  listening. Such a network may be computed without being called (``engine.outputs``).
- :func:`is_altered` says whether calling a module does something else than its class says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn
from torch.nn.modules import module as torch_module

from temperance.nn.cnn import CNN
from temperance.nn.mlp import MLP

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus)
"""Activations without weights that act on each number by itself."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_IN_ORDER = (nn.Sequential.forward, MLP.forward)
_ITERATE = nn.Sequential.__iter__


class Called(NamedTuple):
    """A module that a network applies, and its name there; its parameters are at ``name.weight`` and so on."""

    name: str
    module: nn.Module

    def parameter(self, name: str) -> str:
        """The name in the network of the module's parameter ``name``."""
        return f"{self.name}.{name}" if self.name else name


def called(module: nn.Module, name: str = "") -> Iterator[Called]:
    """The modules that are applied one after another; one that occurs twice is named twice, and the flattening that
    ``MLP`` and ``CNN`` do themselves is an ``nn.Flatten``.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 1)))
    >>> [(name, type(module).__name__) for name, module in called(network)]
    [('0', 'Linear'), ('1.0', 'Tanh'), ('1.1', 'Linear')]
    """
    dot = f"{name}." if name else ""
    if _applies_in_order(module):
        if type(module).forward is MLP.forward:
            yield Called(f"{dot}flatten", nn.Flatten())
        for key, child in module._modules.items():
            assert child is not None
            yield from called(child, dot + key)
    elif isinstance(module, CNN) and type(module).forward is CNN.forward:
        yield from called(module.features, f"{dot}features")
        yield Called(f"{dot}flatten", nn.Flatten())
        yield from called(module.head, f"{dot}head")
    else:
        yield Called(name, module)


def _applies_in_order(module: nn.Module) -> bool:
    """Whether it calls its children in order and does nothing else; a subclass of Sequential may do anything."""
    if not isinstance(module, nn.Sequential):
        return False
    return type(module).forward in _IN_ORDER and type(module).__iter__ is _ITERATE


def is_altered(module: nn.Module) -> bool:
    """Whether something else happens when it is called: hooks, a ``forward`` of its own, parametrised weights.

    >>> layer = nn.Linear(2, 1)
    >>> before = is_altered(layer)
    >>> handle = layer.register_forward_hook(lambda module, inputs, output: output + 1)
    >>> before, is_altered(layer)
    (False, True)
    """
    own = vars(module)  # asking the module itself for what it lacks is slow, and this is asked at every prediction
    if "forward" in own or "parametrizations" in own["_modules"]:
        return True
    return any(own.get(hooks) for hooks in _HOOKS)


_EVERYWHERE = tuple(
    found
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    if (found := getattr(torch_module, f"_global_{name}", None)) is not None
)


def all_are_altered() -> bool:
    """Whether hooks of PyTorch's that are everybody's (``register_module_forward_hook``) listen to every module.

    >>> handle = torch_module.register_module_forward_hook(lambda module, inputs, output: None)
    >>> before = all_are_altered()
    >>> handle.remove()
    >>> before, all_are_altered()
    (True, False)
    """
    return any(_EVERYWHERE)


def plain_chain(network: nn.Module) -> list[Called] | None:
    """The linear layers and activations of a chain that has nothing else (but dropout in evaluation mode, which does
    nothing), begins with a linear layer, uses no module and no weight twice, and is not altered. Otherwise ``None``.

    >>> [layer.name for layer in plain_chain(MLP(2, [3], 1))]
    ['0', '1', '2']
    >>> plain_chain(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))) is None
    True
    """
    if all_are_altered():
        return None
    found: list[Called] = []
    alone = _collect(network, "", found, set())
    return found if alone and found and type(found[0].module) is nn.Linear else None


def _collect(module: nn.Module, name: str, found: list[Called], seen: set[int]) -> bool:
    """Append what ``module`` applies to ``found``; whether all of it belongs into a plain chain."""
    kind = type(module)
    if is_altered(module):
        return False
    if kind is nn.Identity or (kind is nn.Dropout and not module.training):
        return True
    if id(module) in seen:
        return False
    seen.add(id(module))
    if kind is nn.Sequential or kind is MLP:
        dot = f"{name}." if name else ""
        children = module._modules.items()
        return all(child is not None and _collect(child, dot + key, found, seen) for key, child in children)
    if kind is nn.Linear:
        own = {id(value) for value in module._parameters.values() if value is not None}
        if not own.isdisjoint(seen):
            return False
        seen |= own
    elif kind not in ELEMENTWISE:
        return False
    found.append(Called(name, module))
    return True
