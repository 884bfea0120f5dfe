"""The numbers of laplace-torch 0.3, where it works, and why ours differ where they do.

``laplace_torch.safetensors`` holds weights, data and laplace-torch's answers for two small networks at their modes, as
``benchmarks/peer_scripts/laplace_parity*.py`` recorded them (which also say how to ask it again). Conventions agree but
for two: its Kronecker factors keep weight and bias apart, ours have the bias as one more input; and a variance in
regression has no noise in it there, which here is ``epistemic_variance``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import temperance as tp
from temperance.linalg import KroneckerBlock

FILE = Path(__file__).parent / "laplace_torch.safetensors"
CURVATURE = {"full": tp.Dense(), "diag": tp.Diagonal(), "kron": tp.KFAC()}


def numbers(case):
    with safe_open(FILE, "pt") as file:
        found = {key.partition("/")[2]: file.get_tensor(key) for key in file.keys() if key.startswith(case + "/")}  # noqa: SIM118
        evidence = file.metadata().get(f"{case}/log_marginal_likelihood")
    return found, None if evidence is None else float(evidence)


def fitted(problem, structure, subset):
    weights, data = numbers(f"{problem}-weights")[0], numbers(f"{problem}-data")[0]
    hidden, inputs = weights["0.weight"].shape
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, len(weights["2.bias"]))).double()
    net.load_state_dict(weights)
    likelihood = tp.Categorical() if problem == "iris" else tp.Normal(scale=0.3)
    target = tp.Target(net, likelihood, tp.GaussianPrior(1.0))
    method = tp.Laplace(curvature=CURVATURE[structure], on=tp.last_layer if subset == "last_layer" else None, tune=None)
    return tp.fit(target, method, (data["x"], data["y"]), start=net), data


@pytest.mark.parametrize("problem", ["iris", "curve"])
@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_dense_and_diagonal_agree(problem, structure, subset):
    said, evidence = numbers(f"{problem}-{structure}-{subset}")
    ours, data = fitted(problem, structure, subset)
    variance = ours.posterior.operator.diagonal()
    assert torch.allclose(variance[variance > 0], said["variance"], rtol=1e-8)
    assert ours.log_evidence() == pytest.approx(evidence, abs=1e-6)
    found = ours.predict(data["x_test"], by="probit" if problem == "iris" else None)
    if problem == "iris":
        assert torch.allclose(found.probs, said["probs"], atol=1e-10)
    else:
        assert torch.allclose(found.epistemic_variance(), said["f_var"].flatten(1), rtol=1e-8)


@pytest.mark.parametrize("problem", ["iris", "curve"])
def test_kronecker_factors_agree_and_ours_have_the_bias_in_them(problem):
    said, _ = numbers(f"{problem}-kron-all")
    ours, _ = fitted(problem, "kron", "all")
    noise = 1.0 if problem == "iris" else 0.3**2  # its factors come before the noise
    for block, name in zip(ours.posterior.operator.blocks, ("0", "2"), strict=True):
        assert isinstance(block, KroneckerBlock)
        a, g = block.factors()
        theirs = torch.kron(said[f"kron.{name}.weight.0"], said[f"kron.{name}.weight.1"])  # a factor may sit in either
        assert torch.allclose(torch.kron(noise * g, a[:-1, :-1].contiguous()), theirs, rtol=1e-8, atol=1e-10)
        assert torch.allclose(noise * g, said[f"kron.{name}.bias.0"], rtol=1e-8, atol=1e-12)  # its block of the bias
        assert float(a[-1, -1]) == pytest.approx(1.0)  # ours is the same on its own, and keeps what goes together
        assert float(a[-1, :-1].abs().max()) > 1e-3
