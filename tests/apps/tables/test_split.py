"""Rows for training, calibration and promises."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from temperance.apps.tables.split import halves, split_rows


def test_halves_share_no_row_and_leave_none_out() -> None:
    rows = np.arange(5, 106)
    first, second = halves(rows, seed=0)
    assert not set(first) & set(second)
    assert sorted([*first, *second]) == list(rows)
    groups = pd.Series(np.arange(200) // 10)
    first, second = halves(rows, 0, groups)
    assert not set(groups[first]) & set(groups[second])


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_every_class_is_trained_on(share: float) -> None:
    labels = np.array([0] * 40 + [1] * 2 + [2])
    for seed in range(10):
        train, validation, test = split_rows(labels, 43, share, share, seed)
        assert set(labels[train]) == {0, 1, 2}
        assert sorted([*train, *validation, *test]) == list(range(43))
