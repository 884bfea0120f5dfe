"""Small networks of every kind, with inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from temperance.nn import FilterResponseNorm

from .attentions import ATTENDING, Attending, CalledTwice, Decoder, Encoder, TwoOfOneWeight, Unbatched, WithOwn

ROWS = 7
CLASSES = 3


class Mean(nn.Module):
    """Mean over all dimensions of space, or over time (dimension 1 of three)."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims)


def conv_net(dims: int, *, channels: int = 2, width: int = 4, **settings) -> nn.Module:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return nn.Sequential(
        conv(channels, width, **settings), nn.Tanh(), Mean(*range(2, 2 + dims)), nn.Linear(width, CLASSES)
    )


def norm_net(norm: nn.Module, pool: bool = True) -> nn.Module:
    """Convolution, norm, and something after it that is not linear."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 2), norm, nn.Softplus(), Mean(2, 3) if pool else nn.Flatten(), nn.Linear(4, CLASSES)
    )


class Text(nn.Module):
    """Words to classes; ``padding`` is the word that has no gradient."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 3, padding_idx=padding)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)).mean(1))


class SelfAttention(nn.Module):
    """One head, out of linear layers on batch × time × width."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).mT / math.sqrt(3)).softmax(-1)
        return self.head((weights @ self.value(x)).tanh().mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(2, 3, batch_first=True)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Tied(nn.Module):
    """A language model: the embedding is also the output head, which has a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, 4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.words(x).mean(1)).tanh())


class Twice(nn.Module):
    """The same layer called twice, once on a sequence and once on its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(3, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(self.shared(x).tanh().mean(1)).tanh())


class TwiceNorm(nn.Module):
    """The same norm and embedding called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(6, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = self.norm(self.words(x[:, :3])).tanh().sum(1)
        return self.head(self.norm(first + self.words(x[:, 0])).tanh())


class TimeFirst(nn.Module):
    """Turns batch × time to time × batch inside."""

    def __init__(self, words: int = 0) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Embedding(words, 3) if words else nn.Linear(2, 3)
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(x.transpose(0, 1))).tanh().mean(0))


class Folded(nn.Module):
    """Time folded into the batch, batch by batch or time by time."""

    def __init__(self, time_first: bool = False) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, CLASSES)
        self.time_first = time_first

    def forward(self, x: Tensor) -> Tensor:
        rows, steps, width = x.shape
        if self.time_first:
            flat = self.norm(self.inner(x.transpose(0, 1).reshape(rows * steps, width))).tanh()
            return self.head(flat.view(steps, rows, -1).mean(0))
        flat = self.norm(self.inner(x.reshape(rows * steps, width))).tanh()
        return self.head(flat.view(rows, steps, -1).mean(1))


class Bare(nn.Module):
    """A parameter that no module of torch owns, and positions that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(3, CLASSES))
        self.positions = nn.Embedding(4, 2)
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.positions(torch.arange(4))).tanh().mean(1) @ self.gain


class Residual(nn.Module):
    """In place wherever one can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x), inplace=True)
        g = self.second(h).add_(1.0)
        return self.head(F.silu(g, inplace=True).mul_(2.0).add_(h)).mul_(0.5)


class Functional(nn.Module):
    """A weight that is called as a module and used as a tensor too; and a module that is only used as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear((self.inner(x).tanh() @ self.inner.weight).tanh(), self.outer.weight, self.outer.bias)


class Looping(nn.Module):
    """Calls a layer for one example after the other, and takes a path that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, CLASSES), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.stack([self.inner(row).tanh() for row in x])
        return torch.stack([self.left(h) if float(r[0]) > 0 else self.right(h) for h, r in zip(hidden, x, strict=True)])


class TwoInputs(nn.Module):
    """Takes keywords; gives one output without a dimension for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, CLASSES)

    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
        return self.head((self.a(left) * self.b(input=right)).tanh())


def bias_first() -> nn.Module:
    """A parametrisation put on and taken off again: the bias now comes before the weight."""
    made = nn.Linear(3, 4)
    parametrizations.weight_norm(made)
    nn.utils.parametrize.remove_parametrizations(made, "weight")
    return nn.Sequential(made, nn.Tanh(), nn.Linear(4, CLASSES))


class Routed(nn.Module):
    """Each example goes to one of two experts; the first four all to the left one, see ``routed_inputs``."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made = x.new_zeros(*x.shape[:2], 3)
        for side, expert in ((x[:, 0, 0] > 0, self.left), (x[:, 0, 0] <= 0, self.right)):
            if bool(side.any()):
                made = made.index_put((side,), expert(x[side]))
        return self.head(made.tanh().mean(1))


