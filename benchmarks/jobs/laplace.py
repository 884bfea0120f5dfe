"""What a Laplace approximation costs: the curvature pass in epochs (forward and backward over the same rows in the same
batches), its factorisation apart, and linearised predictions; beside laplace-torch with its default backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import temperance as tp
from benchmarks.harness import Goal, Job, Round, Script
from benchmarks.peer_scripts.curvature_problems import BATCH, ROWS, epoch_over, inputs, problem
from temperance.engine.engine import Engine
from temperance.inference.curvature.approximate import prior_curvature
from temperance.inference.curvature.structures import Curvature, Problem
from temperance.inference.curvature.subsets import chosen_names
from temperance.inference.curvature.sweep import Sweep

OUTPUTS = 10
PEER = "peer_scripts/laplace_fit.py"
VERSIONS = ("torch", "laplace-torch")


def curvature_pass(network: str, curvature: Curvature, rows: int, on: Any = None) -> tuple[Round, Round]:
    """Rounds of the pass alone, and of the factorisation that follows it once."""
    net, batches = problem(network, rows)
    x, y = batches.dataset.tensors
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
    data = target.prepare(tp.data.Data(x, y))
    theta, engine = target.initial_theta(), Engine(target, data)
    tau = prior_curvature(engine, theta).precision
    made: list[Any] = []

    def sweep() -> Problem:
        names = chosen_names(engine, on)
        kind = curvature.sweep_kind
        return Problem(Sweep(engine, theta, {}, data, names=names, kind=kind, batch_size=BATCH), tau)

    def gather() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tp.errors.TemperanceWarning)
            made[:] = curvature.gather(sweep())[0] if isinstance(curvature, tp.KFAC) else curvature.compute(sweep())[0]

    def factorise() -> None:
        for accumulator in made:
            if hasattr(accumulator, "_made"):
                accumulator._made.clear()
            accumulator.blocks()

    return gather, factorise


def curvature_job(network: str, rows: int) -> Callable[[], dict[str, Round]]:
    """KFAC and diagonal, exact and by Monte Carlo, beside an epoch."""

    def setup() -> dict[str, Round]:
        net, batches = problem(network, rows)
        return {
            "KFAC, Monte Carlo": curvature_pass(network, tp.KFAC(kind="monte-carlo"), rows)[0],
            "KFAC, exact": curvature_pass(network, tp.KFAC(), rows)[0],
            "diagonal, Monte Carlo": curvature_pass(network, tp.Diagonal(kind="monte-carlo"), rows)[0],
            "diagonal, exact": curvature_pass(network, tp.Diagonal(), rows)[0],
            "epoch": epoch_over(net, batches),
        }

    return setup


def last_layer_job(rows: int) -> dict[str, Round]:
    net, batches = problem("resnet20", rows)
    return {"ours": curvature_pass("resnet20", tp.Dense(), rows, tp.last_layer)[0], "epoch": epoch_over(net, batches)}


def prediction_job(count: int) -> dict[str, Round]:
    net, batches = problem("mlp", 2 * BATCH)
    x, y = batches.dataset.tensors
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
    fitted = tp.fit(target, tp.Laplace(curvature=tp.KFAC(), tune=None), (x, y))
    at = inputs("mlp", count)
    return {
        "ours": lambda: fitted.predict(at, by="probit").probs,
        "ours, points": lambda: fitted.predict(at).probs,
        "ours, 64 functions": lambda: fitted.predict(at, by="functions").probs,
    }


def peer(function: str, **arguments: Any) -> Script:
    return Script(PEER, function, environment="torch-peers", arguments=arguments, versions=VERSIONS)


def curvature_goals(peers: tuple[str, ...]) -> tuple[Goal, ...]:
    bounds = {"KFAC, Monte Carlo": 4.0, "KFAC, exact": 2.0 + OUTPUTS, "diagonal, Monte Carlo": 4.0}
    bounds["diagonal, exact"] = 2.0 + OUTPUTS
    made = [Goal(name, "epoch", at_most=bound) for name, bound in bounds.items()]
    return (*made, *(Goal(name, "KFAC, exact", at_least=1.0) for name in peers))


JOBS = [
    Job(
        "curvature-mlp",
        f"A curvature pass over {ROWS} rows, 784-512-512-10 MLP, batch {BATCH}, in epochs over the same rows.",
        curvature_job("mlp", ROWS),
        peers={"laplace-torch, kron": peer("fit", network="mlp", structure="kron")},
        goals=curvature_goals(("laplace-torch, kron",)),
        unit="pass",
        threads=1,
        rounds=7,
        warmup=1,
    ),
    Job(
        "curvature-cnn",
        "A curvature pass over 1,024 rows, a CNN (28×28, 32 and 64 filters, 3136-128-10), in epochs over these rows.",
        curvature_job("cnn", 1024),
        goals=curvature_goals(()),
        unit="pass",
        threads=1,
        rounds=5,
        warmup=1,
    ),
    Job(
        "curvature-encoder",
        "A curvature pass over 512 rows of 16 words, two of torch's encoder layers (d = 64, 4 heads), in epochs.",
        curvature_job("encoder", 512),
        goals=curvature_goals(()),
        unit="pass",
        threads=1,
        rounds=5,
        warmup=1,
    ),
    Job(
        "curvature-small-mlp",
        "A diagonal curvature pass over 256 rows of a 784-50-10 MLP, where laplace-torch's default diagonal finishes.",
        curvature_job("small_mlp", 256),
        peers={"laplace-torch, diag": peer("fit", network="small_mlp", structure="diag", rows=256)},
        goals=(
            Goal("diagonal, exact", "epoch", at_most=2.0 + OUTPUTS),
            Goal("laplace-torch, diag", "diagonal, exact", at_least=10.0),
        ),
        unit="pass",
        threads=1,
        rounds=5,
        warmup=1,
    ),
    Job(
        "last-layer-resnet20",
        "The dense curvature of the last layer of ResNet-20 over 512 rows, in epochs over the same rows.",
        lambda: last_layer_job(512),
        peers={
            "laplace-torch": peer("fit", network="resnet20", structure="full", subset="last_layer", rows=512),
        },
        goals=(Goal("ours", "epoch", at_most=1.5), Goal("laplace-torch", "ours", at_least=1.0)),
        unit="pass",
        threads=1,
        rounds=7,
        warmup=1,
    ),
    Job(
        "glm-mlp",
        "The linearised predictive (probit) for 100 inputs under the KFAC posterior of the 784-512-512-10 MLP.",
        lambda: prediction_job(100),
        peers={"laplace-torch": peer("predict", network="mlp", count=100)},
        goals=(Goal("laplace-torch", "ours", at_least=50.0),),
        unit="prediction",
        threads=1,
        rounds=3,
        warmup=1,
    ),
]
