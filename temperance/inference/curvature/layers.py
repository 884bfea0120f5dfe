"""What each kind of layer knows about its own gradients.

A layer's input a and the gradient g at its output are all that its curvature is made of. With *rows* r for the places
at which a layer is used (positions of a convolution, words of a sentence, repeated calls), the gradient of one example
is Σ_r g_r a_rᵀ for a matrix, and a sum over rows of g_r ⊙ x̂_r for the scale of a norm.

A rule need not be trusted: :mod:`curvature.capture` compares what it says with automatic differentiation on
a few rows before it is used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from temperance.model.theta import Entry
from temperance.nn.norm import OwnGradients

_CHUNK = 2**25  # numbers of per-example gradients held at once


class Layer(ABC):
    """A module of the network, those of its parameters that are random, and the rule for their gradients.

    ``inputs`` and ``gradients`` are lists, one tensor for each time the module (or one of several) was called.
    """

    def __init__(self, name: str, module: nn.Module, entries: dict[str, Entry]) -> None:
        self.name, self.module, self.entries = name, module, entries

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where in θ its parameters are, in the order of :meth:`jacobian`."""
        return tuple((e.start, e.stop) for e in self.entries.values())

    @property
    def size(self) -> int:
        """p, how many parameters."""
        return sum(e.size for e in self.entries.values())

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The weight matrices that it consists of, by which Kronecker factors go; none where it is of another kind."""
        return ()

    @property
    def watched(self) -> tuple[nn.Module, ...]:
        """The modules whose inputs and output gradients it is made of, in the order in which a pass calls them."""
        return (self.module,)

    @abstractmethod
    def jacobian(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Gradients of single examples, B × p."""

    def squares(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Σ over examples of squared gradients, p."""
        total: Tensor | None = None
        step = max(1, _CHUNK // self.size)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            part = [[chunk(t, start, count, rows) for t in tensors] for tensors in (inputs, gradients)]
            found = self.jacobian(part[0], part[1], count).square().sum(0)
            total = found if total is None else total + found
        assert total is not None
        return total


def chunk(tensor: Tensor, start: int, count: int, rows: int) -> Tensor:
    """Some examples of a tensor whose first dimension is examples, or examples times repeats."""
    repeats = tensor.shape[0] // rows
    return tensor[start * repeats : (start + count) * repeats]


def _by_example(tensor: Tensor, rows: int) -> Tensor:
    """(B·m) × R × d, as a layer sees it whose caller has folded places into the batch, to B × (m·R) × d."""
    return tensor.reshape(rows, -1, tensor.shape[-1])


class Matrix(Layer):
    """Layers that multiply by a weight matrix: linear, convolution, embedding.

    ``groups`` of outputs see inputs of their own (grouped convolutions); each has a matrix out × in of its own.
    """

    groups = 1

    def __init__(self, name: str, module: nn.Module, entries: dict[str, Entry]) -> None:
        # Weight before bias, also where a parametrisation was taken off and the weight came back as the last.
        super().__init__(name, module, dict(sorted(entries.items(), key=lambda item: item[0] == "bias")))

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """See :class:`Layer`."""
        return (self,)

    @property
    def has_weight(self) -> bool:
        """Whether the weight is random."""
        return "weight" in self.entries

    @property
    def has_bias(self) -> bool:
        """Whether the bias is random."""
        return "bias" in self.entries

    @abstractmethod
    def _input_rows(self, value: Tensor) -> Tensor:
        """A call's input as n × R × (groups · in)."""

    @abstractmethod
    def _output_rows(self, value: Tensor) -> Tensor:
        """A gradient at a call's output as n × R × (groups · out)."""

    def input_rows(self, inputs: Sequence[Tensor], rows: int) -> Tensor:
        """groups × B × R × in, with a one in the last place where there is a bias."""
        made = torch.cat([_by_example(self._input_rows(value), rows) for value in inputs], dim=1)
        made = made.unflatten(-1, (self.groups, -1)).permute(2, 0, 1, 3)
        if not self.has_weight:
            return torch.ones_like(made[..., :1])
        if self.has_bias:
            made = torch.cat([made, torch.ones_like(made[..., :1])], dim=-1)
        return made

    def output_rows(self, gradients: Sequence[Tensor], rows: int) -> Tensor:
        """groups × B × R × out."""
        made = torch.cat([_by_example(self._output_rows(value), rows) for value in gradients], dim=1)
        return made.unflatten(-1, (self.groups, -1)).permute(2, 0, 1, 3)

    def group_places(self, group: int) -> tuple[tuple[int, int], ...]:
        """Where in θ the weight and bias of one group are."""
        found = []
        for entry in self.entries.values():
            share = entry.size // self.groups
            found.append((entry.start + group * share, entry.start + (group + 1) * share))
        return tuple(found)

    def jacobian(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Σ_r g_r a_rᵀ."""
        return self.flat(self.output_rows(gradients, rows).mT @ self.input_rows(inputs, rows))

    def flat(self, made: Tensor) -> Tensor:
        """groups × B × out × in to B × p."""
        made = made.transpose(0, 1)
        if self.has_weight and self.has_bias:
            return torch.cat([made[..., :-1].flatten(1), made[..., -1].flatten(1)], dim=1)
        return made.flatten(1)

    def squares(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """With one row an example, (g²)ᵀ a²: no gradient of a single example is built."""
        a, g = self.input_rows(inputs, rows), self.output_rows(gradients, rows)
        if a.shape[2] > 1:
            return super().squares(inputs, gradients, rows)
        made = g[:, :, 0].square().mT @ a[:, :, 0].square()
        return self.flat(made.unsqueeze(1))[0]


class LinearLayer(Matrix):
    """``nn.Linear``, on inputs of any number of dimensions."""

    def _input_rows(self, value: Tensor) -> Tensor:
        return value.reshape(value.shape[0], -1, value.shape[-1])

    _output_rows = _input_rows


class ConvolutionLayer(Matrix):
    """``nn.Conv1d/2d/3d``, with any stride, padding, dilation and groups: a row for each place of the kernel."""

    module: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def __init__(self, name: str, module: nn.Module, entries: dict[str, Entry]) -> None:
        super().__init__(name, module, entries)
        self.groups = self.module.groups

    def _input_rows(self, value: Tensor) -> Tensor:
        conv = self.module
        space = len(conv.kernel_size)
        padding = conv._reversed_padding_repeated_twice
        if any(padding):
            value = F.pad(value, padding, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode)
        for d in range(space):
            reach = conv.dilation[d] * (conv.kernel_size[d] - 1) + 1
            value = value.unfold(2 + d, reach, conv.stride[d])[..., :: conv.dilation[d]]
        # n × channels × places × kernel, to n × places × (channels · kernel)
        order = (0, *range(2, 2 + space), 1, *range(2 + space, 2 + 2 * space))
        return value.permute(order).flatten(1 + space).flatten(1, space)

    def _output_rows(self, value: Tensor) -> Tensor:
        return value.flatten(2).mT


class Lookup(Matrix):
    """A matrix of which each row of the input picks a vector: a word's, say. It is used word by word."""

    @abstractmethod
    def words(self, inputs: Sequence[Tensor], rows: int) -> Tensor:
        """Which vectors are picked, B × R."""

    @abstractmethod
    def without_padding(self, words: Tensor, g: Tensor) -> Tensor:
        """Gradients with those of words that are never learned taken out."""


class EmbeddingLayer(Lookup):
    """``nn.Embedding``: the matrix is words × dimensions, and a row of the input is a word. θ holds it word by word, so
    the *output* of the matrix in our sense is the word and its input the dimension: only used word by word."""

    module: nn.Embedding

    def _input_rows(self, value: Tensor) -> Tensor:
        raise NotImplementedError("an embedding has words for inputs")

    def _output_rows(self, value: Tensor) -> Tensor:
        return value.reshape(value.shape[0], -1, value.shape[-1])

    def words(self, inputs: Sequence[Tensor], rows: int) -> Tensor:
        """The words, B × R."""
        return torch.cat([value.reshape(rows, -1) for value in inputs], dim=1)

    def without_padding(self, words: Tensor, g: Tensor) -> Tensor:
        """Gradients with those of padding taken out: they never reach the weight."""
        padding = self.module.padding_idx
        return g if padding is None else g * (words != padding).unsqueeze(-1)

    def jacobian(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Each word's rows added up, B × words × dimensions."""
        words, g = self.words(inputs, rows), self.output_rows(gradients, rows)[0]
        made = g.new_zeros(rows, *self.entries["weight"].shape)
        made.scatter_add_(1, words.unsqueeze(-1).expand_as(g), self.without_padding(words, g))
        return made.flatten(1)

    def squares(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Only the words that occur in an example are touched."""
        words, g = self.words(inputs, rows), self.output_rows(gradients, rows)[0]
        vocabulary, width = self.entries["weight"].shape
        example = torch.arange(rows, device=words.device).unsqueeze(1)
        keys, place = (example * vocabulary + words).flatten().unique(return_inverse=True)
        summed = g.new_zeros(len(keys), width).index_add_(0, place, self.without_padding(words, g).reshape(-1, width))
        made = g.new_zeros(vocabulary, width).index_add_(0, keys % vocabulary, summed.square())
        return made.flatten()


class NormLayer(Layer):
    """Scale and shift after a normalisation that has no other parameters: y = γ ⊙ x̂ + β."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        entries: dict[str, Entry],
        normalise: Callable[[Tensor], Tensor],
        by_channel: bool,
    ) -> None:
        super().__init__(name, module, entries)
        self.normalise = normalise
        self.by_channel = by_channel  # channels are dimension 1, or the last dimensions are those of the parameters

    def _gather(self, value: Tensor, rows: int) -> Tensor:
        """A value per output, summed over the places that share a parameter: B × parameters."""
        if self.by_channel:
            return sum_over_places(value, rows)
        summed = value.reshape(value.shape[0], -1, math.prod(next(iter(self.entries.values())).shape)).sum(1)
        return summed.reshape(rows, -1, summed.shape[-1]).sum(1)

    def jacobian(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """(Σ g x̂, Σ g), in the order of the parameters."""
        parts: dict[str, Tensor] = {}
        for x, g in zip(inputs, gradients, strict=True):
            for role in self.entries:
                piece = self._gather(g * self.normalise(x) if role in ("weight", "scale") else g, rows)
                parts[role] = parts[role] + piece if role in parts else piece
        return torch.cat([parts[role] for role in self.entries], dim=1)


class ChannelLayer(Layer):
    """A module that knows its own rule: see :class:`~temperance.nn.norm.OwnGradients`."""

    module: OwnGradients

    def jacobian(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Summed over the places that share a channel, in the order of the parameters."""
        parts: dict[str, Tensor] = {}
        for x, g in zip(inputs, gradients, strict=True):
            pieces = self.module.channel_gradients(x, g)
            for role in self.entries:
                piece = sum_over_places(pieces[role], rows)
                parts[role] = parts[role] + piece if role in parts else piece
        return torch.cat([parts[role] for role in self.entries], dim=1)


def sum_over_places(value: Tensor, rows: int) -> Tensor:
    """A value per place of a channel (dimension 1), summed: B × channels."""
    summed = value.flatten(2).sum(-1) if value.dim() > 2 else value
    return summed.reshape(rows, -1, summed.shape[-1]).sum(1)


def _normaliser(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The part of a norm that comes before scale and shift."""
    if isinstance(module, nn.LayerNorm):
        return lambda x: F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return lambda x: F.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return lambda x: F.rms_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        return lambda x: F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and not module.track_running_stats:
        return lambda x: F.instance_norm(x, eps=module.eps)
    return None


def layer_of(name: str, module: nn.Module, entries: dict[str, Entry]) -> Layer | None:
    """The rule for ``module``, or ``None`` where there is none; ``entries`` are its random parameters, by own name."""
    if isinstance(module, nn.Linear):
        return LinearLayer(name, module, entries)
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return ConvolutionLayer(name, module, entries)
    if isinstance(module, nn.Embedding) and module.max_norm is None:
        return EmbeddingLayer(name, module, entries)
    if isinstance(module, OwnGradients):
        return ChannelLayer(name, module, entries)
    normalise = _normaliser(module)
    by_channel = isinstance(module, nn.GroupNorm | nn.modules.batchnorm._NormBase)
    return None if normalise is None else NormLayer(name, module, entries, normalise, by_channel)