def routed_inputs() -> Tensor:
    """Seven rows of three places: in a batch of six, four times three rows also divide by six."""
    x = torch.randn(ROWS, 3, 2, dtype=torch.float64)
    x[:, 0, 0] = torch.tensor([0.5, 1.0, 0.3, 0.7, -0.4, -1.0, 0.9])
    return x


class Unused(nn.Module):
    """A layer that is never called, and one whose output is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.thrown = nn.Linear(2, 2), nn.Linear(3, 2)
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.thrown(x)
        return self.head(self.inner(x).tanh())


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and the modules for which there is no Kronecker rule."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3,)
    words: int = 0
    fallen: tuple[str, ...] = ()
    inputs: Callable[[], object] | None = field(default=None)

    def build(self) -> tuple[nn.Module, object]:
        """Network and inputs in float64, with every parameter and running statistic away from its initial value."""
        torch.manual_seed(3)
        network = self.make().double().eval()
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.3 * torch.randn_like(p))
            for name, b in network.named_buffers():
                if name.endswith("running_mean"):
                    b.copy_(0.5 * torch.randn_like(b))
                elif name.endswith("running_var"):
                    b.copy_(0.5 + torch.rand_like(b))
        if self.inputs is not None:
            return network, self.inputs()
        if self.words:
            return network, torch.randint(self.words, (ROWS, *self.shape))
        return network, torch.randn(ROWS, *self.shape, dtype=torch.float64)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Softplus(), nn.Linear(4, CLASSES))


def _two_inputs() -> dict[str, Tensor]:
    return {
        "left": torch.randn(ROWS, 2, dtype=torch.float64),
        "right": torch.randn(ROWS, 3, dtype=torch.float64),
    }


ZOO: dict[str, Case] = {
    "mlp": Case(_mlp),
    "relu in place": Case(
        lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 4), nn.ReLU(True), nn.Linear(4, 3))
    ),
    "residual in place": Case(Residual),
    "conv1d": Case(lambda: conv_net(1, kernel_size=3), (2, 6)),
    "conv1d dilated strided": Case(lambda: conv_net(1, kernel_size=3, dilation=2, stride=2, padding=3), (2, 9)),
    "conv1d same even kernel": Case(lambda: conv_net(1, kernel_size=4, padding="same"), (2, 5)),
    "conv1d reflect": Case(lambda: conv_net(1, kernel_size=3, padding=2, padding_mode="reflect"), (2, 5)),
    "conv2d": Case(lambda: conv_net(2, kernel_size=(2, 3), bias=False), (2, 4, 5)),
    "conv2d grouped": Case(lambda: conv_net(2, channels=4, width=6, kernel_size=2, groups=2), (4, 4, 3)),
    "conv2d depthwise": Case(lambda: conv_net(2, channels=3, width=3, kernel_size=2, groups=3), (3, 3, 4)),
    "conv2d strided": Case(lambda: conv_net(2, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0)), (2, 5, 4)),
    "conv2d dilated": Case(lambda: conv_net(2, kernel_size=2, dilation=(1, 2), stride=(1, 2)), (2, 4, 6)),
    "conv2d same dilated": Case(lambda: conv_net(2, kernel_size=(2, 3), padding="same", dilation=2), (2, 4, 3)),
    "conv2d circular": Case(lambda: conv_net(2, kernel_size=3, padding=(1, 2), padding_mode="circular"), (2, 4, 3)),
    "conv3d": Case(lambda: conv_net(3, kernel_size=(2, 1, 2), padding=(0, 1, 0)), (2, 3, 2, 3)),
    "conv3d grouped strided": Case(lambda: conv_net(3, kernel_size=2, stride=(1, 2, 1), groups=2), (2, 3, 4, 3)),
    "conv then flatten": Case(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(4, CLASSES)),
        (1, 4, 3),
    ),
    "conv transposed": Case(
        lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Tanh(), Mean(2), nn.Linear(3, CLASSES)),
        (2, 4),
        fallen=("0",),
    ),
    "layer norm": Case(lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, CLASSES))),
    "layer norm of two dimensions": Case(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.LayerNorm((4, 3)), nn.Tanh(), Mean(1), nn.Linear(3, CLASSES)), (4, 2)
    ),
    "layer norm without bias": Case(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3, bias=False), nn.Tanh(), Mean(1), nn.Linear(3, CLASSES)),
        (4, 2),
    ),
    "rms norm": Case(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.RMSNorm(3), nn.Tanh(), Mean(1), nn.Linear(3, CLASSES)), (4, 2)
    ),
    "group norm": Case(lambda: norm_net(nn.GroupNorm(2, 4)), (1, 3, 4)),
    "batch norm 2d": Case(lambda: norm_net(nn.BatchNorm2d(4)), (1, 3, 4)),
    "batch norm 1d": Case(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, CLASSES))),
    "batch norm of a sequence": Case(
        lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.Tanh(), Mean(2), nn.Linear(4, CLASSES)), (2, 5)
    ),
    "instance norm": Case(lambda: norm_net(nn.InstanceNorm2d(4, affine=True)), (1, 3, 4)),
    "filter response norm": Case(lambda: norm_net(FilterResponseNorm(4)), (1, 3, 4)),
    "filter response norm, no threshold": Case(lambda: norm_net(FilterResponseNorm(4, threshold=False)), (1, 3, 4)),
    "embedding": Case(Text, (5,), words=6),
    "embedding with padding": Case(lambda: Text(padding=2), (5,), words=6),
    "self-attention": Case(SelfAttention, (4, 3)),
    **{f"attention: {name}": Case(functools.partial(Attending, **how), (3, 4)) for name, how in ATTENDING.items()},
    "attention: one weight in two": Case(TwoOfOneWeight, (3, 4), fallen=("one",)),
    "attention: called twice": Case(CalledTwice, (3, 4)),
    "attention: without a batch": Case(Unbatched, (3, 4), fallen=("attention", "attention.out_proj")),
    "attention: in name only": Case(WithOwn, (3, 4), fallen=("attention",)),
    "transformer encoder layer": Case(Encoder, (3, 4)),
    "transformer encoder, padded": Case(lambda: Encoder(2, padding=True), (4, 4)),
    "transformer encoder, words first": Case(lambda: Encoder(2, batch_first=False, padding=True), (3, 4)),
    "transformer decoder layer": Case(Decoder, (5, 4)),
    "lstm": Case(lambda: Recurrent(nn.LSTM), (4, 2), fallen=("cell",)),
    "gru": Case(lambda: Recurrent(nn.GRU), (4, 2), fallen=("cell",)),
    "tied": Case(Tied, (4,), words=CLASSES, fallen=("words",)),
    "called twice": Case(Twice, (4, 3)),
    "norm and embedding called twice": Case(TwiceNorm, (4,), words=6),
    "time first": Case(TimeFirst, (5, 2)),
    "time first, as many steps as rows": Case(TimeFirst, (4, 2)),
    "time first, words": Case(lambda: TimeFirst(words=6), (5,), words=6),
    "time folded into the batch": Case(Folded, (4, 2)),
    "time folded into the batch, time first": Case(lambda: Folded(True), (4, 2), fallen=("inner", "norm")),
    "bare parameter": Case(Bare, (4, 2), fallen=("gain", "positions")),
    "weight norm": Case(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, CLASSES)),
        fallen=("0.parametrizations.weight",),
    ),
    "bias before weight": Case(bias_first),
    "used as a tensor too": Case(Functional, fallen=("inner", "outer")),
    "one example after the other": Case(Looping, fallen=("inner", "left", "right")),
    "experts": Case(Routed, fallen=("left", "right"), inputs=routed_inputs),
    "two inputs by keyword": Case(TwoInputs, inputs=_two_inputs),
    "unused layers": Case(Unused, fallen=("idle",)),
}
"""``fallen`` also lists modules that a rule exists for but that the network uses in a way no rule speaks for."""


def targets() -> Tensor:
    return torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(5))
