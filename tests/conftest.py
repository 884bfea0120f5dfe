"""Shared settings of the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Two workers share two cores: more threads each would only wait for one another.
torch.set_num_threads(1)

_beside = Path(__file__).resolve().parents[2] / "shared" / "data"
if "TEMPERANCE_DATA" not in os.environ and _beside.is_dir():
    os.environ["TEMPERANCE_DATA"] = str(_beside)


@pytest.fixture(autouse=True)
def _fixed_global_seed() -> None:
    torch.manual_seed(0)
