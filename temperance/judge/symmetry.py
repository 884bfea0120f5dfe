"""Draws made comparable in weight space.

A network does not change as a function when the units of a hidden layer change places; when a unit of an odd activation
(tanh) changes the signs of all its incoming and outgoing weights; or when a unit of a positively homogeneous activation
(ReLU) has its incoming weights multiplied by c > 0 and its outgoing ones divided by c::

    W′ᵢ = P D Wᵢ,   b′ᵢ = P D bᵢ,   W′ᵢ₊₁ = Wᵢ₊₁ D⁻¹ Pᵀ       D = diag(±1) or diag(c), P a permutation

So one function has n! 2ⁿ settings a layer, and two chains that agree about functions may disagree about every weight
(Wiese et al. 2023; Sen et al. 2024). :func:`canonical` sends each draw to one setting of its orbit by a rule;
:func:`align` to the one nearest to a reference (Ainsworth et al. 2023); :func:`symmetries` says which there are.

Permutations and signs leave a prior as it is that is symmetric and the same for all units of a layer: mapped draws are
draws of the posterior still, on a part of the space. Rescaling does not: a Gaussian prior prefers some scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from temperance.core.checks import check_choice, check_count, check_flag
from temperance.core.errors import ArgumentError, NetworkError
from temperance.model.target import Target
from temperance.model.theta import Layout
from temperance.nn.chain import Called, called
from temperance.posteriors import Draws, Mixture, Point, Posterior, Settings

Order = Literal["bias", "weight", "norm"]
Mapped = TypeVar("Mapped", Tensor, Point, Draws, Mixture)

_Kinds = tuple[type[nn.Module], ...]
_CONVOLUTIONS: _Kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MEAN_POOLS: _Kinds = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_MEAN_POOLS += (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_MAX_POOLS: _Kinds = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_MAX_POOLS += (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_LINEAR_MAPS: _Kinds = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *_MEAN_POOLS)
_HOMOGENEOUS: _Kinds = (nn.ReLU, nn.LeakyReLU, *_MAX_POOLS)
_ODD: _Kinds = (nn.Tanh, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink)
_PLAIN: _Kinds = (nn.Sigmoid, nn.SiLU, nn.GELU, nn.ELU, nn.CELU, nn.SELU, nn.Softplus, nn.Mish, nn.ReLU6)
_PLAIN += (nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid)
_TIE_BREAKERS = 8


@dataclass(frozen=True)
class HiddenLayer:
    """One hidden layer whose units are interchangeable.

    Attributes:
        name: the layer that makes the units, ``nn.Linear`` or a convolution.
        width: how many units, or channels.
        signs: whether a unit's signs can be flipped.
        scales: whether a unit can be rescaled.
        weight: the name of the incoming weights in θ.
        bias: the name of the biases in θ, None without.
        outgoing: the name of the outgoing weights in θ.
        units_last: whether the outgoing weights count places before units, where a flattening did.
    """

    name: str
    width: int
    signs: bool
    scales: bool
    weight: str
    bias: str | None
    outgoing: str
    units_last: bool = False


@dataclass(frozen=True)
class Symmetries:
    """The settings of θ that are one function.

    >>> from temperance.nn import MLP
    >>> found = symmetries(MLP(2, [3, 4], 1, nn.Tanh))
    >>> round(math.exp(found.log_size)) == 6 * 24 * 2**7
    True
    """

    layers: tuple[HiddenLayer, ...]

    @property
    def log_size(self) -> float:
        """The log of the number of permutations and flips, Σ log n! + n log 2."""
        return sum(math.lgamma(h.width + 1) + h.width * math.log(2) * h.signs for h in self.layers)

    @property
    def dimensions(self) -> int:
        """How many free scales there are besides."""
        return sum(h.width for h in self.layers if h.scales)

    def __str__(self) -> str:
        lines = []
        for h in self.layers:
            kinds = ["permutations"] + ["signs"] * h.signs + ["scales"] * h.scales
            lines.append(f"{h.name}: {h.width} units, {' and '.join(kinds)}")
        scales = f", times {self.dimensions} free scales" if self.dimensions else ""
        return "\n".join([*lines, f"e^{self.log_size:.1f} settings of the weights are one function{scales}"])


def symmetries(network: nn.Module | Target) -> Symmetries:
    """The hidden layers of ``network`` whose units can be permuted, flipped or rescaled.

    Understood are :class:`~temperance.nn.MLP`, :class:`~temperance.nn.CNN` and ``nn.Sequential`` (nested too) of
    ``nn.Linear`` and convolutions, with elementwise activations, dropout, pooling and flattening between them. Of a
    :class:`Target` with a ``subset``, or a network with frozen weights, only layers that are random throughout count.

    >>> from temperance.nn import MLP
    >>> print(symmetries(MLP(2, [3, 4], 1, nn.Tanh)))
    0: 3 units, permutations and signs
    2: 4 units, permutations and signs
    e^9.8 settings of the weights are one function
    """
    module, layout = _unpack(network)
    names = {id(p): name for name, p in module.named_parameters()}
    layers = _layers(module)
    places = [i for i, (_, leaf) in enumerate(layers) if _is_weighted(leaf)]
    used = [id(p) for _, leaf in layers for p in leaf.parameters()]
    if len(used) != len(set(used)):
        raise NetworkError("the network must use each weight once to have its symmetries known; got tied weights.")
    random = {entry.name for entry in layout.network_entries}
    found = []
    for here, there in pairwise(places):
        name, into = layers[here]
        hidden = _between(name, into, [leaf for _, leaf in layers[here + 1 : there]], layers[there][1], names)
        if {hidden.weight, hidden.outgoing} | ({hidden.bias} - {None}) <= random:
            found.append(hidden)
    return Symmetries(tuple(found))


def canonical(
    network: nn.Module | Target,
    theta: Mapped,
    *,
    order: Order = "bias",
    signs: bool = True,
    scales: bool = True,
) -> Mapped:
    """Each row of ``theta`` sent to the representative of its orbit: the same function, other weights.

    First scales: a unit of a homogeneous activation gets incoming weights and bias of norm one. Then, layer by layer,
    signs: the number that ``order`` looks at becomes positive; and permutations: units rise by that number.

    The function is that of before to rounding: signs and permutations change nothing but the order of sums; scales are
    divided out exactly, not to powers of two, which would not make two rescaled copies one.

    Args:
        network: the network, or the target, that θ belongs to.
        theta: one θ, a matrix S × P of them, or a posterior of draws (``Draws``, ``Point``, a ``Mixture`` of them);
            what is given back is of the same kind.
        order: what tells units apart. ``"bias"``: the bias; ``"weight"``: the first incoming weight; ``"norm"``: the
            norm of incoming times that of outgoing weights, the largest first, with the largest incoming number made
            positive. Ties are broken by the incoming weights in turn.
        signs: whether signs are mapped.
        scales: whether scales are mapped.

    >>> from temperance.nn import MLP
    >>> network = MLP(1, [2], 1, nn.Tanh)                     # W₁, b₁, W₂, b₂
    >>> canonical(network, torch.tensor([1.0, 2.0, 0.5, -0.3, 7.0, 8.0, 9.0]))
    tensor([-2.0000,  1.0000,  0.3000,  0.5000, -8.0000,  7.0000,  9.0000])
    """
    check_choice(order, "order", ("bias", "weight", "norm"))
    check_flag(signs, "signs")
    check_flag(scales, "scales")
    layout, found = _unpack(network)[1], symmetries(network).layers

    def send(rows: Tensor) -> Tensor:
        made = rows.clone()
        values = layout.unflatten(made)
        if scales:
            _normalise(values, found)
        for hidden in found:
            if signs and hidden.signs:
                _flip(values, hidden, order)
            _move(values, hidden, order=_places(values, hidden, order))
        return made

    return _map(layout, theta, send)


def align(
    network: nn.Module | Target,
    theta: Mapped,
    reference: Tensor,
    *,
    sweeps: int = 20,
    signs: bool = True,
    scales: bool = True,
) -> Mapped:
    """Each row of ``theta`` brought as near to ``reference`` as its symmetries allow: the same function.

    For a layer, unit j of θ is put in place i of the reference so that Σ ⟨reference unit i, unit j⟩ over incoming and
    outgoing weights is largest, an assignment problem; a negative product flips the signs. Layers are visited in turn,
    up to ``sweeps`` times, until nothing moves. That is done from where θ is, and from a first sweep over incoming
    weights alone; the better is kept. Without scales the distance to the reference never grows.

    With ``scales`` the matching is between units of incoming norm one, and a unit then gets the norm of its match.

    >>> from temperance.nn import MLP
    >>> network = MLP(1, [2], 1, nn.Tanh)
    >>> theta = torch.tensor([1.0, 2.0, 0.5, -0.3, 7.0, 8.0, 9.0])
    >>> align(network, torch.tensor([-2.0, 1.0, 0.3, 0.5, -8.0, 7.0, 9.0]), theta).equal(theta)
    True
    """
    check_count(sweeps, "sweeps")
    check_flag(signs, "signs")
    check_flag(scales, "scales")
    layout, found = _unpack(network)[1], symmetries(network).layers
    if not isinstance(reference, Tensor) or reference.shape != (layout.size,):
        got = tuple(reference.shape) if isinstance(reference, Tensor) else type(reference).__name__
        raise ArgumentError(f"`reference` must be a vector of {layout.size} numbers; got {got}.")
    if not bool(torch.isfinite(reference).all()):
        raise ArgumentError("`reference` must be finite; got NaN or infinity.")

    def send(rows: Tensor) -> Tensor:
        goal = reference.detach().to(rows).unsqueeze(0).clone()
        goal_values = layout.unflatten(goal)
        lengths = _normalise(goal_values, found) if scales else {}
        near, fresh = rows.clone(), rows.clone()
        for made, start in ((near, False), (fresh, True)):
            values = layout.unflatten(made)
            if scales:
                _normalise(values, found)
            if start:
                for hidden in found:
                    _match(values, goal_values, hidden, signs, outward=False)
            for _ in range(sweeps):
                moved = [_match(values, goal_values, hidden, signs) for hidden in found]
                if not any(moved):
                    break
        made = torch.where((fresh @ goal[0] > near @ goal[0]).unsqueeze(-1), fresh, near)
        values = layout.unflatten(made)
        for hidden in found:
            if hidden.name in lengths:
                _move(values, hidden, factor=lengths[hidden.name].expand(len(made), -1))
        return made

    return _map(layout, theta, send)


def _unpack(network: nn.Module | Target) -> tuple[nn.Module, Layout]:
    if isinstance(network, Target):
        return network.network, network.layout
    if isinstance(network, nn.Module):
        return network, Layout.of(network)
    raise ArgumentError(f"`network` must be a module or a Target; got {type(network).__name__}.")


def _layers(network: nn.Module) -> list[Called]:
    """The modules that are applied one after another; weights are understood in layers that are known alone."""
    found = list(called(network))
    for name, module in found:
        known = _is_weighted(module) and not parametrize.is_parametrized(module)
        if not known and any(True for _ in module.parameters()):
            raise NetworkError(
                "the symmetries of nn.Linear, nn.Conv1d to nn.Conv3d, and chains of them (nn.Sequential, MLP, CNN) are "
                f"known; got {type(module).__name__} at {name or 'the top'!r}, which has weights of its own."
            )
    return found


def _is_weighted(module: nn.Module) -> bool:
    return type(module).forward in (nn.Linear.forward, *(kind.forward for kind in _CONVOLUTIONS))


def _between(
    name: str, into: nn.Module, between: Sequence[nn.Module], out: nn.Module, names: Mapping[int, str]
) -> HiddenLayer:
    """The hidden layer that ``into`` makes and ``out`` reads, through what is between."""
    space = next((kind.__name__[-2:] for kind in _CONVOLUTIONS if isinstance(into, kind)), None)
    flat = False
    for module in between:
        kind = type(module)
        if kind not in _LINEAR_MAPS + _HOMOGENEOUS + _ODD + _PLAIN:
            raise NetworkError(
                "between layers there must be known elementwise activations, dropout, pooling and flattening; got "
                f"{kind.__name__} after {name!r}."
            )
        if kind in _MEAN_POOLS + _MAX_POOLS and (flat or kind.__name__[-2:] != space):
            raise NetworkError(f"pooling must not mix units; got {kind.__name__} after {type(into).__name__} {name!r}.")
        if isinstance(module, nn.Flatten):
            flat = True
            if (module.start_dim, module.end_dim) != (1, -1):
                raise NetworkError(f"flattening must keep rows and nothing else; got {module} after {name!r}.")
    for layer in (into, out):
        if getattr(layer, "groups", 1) != 1:
            raise NetworkError(f"convolutions must have one group for their units to be alike; got {layer}.")
    width, reads = len(into.get_parameter("weight")), out.get_parameter("weight").shape[1]
    fits = reads % width == 0 if flat else reads == width
    kindred = isinstance(out, nn.Linear) == (flat or space is None)
    if not (kindred and fits):
        raise NetworkError(
            f"a layer must read the units of the one before it; got {type(out).__name__} reading {reads} after "
            f"{type(into).__name__} {name!r} of {width} units{'' if flat else ', without nn.Flatten between'}."
        )
    kinds = {type(module) for module in between}
    return HiddenLayer(
        name,
        width,
        signs=kinds <= {*_LINEAR_MAPS, *_ODD},
        scales=kinds <= {*_LINEAR_MAPS, *_HOMOGENEOUS},
        weight=names[id(into.weight)],
        bias=None if into.bias is None else names[id(into.bias)],
        outgoing=names[id(out.weight)],
        units_last=space is None,
    )


def _incoming(values: Mapping[str, Tensor], hidden: HiddenLayer, bias_first: bool = False) -> Tensor:
    """Incoming weights and bias of each unit, S × n × (inputs + 1)."""
    weight = values[hidden.weight].flatten(2)
    if hidden.bias is None:
        return weight
    bias = values[hidden.bias].unsqueeze(-1)
    return torch.cat([bias, weight] if bias_first else [weight, bias], -1)


def _outgoing(values: Mapping[str, Tensor], hidden: HiddenLayer) -> Tensor:
    """A view of the outgoing weights, S × outputs × n × places."""
    weight = values[hidden.outgoing]
    lead = weight.shape[:2]
    if hidden.units_last:
        return weight.view(*lead, -1, hidden.width).transpose(2, 3)
    return weight.view(*lead, hidden.width, -1)


def _move(
    values: Mapping[str, Tensor], hidden: HiddenLayer, *, order: Tensor | None = None, factor: Tensor | None = None
) -> None:
    """Put unit ``order[:, i]`` in place i, and multiply what comes in by ``factor``, dividing what goes out."""
    rows = values[hidden.weight]
    weight, outgoing = rows.view(*rows.shape[:2], -1), _outgoing(values, hidden)
    bias = None if hidden.bias is None else values[hidden.bias]
    if order is not None:
        weight.copy_(weight.gather(1, order.unsqueeze(-1).expand_as(weight)))
        outgoing.copy_(outgoing.gather(2, order[:, None, :, None].expand_as(outgoing)))
        if bias is not None:
            bias.copy_(bias.gather(1, order))
    if factor is not None:
        weight.mul_(factor.unsqueeze(-1))
        outgoing.div_(factor[:, None, :, None])
        if bias is not None:
            bias.mul_(factor)


def _normalise(values: Mapping[str, Tensor], found: Sequence[HiddenLayer]) -> dict[str, Tensor]:
    """Give units that can be rescaled incoming norm one, from the first layer on; the norms they had."""
    lengths = {}
    for hidden in found:
        if hidden.scales:
            length = _incoming(values, hidden).norm(dim=-1)
            length = torch.where(length > torch.finfo(length.dtype).tiny, length, 1.0)
            lengths[hidden.name] = length
            _move(values, hidden, factor=1.0 / length)
    return lengths


def _flip(values: Mapping[str, Tensor], hidden: HiddenLayer, order: Order) -> None:
    """Make the number that ``order`` looks at positive: the first that is not zero, or the largest."""
    incoming = _incoming(values, hidden, bias_first=order == "bias")
    size = incoming.abs() if order == "norm" else (incoming != 0).to(torch.int8)
    lead = incoming.gather(-1, size.argmax(-1, keepdim=True)).squeeze(-1)
    _move(values, hidden, factor=torch.where(lead < 0, -1.0, 1.0).to(incoming))


def _places(values: Mapping[str, Tensor], hidden: HiddenLayer, order: Order) -> Tensor:
    """The units in the order of their keys."""
    incoming = _incoming(values, hidden, bias_first=order == "bias")
    outward = _outgoing(values, hidden).square().sum((1, 3)).sqrt()
    keys = list(incoming[..., :_TIE_BREAKERS].unbind(-1))
    if order == "norm":
        keys.insert(0, -incoming.norm(dim=-1) * outward)
    return _sort([*keys, outward])


def _sort(keys: Sequence[Tensor]) -> Tensor:
    """The order in which the first key rises, the next where it ties, and so on: S × n."""
    order = torch.arange(keys[0].shape[-1], device=keys[0].device).expand_as(keys[0])
    for key in reversed(keys):
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return order


def _match(
    values: Mapping[str, Tensor], goal: Mapping[str, Tensor], hidden: HiddenLayer, signs: bool, outward: bool = True
) -> bool:
    """Put the units of a layer where they resemble the goal's most; whether any moved."""
    alike = torch.einsum("if,sjf->sij", _incoming(goal, hidden)[0], _incoming(values, hidden))
    if outward:
        alike += torch.einsum("oik,sojk->sij", _outgoing(goal, hidden)[0], _outgoing(values, hidden))
    gain = alike.abs() if signs and hidden.signs else alike
    matched = [scipy.optimize.linear_sum_assignment(table, maximize=True)[1] for table in gain.double().cpu().numpy()]
    order = torch.tensor(np.stack(matched), device=alike.device)
    negative = alike.gather(2, order.unsqueeze(-1)).squeeze(-1) < 0
    flip = negative & (signs and hidden.signs)
    _move(values, hidden, order=order, factor=torch.where(flip, -1.0, 1.0).to(alike))
    return bool(flip.any() or (order != torch.arange(hidden.width, device=order.device)).any())


