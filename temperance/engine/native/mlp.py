"""Energy and gradient of a small fully connected network over all rows, in C: what HMC and NUTS ask for thousands of
times on the same data.

    U(θ) = −Σ_i log p(y_i | x_i, θ) / λ − log p(θ)

A gradient of a network of a thousand weights over 500 rows is 2.6 million floating-point operations, less than 50 µs of
a core's work; a framework that calls one operation after another takes ten times that. :class:`NativeMLP` does all
of it in one call, for one chain or several, and whole trajectories of leapfrog steps.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from temperance.data.sources import Inputs
from temperance.engine.native.build import c_function
from temperance.engine.native.walk import NativeEnergy, Walks
from temperance.model.likelihoods.base import Likelihood
from temperance.model.likelihoods.categorical import Bernoulli, Categorical
from temperance.model.likelihoods.normal import HeteroscedasticNormal, Normal
from temperance.model.priors import BoundPrior
from temperance.model.theta import Layout
from temperance.nn.chain import Called, called, is_altered

_IDENTITY, _TANH, _RELU, _LEAKY_RELU, _SIGMOID, _SILU, _ELU, _SOFTPLUS = range(8)
_PLAIN = {nn.Tanh: _TANH, nn.ReLU: _RELU, nn.Sigmoid: _SIGMOID, nn.SiLU: _SILU}
_KEEPS_DERIVATIVE = (_SILU, _SOFTPLUS)
_CATEGORICAL, _BERNOULLI, _NORMAL, _HETEROSCEDASTIC, _LEARNED_NORMAL = range(5)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_STRIP_BYTES = 96  # rows are padded to whole strips: three vectors of 32 bytes, a multiple of those of 16
_BLOCK_BYTES = 2**18  # what one block of rows may take of the second cache
_MOST_STRIPS = 7  # beyond which larger blocks gain nothing
_WIDE_INPUT = 64  # inputs from which the first layer's gradient reads the data by rows
_LARGEST = 400_000  # numbers in a weight matrix, beyond which nothing is gained over PyTorch's products

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _CLayer(ctypes.Structure):
    _fields_ = [*((name, _COUNT) for name in ("inputs", "outputs", "weight", "bias", "activation")), ("slope", _NUMBER)]


class _CPlan(ctypes.Structure):
    _fields_ = [
        *(
            (n, _COUNT)
            for n in ("layers", "rows", "block", "parameters", "likelihood", "by_rows", "widest", "scratch_size")
        ),
        *((n, _COUNT) for n in ("columns", "scales")),
        *((n, _NUMBER) for n in ("factor", "constant")),
        *((n, _POINTER) for n in ("layer", "x", "x_rows", "y", "mean", "precision", "scratch")),
    ]


@dataclass
class _Layer:
    """W a + b and the activation after it; ``weight`` and ``bias`` are places in θ."""

    name: str
    inputs: int
    outputs: int
    has_bias: bool
    weight: int = 0
    bias: int = -1
    activation: int = _IDENTITY
    slope: float = 0.0


class NativeMLP(NativeEnergy):
    """U(θ) and ∇U(θ) of a fully connected network over fixed data, on a CPU. Made by :meth:`of`.

    >>> from temperance.nn import MLP
    >>> from temperance.model.priors import GaussianPrior
    >>> network = MLP(2, [20], 3, nn.Tanh)
    >>> layout = Layout.of(network)
    >>> x, y = torch.randn(50, 2), torch.randint(3, (50,))
    >>> native = NativeMLP.of(network, layout, Categorical(), GaussianPrior(1.0).bind(layout), 1.0, x, y)
    >>> if native is not None:  # there is a compiler
    ...     theta, energy = torch.zeros(1, layout.size), torch.empty(1, dtype=torch.float64)
    ...     native.energies(theta, torch.empty_like(theta), energy)
    """

    def __init__(
        self,
        layers: list[_Layer],
        kind: tuple[int, float, float],
        prior: tuple[Tensor, Tensor, float] | None,
        bound_prior: BoundPrior,
        x: Tensor,
        y: Tensor,
        walks: Walks,
        scales: int = 0,
    ) -> None:
        size = sum(la.outputs * (la.inputs + (la.bias >= 0)) for la in layers) + scales
        self.complete = prior is not None
        self._bound_prior = bound_prior if prior is None else None
        likelihood, factor, constant = kind
        block = _block_rows(layers, len(x), x.element_size())
        by_rows = layers[0].inputs >= _WIDE_INPUT
        widest = max(layer.outputs for layer in layers)
        kept = sum(layer.outputs * (2 if layer.activation in _KEEPS_DERIVATIVE else 1) for layer in layers)
        scratch = (4 + 2 * widest + kept) * block + 64
        columns = y.unsqueeze(-1) if y.dim() == 1 else y
        rows = x.contiguous() if by_rows else x[:0]
        mean, precision, normaliser = (x[:0], x[:0], 0.0) if prior is None else prior
        self._kept = (_in_blocks(x, block), rows, _in_blocks(columns.to(x.dtype), block), mean, precision)
        self._layers = (_CLayer * len(layers))(
            *(_CLayer(la.inputs, la.outputs, la.weight, la.bias, la.activation, la.slope) for la in layers)
        )
        places = [tensor.data_ptr() if tensor.numel() else None for tensor in self._kept]
        counts = (len(layers), len(x), block, size, likelihood, int(by_rows), widest, scratch, columns.shape[1], scales)
        layer_place = ctypes.addressof(self._layers)
        plan = _CPlan(*counts, factor, constant + normaliser, layer_place, *places, None)
        super().__init__(walks, plan, x.dtype, size, scratch)

    @classmethod
    def of(
        cls,
        network: nn.Module,
        layout: Layout,
        likelihood: Likelihood,
        bound_prior: BoundPrior,
        likelihood_temperature: float,
        x: Inputs,
        y: Tensor,
    ) -> NativeMLP | None:
        """The energy of a :class:`temperance.Target` over ``x`` and ``y`` as its ``prepare`` gives them, or ``None``
        where this cannot be done here: another kind of network, likelihood or device, a part of the weights only, no
        compiler."""
        dtype = layout.dtype
        scales = layout.size - layout.network_size  # learned beside the weights
        if scales != sum(entry.size for entry in layout.entries_of("likelihood")):
            return None
        if not isinstance(x, Tensor) or x.dtype != dtype or dtype not in (torch.float32, torch.float64) or x.dim() < 2:
            return None
        on_cpu = all(t.device.type == "cpu" for t in (x, y, *network.parameters()))
        if not on_cpu or len(x) < 1 or len(y) != len(x):
            return None
        layers = _layers_of(network, layout, x)
        if layers is None or max(la.inputs * la.outputs for la in layers) > _LARGEST:
            return None
        kind = _likelihood_of(likelihood, likelihood_temperature, y, layers[-1].outputs)
        walks = Walks.of(lambda name, arguments: c_function(name, arguments, "mlp.c"), dtype)
        if kind is None or walks is None:
            return None
        flat = x.detach().reshape(len(x), -1)
        prior = _gaussian_of(bound_prior, layout)
        return cls(layers, kind, prior, bound_prior, flat, y.detach(), walks, scales)

    def energies(self, theta: Tensor, grad: Tensor | None, energy: Tensor, threads: int | None = None) -> None:
        """See :class:`~temperance.engine.native.walk.NativeEnergy`; a prior that is not Gaussian is added here."""
        super().energies(theta, grad, energy, threads)
        if self._bound_prior is not None:
            energy -= self._bound_prior.log_prob(theta).double()
            if grad is not None:
                self._bound_prior.add_gradient(theta, grad, -1.0)


# ---------------------------------------------------------------------- what can be done


def _layers_of(network: nn.Module, layout: Layout, x: Tensor) -> list[_Layer] | None:
    """The layers, if the network is a chain of them on ``x`` and θ is exactly their weights and biases, in order."""
    if any(is_altered(module) for module in network.modules()):
        return None
    layers = _chained(list(called(network)), flat=x.dim() == 2)
    if not layers or layers[0].inputs != math.prod(x.shape[1:]):
        return None
    joined = all(before.outputs == after.inputs for before, after in pairwise(layers))
    return layers if joined and _placed(layers, network, layout) else None


def _chained(modules: list[Called], flat: bool) -> list[_Layer] | None:
    """Each linear layer with the activation after it; ``None`` where there is anything else. ``flat`` says whether what
    comes in is rows × numbers."""
    layers: list[_Layer] = []
    open_layer: _Layer | None = None  # the last one, while it has no activation yet
    for name, module in modules:
        if isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0):
            continue
        if isinstance(module, nn.Flatten):
            if (module.start_dim, module.end_dim) != (1, -1):
                return None
            flat = True
        elif type(module) is nn.Linear and flat:
            open_layer = _Layer(name, module.in_features, module.out_features, has_bias=module.bias is not None)
            layers.append(open_layer)
        elif open_layer is not None and (found := _activation_of(module)) is not None:
            open_layer.activation, open_layer.slope = found
            open_layer = None
        else:
            return None
    return layers


def _placed(layers: list[_Layer], network: nn.Module, layout: Layout) -> bool:
    """Note where in θ each layer's numbers are; whether θ is these, in order, and nothing else."""
    names = {id(p): name for name, p in network.named_parameters()}  # tied weights go by their first name
    expected: list[tuple[str, tuple[int, ...], int]] = []
    place = 0
    for layer in layers:
        module = network.get_submodule(layer.name)
        layer.weight = place
        layer.bias = place + layer.inputs * layer.outputs if layer.has_bias else -1
        for parameter in module.parameters(recurse=False):
            expected.append((names[id(parameter)], tuple(parameter.shape), place))
            place += parameter.numel()
    return [(entry.name, entry.shape, entry.start) for entry in layout.network_entries] == expected


