"""The moves of the samplers, on plain tensors: what methods and optimisers share."""

from temperance.engine.native.build import in_use
from temperance.engine.native.euler import symplectic_euler_
from temperance.engine.native.noise import NormalStream, fill_rows_

__all__ = ["NormalStream", "fill_rows_", "in_use", "symplectic_euler_"]
