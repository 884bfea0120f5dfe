"""Inputs of layers and gradients at their outputs, caught while the network runs.

Gradients at layers' outputs are asked of autograd directly, so no gradient of a weight is computed on the way: one
such backward pass costs about half of an ordinary one. Which parameters a rule may speak for is not taken on faith: on
a few rows its per-example gradients are compared with automatic differentiation, and what does not agree (a weight used
in two places, a module that is never called, a batch folded into another dimension) is left to
:mod:`temperance.inference.curvature.general`. Attention is spelled out while it is watched
(:mod:`temperance.inference.curvature.attention`), and its outputs are compared with those of the network as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from temperance.core.errors import NetworkError
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.engine.precision import computes_coarsely, full_precision
from temperance.inference.curvature.attention import AttentionLayer, Spelled, spelled
from temperance.inference.curvature.layers import Layer, layer_of
from temperance.model.theta import Entry


@dataclass
class Calls:
    """What a layer was given, where in the graph its outputs are, and their shapes; one entry a call. ``turned``: the
    network has its rows in the second dimension there, and here they are in the first."""

    turned: bool = False
    inputs: list[Tensor] = field(default_factory=list)
    edges: list[GradientEdge] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)


@dataclass
class CapturedPass:
    """One batch on its way through the network."""

    outputs: Tensor
    calls: list[Calls]
    rows: int

    def gradients(self, cotangent: Tensor) -> list[list[Tensor]]:
        """∂(cotangent · outputs)/∂(each layer's outputs): a list for each layer, a tensor for each call."""
        edges = [edge for calls in self.calls for edge in calls.edges]
        shapes = [shape for calls in self.calls for shape in calls.shapes]
        answer = torch.autograd.grad(
            self.outputs, edges, cotangent.to(self.outputs), retain_graph=True, allow_unused=True
        )
        # A layer may be called and its output thrown away.
        found = [self.outputs.new_zeros(s) if g is None else _wide(g) for g, s in zip(answer, shapes, strict=True)]
        made, at = [], 0
        for calls in self.calls:
            own = found[at : at + len(calls.edges)]
            made.append(_turned(own) if calls.turned else own)
            at += len(calls.edges)
        return made


class RuleBroken(NetworkError):
    """A layer is not used in a batch as it was when its rule was tried."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(
            f"layer {layer.name!r} is given another share of the rows in one batch than in another (a path that "
            "depends on the data), so the rule for its gradients does not hold."
        )
        self.layer = layer


class Capture:
    """The network of a target, split into layers with a rule and parameters without.

    Attributes:
        layers: those whose rule agrees with automatic differentiation.
        rest: for each module of which some parameter has no usable rule, its name and these parameters.
        names: the network's parameters that are random here.
        turned: names of layers that the network calls with its rows in the second dimension (words come first).
    """

    def __init__(self, engine: Engine, theta: Tensor, buffers: dict[str, Tensor], names: Sequence[str] | None) -> None:
        self.engine, self.theta, self.buffers = engine, theta.detach().clone(), buffers
        chosen = set(names) if names is not None else {e.name for e in engine.layout.network_entries}
        self.entries = [e for e in engine.layout.network_entries if e.name in chosen]
        self.names = [e.name for e in self.entries]
        self.layers: list[Layer] = []
        self.attentions: list[Spelled] = []
        self.rest: dict[str, list[Entry]] = {}
        self.turned: set[str] = set()
        self._repeats: dict[str, list[float]] = {}
        self.coarse = computes_coarsely(self.network)
        self._find_layers()

    @property
    def network(self) -> nn.Module:
        """The working network."""
        return self.engine.network

    def _find_layers(self) -> None:
        by_name = {e.name: e for e in self.entries}
        shared: dict[int, int] = {}
        for module in self.network.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    shared[id(parameter)] = shared.get(id(parameter), 0) + 1
        taken: set[str] = set()
        for prefix, module in self.network.named_modules():
            own: dict[str, Entry] = {}
            alone = True
            for leaf, parameter in module.named_parameters(recurse=False):
                full = f"{prefix}.{leaf}" if prefix else leaf
                if full in by_name:
                    own[leaf] = by_name[full]
                    alone = alone and shared[id(parameter)] == 1
            attention = spelled(module)
            if attention is not None:
                self.attentions.append(attention)
            if not own:
                continue
            layer: Layer | None = None
            if alone:
                layer = AttentionLayer(prefix, attention, own) if attention else layer_of(prefix, module, own)
            if layer is None:
                self.rest[prefix] = list(own.values())
            else:
                self.layers.append(layer)
            taken.update(e.name for e in own.values())
        missing = [e for e in self.entries if e.name not in taken]  # held by a parametrisation, or the like
        for entry in missing:
            self.rest.setdefault(entry.name.rpartition(".")[0], []).append(entry)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """θ in the network, in evaluation mode, gradients only of what is random. Without torch's fast path for
        transformers, which it takes where nothing asks for gradients: its outputs at padded places are others."""
        workspace = self.engine.workspace
        workspace.attach(self.theta, None, self.buffers)
        workspace.set_training(False)
        chosen = set(self.names)
        before = {name: p.requires_grad for name, p in self.network.named_parameters()}
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(name in chosen)
        # Gradients of embeddings as they are: dense, and not divided by how often a word occurs in the batch.
        embeddings = [m for m in self.network.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        settings = [(m.sparse, m.scale_grad_by_freq) for m in embeddings]
        for module in embeddings:
            module.sparse = module.scale_grad_by_freq = False
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.enable_grad(), full_precision(self.network):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for module, (sparse, scaled) in zip(embeddings, settings, strict=True):
                module.sparse, module.scale_grad_by_freq = sparse, scaled
            for name, parameter in self.network.named_parameters():
                parameter.requires_grad_(before[name])
            workspace.detach()

    def parameters(self) -> list[nn.Parameter]:
        """The random parameters, in the order of θ."""
        found = dict(self.network.named_parameters())
        return [found[name] for name in self.names]

    def run(self, x: Inputs, layers: Sequence[Layer] | None = None) -> CapturedPass:
        """Outputs for ``x`` with everything caught; only inside :meth:`attached`."""
        wanted = self.layers if layers is None else list(layers)
        calls = [Calls(layer.name in self.turned) for layer in wanted]

        def hook(index: int) -> Any:
            def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
                given = args[0] if args else next(iter(kwargs.values()))
                if isinstance(output, Tensor) and isinstance(given, Tensor) and output.requires_grad:
                    found = _wide(given.detach())
                    calls[index].inputs.append(_turned([found])[0] if calls[index].turned else found)
                    # The edge, not the tensor: an operation in place may change the tensor afterwards.
                    calls[index].edges.append(get_gradient_edge(output))
                    calls[index].shapes.append(output.shape)

            return catch

        with spelled_out(self.attentions, wanted), contextlib.ExitStack() as stack:
            for k, layer in enumerate(wanted):
                for module in layer.watched:
                    stack.callback(module.register_forward_hook(hook(k), with_kwargs=True).remove)
            outputs = self.outputs(x)
        flow = CapturedPass(outputs, calls, first_tensor(x).shape[0])
        for layer, made in zip(wanted, calls, strict=True):
            if layer.name in self._repeats and self._repeats[layer.name] != _repeats(made.inputs, flow.rows):
                raise RuleBroken(layer)
        return flow

    def outputs(self, x: Inputs) -> Tensor:
        """B × C."""
        return self.engine.likelihood.arrange(forward.call(self.network, x))

    def leave(self, layer: Layer) -> None:
        """Speak for ``layer`` no more: its parameters go to ``rest``."""
        self.layers = [other for other in self.layers if other is not layer]
        self.rest.setdefault(layer.name, []).extend(layer.entries.values())

    def repeats(self, layer: Layer) -> list[float]:
        """For each call of ``layer`` in a pass, how many rows it was given for one of the batch."""
        return self._repeats.get(layer.name, [])

    def recall(self) -> bool:
        """Do without :meth:`verify` where these parameters of this network have been through it before."""
        known = self.engine.workspace.known_rules.get(tuple(self.names))
        if known is None:
            return False
        kept, self._repeats, self.turned = known[0], dict(known[1]), set(known[2])
        for layer in self.layers.copy():
            if layer.name not in kept:
                self.leave(layer)
        return True

    def verify(self, x: Inputs) -> None:
        """Keep the rules that agree with automatic differentiation on the rows ``x``; the others' parameters go to
        ``rest``. Also finds out a network whose outputs change from one pass to the next."""
        rows = first_tensor(x).shape[0]
        with self.attached():
            with torch.no_grad():
                again = self.outputs(x)
            flow = self._run_alike(x, again)
            if not torch.allclose(flow.outputs.detach(), again, rtol=1e-3, atol=1e-5, equal_nan=True):
                raise NetworkError(
                    "the network must be deterministic in evaluation mode, but two passes over the same rows differ: "
                    "some dropout or noise does not heed .eval(). Pass training=self.training to F.dropout."
                )
            self._refuse_mixing(x, flow.outputs.detach())
            rng = torch.Generator().manual_seed(0)
            cotangent = torch.randn(flow.outputs.shape, generator=rng, dtype=flow.outputs.dtype).to(flow.outputs.device)
            called = [k for k, calls in enumerate(flow.calls) if calls.edges]
            flow.calls = [flow.calls[k] for k in called]
            gradients = flow.gradients(cotangent) if called else []
            # Of the first row and of the last: a rule that confuses rows, or takes another dimension for them, is seen.
            truth: dict[int, dict[str, Tensor]] = {}
            for row in {0, rows - 1}:
                mask = torch.zeros_like(cotangent)
                mask[row] = cotangent[row]
                found = torch.autograd.grad(
                    flow.outputs, self.parameters(), mask, retain_graph=True, materialize_grads=True
                )
                truth[row] = dict(zip(self.names, found, strict=True))
        for k, layer in enumerate(self.layers.copy()):
            repeats = None
            if k in called:
                at = called.index(k)
                repeats = self._tried(layer, flow.calls[at].inputs, gradients[at], rows, truth)
            if repeats is None:
                self.leave(layer)
            else:
                self._repeats[layer.name] = repeats
        kept = {layer.name for layer in self.layers}
        self.engine.workspace.known_rules[tuple(self.names)] = (kept, dict(self._repeats), set(self.turned))

    def _tried(
        self,
        layer: Layer,
        inputs: list[Tensor],
        gradients: list[Tensor],
        rows: int,
        truth: dict[int, dict[str, Tensor]],
    ) -> list[float] | None:
        """How often the rows are repeated in each call of a layer whose rule agrees with ``truth``, rows in the first
        dimension or in the second."""
        for turned in (False, True):
            with contextlib.suppress(RuntimeError, IndexError, ValueError, NotImplementedError):
                if turned:
                    inputs, gradients = _turned(inputs), _turned(gradients)
                made = layer.jacobian(inputs, gradients, rows)
                if all(_agrees(layer, made[row], truth[row], self.coarse) for row in truth):
                    self.turned.update({layer.name} if turned else ())
                    return _repeats(inputs, rows)
        return None

    def _run_alike(self, x: Inputs, outputs: Tensor) -> CapturedPass:
        """A pass with everything caught; without attention where that, spelled out, gives other outputs."""
        flow = self.run(x)
        tolerance = 1e-9 if outputs.dtype == torch.float64 else 1e-3
        off = float((flow.outputs.detach() - outputs).abs().max())
        inside = [layer for layer in self.layers if any(a.concerns(layer) for a in self.attentions)]
        if off <= tolerance * float(outputs.abs().max()) or not inside:
            return flow
        for layer in inside:
            self.leave(layer)
        return self.run(x)

    @torch.no_grad()
    def _refuse_mixing(self, x: Inputs, outputs: Tensor) -> None:
        """The curvature is a sum over examples only if one example's outputs do not depend on another."""
        alone = self.outputs(map_tensors(lambda t: t[:1], x))[0]
        size = float(outputs.abs().max())
        if float((alone - outputs[0]).abs().max()) > 0.01 * size + 1e-5:
            raise NetworkError(
                "the outputs for one row must not depend on the other rows of its batch, but the first row alone gives "
                "others than among several: the likelihood is no product over examples. A batch norm without running "
                "statistics does this; use nn.GroupNorm or temperance.nn.FilterResponseNorm."
            )


@contextlib.contextmanager
def spelled_out(attentions: Sequence[Spelled], layers: Sequence[Layer]) -> Iterator[None]:
    """While this lasts, hooks see the maps of the attentions that any of ``layers`` is a part of."""
    with contextlib.ExitStack() as stack:
        for attention in attentions:
            if any(attention.concerns(layer) for layer in layers):
                stack.enter_context(attention.installed())
        yield


def _wide(value: Tensor) -> Tensor:
    """Half precision, of a frozen part of the network, in float32: moments are sums over many rows."""
    return value.float() if value.is_floating_point() and value.dtype.itemsize < 4 else value


def _turned(tensors: list[Tensor]) -> list[Tensor]:
    """The second dimension first."""
    return [value.transpose(0, 1) if value.dim() > 1 else value for value in tensors]


def _repeats(inputs: list[Tensor], rows: int) -> list[float]:
    """For each call, how many rows the layer was given for one of the batch."""
    return [value.shape[0] / rows if value.dim() else 0.0 for value in inputs]


def _agrees(layer: Layer, made: Tensor, truth: dict[str, Tensor], coarse: bool) -> bool:
    true = torch.cat([truth[e.name].flatten() for e in layer.entries.values()])
    if made.shape != true.shape:
        return False
    tolerance = 0.03 if coarse else 1e-9 if made.dtype == torch.float64 else 1e-3
    size = float(true.abs().max())
    return float((made - true).abs().max()) <= tolerance * max(size, 1e-12)
