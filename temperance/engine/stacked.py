"""Gradients of E members of a chain of layers, without a graph: what ensembles of small networks on tables ask for
thousands of times.

A step of such a network is a dozen matrix products of some 10 µs; ``vmap`` and autograd take longer than that to find
out which. Here they are written down: forward a ← φ(a Wᵀ + b), backward δ ← (δ W) φ'(·), and gradients δᵀ a go where
they belong in E × P.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from temperance.data.sources import Inputs
from temperance.model.theta import Layout
from temperance.nn.chain import all_are_altered, is_altered, plain_chain
from temperance.nn.mlp import MLP


class _Affine:
    """a Wᵀ + b of all members; views into θ, and into the gradient where the layer is learned."""

    def __init__(self, module: nn.Module, count: int, values: dict[str, Tensor], slopes: dict[str, Tensor]) -> None:
        weight, bias = (values.get(name, getattr(module, name)) for name in ("weight", "bias"))
        weight = weight.detach()
        self.weight = weight if weight.dim() == 3 else weight.expand(count, -1, -1)
        self.bias = None if bias is None else bias.detach().expand(count, -1).unsqueeze(1)
        self.weight_slope, self.bias_slope = slopes.get("weight"), slopes.get("bias")

    def __call__(self, a: Tensor) -> Tensor:
        return torch.bmm(a, self.weight.mT) if self.bias is None else torch.baddbmm(self.bias, a, self.weight.mT)

    def learn(self, a: Tensor, delta: Tensor) -> None:
        if self.weight_slope is not None:
            self.weight_slope.copy_(torch.bmm(delta.mT, a))
        if self.bias_slope is not None:
            torch.sum(delta, 1, out=self.bias_slope)


class StackedChain:
    """A chain of linear layers and elementwise activations at the rows of θ, whose gradient goes into ``grad`` (both
    E × P). Made by :meth:`of`; it serves as long as these are the tensors that move."""

    def __init__(self, network: nn.Module, layers: list[_Affine | nn.Module], theta: Tensor, grad: Tensor) -> None:
        self.network, self.theta, self.grad = network, theta, grad
        self._layers, self._modules = layers, list(network.modules())
        self._children = [(found, tuple(found.values())) for m in self._modules if (found := m._modules)]
        first = layers[0]
        assert isinstance(first, _Affine)
        self._inputs, self._dtype = first.weight.shape[-1], first.weight.dtype
        self._flattens = type(network).forward is MLP.forward

    @classmethod
    def of(cls, network: nn.Module, layout: Layout, theta: Tensor, grad: Tensor) -> StackedChain | None:
        """``None`` where the network is no such chain, or θ has parameters of the network that it does not use."""
        chain = plain_chain(network)
        if chain is None or theta.dim() != 2:
            return None
        values, slopes = (layout.unflatten(rows.detach(), "network") for rows in (theta, grad))
        layers: list[_Affine | nn.Module] = []
        for layer in chain:
            if not isinstance(layer.module, nn.Linear):
                layers.append(_apart(layer.module))
                continue
            names = {name: layer.parameter(name) for name in ("weight", "bias")}
            own, into = ({k: found[n] for k, n in names.items() if n in found} for found in (values, slopes))
            layers.append(_Affine(layer.module, len(theta), own, into))
            values = {name: value for name, value in values.items() if name not in names.values()}
        return None if values else cls(network, layers, theta, grad)

    def untouched(self) -> bool:
        """Whether the network is still what it was: nobody listens to its layers, and none has been replaced."""
        if all_are_altered() or any(is_altered(module) for module in self._modules):
            return False
        return all(tuple(map(id, now.values())) == tuple(map(id, before)) for now, before in self._children)

    def rows(self, x: Inputs, streams: bool) -> Tensor | None:
        """``x`` as E × B × inputs; ``None`` where it must go another way."""
        if not isinstance(x, Tensor) or x.dtype is not self._dtype:
            return None
        before = 2 if streams else 1
        found = x.flatten(before) if x.dim() > before + 1 and self._flattens else x
        if found.dim() != before + 1 or found.shape[-1] != self._inputs:
            return None
        return found if streams else found.expand(len(self.theta), -1, -1)

    @torch.no_grad()
    def forward(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs E × B × C, and what comes into each layer."""
        a, kept = rows, []
        for layer in self._layers:
            kept.append(a)
            a = layer(a)
        return a, kept

    @torch.no_grad()
    def backward(self, delta: Tensor, kept: list[Tensor]) -> None:
        """Write the gradient of a loss whose slope in the outputs is ``delta`` into ``grad``."""
        for k in range(len(self._layers) - 1, -1, -1):
            layer, a = self._layers[k], kept[k]
            if not isinstance(layer, _Affine):
                delta = _through(layer, a, delta)
                continue
            layer.learn(a, delta)
            if k:
                delta = torch.bmm(delta, layer.weight)


def _apart(activation: nn.Module) -> nn.Module:
    """The same activation, which leaves what comes in as it was: that is needed on the way back."""
    if not getattr(activation, "inplace", False):
        return activation
    made = copy.copy(activation)
    made.inplace = False  # type: ignore[assignment]
    return made


def _through(activation: nn.Module, a: Tensor, delta: Tensor) -> Tensor:
    """The slope before an elementwise activation, from that behind it."""
    if type(activation) is nn.ReLU:
        return torch.ops.aten.threshold_backward(delta, a, 0.0)
    with torch.enable_grad():
        leaf = a.detach().requires_grad_()
        (found,) = torch.autograd.grad(activation(leaf), leaf, delta)
    return found
