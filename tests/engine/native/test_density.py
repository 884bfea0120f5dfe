"""Densities of users in machine code: every operation beside PyTorch's own, and what is refused."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import torch.distributions as D
from torch import Tensor

import temperance as tp
from temperance.engine.native.build import c_function
from temperance.engine.native.density import NativeDensity, Unknown
from temperance.engine.native.emit.elementwise import ELEMENTWISE

pytestmark = pytest.mark.skipif(
    c_function("temperance_energies_float", (), "mlp.c") is None, reason="no C compiler here"
)

RNG = torch.Generator().manual_seed(0)


def rand(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=RNG, dtype=dtype)


X, Y = rand(50, 3), (rand(50) > 0).double()
COUNTS = torch.poisson(torch.full((50,), 3.0), generator=RNG).double()
GROUP, LABEL = torch.randint(0, 5, (50,), generator=RNG), torch.randint(0, 3, (50,), generator=RNG)
PLACES = torch.randint(-6, 6, (2, 4), generator=RNG)
BATCH = rand(4, 2, 3)


def hierarchical(t: Tensor) -> Tensor:
    """Groups by an index, distributions that check what they are given."""
    mu, spread, each = t[0], t[1].exp(), t[2:7]
    fit = D.Bernoulli(logits=each[GROUP] + X @ t[7:10]).log_prob(Y).sum()
    return D.Normal(mu, spread).log_prob(each).sum() + fit + D.HalfNormal(1.0).log_prob(spread) + t[1] - mu.square()


def counts(t: Tensor) -> Tensor:
    r, logits = t[0].exp(), X @ t[1:4]
    terms = torch.lgamma(COUNTS + r) - torch.lgamma(r) + r * torch.nn.functional.logsigmoid(-logits)
    return (terms + COUNTS * torch.nn.functional.logsigmoid(logits)).sum() + D.Gamma(2.0, 1.0).log_prob(r) + t[0]


def robust(t: Tensor) -> Tensor:
    return D.StudentT(4.0, t[0], t[1].exp()).log_prob(COUNTS).sum() + D.Cauchy(0.0, 2.5).log_prob(t[1])


def softmax(t: Tensor) -> Tensor:
    picked = torch.log_softmax(X @ t.reshape(3, 3), 1)[torch.arange(50), LABEL]
    by_gather = torch.softmax(X @ t.view(3, 3), 1).gather(1, LABEL.unsqueeze(1)).log()
    return picked.sum() + 0.1 * by_gather.sum() - 0.5 * t @ t


def mixture(t: Tensor) -> Tensor:
    each = torch.stack([-((COUNTS - t[0]) ** 2), -((COUNTS - t[1]) ** 2) * t[2].exp()])
    return torch.logsumexp(each, 0).sum() + torch.logaddexp(t[0], t[1]) - t.square().sum()


def network(t: Tensor) -> Tensor:
    hidden = torch.tanh(X @ t[:30].view(3, 10) + t[30:40])
    batched = torch.bmm(BATCH, torch.relu(t[:24]).view(4, 3, 2) + 0.1).square().sum()
    return -0.5 * (hidden @ t[40:50] - Y).square().sum() - 0.5 * t @ t - 0.01 * batched


def series(t: Tensor) -> Tensor:
    walk = torch.cumsum(t, 0)
    table = walk.reshape(2, 3)
    spread = table.T @ table + torch.eye(3, dtype=t.dtype)
    ends = torch.nn.functional.pad(t[1:4], (2, 1), value=0.5)
    ordered = torch.cat([t[:1], t[1:].exp()]).flip(0) * torch.arange(6)
    pieces = (
        table.mean(0).prod()
        + table.var(1, unbiased=False).sum()
        + table.amax(1).sum()
        - table.amin(0).square().sum()
        + table.var()
    )
    return (
        pieces - torch.diff(t).square().sum() + spread.diagonal().log().sum() + (ends * ordered).sum() - walk[-1] ** 4
    )


def places(t: Tensor) -> Tensor:
    """Indices of all kinds, some from the end, some twice; values put into tensors."""
    grid = t.view(3, 4)
    found = grid[:, PLACES[0] % 4].sum() + (t[PLACES] * t[:4]).sum() + grid[LABEL[:5], LABEL[5:10]].square().sum()
    base = torch.zeros(4, 3, dtype=t.dtype)
    base[1:3] = grid[:2, :3]
    base[:, 2] = t[4:8].square()
    base[0, 0] = t[0] * t[1]
    added = torch.zeros(5, dtype=t.dtype).index_add(0, GROUP[:12], t)
    spread = torch.zeros(5, dtype=t.dtype).scatter_add(0, GROUP[12:24], t.sin())
    gap = t.view(2, 3, 2)[LABEL[:4] % 2, :, GROUP[:4] % 2].square().sum()
    gap = gap + (t.view(1, 2, 3, 2)[:, LABEL[:4] % 2, :, GROUP[:4] % 2] * torch.arange(4).view(4, 1, 1)).sum()
    beside = (
        grid.diagonal(1).prod() + 2 * grid.diagonal(-1).square().sum() + torch.diag_embed(t[:3], 1)[:2].cumsum(0).sum()
    )
    found = found + gap + beside
    return found + base.square().sum() + base[::2].sum() - added.square().sum() * 0.3 + (spread * added).sum()


def conditions(t: Tensor) -> Tensor:
    inside = (t > -0.5) & (t < 2) | (t.abs() >= 3) & ~(t == 1)
    chosen = torch.where(inside, t.square(), -t).clamp(-1.0, 2.0)
    return chosen.sum() + torch.minimum(t[:2], t[2:4]).sum() + torch.maximum(t, t.roll(1)).sum() + (t > 0).sum() * t[0]


def whole(t: Tensor) -> Tensor:
    """Booleans and small whole numbers, whose sums are not those of numbers."""
    either = ((t > 3) + (t > 4)).double() + ((t > 3) * (t > 4)).double()
    small = ((t > 3).to(torch.uint8) * 200 + (t > 4).to(torch.uint8) * 100).double()
    ones = (t**0) / (t**0 + t**0)
    return (either * t).sum() + (small * t).sum() + (ones * t).sum() - t.square().sum()


def nothing_of_theta(t: Tensor) -> Tensor:
    return X.sum() + 0.0 * t.sum()


def loop(t: Tensor) -> Tensor:
    """Lotka and Volterra, by Euler's steps in Python."""
    a, b, c, d = t[:4].exp().unbind()
    prey, hunters = torch.ones((), dtype=t.dtype), torch.full((), 0.5, dtype=t.dtype)
    path = []
    for _ in range(20):
        prey, hunters = prey + 0.1 * (a * prey - b * prey * hunters), hunters + 0.1 * (c * prey - d) * hunters
        path.append(torch.stack([prey, hunters]))
    return -(torch.stack(path) - X[:20, :2]).square().sum()


