"""The tasks of the yardstick: real data with a network, each with many splits, for comparing methods as they come.

Prior and likelihood of every task are those of README's three lines: ``GaussianPrior(scale=1.0)``, and
``Categorical()`` or ``Normal()``. A split decides training rows, test rows and the network's first weights.

Tasks are in two halves. Defaults are chosen by looking at the tasks of ``development`` alone; what they are worth is
read off those of ``report``. They alternate within groups, but what shares rows shares a half (both networks on digits,
both on Fashion-MNIST, and sst2 with mr, of whose sentences it is made).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.seeds import generator
from temperance.data.files import data_folders
from temperance.lab.problems import MLP_NAME, features, make_network
from temperance.nn.resnet import load_cifar_resnet

DEVELOPMENT, REPORT = "development", "report"
HALVES = (DEVELOPMENT, REPORT)
TABLES, IMAGES, TEXT, POST_HOC = "tables", "images", "text", "post-hoc"

TRAINED = "resnet20-trained"
_RATE = 0.1  # of the dropout that MC dropout adds
_HELD = 1000  # images by which a method chooses its width around a network that is trained already
_MEAN, _SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # the inputs that the trained ResNet knows


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: of the task.
        group: tables, images, text or post-hoc (a network that is trained already).
        half: development or report.
        data: the data set, as :func:`temperance.data.load` knows it.
        rows: training rows, drawn anew for each split (0: all that there are).
        network: ``mlp-WIDTHxDEPTH``, ``cnn`` (the small one of :mod:`temperance.lab.problems`), or the trained ResNet.
        splits: how many divisions the data set has (1: a test set is given; ``None``: any number).
        steps: of plain training, in batches of ``batch_size``: MAP has then converged.
        test: test rows at most, drawn anew for each split.
    """

    name: str
    group: str
    half: str
    data: str
    rows: int = 0
    network: str = "mlp-50x2"
    splits: int | None = None
    steps: int = 2500
    batch_size: int = 64
    test: int = 2000

    def epochs(self, rows: int, length: float = 1.0) -> int:
        """How often ``rows`` are gone through, for ``length`` times ``steps``.

        >>> find_task("iris").epochs(120)
        1250
        """
        return max(3, math.ceil(length * self.steps / math.ceil(rows / self.batch_size)))


TASKS: tuple[Task, ...] = (
    Task("iris", TABLES, DEVELOPMENT, "iris"),
    Task("wine", TABLES, REPORT, "wine"),
    Task("breast-cancer", TABLES, DEVELOPMENT, "breast-cancer"),
    Task("diabetes", TABLES, REPORT, "diabetes"),
    Task("concrete", TABLES, DEVELOPMENT, "concrete", splits=20),
    Task("energy", TABLES, REPORT, "energy", splits=20),
    Task("wine-red", TABLES, DEVELOPMENT, "wine-red", splits=20),
    Task("power-plant", TABLES, REPORT, "power-plant", rows=1500, splits=20),
    Task("naval", TABLES, DEVELOPMENT, "naval", rows=1500, splits=20),
    Task("protein", TABLES, REPORT, "protein", rows=1500, splits=5),
    Task("mushroom", TABLES, DEVELOPMENT, "mushroom", rows=300),
    Task("esol", TABLES, REPORT, "esol"),
    Task("freesolv", TABLES, DEVELOPMENT, "freesolv"),
    Task("lipophilicity", TABLES, REPORT, "lipophilicity", rows=1500),
    Task("digits", IMAGES, DEVELOPMENT, "digits", network="mlp-128x2"),
    Task("digits-cnn", IMAGES, DEVELOPMENT, "digits", network="cnn"),
    Task("mnist", IMAGES, REPORT, "mnist", rows=1500, network="mlp-128x2", splits=1),
    Task("fashion-mnist", IMAGES, REPORT, "fashion-mnist", rows=1500, network="mlp-128x2", splits=1),
    Task("fashion-mnist-cnn", IMAGES, REPORT, "fashion-mnist", rows=3000, network="cnn", splits=1),
    Task("cifar10-cnn", IMAGES, DEVELOPMENT, "cifar10", rows=3000, network="cnn", splits=1),
    Task("trec", TEXT, DEVELOPMENT, "trec", rows=1500, network="mlp-50x1", splits=1),
    Task("sst2", TEXT, REPORT, "sst2", rows=1500, network="mlp-50x1", splits=1),
    Task("mr", TEXT, REPORT, "mr", rows=1500, network="mlp-50x1"),
    Task("agnews", TEXT, DEVELOPMENT, "agnews", rows=1500, network="mlp-50x1", splits=1),
    Task("imdb", TEXT, DEVELOPMENT, "imdb-bag", rows=1500, network="mlp-50x1", splits=1),
    Task("cifar10-resnet20", POST_HOC, REPORT, "cifar10", rows=2000, network=TRAINED, splits=1),
)