def _map(layout: Layout, theta: Any, send: Callable[[Tensor], Tensor]) -> Any:
    """``send`` on rows, whatever holds them."""
    if isinstance(theta, Posterior):
        return theta.map_parts(lambda part: _map_settings(layout, part, send))
    if not isinstance(theta, Tensor):
        raise _refused(theta)
    if theta.dim() not in (1, 2) or theta.shape[-1] != layout.size:
        raise ArgumentError(f"`theta` must be P or S × P with P = {layout.size}; got shape {tuple(theta.shape)}.")
    if not theta.is_floating_point():
        raise ArgumentError(f"`theta` must be of a floating dtype; got {theta.dtype}.")
    if not bool(torch.isfinite(theta).all()):
        raise ArgumentError("`theta` must be finite; got NaN or infinity.")
    made = send(theta.detach().reshape(-1, layout.size))
    return made.reshape(theta.shape)


def _map_settings(layout: Layout, part: Posterior, send: Callable[[Tensor], Tensor]) -> Posterior:
    if not isinstance(part, Settings):
        raise _refused(part)
    return part.with_theta(_map(layout, part.theta, send))


def _refused(theta: object) -> ArgumentError:
    return ArgumentError(
        "`theta` must be a tensor, or a posterior of draws (Draws, Point, or a Mixture of them); got "
        f"{type(theta).__name__}."
    )
