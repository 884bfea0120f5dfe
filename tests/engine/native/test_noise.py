"""The generator of noise: moments, tails, independence, reproducibility, and the compiled against the eager one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from temperance.engine.native import NormalStream, fill_rows_, in_use, noise, symplectic_euler_
from temperance.engine.native import build as native
from temperance.testing import critical_value

N = 400_001


def draw(seed: int, count: int = 0, size: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return NormalStream(seed, count).fill_(torch.empty(size, dtype=dtype))


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(noise, "compiled_fill", lambda: None)


def standard_errors(values: torch.Tensor) -> list[float]:
    """Deviations of the first eight moments from those of N(0, 1), in standard errors."""
    z = values.double()
    found = []
    for k in range(1, 9):
        moment = 0.0 if k % 2 else float(np.prod(np.arange(k - 1, 0, -2)))
        square = float(np.prod(np.arange(2 * k - 1, 0, -2)))
        found.append((float(z.pow(k).mean()) - moment) / ((square - moment**2) / len(z)) ** 0.5)
    return found


@pytest.mark.parametrize("seed", [0, 1, 2**61 + 5])
def test_moments_and_law(seed):
    z = draw(seed)
    assert max(abs(e) for e in standard_errors(z)) < critical_value(8)
    assert scipy.stats.kstest(z.numpy(), "norm").pvalue > 1e-5


def test_tails():
    counts = np.zeros(4)
    edges = [3.0, 4.0, 4.5, 5.0]
    total = 40
    for step in range(total):
        z = draw(3, step, 1_000_000).numpy()
        counts += [(z > e).sum() for e in edges]
        counts += [(z < -e).sum() for e in edges]
    for edge, count in zip(edges, counts, strict=True):
        expected = 2 * total * 1_000_000 * scipy.stats.norm.sf(edge)
        assert abs(count - expected) < critical_value(4) * expected**0.5


def test_the_largest_number_that_can_come_is_beyond_six():
    first, _ = noise.eager_pairs(1, (0, 0, 0))
    assert first.isfinite().all()
    assert float(torch.sqrt(-2 * noise._log(torch.tensor([0.5 * 2.0**-31])))) > 6.5


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard errors."""
    return float((a.double() * b.double()).mean()) * len(a) ** 0.5


def test_neighbours_pairs_steps_and_seeds_are_independent():
    z = draw(5)
    half = (N + 1) // 2
    others = {
        "next number": (z[:-1], z[1:]),
        "number after": (z[:-2], z[2:]),
        "partner of the pair": (z[: N - half], z[half:]),
        "next step": (z, draw(5, 1)),
        "next seed": (z, draw(6)),
        "a seed one bit away": (z, draw(5 ^ (1 << 40))),
    }
    for a, b in others.values():
        for f in (lambda t: t, lambda t: t.square() - 1, lambda t: t.abs() - (2 / np.pi) ** 0.5):
            scale = f(z).double().square().mean()
            assert abs(correlation(f(a), f(b))) / float(scale) < critical_value(len(others) * 3)


def test_one_coordinate_over_steps():
    series = torch.stack([draw(9, step, 6) for step in range(20_000)])
    for column in series.T:
        assert max(abs(e) for e in standard_errors(column)) < critical_value(48)
        assert abs(correlation(column[:-1], column[1:])) < critical_value(6)
    off = (series.double().T @ series.double() / len(series)).fill_diagonal_(0)
    assert float(off.abs().max()) * len(series) ** 0.5 < critical_value(15)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 999, 100_000])
def test_compiled_and_eager_agree(size, eager):
    slow = draw(4, 2, size)
    keys = noise._keys(4, 2)
    fill = native.compiled_fill()
    if fill is None:
        pytest.skip("no C compiler here")
    fast = torch.empty(size)
    half = (size + 1) // 2
    whole = torch.empty(2 * half)
    fill(whole.data_ptr(), whole.data_ptr() + 4 * half, 0, half, 1, *keys)
    fast[:half], fast[half:] = whole[:half], whole[half:size]
    assert torch.allclose(slow, fast, atol=3e-6)


def test_threads_do_not_matter(monkeypatch):
    alone = draw(8)
    monkeypatch.setattr(noise, "_THREADED", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(alone, draw(8))


def test_reproducible_and_a_function_of_seed_and_count():
    stream = NormalStream(11)
    first, second = stream.fill_(torch.empty(7)), stream.fill_(torch.empty(7))
    assert stream.count == 2
    assert torch.equal(second, draw(11, 1, 7))
    assert not torch.equal(first, second)
    assert torch.equal(draw(11, 0, 7, torch.float64), first.double())


def test_rows_have_streams_of_their_own():
    out = fill_rows_(torch.empty(2, 5), [NormalStream(1), NormalStream(2)])
    assert torch.equal(out[0], draw(1, 0, 5))
    assert torch.equal(out[1], draw(2, 0, 5))


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("TEMPERANCE_NO_COMPILER", "1")
    native.forget()
    try:
        assert in_use() == "eager"
        assert abs(float(draw(0).mean())) < 0.01
    finally:
        native.forget()


def test_a_compiler_that_fails_is_no_harm(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.forget()
    try:
        assert in_use() == "eager"
    finally:
        native.forget()


def test_no_home_is_no_harm(monkeypatch):
    def nowhere() -> None:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(native.Path, "home", nowhere)
    native.forget()
    try:
        assert in_use() in ("compiled", "eager")
    finally:
        native.forget()


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 300_001])
def test_the_move_in_one_pass_is_the_move_in_steps(size):
    theta, velocity, grad = (torch.randn(size, generator=torch.Generator().manual_seed(k)) for k in range(3))
    numbers = (0.9, 0.3, 0.5, 0.1)
    wanted_v = velocity * 0.9 - 0.3 * grad + 0.5 * draw(12, 4, size)
    wanted = theta + 0.1 * wanted_v
    stream = NormalStream(12, 4)
    if not symplectic_euler_(theta, velocity, grad, stream, *numbers):
        pytest.skip("no C compiler here")
    assert stream.count == 5
    assert torch.allclose(velocity, wanted_v, atol=3e-6)
    assert torch.allclose(theta, wanted, atol=3e-6)


def test_the_move_in_one_pass_leaves_other_tensors_to_the_slow_way():
    stream, vector = NormalStream(0), torch.zeros(4, dtype=torch.float64)
    assert not symplectic_euler_(vector, vector.clone(), vector.clone(), stream, 0.9, 0.3, 0.5, 0.1)
    assert stream.count == 0
