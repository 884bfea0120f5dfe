"""What a step of variational methods costs beside a step of Adam, and what collecting costs SWAG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

import temperance as tp
from benchmarks.harness import Goal, Job, Round, Script
from benchmarks.jobs.sampling import EXAMPLES, LR, method_steps
from benchmarks.peer_scripts import bare_step
from benchmarks.peer_scripts.networks import problem
from temperance.core.seeds import generator
from temperance.engine.engine import Engine


def ivon_optimiser(network: str, steps: int) -> Round:
    """A round of steps of a hand-written loop with our optimiser."""
    net, x, y = problem(network)
    optimiser = tp.optim.IVON(net.parameters(), lr=LR, num_data=EXAMPLES, weight_decay=1 / EXAMPLES)

    def round_of_steps() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            with optimiser.perturbed():
                torch.nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()

    return round_of_steps


def variational_job(network: str, steps: int) -> Callable[[], dict[str, Round]]:
    def setup() -> dict[str, Round]:
        return {
            "ours": method_steps(tp.Variational(tp.MeanField(), lr=LR, initial_scale=1e-3), network, steps),
            "local": method_steps(
                tp.Variational(tp.MeanField(), lr=LR, initial_scale=1e-3, estimator="local"), network, steps
            ),
            "flipout": method_steps(
                tp.Variational(tp.MeanField(), lr=LR, initial_scale=1e-3, estimator="flipout"), network, steps
            ),
            "floor": bare_step.step(network, "adam", steps),
        }

    return setup


def ivon_job(network: str, steps: int) -> Callable[[], dict[str, Round]]:
    def setup() -> dict[str, Round]:
        vogn = {"VOGN": method_steps(tp.VOGN(lr=LR), network, steps)} if network == "mlp" else {}
        return {
            **vogn,
            "ours": method_steps(tp.IVON(lr=LR), network, steps),
            "optimiser": ivon_optimiser(network, steps),
            "floor": bare_step.step(network, "adam", steps),
        }

    return setup


def swag_job() -> dict[str, Round]:
    """Epochs of ordinary training, and the same with an iterate collected at the end of each."""
    train, _ = tp.data.load("digits")
    data = tp.data.Data(train.x.repeat(4, 1), train.y.repeat(4))
    base = tp.MAP(lr=LR, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})

    def epochs(method: tp.Inference) -> Round:  # type: ignore[type-arg]
        torch.manual_seed(0)
        target = tp.Target(tp.nn.MLP(64, [512, 512], 10), tp.Categorical(), tp.GaussianPrior(scale=1.0))
        prepared = target.prepare(data)
        engine = Engine(target, prepared)
        state = method.init(engine, tp.Starts(), [generator(0, "benchmark")])
        batches = list(prepared.batches(128, seed=0))

        def one_epoch() -> None:
            nonlocal state
            for batch in batches:
                state, info = method.step(engine, state, replace(batch, step=1, progress=0.9))
                assert info.status.ok, info.status

        return one_epoch

    return {"ours": epochs(tp.SWAG(base, rank=20)), "floor": epochs(base)}


def posteriors_peer(network: str, steps: int) -> dict[str, Script]:
    return {
        "posteriors": Script(
            "peer_scripts/posteriors_step.py",
            "step",
            environment="torch-peers",
            arguments={"network": network, "method": "mean_field", "steps": steps},
            versions=("torch", "posteriors"),
        )
    }


def ivon_peer(network: str, steps: int) -> dict[str, Script]:
    return {
        "ivon-opt": Script(
            "peer_scripts/ivon_step.py",
            "step",
            environment="torch-peers",
            arguments={"network": network, "steps": steps},
            versions=("torch", "ivon-opt"),
        )
    }


def _jobs(network: str, where: str, steps: int, rounds: int, ivon_limit: float) -> list[Job]:
    return [
        Job(
            f"mean-field-{network}",
            f"A step of mean-field VI with one sample on {where}, batch 128; the floor is torch.optim.Adam.",
            variational_job(network, steps),
            peers=posteriors_peer(network, steps),
            goals=(Goal("ours", "floor", at_most=2.2), Goal("posteriors", "ours", at_least=1.0)),
            unit="step",
            units=steps,
            rounds=rounds,
            threads=1,
        ),
        Job(
            f"ivon-{network}",
            f"A step of IVON on {where}, batch 128; the floor is torch.optim.Adam.",
            ivon_job(network, steps),
            peers=ivon_peer(network, steps),
            goals=(Goal("ours", "floor", at_most=ivon_limit), Goal("ivon-opt", "ours", at_least=1.0)),
            unit="step",
            units=steps,
            rounds=rounds,
            threads=1,
        ),
    ]


JOBS = [
    *_jobs("resnet20", "ResNet-20 (filter response norm)", 1, 15, 1.15),
    *_jobs("mlp", "a 784-512-512-10 MLP", 20, 15, 1.8),
    Job(
        "swag-mlp",
        "An epoch of training with an iterate collected at its end, 64-512-512-10 MLP; the floor is training alone.",
        swag_job,
        goals=(Goal("ours", "floor", at_most=1.02),),
        unit="epoch",
        units=1,
        rounds=25,
        threads=1,
    ),
]
