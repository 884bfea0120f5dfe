"""Calibration after the fact: probabilities and spreads that held-out data agree with.

A rule is a value; ``rule.fit(predictive, y)`` gives a calibrator, a value too, and ``calibrator(predictive)`` is a full
predictive again. :func:`calibrated` does both for a fitted model, on data that it was not trained on.

| rule | for | what it learns |
|---|---|---|
| :class:`Temperature` | classes, yes/no labels | one T that divides the members' logits |
| :class:`Vector` | the same | a scale and a shift for each class |
| :class:`Isotonic` | the same | a rising curve for each class's averaged probability |
| :class:`VarianceScale` | real targets | one factor on the spread about the mean |
"""

from __future__ import annotations

from temperance.judge.calibrate.base import CalibrationRule, Calibrator
from temperance.judge.calibrate.held_out import (
    CalibratedFitted,
    Parts,
    calibrated,
    load_calibrated,
    split_for_calibration,
)
from temperance.judge.calibrate.isotonic import Isotonic, IsotonicCalibrator
from temperance.judge.calibrate.logits import Temperature, TemperatureCalibrator, Vector, VectorCalibrator
from temperance.judge.calibrate.spread import SpreadCalibrator, VarianceScale

__all__ = [
    "CalibratedFitted",
    "CalibrationRule",
    "Calibrator",
    "Isotonic",
    "IsotonicCalibrator",
    "Parts",
    "SpreadCalibrator",
    "Temperature",
    "TemperatureCalibrator",
    "VarianceScale",
    "Vector",
    "VectorCalibrator",
    "calibrated",
    "load_calibrated",
    "split_for_calibration",
]
