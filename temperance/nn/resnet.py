"""Residual networks for 32×32 images: the original (v1) and the pre-activation (v2) kind, of depth 6n + 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn import functional

from temperance.core.checks import check_counts, check_flag, check_maker, check_path, check_sizes, shown
from temperance.core.errors import ArgumentError
from temperance.nn.norm import NormFactory


class Shortcut(Enum):
    """How a residual block carries its input across a change of shape.

    >>> [kind.name for kind in Shortcut]
    ['PROJECTION', 'ZERO_PAD']
    """

    PROJECTION = "a strided 1x1 convolution"
    ZERO_PAD = "every second pixel, the new channels filled with zeros (option A of He et al. 2016): no parameters"


def _he_normal(layer: nn.Conv2d | nn.Linear) -> None:
    """Weights N(0, 2 / fan-in) and biases 0 (He et al. 2015)."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class _HeConv2d(nn.Conv2d):
    def reset_parameters(self) -> None:
        _he_normal(self)


class _HeLinear(nn.Linear):
    def reset_parameters(self) -> None:
        _he_normal(self)


class _ZeroPad(nn.Module):
    """Every ``stride``-th pixel, with as many zero channels before and after as are missing."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        missing = channels_out - channels_in
        if missing < 0:
            raise ArgumentError(
                f"`widths` must not fall when `shortcut` is Shortcut.ZERO_PAD; got {channels_in} then {channels_out}."
            )
        self.stride = stride
        self.before = missing // 2
        self.after = missing - self.before

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def _convolution(channels_in: int, channels_out: int, kernel: int, stride: int, bias: bool) -> nn.Conv2d:
    return _HeConv2d(channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, bias=bias)


def _norm(norm: NormFactory | None, channels: int) -> nn.Module:
    if norm is None:
        return nn.Identity()
    made = check_maker(norm, "norm", nn.Module, "a function of the number of channels that makes a module", channels)
    assert isinstance(made, nn.Module)
    return made


def _activation(activation: Callable[[], nn.Module]) -> nn.Module:
    made = check_maker(activation, "activation", nn.Module, "a function that makes a module, such as nn.ReLU")
    assert isinstance(made, nn.Module)
    return made


def _stages(depth: int, widths: Sequence[int], **others: int) -> list[tuple[int, int, int]]:
    """(channels in, channels out, stride) of every block, after a look at the arguments that all networks share."""
    check_counts(depth=depth, **others)
    if not check_sizes(widths, "widths"):
        raise ArgumentError("`widths` must hold at least one number of channels; got none.")
    per_stage, rest = divmod(depth - 2, 2 * len(widths))
    if rest or per_stage < 1:
        raise ArgumentError(
            f"`depth` must be {2 * len(widths)}n + 2 for a whole n of at least 1 (n blocks of two convolutions for "
            f"each of the {len(widths)} `widths`, the stem and the head); got {depth}."
        )
    stages = []
    channels_in = widths[0]
    for number, width in enumerate(widths):
        for block in range(per_stage):
            stages.append((channels_in, width, 2 if number > 0 and block == 0 else 1))
            channels_in = width
    return stages


class _Block(nn.Module):
    """φ(norm(conv(φ(norm(conv(x))))) + shortcut(x))."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        stride: int,
        norm: NormFactory | None,
        activation: Callable[[], nn.Module],
        bias: bool,
        shortcut: Shortcut,
    ) -> None:
        super().__init__()
        self.conv1 = _convolution(channels_in, channels_out, 3, stride, bias)
        self.norm1 = _norm(norm, channels_out)
        self.conv2 = _convolution(channels_out, channels_out, 3, 1, bias)
        self.norm2 = _norm(norm, channels_out)
        self.activation = _activation(activation)
        self.shortcut: nn.Module
        if stride == 1 and channels_in == channels_out:
            self.shortcut = nn.Identity()
        elif shortcut is Shortcut.ZERO_PAD:
            self.shortcut = _ZeroPad(channels_in, channels_out, stride)
        else:
            project = _convolution(channels_in, channels_out, 1, stride, bias)
            self.shortcut = nn.Sequential(project, _norm(norm, channels_out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm1(self.conv1(x)))
        return self.activation(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """The residual network of He et al. 2016 for small images.

    A 3×3 stem; for each width n blocks of two 3×3 convolutions, the first of a later width with stride 2; the mean over
    space; a linear head. A norm follows every convolution, projections included. Weights start He-normal.

    With the defaults this is the ResNet-20 of Wenzel et al. 2020: 273 258 trainable parameters. Their clean-likelihood
    variant is ``norm=FilterResponseNorm``, but for a learned threshold in place of the ReLU after each sum.

    Args:
        depth: 6n + 2 (for three widths): 20, 32, 44, 56, 110.
        in_channels: channels of the images.
        out_features: number of outputs.
        norm: makes the norm from a number of channels (``nn.BatchNorm2d``, ``FilterResponseNorm``, ``group_norm(8)``);
            None for no norm.
        activation: makes the activation module.
        widths: channels of each stage.
        bias: whether the convolutions have biases.
        shortcut: what happens where the shape changes.

    >>> network = ResNet(20)
    >>> sum(p.numel() for p in network.parameters())
    273258
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 20,
        in_channels: int = 3,
        out_features: int = 10,
        norm: NormFactory | None = nn.BatchNorm2d,
        activation: Callable[[], nn.Module] = nn.ReLU,
        widths: Sequence[int] = (16, 32, 64),
        bias: bool = True,
        shortcut: Shortcut = Shortcut.PROJECTION,
    ) -> None:
        super().__init__()
        stages = _stages(depth, widths, in_channels=in_channels, out_features=out_features)
        check_flag(bias, "bias")
        if not isinstance(shortcut, Shortcut):
            raise ArgumentError(f"`shortcut` must be a member of Shortcut; got {shown(shortcut)}.")
        self.stem = _convolution(in_channels, widths[0], 3, 1, bias)
        self.stem_norm = _norm(norm, widths[0])
        self.activation = _activation(activation)
        self.blocks = nn.Sequential(*(_Block(*stage, norm, activation, bias, shortcut) for stage in stages))
        self.head = _HeLinear(widths[-1], out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, N × ``out_features``, of images N × channels × height × width."""
        y = self.blocks(self.activation(self.stem_norm(self.stem(x))))
        return self.head(y.mean((-2, -1)))


def ResNet20(
    in_channels: int = 3,
    out_features: int = 10,
    norm: NormFactory | None = nn.BatchNorm2d,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> ResNet:
    """The :class:`ResNet` of depth 20 that the papers use on CIFAR-10.

    >>> from temperance.nn import FilterResponseNorm
    >>> ResNet20(norm=FilterResponseNorm)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return ResNet(20, in_channels, out_features, norm, activation)


class _PreBlock(nn.Module):
    """conv(φ(norm(conv(φ(norm(x)))))) + shortcut(x): norm and activation come first, the sum is left alone."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        stride: int,
        norm: NormFactory | None,
        activation: Callable[[], nn.Module],
        bias: bool,
    ) -> None:
        super().__init__()
        self.norm1 = _norm(norm, channels_in)
        self.conv1 = _convolution(channels_in, channels_out, 3, stride, bias)
        self.norm2 = _norm(norm, channels_out)
        self.conv2 = _convolution(channels_out, channels_out, 3, 1, bias)
        self.activation = _activation(activation)
        same = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Identity() if same else _convolution(channels_in, channels_out, 1, stride, bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.activation(self.norm1(x)))
        return self.conv2(self.activation(self.norm2(y))) + self.shortcut(x)


class PreResNet(nn.Module):
    """The pre-activation residual network of He et al. 2016b with basic blocks, of depth 6n + 2.

    As :class:`ResNet`, but norm and activation come before each convolution, once more before the head, and the 1×1
    projections, where the shape changes, have no norm.

    The arguments mean what they mean for :class:`ResNet`.

    >>> PreResNet(8, out_features=100)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """

    def __init__(
        self,
        depth: int = 20,
        in_channels: int = 3,
        out_features: int = 10,
        norm: NormFactory | None = nn.BatchNorm2d,
        activation: Callable[[], nn.Module] = nn.ReLU,
        widths: Sequence[int] = (16, 32, 64),
        bias: bool = False,
    ) -> None:
        super().__init__()
        stages = _stages(depth, widths, in_channels=in_channels, out_features=out_features)
        check_flag(bias, "bias")
        self.stem = _convolution(in_channels, widths[0], 3, 1, bias)
        self.blocks = nn.Sequential(*(_PreBlock(*stage, norm, activation, bias) for stage in stages))
        self.head_norm = _norm(norm, widths[-1])
        self.activation = _activation(activation)
        self.head = _HeLinear(widths[-1], out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, N × ``out_features``, of images N × channels × height × width."""
        y = self.activation(self.head_norm(self.blocks(self.stem(x))))
        return self.head(y.mean((-2, -1)))


def load_cifar_resnet(path: str | PathLike[str]) -> ResNet:
    """A trained CIFAR ResNet from a released ``.th`` file, in evaluation mode.

    The files hold the state of a network with batch normalisation, convolutions without bias and zero-padded shortcuts,
    under the names ``conv1``, ``bn1``, ``layer1.0.conv1`` and so on, with or without ``module.`` before them. The
    depth is read off the file. The inputs are pixels in [0, 1], less the ImageNet means (0.485, 0.456, 0.406), over
    the standard deviations (0.229, 0.224, 0.225).

    >>> load_cifar_resnet("nowhere.th")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `path` must be a file with the state of a CIFAR ResNet; got nowhere.th.
    """
    if not check_path(path, "path", "file").is_file():
        raise ArgumentError(f"`path` must be a file with the state of a CIFAR ResNet; got {path}.")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state = {name.removeprefix("module."): value for name, value in saved.get("state_dict", saved).items()}
    per_stage = len({name.split(".")[1] for name in state if name.startswith("layer1.")})
    if per_stage < 1 or not {"conv1.weight", "linear.weight"} <= state.keys():
        raise ArgumentError(
            f"`path` must hold `conv1.weight`, `layer1.*` and `linear.weight`; got {list(state)[:5]} ..."
        )
    network = ResNet(
        depth=6 * per_stage + 2,
        in_channels=state["conv1.weight"].shape[1],
        out_features=state["linear.weight"].shape[0],
        bias=False,
        shortcut=Shortcut.ZERO_PAD,
    )

    def our_name(name: str) -> str:
        name = re.sub(r"^conv1\.", "stem.", name)
        name = re.sub(r"^bn1\.", "stem_norm.", name)
        name = re.sub(r"^linear\.", "head.", name)
        name = re.sub(r"^layer(\d)\.(\d+)", lambda m: f"blocks.{(int(m[1]) - 1) * per_stage + int(m[2])}", name)
        return re.sub(r"\.bn([12])\.", r".norm\1.", name)

    missing, unexpected = network.load_state_dict({our_name(k): v for k, v in state.items()}, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]  # older files lack the counter
    if missing or unexpected:
        raise ArgumentError(f"`path` must hold all weights and no others; missing {missing}, unknown {unexpected}.")
    return network.eval()
