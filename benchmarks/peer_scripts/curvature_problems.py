"""What the timings of curvature share, in plain PyTorch: networks, made-up rows in batches, and an epoch over them.

An epoch is forward and backward over the rows, batch by batch, and no step of an optimiser. It is what a curvature
pass is measured by. The batches are slices, so that nobody pays for a loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.peer_scripts.networks import BATCH, CLASSES, mlp, resnet20

ROWS = 2_000


def small_mlp() -> nn.Sequential:
    """784-50-10 with ReLU."""
    return nn.Sequential(nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, CLASSES))


def cnn() -> nn.Sequential:
    """Two 3 x 3 convolutions (32 and 64 channels) with pooling, then 3136-128-10, for images of 1 x 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


class Encoder(nn.Module):
    """Sixteen words of 64 numbers through two of torch's encoder layers (4 heads, 128 inner units), and their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows × words × 64."""
        return self.head(self.layers(x).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (784,)),
    "small_mlp": (small_mlp, (784,)),
    "cnn": (cnn, (1, 28, 28)),
    "encoder": (Encoder, (16, 64)),
    "resnet20": (resnet20, (3, 32, 32)),
}


class Batches:
    """The rows in batches that are slices; has the ``dataset`` that laplace-torch asks for the number of rows."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, batch: int = BATCH) -> None:
        self.dataset = TensorDataset(x, y)
        self._batches = list(zip(x.split(batch), y.split(batch), strict=True))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(self._batches)


def problem(network: str, rows: int = ROWS, batch: int = BATCH, seed: int = 0) -> tuple[nn.Module, Batches]:
    """Return a network of ``NETWORKS`` and made-up rows with labels, the same for the same seed."""
    torch.manual_seed(seed)
    build, shape = NETWORKS[network]
    return build(), Batches(torch.randn(rows, *shape), torch.randint(CLASSES, (rows,)), batch)


def inputs(network: str, count: int, seed: int = 1) -> torch.Tensor:
    """Return made-up inputs to predict for."""
    return torch.randn(count, *NETWORKS[network][1], generator=torch.Generator().manual_seed(seed))


def epoch(network: str = "mlp", rows: int = ROWS, batch: int = BATCH) -> Callable[[], None]:
    """Return a round: forward and backward over all rows."""
    net, batches = problem(network, rows, batch)
    return epoch_over(net, batches)


def epoch_over(net: nn.Module, batches: Batches) -> Callable[[], None]:
    """Return an epoch over these very batches, with this very network."""

    def one_epoch() -> None:
        for x, y in batches:
            net.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()

    return one_epoch
