"""The moves of the samplers, on plain tensors: what methods and optimisers share."""

from temperance.dynamics.euler import symplectic_euler_
from temperance.dynamics.native import in_use
from temperance.dynamics.noise import NormalStream, fill_rows_

__all__ = ["NormalStream", "fill_rows_", "in_use", "symplectic_euler_"]
