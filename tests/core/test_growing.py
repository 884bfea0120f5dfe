"""A matrix that grows on disk."""

from __future__ import annotations

import zlib

import pytest
import torch

from temperance.core.errors import CorruptRunError
from temperance.core.growing import Rows, map_rows, rows_file, verify, write_rows


def test_what_someone_still_reads_is_not_cut_off(tmp_path):
    """Rows beyond the last checkpoint are dropped from the run, not from under a tensor that maps them."""
    rows = Rows()
    rows.keep_in(tmp_path)
    for k in range(5):
        rows.append(torch.full((3000,), float(k)))
    seen = rows.tensor()
    again = Rows(rows.name, 2, rows.checksum, rows.width, rows.dtype)
    again.checksum = zlib.crc32(rows.tensor()[:2].numpy().tobytes())
    again.keep_in(tmp_path)
    again.append(torch.full((3000,), 9.0))
    assert again.tensor()[:, 0].tolist() == [0.0, 1.0, 9.0]
    assert seen[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_memory_and_file_hold_the_same(tmp_path, dtype):
    table = torch.randn(7, 5, dtype=torch.float64).to(dtype)
    kept, filed = Rows(), Rows()
    filed.keep_in(tmp_path)
    for row in table:
        kept.append(row)
        filed.append(row)
    assert torch.equal(kept.tensor(), table)
    assert torch.equal(filed.tensor(), table)
    assert len(kept) == len(filed) == 7
    assert (tmp_path / filed.name).stat().st_size == 35 * table.element_size()
    kept.keep_in(tmp_path)  # what was in memory goes to a file
    assert kept.kept == []
    assert torch.equal(kept.tensor(), table)
    assert kept.checksum == filed.checksum


def test_a_row_is_copied():
    rows, row = Rows(), torch.zeros(2)
    rows.append(row)
    row.fill_(1.0)
    assert rows.tensor().tolist() == [[0.0, 0.0]]


def test_one_flipped_bit_is_found_out_when_it_goes_on(tmp_path):
    rows = Rows()
    rows.keep_in(tmp_path)
    rows.append(torch.ones(3))
    data = bytearray((tmp_path / rows.name).read_bytes())
    for damage in (bytes([data[0] ^ 1]) + bytes(data[1:]), bytes(data[:-1])):
        (tmp_path / rows.name).write_bytes(damage)
        again = Rows(rows.name, 1, rows.checksum, 3, "float32")
        with pytest.raises(CorruptRunError):
            again.keep_in(tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "../draws-0123456789ab.run.rows"},
        {"name": "/etc/passwd"},
        {"count": -1},
        {"count": 10**30},
        {"width": 1.5},
        {"count": 1, "dtype": "load"},
    ],
    ids=lambda given: str(given),
)
def test_what_no_manifest_of_ours_says(tmp_path, given):
    with pytest.raises(CorruptRunError, match="cannot be"):
        Rows(**{"name": "draws-0123456789ab.run.rows", **given}).keep_in(tmp_path)


def test_a_mapped_matrix_knows_its_file_until_it_is_written_to(tmp_path):
    table = torch.arange(6.0).view(3, 2)
    file = write_rows(table, tmp_path / "draws-0123456789ab.run.rows")
    mapped = map_rows(file, 2, torch.float32)
    assert torch.equal(mapped, table)
    assert rows_file(mapped) == file
    assert rows_file(table) is None
    verify(file, 24)
    mapped[0, 0] = 9.0
    assert rows_file(mapped) is None
    verify(file, 24)  # the file is not written to
    with pytest.raises(FileExistsError):
        write_rows(table, file.path)
