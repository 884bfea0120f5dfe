"""What ``fit`` costs beside a hand-written loop, and an ensemble beside its members trained one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import temperance as tp
from benchmarks.harness import Goal, Job, Round, Script
from temperance.core.seeds import generator
from temperance.data import Data
from temperance.engine.engine import Engine
from temperance.run.loop import Loop

LR = 1e-6  # so small that every round works on the same weights


def images(rows: int, *shape: int) -> Data:
    rng = generator(0, "benchmark")
    return Data(torch.randn(rows, *shape, generator=rng), torch.randint(0, 10, (rows,), generator=rng))


def endless_fit(
    target: tp.Target, method: tp.Inference[Any], data: Data, batch_size: int, steps: int, compile: bool = False
) -> Round:
    """A round of ``steps`` more steps of the loop inside ``fit``, begun once."""
    prepared = target.prepare(data)
    per_epoch = prepared.steps_per_epoch(batch_size)
    engine = Engine(target.beginning(prepared), prepared, compile=compile)
    loop = Loop(engine, method, prepared, None, batch_size, per_epoch, 0, 0, {}, None, 10**9)
    loop.prepare(None)

    def round_of_steps() -> None:
        loop.total += steps
        status = loop.run(False)
        assert status.ok, status

    return round_of_steps


def hand_written(
    networks: list[nn.Module], loss: Callable[..., torch.Tensor], data: Data, batch_size: int, steps: int
) -> Round:
    """A round of ``steps`` steps of a plain PyTorch loop: shuffled batches, Adam, the prior as weight decay. Several
    networks are trained one after another."""
    x, y = data.x, data.y
    decay = 1.0 / len(data)
    optimisers = [torch.optim.Adam(net.parameters(), lr=LR, weight_decay=decay) for net in networks]
    rng = torch.Generator().manual_seed(0)

    def round_of_steps() -> None:
        for net, optimiser in zip(networks, optimisers, strict=True):
            done = 0
            while done < steps:
                for rows in torch.randperm(len(data), generator=rng).split(batch_size):
                    optimiser.zero_grad()
                    loss(net(x[rows]), y[rows]).backward()
                    optimiser.step()
                    done += 1
                    if done == steps:
                        break

    return round_of_steps


def map_job(make: Callable[[], nn.Module], data: Data, steps: int) -> Callable[[], dict[str, Round]]:
    def setup() -> dict[str, Round]:
        torch.manual_seed(0)
        target = tp.Target(make(), tp.Categorical(), tp.GaussianPrior(scale=1.0))
        floor = make().train()
        return {
            "ours": endless_fit(target, tp.MAP(lr=LR), data, 128, steps),
            "floor": hand_written([floor], nn.functional.cross_entropy, data, 128, steps),
        }

    return setup


def ensemble_job(compiled: bool) -> Callable[[], dict[str, Round]]:
    def setup() -> dict[str, Round]:
        torch.manual_seed(0)
        data = Data(torch.randn(1000, 8), torch.randn(1000, 1))
        target = tp.Target(tp.nn.MLP(8, [50], 1), tp.Normal(scale=1.0), tp.GaussianPrior(scale=1.0))
        networks: list[nn.Module] = [tp.nn.MLP(8, [50], 1) for _ in range(10)]

        def half_square(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 0.5 * nn.functional.mse_loss(out, y)

        return {
            "ours": endless_fit(target, tp.Ensemble(tp.MAP(lr=LR), 10, batched=True), data, 100, 20, compiled),
            "floor": hand_written(networks, half_square, data, 100, 20),
        }

    return setup


JOBS = [
    Job(
        "map-resnet20",
        "A step of fit with MAP (Adam) on ResNet-20, batch 128 of 32×32 images; the floor is a hand-written loop.",
        map_job(tp.nn.ResNet20, images(512, 3, 32, 32), 1),
        goals=(Goal("ours", "floor", at_most=1.05),),
        unit="step",
        units=1,
        rounds=25,
    ),
    Job(
        "map-mlp",
        "A step of fit with MAP (Adam) on a 784-512-512-10 MLP, batch 128; the floor is a hand-written loop.",
        map_job(lambda: tp.nn.MLP(784, [512, 512], 10), images(4096, 784), 20),
        peers={
            "posteriors": Script(
                "peer_scripts/posteriors_step.py",
                "step",
                environment="torch-peers",
                arguments={"network": "mlp", "method": "adam", "steps": 20},
                versions=("torch", "posteriors"),
            )
        },
        goals=(Goal("ours", "floor", at_most=1.15), Goal("posteriors", "ours", at_least=1.0)),
        unit="step",
        units=20,
        rounds=25,
    ),
    Job(
        "ensemble-batched",
        "10 networks of 50 hidden units on 1000 rows of 8 columns, batch 100: all at once against one after another.",
        ensemble_job(compiled=False),
        goals=(Goal("floor", "ours", at_least=3.5),),
        unit="step of all members",
        units=20,
        rounds=15,
    ),
    Job(
        "ensemble-compiled",
        "The same with fit(..., compile=True), where there is a compiler.",
        ensemble_job(compiled=True),
        goals=(Goal("floor", "ours", at_least=8.0),),
        unit="step of all members",
        units=20,
        rounds=15,
    ),
]
