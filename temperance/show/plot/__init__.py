"""Plots of what a posterior says, and of whether to believe it.

    tp.plot.reliability(fitted.predict(test.x), test.y)

Every function takes ``ax=None`` (new axes unless given), returns the axes it drew on, and never shows or saves: that is
yours. matplotlib is imported when the first plot is drawn, not before. Colours are those of Okabe and Ito, told apart
by people who do not see red and green as most do; where two things could be mixed up they also differ in shape.
"""

from temperance.show.plot.bands import decision_regions, predicted_observed, regression_band
from temperance.show.plot.calibration import coverage, reliability
from temperance.show.plot.chains import temperatures, traces
from temperance.show.plot.uncertainty import risk_coverage, uncertainty_histogram
from temperance.show.plot.weights import covariance, loss_along

__all__ = [
    "covariance",
    "coverage",
    "decision_regions",
    "loss_along",
    "predicted_observed",
    "regression_band",
    "reliability",
    "risk_coverage",
    "temperatures",
    "traces",
    "uncertainty_histogram",
]
