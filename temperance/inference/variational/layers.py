"""Noise at the outputs of layers in place of noise in their weights, in a network that stays as it is.

With θ = μ + σ ⊙ ε shared by all rows of a batch, the rows' gradients are correlated and their average is noisy. For a
linear map (or a convolution) of independent normal weights there are two remedies, both put on from outside by hooks
while a gradient is taken:

* **local reparametrisation** (Kingma et al., 2015): the output of a row is normal too, so it is drawn directly,
  y = x M + √(x² S) ⊙ ε, with M the means, S the variances of the weights and ε of its own for each row. Where a layer
  is used at many places of one row (a convolution, words of a sentence) each place is drawn by itself: the law of
  every output is right, the correlations between places are left out.
* **Flipout** (Wen et al., 2018): one draw ΔW for the batch, whose signs are flipped at random for each row,
  y = x M + ((x ⊙ s) ΔW) ⊙ r: right for all places of a row together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from temperance.core.errors import NetworkError
from temperance.core.seeds import generator
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.inference.curvature.capture import Capture, spelled_out
from temperance.inference.curvature.layers import ConvolutionLayer, LinearLayer, Matrix

Kind = Literal["local", "flipout"]


class NoisyLayers:
    """The layers of a target's network whose noise can be put at their outputs: linear (an attention's maps, too) and
    convolution, used once in a pass, with a weight that nothing else uses. What is not among them is drawn as before.
    """

    def __init__(self, engine: Engine, kind: Kind) -> None:
        self.kind = kind
        if engine.example is None:
            raise NetworkError("the engine has seen no data yet: make it with the training rows, Engine(target, data).")
        # Tried away from the start, where a layer of zeros would hide what lies below it.
        theta = engine.target.initial_theta()
        noise = torch.randn(theta.shape, generator=generator(0, "noisy-layers"), dtype=theta.dtype).to(theta.device)
        capture = Capture(engine, theta + 0.1 * noise, engine.target.running_buffers(), None)
        capture.verify(engine.example)
        self.layers = [
            matrix
            for layer in capture.layers
            for matrix in layer.matrices
            if isinstance(matrix, LinearLayer | ConvolutionLayer)
            and matrix.has_weight
            and capture.repeats(layer) == [1.0] * len(layer.watched)
            and layer.name not in capture.turned  # a row's signs go with the first dimension
        ]
        self.attentions = capture.attentions
        if not self.layers:
            raise NetworkError(
                f"`estimator` {kind!r} needs linear or convolution layers that are called once in a pass; this "
                'network has none. Use estimator="shared".'
            )
        self.shared = torch.ones(engine.layout.size, dtype=torch.bool, device=engine.device)
        for layer in self.layers:
            for entry in layer.entries.values():
                self.shared[entry.start : entry.stop] = False

    @contextlib.contextmanager
    def installed(self, scale: Tensor, stream: NormalStream) -> Iterator[None]:
        """While this lasts, the layers add noise of standard deviations ``scale`` (P numbers, a leaf that collects its
        gradient) to what they compute with the means."""
        with spelled_out(self.attentions, self.layers), contextlib.ExitStack() as stack:
            for layer in self.layers:
                hook = self._hook(layer, scale, stream)
                stack.callback(layer.module.register_forward_hook(hook, with_kwargs=True).remove)
            yield

    def _hook(self, layer: Matrix, scale: Tensor, stream: NormalStream) -> Any:
        weight = layer.entries["weight"]
        bias = layer.entries.get("bias")

        def add_noise(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
            x = args[0] if args else next(iter(kwargs.values()))
            w = scale[weight.start : weight.stop].view(weight.shape)
            b = None if bias is None else scale[bias.start : bias.stop].view(bias.shape)
            if self.kind == "local":
                variance = _apply(layer, x.square(), w.square(), None if b is None else b.square())
                # A row of zeros has no variance, and the root no slope there: a speck keeps the gradient at zero.
                return output + (variance + 1e-20).sqrt() * _normal(output, stream)
            moved = _apply(layer, x * _signs(x, layer, stream), w * _normal(w, stream), None)
            if b is not None:
                moved = moved + _along(b * _normal(b, stream), layer, output)
            return output + moved * _signs(output, layer, stream)

        return add_noise


def _apply(layer: Matrix, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What the layer does, with another weight and bias."""
    if isinstance(layer, LinearLayer):
        return F.linear(x, weight, bias)
    return layer.module._conv_forward(x, weight, bias)  # type: ignore[operator]


def _normal(like: Tensor, stream: NormalStream) -> Tensor:
    return stream.fill_(torch.empty(like.shape, dtype=like.dtype, device=like.device))


def _signs(value: Tensor, layer: Matrix, stream: NormalStream) -> Tensor:
    """±1 for each row and each input or output of the layer, the same at all places."""
    if isinstance(layer, LinearLayer):
        shape = (value.shape[0], *(1,) * (value.dim() - 2), value.shape[-1])
    else:
        shape = (*value.shape[:2], *(1,) * (value.dim() - 2))
    noise = stream.fill_(torch.empty(shape, dtype=value.dtype, device=value.device))
    return torch.where(noise < 0, -1.0, 1.0).to(value.dtype)


def _along(bias: Tensor, layer: Matrix, output: Tensor) -> Tensor:
    """A bias in the shape of the output."""
    return bias if isinstance(layer, LinearLayer) else bias.view(-1, *(1,) * (output.dim() - 2))
