"""A network evaluated at many settings of its weights: θ as a matrix S × P, outputs S × B × C.

Small networks are evaluated all at once (``torch.func.vmap``); large ones, and those that cannot be batched, one after
the other. The result is the same to rounding; only the time differs.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from temperance.core.errors import NetworkError
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.model.theta import Layout
from temperance.nn.chain import plain_chain
from temperance.nn.mlp import MLP

# On a CPU one large product keeps the cores busy by itself, and batching only adds copies. Measured on two cores:
# batching 30 draws is 7x faster at P·B = 5e4, 1.5x at 1e7, even at 1e8 and slower beyond; with convolutions it pays
# only for tiny networks. On a GPU it always pays.
_DENSE_LIMIT = 5e7
_CONV_LIMIT = 2e6
_CACHED = 2**19  # activations of all draws that fit the processor's cache

_cannot_batch: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_whole: weakref.WeakKeyDictionary[nn.Module, dict[tuple[str, ...], bool]] = weakref.WeakKeyDictionary()


def call(network: nn.Module, x: Inputs) -> Tensor:
    """``network`` on one tensor, a tuple (positional) or a dict (see :func:`arguments`) of tensors; its output as a
    tensor."""
    if isinstance(x, Tensor):
        return as_output(network(x))
    args, kwargs = arguments(network, x)
    return as_output(network(*args, **kwargs))


DICT_RULE = (
    "a dict of inputs goes to `forward` by keyword where its keys are the names of parameters, and whole where "
    "`forward` has one parameter, of another name"
)


def arguments(network: nn.Module, x: Inputs) -> tuple[tuple[object, ...], dict[str, Tensor]]:
    """How ``network`` is to be called with ``x``: of a dict the signature of its ``forward`` decides.

    >>> class Whole(nn.Module):
    ...     def forward(self, batch): return batch["ids"]
    >>> arguments(Whole(), {"ids": torch.zeros(1)})
    (({'ids': tensor([0.])},), {})
    """
    if isinstance(x, Tensor):
        return (x,), {}
    if not isinstance(x, dict):
        return tuple(x), {}
    return ((x,), {}) if _takes_whole(network, tuple(x)) else ((), x)


def _takes_whole(network: nn.Module, keys: tuple[str, ...]) -> bool:
    """Whether a dict of these keys is one argument of the network's, rather than an argument each."""
    known = _whole.setdefault(network, {})
    if keys not in known:
        known[keys] = _decided(network, keys)
    return known[keys]


def _decided(network: nn.Module, keys: tuple[str, ...]) -> bool:
    try:
        signature = inspect.signature(network.forward)
    except (TypeError, ValueError):
        return False
    with contextlib.suppress(TypeError):
        signature.bind(**dict.fromkeys(keys))
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    single = [p for p in signature.parameters.values() if p.kind in places and p.default is inspect.Parameter.empty]
    if len(single) == 1 and single[0].name not in keys:
        return True
    raise NetworkError(f"{DICT_RULE}; got the keys {list(keys)} for {type(network).__name__}.forward{signature}.")


def as_output(out: object) -> Tensor:
    """The tensor in a network's answer: itself, ``.logits`` of a Hugging Face output, or the first of a tuple. In
    float32 at least: probabilities of two digits do not sum to one."""
    found = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if not isinstance(found, Tensor) and isinstance(out, tuple) and out:
        found = out[0]
    if not isinstance(found, Tensor):
        raise NetworkError(f"the network must return a tensor (or an object with .logits); got {type(out).__name__}.")
    return found.float() if found.is_floating_point() and found.dtype.itemsize < 4 else found


