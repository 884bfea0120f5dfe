"""A matrix that grows on disk."""

from __future__ import annotations

import zlib

import torch

from temperance.core.growing import Rows


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
