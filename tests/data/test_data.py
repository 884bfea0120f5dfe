from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import temperance as tp
from temperance.core.errors import ArgumentError, DataError
from temperance.data import Data
from temperance.engine.engine import Engine


class Squares(Dataset):
    def __init__(self, n: int = 25) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(k)]), torch.tensor([float(k * k)])


def sources() -> dict[str, object]:
    x = torch.arange(25.0).unsqueeze(1)
    return {
        "tensors": (x, x**2),
        "arrays": (x.numpy(), (x**2).numpy()),
        "lists": (x.tolist(), (x**2).tolist()),
        "tensor dataset": TensorDataset(x, x**2),
        "dataset": Squares(),
        "loader": DataLoader(Squares(), batch_size=4, shuffle=True),
    }


@pytest.mark.parametrize("name", list(sources()))
def test_every_source_gives_the_same_batches_again_and_again(name):
    data = Data.of(sources()[name])
    reference = Data.of(sources()["tensors"])
    assert data.num_data == len(data) == 25
    for _ in range(2):
        for batch, other in zip(data.batches(8, seed=3), reference.batches(8, seed=3), strict=True):
            assert torch.equal(batch.x.float(), other.x)
            assert torch.equal(batch.y.float(), other.y)
            assert batch.num_data == 25
    assert torch.equal(torch.cat([b.x for b in data.full_pass(7)]).float(), reference.x)


@pytest.mark.parametrize("name", ["tensors", "dataset"])
def test_streams_are_independent_orders_of_the_same_rows(name):
    data = Data.of(sources()[name])
    batches = list(data.batches(8, seed=0, streams=3))
    assert batches[0].x.shape == (3, 8, 1)
    assert batches[-1].size == 1
    together = torch.cat([b.x for b in batches], dim=1).squeeze(-1)
    assert torch.equal(together.sort(1).values, torch.arange(25.0).expand(3, 25))
    assert not torch.equal(together[0], together[1])
    alone = torch.cat([b.x for b in data.batches(8, seed=0)]).squeeze(-1)
    assert torch.equal(together[0], alone)
    assert torch.equal(batches[0].stream(1).x, batches[0].x[1])
    assert batches[0].stream_range(1, 3).streams == 2


def test_shuffles_follow_the_seed_and_epoch_and_not_the_global_state():
    data = Data(torch.arange(50.0), torch.zeros(50))
    order = data.order(seed=1)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert torch.equal(order, data.order(seed=1))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(order, data.order(seed=1, epoch=1))
    assert not torch.equal(order, data.order(seed=2))


def test_batches_can_start_in_the_middle_of_an_epoch():
    data = Data(torch.arange(50.0), torch.zeros(50))
    whole = list(data.batches(8, seed=1))
    rest = list(data.batches(8, seed=1, first=4))
    assert [b.x.tolist() for b in whole[4:]] == [b.x.tolist() for b in rest]
    assert rest[-1].last
    assert not rest[0].last


def test_ragged_batches_leave_the_log_density_unbiased():
    """Each step's estimate is unbiased over shuffles, whatever the size of its batch, and the estimates of an epoch,
    weighted by their sizes, give the whole exactly."""
    torch.manual_seed(0)
    x, y = torch.randn(11, 2, dtype=torch.float64), torch.randn(11, 1, dtype=torch.float64)
    network = torch.nn.Linear(2, 1).double()
    target = tp.Target(network, tp.Normal(0.7), tp.GaussianPrior(1.0), temperature=0.5)
    data = target.prepare(Data(x, y))
    theta = target.initial_theta()
    whole = float(Engine(target).log_density(theta, data))
    last = []
    for seed in range(1500):
        estimates = [(b.size, float(Engine(target).log_density(theta, b))) for b in data.batches(4, seed=seed)]
        assert [size for size, _ in estimates] == [4, 4, 3]
        last.append(estimates[-1][1])
        if seed < 20:
            assert sum(size * value for size, value in estimates) / 11 == pytest.approx(whole, rel=1e-12)
    error = np.std(last) / len(last) ** 0.5
    assert abs(np.mean(last) - whole) < 5 * error
    assert error < 0.04 * abs(whole)  # a batch weighed by the nominal size 4 would be off by a quarter


def test_hold_out_and_subset():
    data = Data(torch.arange(40.0), torch.arange(40))
    rest, held = data.hold_out(0.25, seed=1)
    assert (len(rest), len(held)) == (30, 10)
    assert not set(rest.y.tolist()) & set(held.y.tolist())
    assert data[:3].y.tolist() == [0, 1, 2]
    assert data[-2:].y.tolist() == [38, 39]
    assert data.subset(data.y < 5).y.tolist() == [0, 1, 2, 3, 4]
    lazy = Data.of(Squares()).subset([3, 1])
    assert lazy.y.flatten().tolist() == [9.0, 1.0]
    with pytest.raises(ArgumentError, match=r"`fraction`.*1\.5"):
        data.hold_out(1.5)


def test_fingerprints_tell_data_apart():
    x = torch.randn(10, 2)
    one = Data(x, torch.zeros(10)).fingerprint()
    assert one == Data(x.clone(), torch.zeros(10)).fingerprint()
    changed = x.clone()
    changed[3, 1] += 1e-6
    assert one != Data(changed, torch.zeros(10)).fingerprint()
    assert Data.of(Squares(25)).fingerprint() != Data.of(Squares(26)).fingerprint()


def test_bad_data_is_refused_with_a_reason():
    with pytest.raises(DataError, match="at least one row"):
        Data(torch.empty(0, 3), torch.empty(0))
    with pytest.raises(DataError, match=r"same number of rows.*5.*4"):
        Data(torch.zeros(5, 1), torch.zeros(4))
    with pytest.raises(DataError, match="`x` must be a tensor or an array of numbers"):
        Data([["a"], ["b"]], [0, 1])
    with pytest.raises(ArgumentError, match="`data` must be a temperance Data"):
        Data.of("train.csv")
    with pytest.raises(DataError, match=r"x.*1 rows"):
        Data(torch.tensor([[1.0], [float("nan")]]), torch.zeros(2)).check_finite()
    for size in (0, -1, 2.5, "8", True):
        with pytest.raises(ArgumentError, match="`batch_size` must be a positive integer"):
            next(Data(torch.zeros(5), torch.zeros(5)).batches(size))

    class Endless(IterableDataset):
        def __iter__(self):
            yield torch.zeros(1), torch.zeros(1)

    with pytest.raises(DataError, match="known number of rows N"):
        Data.of(Endless())
    with pytest.raises(DataError, match="known number of rows N"):
        Data.of(DataLoader(Endless()))


def test_data_know_whether_they_are_in_memory():
    x = torch.zeros(4, 2)
    assert Data(x, x).in_memory
    assert not Data.of(DataLoader(TensorDataset(x, x))).in_memory


def test_standardised_rows_count_as_often_as_their_weights_say() -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 2, generator=rng), torch.randn(12, 1, generator=rng) ** 2
    often = torch.arange(12) % 4
    ours = Data(x, y, weights=often).standardise().info
    theirs = Data(x.repeat_interleave(often, 0), y.repeat_interleave(often, 0)).standardise().info
    for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
        assert torch.allclose(getattr(ours, name), getattr(theirs, name)), name
