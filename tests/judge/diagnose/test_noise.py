from __future__ import annotations

import numpy as np
import pytest
import torch

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.judge import diagnose
from temperance.testing import linear_gaussian


def stable(alpha: float, count: int, seed: int = 0) -> np.ndarray:
    """Symmetric α-stable variates by the method of Chambers, Mallows and Stuck (1976)."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(-np.pi / 2, np.pi / 2, count)
    waiting = rng.exponential(size=count)
    if alpha == 1:
        return np.tan(angle)
    bent = np.cos((1 - alpha) * angle) / waiting
    return np.sin(alpha * angle) / np.cos(angle) ** (1 / alpha) * bent ** ((1 - alpha) / alpha)


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])
def test_tail_index_of_stable_variates(alpha):
    found = diagnose.tail_index(stable(alpha, 2**20), 16)
    assert abs(found - alpha) < 0.025


def test_rows_may_differ_in_scale():
    x = stable(1.5, 2**18).reshape(-1, 64)
    scales = np.exp(3 * np.random.default_rng(1).normal(size=(len(x), 1)))
    assert diagnose.tail_index(x * scales) == pytest.approx(1.5, abs=0.05)
    assert abs(diagnose.tail_index((x * scales).T.copy()) - 1.5) > 0.1  # pieces across scales see heavier tails


def test_bad_samples_are_refused():
    with pytest.raises(ArgumentError, match="`samples` must be four or more"):
        diagnose.tail_index([1.0, 2.0])
    with pytest.raises(ArgumentError, match="`piece_size` must be from 2 to"):
        diagnose.tail_index(np.arange(1.0, 9.0), 9)
    with pytest.raises(ArgumentError, match="must not be zero"):
        diagnose.tail_index(np.zeros(100))


def test_gradient_noise_has_the_variance_of_sampling_without_replacement():
    rng = torch.Generator().manual_seed(0)
    rows, batch = 1100, 300  # more rows than a batch of the full pass
    x = torch.randn(rows, 3, generator=rng) * torch.tensor([0.5, 1.0, 2.0])
    y = torch.randn(rows, 2, generator=rng)
    target = tp.Target(torch.nn.Linear(3, 2), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    theta = torch.randn(8, generator=rng)
    found = diagnose.gradient_noise(target, theta, (x, y), batch, batches=400)
    errors = x @ theta[:6].view(2, 3).T + theta[6:] - y  # the gradient of one example: errors ⊗ x, and errors
    parts = [(errors.unsqueeze(2) * x.unsqueeze(1)).flatten(1), errors]
    truth = torch.stack([part.var(0).mean().double() for part in parts]) / batch * (1 - batch / rows)
    assert torch.allclose(found.variance, truth, rtol=0.2)
    assert found.whole_tail_index == pytest.approx(2.0, abs=0.2)  # a mean of 300 is nearly Gaussian
    assert found.names == ("weight", "bias")
    assert "tail index" in str(found)
    some = [diagnose.gradient_noise(target, theta, (x, y), batch, batches=8, seed=s).variance for s in (3, 3, 4)]
    assert torch.equal(some[0], some[1])
    assert not torch.equal(some[0], some[2])


def test_rare_large_gradients_have_heavier_tails():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 5, generator=rng)
    y = torch.from_numpy(stable(1.1, 2000)).float().unsqueeze(1)
    target = tp.Target(torch.nn.Linear(5, 1), tp.Normal(scale=50.0), tp.GaussianPrior(1.0))
    found = diagnose.gradient_noise(target, torch.zeros(6), (x, y), batch_size=2, batches=256)
    assert found.whole_tail_index < 1.7


def test_weights_without_noise_are_left_out_of_the_tail_index():
    target = tp.Target(torch.nn.Linear(2, 1), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    x = torch.cat([torch.randn(40, 1), torch.zeros(40, 1)], 1)  # a column of zeros: its weight's gradient has no noise
    found = diagnose.gradient_noise(target, torch.zeros(3), (x, torch.randn(40, 1)), batch_size=4, batches=16)
    assert found.tail_index.isfinite().all()
    none = diagnose.gradient_noise(target, torch.zeros(3), (0 * x, torch.ones(40, 1)), batch_size=4, batches=16)
    assert none.tail_index.isnan().all()
    assert (none.variance == 0).all()


def test_a_full_batch_has_no_noise():
    problem = linear_gaussian()
    with pytest.raises(ArgumentError, match="`batch_size` must be below the number of rows, 40"):
        diagnose.gradient_noise(problem.target, problem.mean, problem.data, batch_size=40)
    with pytest.raises(ArgumentError, match="`batches` must be at least 4"):
        diagnose.gradient_noise(problem.target, problem.mean, problem.data, batch_size=4, batches=2)