def functional(network: nn.Module, values: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """``network`` with some of its parameters and buffers replaced by ``values``."""
    args, kwargs = arguments(network, x)
    return as_output(call_with(network, values, args, kwargs))


def call_with(
    network: nn.Module, values: Mapping[str, Tensor], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    """``functional_call``, tied weights included. PyTorch's own tying goes by names: a module that has two is changed
    twice and put back twice, the second time to what was there in between, which then stays behind in the network. So
    tensors are tied here by place: each module once, under its first name."""
    held = {name: _held(network, name) for name in values}
    wanted = {id(tensor): values[name] for name, tensor in held.items() if tensor is not None}
    placed = {name: values[name] for name, tensor in held.items() if tensor is None}  # PyTorch says what is wrong
    for prefix, module in network.named_modules():
        for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) in wanted:
                placed[f"{prefix}.{leaf}" if prefix else leaf] = wanted[id(tensor)]
    return functional_call(network, placed, args, dict(kwargs), tie_weights=False)


def _held(network: nn.Module, name: str) -> Tensor | None:
    """The parameter or buffer of this name."""
    prefix, _, leaf = name.rpartition(".")
    try:
        module = network.get_submodule(prefix)
    except AttributeError:
        return None
    found = module._parameters.get(leaf)
    return module._buffers.get(leaf) if found is None else found


def outputs(
    network: nn.Module,
    layout: Layout,
    theta: Tensor,
    x: Inputs,
    *,
    buffers: Mapping[str, Tensor] | None = None,
    batched: bool | None = None,
    stacked_inputs: bool = False,
) -> Tensor:
    """Outputs of ``network`` at each row of ``theta`` (S × P): a tensor S × B × ....

    ``buffers`` holds stacked buffers (S × ...) where each draw has its own. ``batched`` forces one way or the other;
    by default the size decides. With ``stacked_inputs`` the inputs have a leading dimension S too.
    """
    values = dict(layout.unflatten(theta, "network"))
    values.update(buffers or {})
    if batched is None and not stacked_inputs and not torch.is_grad_enabled():
        made = chain_outputs(network, values, x, len(theta))
        if made is not None:
            return made
    if batched is None:
        batched = prefers_batching(network, layout, x, stacked_inputs)
    if batched and network not in _cannot_batch:
        try:
            with warnings.catch_warnings():
                # A missing batching rule is announced by a warning and costs more than the loop: take the loop then.
                warnings.filterwarnings("error", message=".*performance drop.*")
                return at_once(network, values, x, stacked_inputs)
        except Exception:  # whatever stops vmap, the loop below decides; a true error in the network is raised there
            result = _loop(network, values, x, len(theta), stacked_inputs)
            _cannot_batch.add(network)
            return result
    return _loop(network, values, x, len(theta), stacked_inputs)


def chain_outputs(network: nn.Module, values: Mapping[str, Tensor], x: Inputs, count: int) -> Tensor | None:
    """Outputs of a chain of linear layers and elementwise activations, without gradients: all draws in one batched
    product a layer, for so many rows at a time that the activations stay in the processor's cache. ``None`` where the
    network is no such chain; the values must then go another way."""
    layers = plain_chain(network)
    if layers is None or not isinstance(x, Tensor) or x.device.type != "cpu" or not x.is_floating_point():
        return None
    rows = x.flatten(1) if x.dim() > 2 and type(network).forward is MLP.forward else x
    if rows.dim() != 2 or count < 2:
        return None
    stacked: list[tuple[Tensor, Tensor | None] | nn.Module] = []
    width, used = 1, set[str]()
    for layer in layers:
        module = layer.module
        if not isinstance(module, nn.Linear):
            stacked.append(module)
            continue
        names = layer.parameter("weight"), layer.parameter("bias")
        weight = values.get(names[0], module.weight).detach()
        bias = values.get(names[1], module.bias)
        used |= set(names)
        wide = weight if weight.dim() == 3 else weight.expand(count, -1, -1)
        deep = None if bias is None else bias.detach().expand(count, -1).unsqueeze(1)
        stacked.append((wide.mT, deep))
        width = max(width, module.out_features)
    if not used >= set(values) or rows.shape[1] != cast(nn.Linear, layers[0].module).in_features:
        return None
    parts = [_through(stacked, part, count) for part in rows.split(max(64, _CACHED // (count * width)))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _through(layers: list[tuple[Tensor, Tensor | None] | nn.Module], rows: Tensor, count: int) -> Tensor:
    h = rows.expand(count, -1, -1)
    for layer in layers:
        if isinstance(layer, nn.Module):
            h = h.relu_() if isinstance(layer, nn.ReLU) and h.is_contiguous() else layer(h)
        elif layer[1] is None:
            h = torch.bmm(h, layer[0])
        else:
            h = torch.baddbmm(layer[1], h, layer[0])
    return h


def at_once(network: nn.Module, values: Mapping[str, Tensor], x: Inputs, stacked_inputs: bool) -> Tensor:
    """Outputs at all stacked values in one batched evaluation."""
    in_x = 0 if stacked_inputs else None
    return vmap(lambda v, inputs: functional(network, v, inputs), (0, in_x), randomness="different")(dict(values), x)


def _loop(network: nn.Module, values: dict[str, Tensor], x: Inputs, count: int, stacked_inputs: bool) -> Tensor:
    rows = []
    for s in range(count):
        inputs = map_tensors(lambda t, s=s: t[s], x) if stacked_inputs else x  # type: ignore[misc]
        rows.append(functional(network, {name: value[s] for name, value in values.items()}, inputs))
    return torch.stack(rows)


def can_batch(network: nn.Module) -> bool:
    """Whether no attempt to batch this network has failed so far."""
    return network not in _cannot_batch


def prefers_batching(network: nn.Module, layout: Layout, x: Inputs, stacked_inputs: bool = False) -> bool:
    """Whether evaluating all draws at once is likely to be the faster way."""
    tensor = first_tensor(x)
    rows = tensor.shape[1] if stacked_inputs else tensor.shape[0]
    return small_enough(network, layout, rows, tensor.device)


def small_enough(network: nn.Module, layout: Layout, rows: int, device: torch.device) -> bool:
    """The measured rule behind :func:`prefers_batching`."""
    if device.type != "cpu":
        return True
    has_conv = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in network.modules())
    return layout.network_size * rows <= (_CONV_LIMIT if has_conv else _DENSE_LIMIT)
