"""Networks at their mode, with their data, for ``laplace_parity.py``: iris by 4-8-3, and a curve by 1-10-1, both tanh.

    python -m benchmarks.peer_scripts.laplace_parity_problems --out FOLDER [--prior-precision 1.0]

writes ``iris-weights.safetensors`` and ``iris-data.safetensors`` (``x``, ``y``, ``x_test``), and so for ``curve``. The
noise of the curve has a standard deviation of 0.3. The mode is that of the Gaussian prior, found in float64 by L-BFGS.
Runs in our own environment: iris comes with scikit-learn. ``--ask`` also has laplace-torch answer in its environment,
for every structure and subset, into ``iris-kron-all.json``, ``iris-kron-all.safetensors`` and so on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SIGMA = 0.3
SEED = 0
ANSWER_TIMEOUT = 300.0


def iris() -> tuple[nn.Sequential, dict[str, Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Return 120 rows to fit and 30 to predict for, standardised, and the negative log-likelihood."""
    from sklearn.datasets import load_iris

    bunch = load_iris()
    x = torch.from_numpy(bunch.data).double()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SEED))
    x, y = ((x - x.mean(0)) / x.std(0))[order], torch.from_numpy(bunch.target).long()[order]
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = {"x": x[:120], "y": y[:120], "x_test": x[120:]}
    return net, data, lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, reduction="sum")


def curve() -> tuple[nn.Sequential, dict[str, Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """Return 50 rows of a noisy sine in two clusters, a grid to predict for, and the negative log-likelihood."""
    rng = torch.Generator().manual_seed(SEED)
    x = torch.cat([torch.linspace(-3, -1, 25), torch.linspace(0.5, 3, 25)]).double()[:, None]
    y = torch.sin(2 * x) + SIGMA * torch.randn(x.shape, generator=rng, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    data = {"x": x, "y": y, "x_test": torch.linspace(-5, 5, 41).double()[:, None]}
    return net, data, lambda outputs, targets: (outputs - targets).square().sum() / (2 * SIGMA**2)


PROBLEMS = {"iris": (iris, "classification"), "curve": (curve, "regression")}


def at_the_mode(
    net: nn.Sequential,
    data: dict[str, Tensor],
    negative_log_likelihood: Callable[[Tensor, Tensor], Tensor],
    prior_precision: float,
) -> float:
    """Move the network to a mode of the posterior and return the largest entry of the gradient there."""
    parameters = list(net.parameters())
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=20_000, tolerance_grad=1e-9, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in parameters)
        value = negative_log_likelihood(net(data["x"]), data["y"]) + prior_precision / 2 * penalty
        value.backward()
        return value

    optimiser.step(closure)
    closure()
    return max(parameter.grad.abs().max().item() for parameter in parameters if parameter.grad is not None)


def write(folder: Path, prior_precision: float = 1.0) -> dict[str, float]:
    """Write every problem and return the largest entry of each one's gradient."""
    folder.mkdir(parents=True, exist_ok=True)
    gradients = {}
    for name, (build, _) in PROBLEMS.items():
        torch.manual_seed(SEED)
        net, data, negative_log_likelihood = build()
        gradients[name] = at_the_mode(net, data, negative_log_likelihood, prior_precision)
        save_file(
            {key: value.detach() for key, value in net.state_dict().items()}, folder / f"{name}-weights.safetensors"
        )
        save_file({key: value.contiguous() for key, value in data.items()}, folder / f"{name}-data.safetensors")
    return gradients


def ask(folder: Path, prior_precision: float = 1.0) -> None:
    """Have laplace-torch answer for every problem, structure and subset, in its own environment."""
    from benchmarks.peers import REPOSITORY, python_of

    for name, (_, likelihood) in PROBLEMS.items():
        for structure in ("full", "diag", "kron"):
            for subset in ("all", "last_layer"):
                out = folder.resolve() / f"{name}-{structure}-{subset}"
                files = {part: str(folder.resolve() / f"{name}-{part}.safetensors") for part in ("weights", "data")}
                command = [
                    str(python_of("torch-peers")),
                    "-W",
                    "ignore",
                    "-m",
                    "benchmarks.peer_scripts.laplace_parity",
                ]
                command += ["--weights", files["weights"], "--data", files["data"], "--out", str(out), "--check"]
                command += ["--structure", structure, "--subset", subset, "--likelihood", likelihood]
                command += ["--prior-precision", str(prior_precision), "--sigma-noise", str(SIGMA)]
                subprocess.run(command, cwd=REPOSITORY, check=True, timeout=ANSWER_TIMEOUT)
                found = json.loads(out.with_name(out.name + ".json").read_text())
                worst = max(found["difference_to_brute_force"].values())
                print(f"{out.name:24} evidence {found['log_marginal_likelihood']:12.6f}  from brute force {worst:.1e}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the problems, and the peer's answers if asked."""
    parser = argparse.ArgumentParser(description="Problems for the parity with laplace-torch.")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--prior-precision", type=float, default=1.0)
    parser.add_argument("--ask", action="store_true", help="have laplace-torch answer too")
    options = parser.parse_args(arguments)
    for name, gradient in write(options.out, options.prior_precision).items():
        print(f"{name}: at the mode, largest entry of the gradient {gradient:.1e}")
    if options.ask:
        ask(options.out, options.prior_precision)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
