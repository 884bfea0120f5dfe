"""How good a forecast is: pure functions of arrays, in float64, that know nothing of networks or methods.

Everything takes tensors, arrays or lists, and gives Python numbers or small frozen dataclasses. ``compare_to_hmc`` also
reads the published reference predictions from the data folder.
"""

from __future__ import annotations

from temperance.predict.scores.calibration import (
    Binning,
    CalibrationError,
    ReliabilityCurve,
    ece,
    mce,
    reliability_curve,
)
from temperance.predict.scores.classification import (
    BrierDecomposition,
    accuracy,
    agreement,
    brier,
    brier_decomposition,
    log_loss,
    total_variation,
)
from temperance.predict.scores.detection import (
    ErrorDetection,
    RiskCoverage,
    auprc,
    auroc,
    error_detection,
    fpr_at_tpr,
    risk_coverage,
)
from temperance.predict.scores.hmc import HMCComparison, compare_to_hmc
from temperance.predict.scores.regression import (
    IntervalCoverage,
    gaussian_crps,
    gaussian_log_score,
    interval_coverage,
    rmse,
    sample_crps,
)

__all__ = [
    "Binning",
    "BrierDecomposition",
    "CalibrationError",
    "ErrorDetection",
    "HMCComparison",
    "IntervalCoverage",
    "ReliabilityCurve",
    "RiskCoverage",
    "accuracy",
    "agreement",
    "auprc",
    "auroc",
    "brier",
    "brier_decomposition",
    "compare_to_hmc",
    "ece",
    "error_detection",
    "fpr_at_tpr",
    "gaussian_crps",
    "gaussian_log_score",
    "interval_coverage",
    "log_loss",
    "mce",
    "reliability_curve",
    "risk_coverage",
    "rmse",
    "sample_crps",
    "total_variation",
]
