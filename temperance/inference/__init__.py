"""Methods: one a file."""

from temperance.inference.anchored import Anchored
from temperance.inference.base import Cost, Exactness, Inference, Info, Stackable
from temperance.inference.ensemble import Ensemble
from temperance.inference.map import MAP

__all__ = ["MAP", "Anchored", "Cost", "Ensemble", "Exactness", "Inference", "Info", "Stackable"]