DENSITIES = {
    "loop": (loop, 4),
    "hierarchical": (hierarchical, 10),
    "counts": (counts, 4),
    "robust": (robust, 2),
    "softmax": (softmax, 9),
    "mixture": (mixture, 3),
    "network": (network, 50),
    "series": (series, 6),
    "places": (places, 12),
    "conditions": (conditions, 5),
    "constant": (nothing_of_theta, 2),
    "whole": (whole, 4),
}


def compared(density, places: Tensor, rtol: float = 1e-11) -> NativeDensity:
    native = NativeDensity.of(density, places[:2])
    energy, slope = torch.empty(len(places), dtype=torch.float64), torch.empty_like(places)
    native.energies(places, slope, energy)
    leaves = places.clone().requires_grad_()
    wanted = -torch.stack([density(row) for row in leaves])
    (gradient,) = torch.autograd.grad(wanted.sum(), leaves)
    torch.testing.assert_close(energy, wanted.detach().double(), rtol=rtol, atol=rtol)
    scale = float(gradient.abs().max())
    torch.testing.assert_close(slope, gradient, rtol=rtol, atol=rtol * scale, equal_nan=True)
    alone = torch.empty_like(energy)
    native.potentials(places, alone)
    assert torch.equal(alone, energy)
    return native


@pytest.mark.parametrize("name", DENSITIES)
def test_value_and_slope_are_those_of_pytorch(name):
    density, size = DENSITIES[name]
    near = 0.3 if name == "loop" else 1.0
    compared(
        density, near * rand(7, size) * (torch.tensor([1, 1, 1, 1, 1, 5, 5]).unsqueeze(1) if name == "whole" else 1)
    )


UNARY = [name for name, text in ELEMENTWISE.items() if "{1}" not in text]