def _activation_of(module: nn.Module) -> tuple[int, float] | None:
    kind = type(module)
    if kind in _PLAIN:
        return _PLAIN[kind], 0.0
    if kind is nn.LeakyReLU and module.negative_slope >= 0:  # type: ignore[operator]
        return _LEAKY_RELU, float(module.negative_slope)  # type: ignore[arg-type]
    if kind is nn.ELU and module.alpha == 1:
        return _ELU, 0.0
    if kind is nn.Softplus and module.beta == 1 and module.threshold == 20:
        return _SOFTPLUS, 0.0
    return None


def _likelihood_of(
    likelihood: Likelihood, temperature: float, y: Tensor, outputs: int
) -> tuple[int, float, float] | None:
    """Its kind, the factor on the energies of rows, and what is to be added to their sum."""
    factor = 1.0 / temperature
    if type(likelihood) is Categorical:
        return (_CATEGORICAL, factor, 0.0) if y.dim() == 1 and y.dtype == torch.int64 else None
    if y.dim() != 2 or not y.is_floating_point():
        return None
    each = factor * _HALF_LOG_2PI * y.numel()
    if type(likelihood) is HeteroscedasticNormal:
        return (_HETEROSCEDASTIC, factor, each) if 2 * y.shape[1] == outputs else None
    if y.shape[1] != outputs:
        return None
    if type(likelihood) is Bernoulli:
        return _BERNOULLI, factor, 0.0
    if type(likelihood) is Normal and likelihood.scale is not None:
        return _NORMAL, factor / likelihood.scale**2, each + factor * math.log(likelihood.scale) * y.numel()
    if type(likelihood) is Normal:
        return _LEARNED_NORMAL, factor, each
    return None


