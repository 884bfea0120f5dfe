"""Data and networks that the experiments share, by name, and the one way in which they call ``fit``."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import temperance as tp

MLP_NAME = re.compile(r"mlp-(\d+)x(\d+)$")


@dataclass(frozen=True)
class Images:
    """A data set, and how many of its rows are used (0: all of them).

    Each seed has training rows of its own, so that error bars over seeds are also over data; the test rows are fixed.
    """

    name: str = "fashion-mnist"
    train: int = 0
    test: int = 0

    def load(self, seed: int) -> tuple[tp.data.Data, tp.data.Data]:
        """Training and test rows for a seed."""
        whole, test = _whole(self.name, self.test)
        if not self.train or self.train >= len(whole):
            return whole, test
        rng = torch.Generator().manual_seed(1000 + seed)
        return whole.subset(torch.randperm(len(whole), generator=rng)[: self.train]), test


@functools.lru_cache(maxsize=2)
def _whole(name: str, rows: int) -> tuple[tp.data.Data, tp.data.Data]:
    train, test = tp.data.load(name)
    return train, test.subset(slice(0, rows)) if rows else test


def features(data: tp.data.Data) -> int:
    """Numbers in one row of inputs."""
    assert isinstance(data.x, torch.Tensor)
    return math.prod(data.x.shape[1:])


def make_network(name: str, data: tp.data.Data, seed: int) -> nn.Module:
    """A network by name, for the inputs and classes of ``data``: ``mlp-100x2`` (two hidden layers of 100), ``cnn`` (a
    small one), ``resnet20``, ``cnn-lstm``. The seed decides its first weights.

    Endings change it: ``-bn`` puts batch norm before each activation, ``-dropout`` a dropout of a quarter after it (MLP
    and CNN); ``-bn`` and ``-frn`` are also the norms of the ResNet; ``-augmented`` puts random shifts and flips in
    front of the network while it learns.
    """
    classes = data.info.num_classes
    if classes is None:
        raise tp.errors.ArgumentError(f"`data` must have classes; {data.info.name} has none.")
    if name.endswith("-augmented"):
        return nn.Sequential(Augment(data.info.image_shape), make_network(name.removesuffix("-augmented"), data, seed))
    base, _, ending = name.rpartition("-") if name.endswith(("-bn", "-dropout", "-frn")) else (name, "", "")
    found = MLP_NAME.match(base)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if found and ending != "frn":
            width = int(found[1])
            hidden = [width] * int(found[2])
            activation = functools.partial(_activation, ending, nn.BatchNorm1d, width)
            return _he_normal(tp.nn.MLP(features(data), hidden, classes, activation))
        if base == "cnn" and ending != "frn":
            return _he_normal(_small_cnn(data, classes, ending))
        if base == "resnet20" and ending != "dropout":
            return tp.nn.ResNet20(norm={"bn": nn.BatchNorm2d, "frn": tp.nn.FilterResponseNorm}.get(ending))
        if name == "cnn-lstm":
            return tp.nn.CNNLSTM()
    raise tp.errors.ArgumentError(
        f"`network` must be mlp-WIDTHxDEPTH, cnn, resnet20 or cnn-lstm with a known ending; got {name!r}."
    )


def make_prior(name: str) -> tp.Prior:
    """A Gaussian prior by name: ``normal-0.3`` has that scale for every weight, ``fan-in-3`` the scale 3 / √fan-in for
    weights and 1 for biases (√2 would be He's)."""
    kind, _, number = name.rpartition("-")
    try:
        scales: dict[str, Any] = {"normal": float(number), "fan-in": tp.FanIn(float(number))}
        return tp.GaussianPrior(scales[kind])
    except (KeyError, ValueError) as error:
        raise tp.errors.ArgumentError(f"`prior` must be normal-SCALE or fan-in-GAIN; got {name!r}.") from error


def _he_normal(network: nn.Module) -> nn.Module:
    """Weights that start as He et al. (2015) say, biases at zero."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


def _activation(ending: str, norm: Callable[[int], nn.Module], width: int) -> nn.Module:
    before = [norm(width)] if ending == "bn" else []
    after = [nn.Dropout(0.25)] if ending == "dropout" else []
    return nn.Sequential(*before, nn.ReLU(), *after)


def _small_cnn(data: tp.data.Data, classes: int, ending: str) -> nn.Module:
    """Images of more than 8×8 are halved; two 3×3 convolutions with stride 2 and a linear layer: about 10,000 weights
    on 28×28 images, and 3 ms a step on one core."""
    assert isinstance(data.x, torch.Tensor)
    channels, height, width = data.info.image_shape or (1, 8, 8)
    layers: list[nn.Module] = [nn.Unflatten(1, (channels, height, width))] if data.x.dim() == 2 else []
    if height > 8:
        layers.append(nn.AvgPool2d(2))
        height, width = height // 2, width // 2
    for count in (16, 32):
        layers += [nn.Conv2d(channels, count, 3, stride=2, padding=1), _activation(ending, nn.BatchNorm2d, count)]
        channels, height, width = count, -(-height // 2), -(-width // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))


class Augment(nn.Module):
    """While training: each image shifted by up to an eighth of its side, zeros moving in, and flipped at random.

    Every look at an image is then at another one, so that what is trained is no likelihood of the data as they are.
    """

    def __init__(self, image_shape: tuple[int, ...] | None) -> None:
        super().__init__()
        if image_shape is None:
            raise tp.errors.ArgumentError("`network` can only be augmented on images; the data have no image shape.")
        self.image_shape = image_shape
        self.pad = max(1, image_shape[-1] // 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images in, images of the same shape out."""
        if not self.training:
            return x
        images = x.reshape(-1, *self.image_shape)
        count, height, width = len(images), *self.image_shape[1:]
        padded = nn.functional.pad(images, (self.pad,) * 4)
        top, left = torch.randint(0, 2 * self.pad + 1, (2, count, 1), device=x.device)
        rows = top + torch.arange(height, device=x.device)
        columns = left + torch.arange(width, device=x.device)
        flip = torch.rand(count, 1, device=x.device) < 0.5
        columns = torch.where(flip, columns.flip(1), columns)
        moved = padded.gather(2, rows[:, None, :, None].expand(-1, padded.shape[1], -1, padded.shape[3]))
        moved = moved.gather(3, columns[:, None, None, :].expand(-1, padded.shape[1], height, -1))
        return moved.reshape(x.shape)


def fit(target: tp.Target, method: tp.Inference[Any], data: Any, **options: Any) -> tp.Fitted:
    """``tp.fit`` on a GPU where there is one. Ctrl-C ends the experiment and not only this fit, so that half a chain is
    never kept as a result."""
    if torch.cuda.is_available():
        target.to("cuda")
    fitted = tp.fit(target, method, data, progress=False, **options)
    if fitted.info.status is tp.status.INTERRUPTED:
        raise KeyboardInterrupt
    return fitted


def scores(fitted: tp.Fitted, test: tp.data.Data) -> dict[str, float]:
    """Of the averaged prediction: cross-entropy, accuracy, ECE with ten bins. Of the members, on average: the Gibbs
    cross-entropy and accuracy. All on test data, in nats."""
    predictive = fitted.predict(test.x)
    labels = test.y
    gibbs: list[tuple[float, float]] = []
    nodes = fitted.posterior.nodes()
    for k in range(len(nodes)):
        theta, buffers = nodes.fetch(k, k + 1)
        point = tp.posteriors.Point(theta[0], {name: value[0] for name, value in buffers.items()})
        member = tp.Fitted(fitted.target, point, fitted.info).predict(test.x)
        gibbs.append((-float(member.log_prob(labels).double().mean()), tp.scores.accuracy(member.mean(), labels)))
    probs = predictive.mean()
    return {
        "ce": -float(predictive.log_prob(labels).double().mean()),
        "accuracy": tp.scores.accuracy(probs, labels),
        "ece": tp.scores.ece(probs, labels, bins=10, resamples=10).value,
        "gibbs_ce": sum(ce for ce, _ in gibbs) / len(gibbs),
        "gibbs_accuracy": sum(accuracy for _, accuracy in gibbs) / len(gibbs),
        "members": float(len(gibbs)),
    }
