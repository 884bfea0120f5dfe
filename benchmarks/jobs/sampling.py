"""What a step of the samplers costs beside a step of ``torch.optim.SGD`` with momentum, and beside the peer's.

``python -m benchmarks.jobs.sampling`` measures what sampling gains instead (about a minute): the log-losses of MAP and
of SGHMC under a fan-in scaled prior that README gives. The harness takes times and memory, so these are no ``Job``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import temperance as tp
from benchmarks.harness import Goal, Job, Round, Script
from benchmarks.peer_scripts import bare_step
from benchmarks.peer_scripts.networks import problem
from temperance.core.seeds import generator
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream

EXAMPLES = 50_000
LR = 1e-6  # so small that every round works on the same weights


def method_steps(method: tp.Inference[Any], network: str, steps: int) -> Round:
    """A round of steps of a method, on the batch that the floor has."""
    net, x, y = problem(network)
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
    batch = Batch(x, y, num_data=EXAMPLES)
    engine = Engine(target, target.prepare(tp.data.Data(x, y)))
    state = method.init(engine, tp.Starts(), [generator(0, "benchmark")])

    def round_of_steps() -> None:
        nonlocal state
        for _ in range(steps):
            state, info = method.step(engine, state, batch)
            assert info.status.ok, info.status

    return round_of_steps


def optimiser_steps(network: str, steps: int) -> Round:
    """A round of steps of a hand-written loop with our optimiser."""
    net, x, y = problem(network)
    optimiser = tp.optim.SGHMC(net.parameters(), lr=LR, num_data=EXAMPLES, weight_decay=1 / EXAMPLES)

    def round_of_steps() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()

    return round_of_steps


def sampler_job(network: str, steps: int) -> Callable[[], dict[str, Round]]:
    def setup() -> dict[str, Round]:
        return {
            "ours": method_steps(tp.SGHMC(lr=LR), network, steps),
            "optimiser": optimiser_steps(network, steps),
            "preconditioned": method_steps(tp.SGHMC(lr=LR, preconditioner=tp.Layerwise(batches=1)), network, steps),
            "SGLD": method_steps(tp.SGLD(lr=LR), network, steps),
            "BAOAB": method_steps(tp.BAOAB(lr=LR), network, steps),
            "SGNHT": method_steps(tp.SGNHT(lr=LR), network, steps),
            "floor": bare_step.step(network, "sgd", steps),
        }

    return setup


def noise_job() -> dict[str, Round]:
    out, stream = torch.empty(669_706), NormalStream(0)

    def ours() -> None:
        for _ in range(20):
            stream.fill_(out)

    def floor() -> None:
        for _ in range(20):
            out.normal_()

    return {"ours": ours, "floor": floor}


SCORED = {"digits": ([128, 128], 100), "breast_cancer": ([50], 200), "wine": ([50], 200)}  # hidden units, epochs


def fan_in_losses(method: tp.Inference[Any], name: str, seeds: Sequence[int]) -> torch.Tensor:
    """Test log-losses in nats under N(0, 2 / fan-in) on weights and N(0, 1) on biases; each seed has its own split."""
    hidden, epochs = SCORED[name]
    losses = []
    for seed in seeds:
        train, test = tp.data.load(name, split=seed)
        torch.manual_seed(seed)
        network = tp.nn.MLP(train.x.shape[1], hidden, train.info.num_classes)
        target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale=tp.FanIn(gain=2**0.5)))
        losses.append(tp.fit(target, method, train, epochs=epochs, seed=seed).evaluate(test)["log_loss"])
    return torch.tensor(losses)


def fan_in_scores(seeds: Sequence[int] = range(10)) -> None:
    """Print, for each data set, the mean log-loss of both methods and their difference with its standard error."""
    torch.set_num_threads(1)
    for name in SCORED:
        ours, floor = (fan_in_losses(method, name, seeds) for method in (tp.Collect(tp.SGHMC(lr=0.03)), tp.MAP()))
        less = floor - ours
        error = float(less.std()) / len(less) ** 0.5
        print(f"{name}: MAP {floor.mean():.3f}, SGHMC {ours.mean():.3f}, lower by {less.mean():.4f} ± {error:.4f}")


def peer(network: str, steps: int) -> dict[str, Script]:
    return {
        "posteriors": Script(
            "peer_scripts/posteriors_step.py",
            "step",
            environment="torch-peers",
            arguments={"network": network, "method": "sghmc", "steps": steps},
            versions=("torch", "posteriors"),
        )
    }


JOBS = [
    Job(
        "sghmc-resnet20",
        "A step of SGHMC on ResNet-20 (filter response norm), batch 128; the floor is torch.optim.SGD with momentum.",
        sampler_job("resnet20", 1),
        peers=peer("resnet20", 1),
        goals=(Goal("ours", "floor", at_most=1.10), Goal("posteriors", "ours", at_least=1.0)),
        unit="step",
        units=1,
        rounds=15,
    ),
    Job(
        "sghmc-mlp",
        "A step of SGHMC on a 784-512-512-10 MLP, batch 128; the floor is torch.optim.SGD with momentum.",
        sampler_job("mlp", 20),
        peers=peer("mlp", 20),
        goals=(Goal("ours", "floor", at_most=1.25), Goal("posteriors", "ours", at_least=1.0)),
        unit="step",
        units=20,
        rounds=25,
    ),
    Job(
        "noise",
        "0.67 million standard normal numbers; the floor is torch's normal_().",
        noise_job,
        goals=(Goal("floor", "ours", at_least=2.0),),
        unit="fill",
        units=20,
        rounds=25,
    ),
]

if __name__ == "__main__":
    fan_in_scores()