def find_task(name: str) -> Task:
    """A task by name, or an error that lists them."""
    found = next((task for task in TASKS if task.name == name), None)
    if found is None:
        raise tp.errors.ArgumentError(f"`tasks` must be among {', '.join(task.name for task in TASKS)}; got {name!r}.")
    return found


@dataclass(frozen=True)
class Rows:
    """What a split has: rows to learn from, rows to be judged by, and for trained networks rows to choose by."""

    train: tp.data.Data
    test: tp.data.Data
    held_out: tp.data.Data | None = None

    @property
    def classes(self) -> int | None:
        """How many classes; ``None`` for numbers."""
        return self.train.info.num_classes


def load_rows(task: Task, split: int) -> Rows:
    """The rows of one split, the same at each call."""
    number = split if task.splits is None else split % task.splits
    train, test = _whole(task.data, number)
    rng = generator(split, "task", task.data)
    if task.group == POST_HOC:
        order = torch.randperm(len(test), generator=rng)
        held, kept = order[:_HELD], order[_HELD : _HELD + task.test]
        return Rows(
            *(_as_trained(part) for part in (_some(train, task.rows, rng), test.subset(kept), test.subset(held)))
        )
    return Rows(_some(train, task.rows, rng), _some(test, task.test, rng))


@functools.lru_cache(maxsize=2)
def _whole(name: str, split: int) -> tuple[tp.data.Data, tp.data.Data]:
    return tp.data.load(name, split=split)


def _some(data: tp.data.Data, rows: int, rng: torch.Generator) -> tp.data.Data:
    if not rows or rows >= len(data):
        return data
    return data.subset(torch.randperm(len(data), generator=rng)[:rows])


def _as_trained(data: tp.data.Data) -> tp.data.Data:
    mean, scale = (torch.tensor(numbers).view(3, 1, 1) for numbers in (_MEAN, _SCALE))
    assert isinstance(data.x, Tensor)
    return tp.data.Data((data.x - mean) / scale, data.y, info=data.info)


def make_target(task: Task, rows: Rows, split: int, *, scale: float = 1.0, dropout: bool = False) -> tp.Target:
    """The problem: network, likelihood and N(0, ``scale``²) for every weight. ``dropout`` puts one of a tenth after
    each activation."""
    likelihood = tp.Normal() if rows.classes is None else tp.Categorical()
    prior = tp.GaussianPrior(scale=scale)
    if task.network == TRAINED:
        return tp.Target(_trained(), likelihood, prior, freeze_batch_norm=True)
    return tp.Target(_network(task, rows, split, dropout), likelihood, prior)


def _network(task: Task, rows: Rows, split: int, dropout: bool) -> nn.Module:
    found = MLP_NAME.match(task.network)
    if not found:
        made = make_network(task.network + ("-dropout" if dropout else ""), rows.train, split)
        for module in made.modules():
            if isinstance(module, nn.Dropout):
                module.p = _RATE
        return made
    activation = (lambda: nn.Sequential(nn.ReLU(), nn.Dropout(_RATE))) if dropout else nn.ReLU
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(split)
        return tp.nn.MLP(features(rows.train), [int(found[1])] * int(found[2]), rows.classes or 1, activation)


def _trained() -> nn.Module:
    """ResNet-20 as Idelbayev trained and released it, from ``cifar10-resnets`` of the data folders."""
    places = [folder / "cifar10-resnets" for folder in data_folders()]
    path = next((path for place in places for path in sorted(place.glob("resnet20-*.th"))), None)
    if path is None:
        raise tp.errors.MissingDataSetError(
            f"the trained ResNet-20 was not found: resnet20-12fca82f.th must lie in {' or '.join(map(str, places))}. "
            "Get it from https://github.com/akamaster/pytorch_resnet_cifar10, folder pretrained_models."
        )
    return load_cifar_resnet(path)
