"""The law of composition: a wrapper of a method is a method, or is refused before the first step."""

from temperance.testing.composition.check import Composition, check_composition, examine_composition
from temperance.testing.composition.runs import small_problem

__all__ = ["Composition", "check_composition", "examine_composition", "small_problem"]