def test_every_function_of_one_number_and_of_two():
    """At numbers of both signs where they are defined, and in both precisions."""

    def all_of(t: Tensor) -> Tensor:
        safe = 0.2 + 0.6 * torch.sigmoid(t)  # all are defined there
        total = torch.zeros((), dtype=t.dtype)
        for k, name in enumerate(UNARY):
            at = 1.5 + safe if name == "acosh" else safe
            total = total + (k + 1) * getattr(torch, name)(at).sum()
        for k, name in enumerate(("neg", "abs", "tanh", "relu", "sign", "floor", "round", "trunc", "ceil", "digamma")):
            total = total + (k + 1) * getattr(torch, name)(3 * t).sum()
        pairs = (
            torch.atan2(t, safe)
            + torch.hypot(t, safe)
            + safe**t
            + torch.add(t, safe, alpha=3)
            - torch.sub(t, t, alpha=2)
        )
        for power in (0, 1, 2, 3, 0.5, -1, -2, -0.5, 1.7):
            pairs = pairs + safe**power
        judged = sum((t > 0) * 1.0 * op(t, safe) for op in (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne))
        return total + pairs.sum() + judged.sum() + torch.isnan(t).sum() + torch.isinf(t).sum()

    compared(all_of, rand(5, 3), 1e-9)
    compared(all_of, rand(5, 3).float(), 2e-4)


def test_infinities_and_nan_stay_what_they_are():
    def density(t: Tensor) -> Tensor:
        return torch.maximum(t[0].log(), t[1]) + t[1:].amax() - torch.clamp(t[2], min=0.5)

    native = NativeDensity.of(density, torch.ones(1, 3, dtype=torch.float64))
    nan, inf = math.nan, math.inf
    places = torch.tensor([[-1.0, 2, 3], [0.0, -inf, -inf], [1.0, nan, 0], [1.0, 0, nan], [inf, 1, 1.0]]).double()
    energy = torch.empty(5, dtype=torch.float64)
    native.potentials(places, energy)
    torch.testing.assert_close(energy, -torch.stack([density(row) for row in places]), equal_nan=True)


