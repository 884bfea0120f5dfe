from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError
from temperance.nn import FilterResponseNorm, PreResNet, ResNet, ResNet20, Shortcut, load_cifar_resnet

DATA = Path(os.environ.get("TEMPERANCE_DATA") or Path(__file__).parents[3] / "shared" / "data")


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_resnet20_has_the_published_number_of_parameters() -> None:
    assert count(ResNet(20)) == count(ResNet20()) == 273_258


@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_zero_pad_networks_have_the_published_sizes(depth: int) -> None:
    published = {20: 269_722, 32: 464_154, 44: 658_586, 56: 853_018}  # released files: 0.27, 0.46, 0.66, 0.85 million
    assert count(ResNet(depth, bias=False, shortcut=Shortcut.ZERO_PAD)) == published[depth]


def test_filter_response_norm_adds_one_threshold_a_channel() -> None:
    channels = 16 * (1 + 6) + 32 * (6 + 1) + 64 * (6 + 1)  # a norm after every convolution, projections included
    assert count(ResNet20(norm=FilterResponseNorm)) == 273_258 + channels
    assert count(ResNet20(norm=None)) == 273_258 - 2 * channels


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_preresnet_parameters_by_arithmetic(depth: int) -> None:
    n = (depth - 2) // 6
    convolutions = 27 * 16 + 9 * (16 * 16 * 2 * n)
    convolutions += 9 * (16 * 32 + 32 * 32 * (2 * n - 1)) + 16 * 32
    convolutions += 9 * (32 * 64 + 64 * 64 * (2 * n - 1)) + 32 * 64
    norms = 2 * (16 * 2 * n + (16 + 32 * (2 * n - 1)) + (32 + 64 * (2 * n - 1)) + 64)
    assert count(PreResNet(depth, out_features=100)) == convolutions + norms + 64 * 100 + 100


def test_weights_start_he_normal() -> None:
    torch.manual_seed(0)
    weight = ResNet20().blocks[8].conv2.weight
    expected = math.sqrt(2 / (64 * 9))
    assert abs(weight.std().item() / expected - 1) < 4 / math.sqrt(2 * weight.numel())
    assert ResNet20().blocks[8].conv2.bias.abs().sum() == 0


def test_zero_pad_takes_every_second_pixel_and_centres_the_old_channels() -> None:
    network = ResNet(8, bias=False, shortcut=Shortcut.ZERO_PAD)
    x = torch.randn(2, 16, 6, 6)
    y = network.blocks[1].shortcut(x)
    assert y.shape == (2, 32, 3, 3)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].abs().sum() == y[:, 24:].abs().sum() == 0


def test_halves_the_image_at_each_later_width() -> None:
    assert ResNet20().eval().blocks(torch.zeros(1, 16, 32, 32)).shape == (1, 64, 8, 8)
    assert PreResNet(8).eval().blocks(torch.zeros(1, 16, 32, 32)).shape == (1, 64, 8, 8)


def test_preactivation_leaves_the_sum_alone() -> None:
    network = PreResNet(8).eval()
    block = network.blocks[0]
    with torch.no_grad():
        block.conv2.weight.zero_()
    x = torch.randn(1, 16, 8, 8)
    assert torch.equal(block(x), x)  # negative values pass: no activation after the sum


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet(21), r"`depth` must be 6n \+ 2 .* got 21"),
        (lambda: ResNet(2), r"`depth` must be 6n \+ 2 .* got 2"),
        (lambda: PreResNet(44 + 1), r"`depth` must be 6n \+ 2 .* got 45"),
        (lambda: ResNet(20, widths=(16, 32)), r"`depth` must be 4n \+ 2 .* got 20"),
        (lambda: ResNet(20, widths=()), "`widths` must hold at least one"),
        (lambda: ResNet(20, widths=(16, 0, 64)), r"`widths\[1\]` must be a positive integer; got 0"),
        (lambda: ResNet(20, in_channels=0), "`in_channels` must be a positive integer"),
        (lambda: PreResNet(20, out_features=-3), "`out_features` must be a positive integer; got -3"),
        (lambda: ResNet(20, shortcut="A"), "`shortcut` must be a member of Shortcut; got 'A'"),
        (lambda: ResNet(20, widths=(32, 16, 8), shortcut=Shortcut.ZERO_PAD), "`widths` must not fall"),
    ],
)
def test_bad_arguments_are_named(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]


def released_form(network: ResNet, per_stage: int) -> dict[str, Tensor]:
    """The state of ``network`` under the names of the released files, which a data-parallel module wrote."""
    renamed = {}
    for name, value in network.state_dict().items():
        parts = name.split(".")
        if parts[0] == "blocks":
            stage, block = divmod(int(parts[1]), per_stage)
            parts[:2] = [f"layer{stage + 1}", str(block)]
            parts[2] = parts[2].replace("norm", "bn")
        parts[0] = {"stem": "conv1", "stem_norm": "bn1", "head": "linear"}.get(parts[0], parts[0])
        if parts[-1] != "num_batches_tracked":
            renamed["module." + ".".join(parts)] = value
    return renamed


def test_loading_restores_the_function(tmp_path: Path) -> None:
    network = ResNet(14, in_channels=1, out_features=4, bias=False, shortcut=Shortcut.ZERO_PAD)
    x = torch.randn(8, 1, 8, 8)
    network(x)  # move the running statistics
    network.eval()
    state = released_form(network, per_stage=2)
    torch.save({"best_prec1": 1.0, "state_dict": state}, tmp_path / "a.th")
    torch.save({k.removeprefix("module."): v for k, v in state.items()}, tmp_path / "b.th")
    for name in ("a.th", "b.th"):
        loaded = load_cifar_resnet(tmp_path / name)
        assert not loaded.training
        assert torch.equal(loaded(x), network(x))


def test_files_that_are_no_such_network_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`path` must be a file"):
        load_cifar_resnet(tmp_path / "none.th")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.th")
    with pytest.raises(ArgumentError, match=r"`path` must hold `conv1.weight`.* got \['weight'\]"):
        load_cifar_resnet(tmp_path / "other.th")
    state = released_form(ResNet(8, bias=False, shortcut=Shortcut.ZERO_PAD), per_stage=1)
    del state["module.bn1.weight"]
    state["module.extra"] = torch.zeros(1)
    torch.save(state, tmp_path / "holes.th")
    with pytest.raises(ArgumentError, match=r"missing \['stem_norm.weight'\], unknown \['extra'\]"):
        load_cifar_resnet(tmp_path / "holes.th")


@pytest.mark.skipif(
    not (DATA / "cifar10-resnets").is_dir() or not (DATA / "cifar10" / "test_batch.webp").is_file(),
    reason=f"needs cifar10 and cifar10-resnets in {DATA} (set TEMPERANCE_DATA)",
)
def test_released_resnet20_classifies_cifar10() -> None:
    from PIL import Image

    mosaic = np.asarray(Image.open(DATA / "cifar10" / "test_batch.webp").convert("RGB"))
    pixels = mosaic.reshape(100, 32, 100, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)[:1000]
    labels = torch.from_numpy(np.load(DATA / "cifar10" / "labels.npz")["test"][:1000].astype(np.int64))
    x = torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2).float() / 255
    x = (x - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    network = load_cifar_resnet(next((DATA / "cifar10-resnets").glob("resnet20-*.th")))
    with torch.no_grad():
        accuracy = (network(x).argmax(1) == labels).double().mean().item()
    assert abs(accuracy - 0.915) <= 0.002  # two images of slack for other arithmetic
