"""Detectors of rows unlike those trained on."""

from __future__ import annotations

import torch

from temperance.decide.ood import OODDetector


def test_a_detector_with_too_few_rows_never_flags() -> None:
    assert OODDetector(torch.arange(5.0), "entropy", 0.05).threshold == float("inf")
