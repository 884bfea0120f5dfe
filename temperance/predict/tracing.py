"""The linearised network as a graph of tensor operations, Jacobians and all, for exporters."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from temperance.core.errors import ArgumentError
from temperance.data.sources import Inputs, map_tensors, named_tensors

Moments = Callable[[Inputs], tuple[Tensor, Tensor]]
Attached = Callable[[], contextlib.AbstractContextManager[None]]
_FEWEST = 7  # rows of a trace: one would be taken for a fixed number
_CHECKED = (1, 2, 5)


def traced_moments(moments: Moments, attached: Attached, x: Inputs) -> nn.Module:
    """``moments`` as a module from inputs of any number of rows to their outputs' mean and covariance.

    The backward passes within are written out as operations. A tracer takes two dimensions of the same size for one and
    the same number, so the rows shown to it are as many as no other dimension is; and what it wrote is compared with
    what it was shown, for other numbers of rows.
    """
    sizes = {size for _, tensor in named_tensors(x) for size in tensor.shape[1:]}
    count = next(n for n in range(_FEWEST, _FEWEST + len(sizes) + 1) if n not in sizes)
    shown = rows_of(x, count)
    # Fused attention is a kernel of this machine's, its gradient another: written out, a file runs anywhere.
    with attached(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's own, of what it meets on its way
        try:
            graph = make_fx(lambda x: moments(x), tracing_mode="symbolic", _allow_non_fake_inputs=True)(shown)
        except Exception as error:  # whatever stops the tracer: the remedy is the same
            raise ArgumentError(_refusal(f"{type(error).__name__}: {str(error).splitlines()[0]}")) from error
        _own_constants(graph)
        for rows in _CHECKED:
            if not _agree(graph, moments, rows_of(x, rows)):
                raise ArgumentError(_refusal(f"what was written for {count} rows does not hold for {rows}"))
    return graph


def _refusal(reason: str) -> str:
    return (
        f"the linearised network cannot be written down: some layer has no rule for its gradients, such as a recurrent "
        f'one ({reason}). Export draws through the network itself, by="network".'
    )


def _agree(graph: nn.Module, moments: Moments, x: Inputs) -> bool:
    with contextlib.suppress(RuntimeError, IndexError, ValueError):
        pairs = zip(graph(x), moments(x), strict=True)
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-6 * float(b.abs().max())) for a, b in pairs)
    return False


def rows_of(x: Inputs, count: int) -> Inputs:
    """``count`` rows, those of ``x`` over and over."""
    return map_tensors(lambda t: t[torch.arange(count, device=t.device) % len(t)], x)


def _own_constants(graph: nn.Module) -> None:
    """Each constant by itself: weights are views of θ, and a file would hold all of θ for each."""
    for holder in (graph._parameters, graph._buffers):
        for name, value in list(holder.items()):
            if value is not None:
                del holder[name]
                graph.register_buffer(name, value.detach().clone())
    for name, value in list(vars(graph).items()):
        if isinstance(value, Tensor):
            delattr(graph, name)
            graph.register_buffer(name, value.detach().clone())