def _gaussian_of(bound_prior: BoundPrior, layout: Layout) -> tuple[Tensor, Tensor, float] | None:
    """Means, precisions and the constant of −log p(θ), if every part of the prior is Gaussian."""
    mean, scale = torch.zeros(layout.size, dtype=torch.float64), torch.zeros(layout.size, dtype=torch.float64)
    for piece, density in bound_prior.pieces:
        found = density.gaussian
        if found is None:
            return None
        mean[piece], scale[piece] = found
    if not bool((scale > 0).all()):
        return None
    constant = float(scale.log().sum()) + 0.5 * layout.size * math.log(2 * math.pi)
    return mean.to(layout.dtype), scale.pow(-2).to(layout.dtype), constant


# ---------------------------------------------------------------------- how it is laid out


def _block_rows(layers: list[_Layer], rows: int, item: int) -> int:
    """Rows of a block: whole strips, as many as the cache has room for, and blocks of about one size."""
    strip = _STRIP_BYTES // item
    strips = -(-rows // strip)
    widths = [layer.outputs for layer in layers]
    units = layers[0].inputs + sum(widths) + 2 * max(widths)
    most = min(max(2, _BLOCK_BYTES // (units * _STRIP_BYTES)), _MOST_STRIPS)
    blocks = -(-strips // most)
    return -(-strips // blocks) * strip


def _in_blocks(values: Tensor, block: int) -> Tensor:
    """Rows × columns as blocks of columns × rows; the last row stands in for those missing at the end."""
    missing = -len(values) % block
    padded = torch.cat([values, values[-1:].expand(missing, -1)])
    return padded.view(-1, block, values.shape[1]).transpose(1, 2).contiguous()
