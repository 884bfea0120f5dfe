"""Many rows are looked at without a copy of them, and without a list of as many numbers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import temperance as tp
from temperance.core.errors import DataError
from tests.predict.test_memory import Largest

ROWS = 3_000_000


class Many(torch.utils.data.Dataset):
    """Rows that cost nothing until they are asked for."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(k % 5)), k % 3


def target_of(outputs: int) -> tp.Target:
    likelihood = tp.Categorical() if outputs > 1 else tp.Normal(1.0)
    return tp.Target(tp.nn.MLP(2, [4], outputs), likelihood, tp.GaussianPrior(1.0))


def test_a_lazy_data_set_is_walked_through_without_lists():
    data = tp.data.Data.of(Many())
    tp.fit(target_of(3), tp.MAP(), Many(), steps=1, batch_size=4)  # what is imported on the way is no matter
    tracemalloc.start()
    with Largest() as seen:
        fitted = tp.fit(target_of(3), tp.MAP(), data, steps=3, batch_size=4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fitted.info.steps == 3
    assert peak < 4_000_000  # a list of the rows alone has eight bytes for each of three million
    assert seen.numbers <= ROWS  # the order of one epoch


@pytest.mark.parametrize("outputs", [1, 3])
def test_rows_in_memory_are_prepared_and_fingerprinted_without_a_copy(outputs):
    x = torch.zeros(ROWS, 2)
    y = torch.zeros(ROWS, 1) if outputs == 1 else torch.zeros(ROWS, dtype=torch.int64)
    data, target = tp.data.Data(x, y), target_of(outputs)
    tracemalloc.start()
    with Largest(ignore=(x, y)) as seen:
        prepared = target.prepare(data)
        prepared.fingerprint()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert prepared.x.data_ptr() == x.data_ptr()
    assert seen.numbers < 2 * ROWS // 2
    assert peak < 4_000_000


def test_what_is_not_finite_is_found_in_any_piece():
    x = torch.zeros(ROWS, 2)
    for row in (0, ROWS // 2, ROWS - 1):
        x[row, 1] = torch.nan
        with pytest.raises(DataError, match=r"must be finite; got NaN or infinity in x \(1 rows\)"):
            tp.data.Data(x, torch.zeros(ROWS)).check_finite()
        x[row, 1] = 0.0
    tp.data.Data(x, torch.zeros(ROWS)).check_finite()


def test_a_fingerprint_sees_every_piece_and_is_that_of_any_other_layout():
    x, y = torch.zeros(ROWS, 2), torch.zeros(ROWS)
    before = tp.data.Data(x, y).fingerprint()
    assert tp.data.Data(torch.zeros(2, ROWS).T, y).fingerprint() == before
    for row in (0, ROWS // 2, ROWS - 1):
        x[row, 1] = 1.0
        assert tp.data.Data(x, y).fingerprint() != before
        x[row, 1] = 0.0
    assert tp.data.Data(x, y).fingerprint() == before


@pytest.mark.parametrize("rows", [[-1, 3], [True, False, True] + [False] * 97, slice(5, None, 30)])
def test_a_part_of_a_lazy_data_set_is_what_indexing_gives(rows):
    class Few(Many):
        def __len__(self) -> int:
            return 100

    index = rows if isinstance(rows, slice) else torch.tensor(rows)
    part = tp.data.Data.of(Few()).subset(index)
    wanted = torch.arange(100)[index]
    assert part.x[:, 0].tolist() == (wanted % 5).tolist()
    again = part.subset([1, 0])
    assert again.y.tolist() == (wanted[[1, 0]] % 3).tolist()


def test_a_mapped_file_is_read_as_it_is_needed(tmp_path, recwarn):
    np.save(tmp_path / "x.npy", np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2) / ROWS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = tp.data.Data(mapped, np.zeros(ROWS, dtype=np.int64))
    assert data.x.data_ptr() == mapped.__array_interface__["data"][0]
    assert tp.fit(target_of(3), tp.MAP(), data, steps=3).info.steps == 3
    assert data.x[-1].tolist() == pytest.approx(mapped[-1].tolist())
    assert not [told for told in recwarn if "writable" in str(told.message)]


class Endless(torch.utils.data.Dataset):
    """Computes its rows, and never says IndexError."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), k / 30), k % 3


def test_predictions_of_a_data_set_are_those_of_its_inputs():
    data = Endless()
    fitted = tp.fit(target_of(3), tp.MAP(), data, epochs=1)
    x = torch.stack([data[k][0] for k in range(30)])
    wanted = fitted.predict(x).probs
    loader = torch.utils.data.DataLoader(data, batch_size=7, shuffle=True)
    tensors = torch.utils.data.TensorDataset(x, torch.zeros(30, dtype=torch.int64))
    for given in (data, loader, tensors, torch.utils.data.Subset(data, range(30)), tp.data.Data.of(data)):
        assert torch.equal(fitted.predict(given).probs, wanted)


def test_what_is_no_array_is_refused_rather_than_walked_through():
    class Row:
        def __getitem__(self, k: int) -> float:
            return 1.0

    fitted = tp.fit(target_of(3), tp.MAP(), Endless(), epochs=1)
    for make in (lambda: fitted.predict(Row()), lambda: tp.data.Data(Row(), [1]), lambda: tp.data.Data([[1.0]], Row())):
        with pytest.raises(DataError, match=r"must be a tensor or an array of numbers; got Row"):
            make()
    for x in (range(4), memoryview(np.zeros(4)), [1, 2, 3, 4], np.arange(4)):
        assert tp.data.Data([[1.0]] * 4, x).y.shape == (4,)


def test_a_part_of_a_lazy_data_set_is_known_and_converted_by_its_own_rows():
    whole = tp.data.Data.of(Endless())
    parts = [whole.subset(range(10)), whole.subset(range(10, 20))]
    assert parts[0].fingerprint() != parts[1].fingerprint()
    assert dict(parts[1].probe())["x"].tolist() == parts[1].x.tolist()
    moved = parts[1].convert(lambda x, y: (x + 1, y))
    assert torch.equal(moved.x, parts[1].x + 1)
    assert torch.equal(moved.y, parts[1].y)


@pytest.mark.parametrize("rows", [2**24 + 4, 50_000_000])
def test_a_probe_of_very_many_rows_stays_inside(rows):
    class Vast(Endless):
        def __len__(self) -> int:
            return rows

        def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
            if not 0 <= k < rows:
                raise IndexError(k)
            return torch.zeros(2), k % 3

    assert len(tp.data.Data.of(Vast()).probe()[0][1]) == 32


def test_numbers_whose_sum_is_infinite_are_finite():
    large = torch.tensor([3e38, 3e38])
    assert tp.Normal(1.0).prepare(large, 1).flatten().tolist() == large.tolist()
    with pytest.raises(DataError, match="must be finite"):
        tp.Normal(1.0).prepare(torch.tensor([0.0, torch.inf]), 1)
