"""The network linearised at the mean of a Laplace posterior, as exporters want it too."""

from __future__ import annotations

from torch import nn

from temperance.data.sources import Inputs
from temperance.inference.curvature.linear import LinearisedOutputs
from temperance.predict.tracing import traced_moments


class LinearLaw(LinearisedOutputs):
    """Outputs under a Laplace posterior: Gaussian, with mean f(x; θ*) and covariance J Σ Jᵀ."""

    def traced(self, x: Inputs) -> nn.Module:
        """:meth:`moments_at` as a graph of operations, for exporters."""
        return traced_moments(self.moments_at, self.capture.attached, x)