@pytest.fixture
def _validated():
    """Some libraries turn it off for the whole process when they are imported."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


@pytest.mark.usefixtures("_validated")
@pytest.mark.parametrize(
    "density",
    [
        lambda t: D.Exponential(2.0).log_prob(t).sum(),  # a number beyond the support, did it not look
        lambda t: D.Normal(0.0, t[0]).log_prob(t[1]),
        lambda t: D.Independent(D.Gamma(2.0, 1.0), 0).log_prob(t).sum(),
        lambda t: D.Beta(t[0] + 0.5, 2.0).log_prob(torch.tensor(0.3).double()),  # a number, did it not look
    ],
)
def test_what_distributions_refuse_is_impossible(density):
    native = NativeDensity.of(density, torch.ones(1, 2, dtype=torch.float64))
    places = torch.tensor([[1.0, 2.0], [-1.0, -2.0]]).double()
    energy = torch.empty(2, dtype=torch.float64)
    native.potentials(places, energy)
    assert float(energy[0]) == pytest.approx(-float(density(places[0])))
    assert not torch.isfinite(energy[1])
    with pytest.raises(ValueError, match=r"to satisfy the constraint|within the support"):
        density(places[1])  # and PyTorch looks again, once the tracing is over


def test_masks_beside_numbers_of_one_precision():
    """gcc 12 read these masks wrongly, which was found out, and left to PyTorch."""
    away = (torch.linspace(-1, 1, 12)[:, None] - torch.linspace(-1, 1, 12)).square()
    NativeDensity.of(
        lambda t: -torch.tril(t[0].exp() * torch.exp(-away * t[1].exp())).square().sum(), torch.zeros(1, 2)
    )


def test_what_cannot_be_written_is_refused_with_the_reason(monkeypatch):
    start = torch.ones(1, 2, dtype=torch.float64)

    def branches(t: Tensor) -> Tensor:
        return -t.square().sum() if t[0] > 0 else -2 * t.square().sum()

    calls = [0]

    def forgetful(t: Tensor) -> Tensor:
        calls[0] += 1
        return -t.square().sum() * calls[0]

    def factors(t: Tensor) -> Tensor:
        return -torch.linalg.eigvalsh(torch.eye(2).double() * t[0].exp()).sum()

    for density, reason in (
        (branches, "depends on values"),
        (forgetful, "differs from the function"),
        (factors, "eigh"),
        (lambda t: -(t + torch.rand(2)).square().sum(), "random numbers"),
        (lambda t: Y[(t[:1] + 20.0).long()].sum() - t.square().sum(), "an index that depends on values"),
        (lambda t: -(t.view(2, 1)[:, :0] @ torch.zeros(0, 2).double()).sum() - t @ t, "without numbers"),
    ):
        with pytest.raises(Unknown, match=reason):
            NativeDensity.of(density, start)
    with pytest.raises(Unknown, match="bfloat16"):
        NativeDensity.of(lambda t: -t.square().sum(), start.bfloat16())
    with pytest.raises(Unknown, match="too much work"):
        NativeDensity.of(lambda t: -(torch.ones(3000, 3000).double() * t[0]).exp().sum(), start)
    monkeypatch.setenv("TEMPERANCE_NO_COMPILER", "1")
    with pytest.raises(Unknown, match="no C compiler"):
        NativeDensity.of(lambda t: -t.square().sum(), start)


@pytest.mark.filterwarnings("ignore:.*diverged")
@pytest.mark.parametrize("method", [tp.NUTS(step_size=0.1, max_depth=5), tp.HMC(step_size=0.07, length=7)])
def test_draws_are_those_of_pytorch(method):
    density, size = DENSITIES["hierarchical"]
    options = {"draws": 15, "warmup": 0, "progress": False}
    start = 0.1 * rand(4, size)
    slow, fast = (tp.sample(density, start, method, compile=c, **options) for c in (False, True))
    torch.testing.assert_close(fast.theta, slow.theta, rtol=1e-7, atol=1e-7)
    for one, two in zip(slow.transitions, fast.transitions, strict=True):
        assert torch.equal(one.leapfrogs, two.leapfrogs)


def test_a_value_that_was_there_before():
    constant = torch.tensor(2.0, dtype=torch.float64)
    native = NativeDensity.of(lambda t: constant, torch.ones(1, 2, dtype=torch.float64))
    energy, slope = torch.empty(1, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    native.potentials(slope, energy)
    native.energies(torch.ones(1, 2, dtype=torch.float64), slope, energy)
    assert float(energy) == -2.0
    assert not slope.any()


@pytest.mark.filterwarnings("ignore:.*diverged")
def test_trajectories_in_c_know_each_chains_mass_and_what_is_no_number(monkeypatch):
    """Eleven numbers, which no vector of the machine divides; NaN on one side; masses found by each chain."""

    def density(t: Tensor) -> Tensor:
        return -0.5 * (t * torch.arange(1, 12)).square().sum() + torch.sqrt(t[0] + 0.5)

    start = 0.1 * rand(4, 11).abs()
    method = tp.Warmup(tp.NUTS(max_depth=4), 40, first=5, window=10, last=5)
    options = {"draws": 12, "progress": False, "compile": True}
    fast = tp.sample(density, start, method, **options)
    monkeypatch.setattr(NativeDensity, "complete", False)
    slow = tp.sample(density, start, method, **options)
    torch.testing.assert_close(fast.theta, slow.theta, rtol=1e-6, atol=1e-6)
    assert [t.divergent.tolist() for t in fast.transitions] == [t.divergent.tolist() for t in slow.transitions]
    assert fast.divergences > 0


@pytest.mark.usefixtures("_validated")
def test_other_threads_distributions_look_as_ever():
    seen = []

    def elsewhere() -> None:
        try:
            D.Normal(0.0, -1.0)
        except ValueError:
            seen.append(True)

    def density(t: Tensor) -> Tensor:
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        return D.Normal(0.0, 1.0).log_prob(t).sum()

    NativeDensity.of(density, torch.ones(1, 2, dtype=torch.float64))
    assert len(seen) > 3
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        D.Normal(0.0, -1.0)


def test_threads_give_the_same_numbers():
    native = NativeDensity.of(network, 0.1 * rand(2, 50))
    places = rand(6, 50)
    energy, slope = torch.empty(6, dtype=torch.float64), torch.empty_like(places)
    native.energies(places, slope, energy, threads=1)
    again, other = torch.empty_like(energy), torch.empty_like(slope)
    native.energies(places, other, again, threads=3)
    assert torch.equal(energy, again)
    assert torch.equal(slope, other)
