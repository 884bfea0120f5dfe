"""For people who write methods, priors and likelihoods: problems with known answers, and checks that can fail.

>>> from temperance import testing
>>> problem = testing.linear_gaussian()
>>> problem.target.num_parameters
16
"""

from temperance.testing.checks import Check, CheckFailure, Report
from temperance.testing.composition import Composition, check_composition, examine_composition
from temperance.testing.composition.runs import SmallProblem, small_problem
from temperance.testing.families import check_likelihood, check_prior
from temperance.testing.inference import check_inference
from temperance.testing.problems import (
    ClosedForm,
    LinearLeaves,
    Quadrature,
    conjugate_regression,
    linear_gaussian,
    skewed_counts,
)
from temperance.testing.tolerance import (
    InconclusiveError,
    assert_moments,
    critical_value,
    draws_needed,
    moment_errors,
)

__all__ = [
    "Check",
    "CheckFailure",
    "ClosedForm",
    "Composition",
    "InconclusiveError",
    "LinearLeaves",
    "Quadrature",
    "Report",
    "SmallProblem",
    "assert_moments",
    "check_composition",
    "check_inference",
    "check_likelihood",
    "check_prior",
    "conjugate_regression",
    "critical_value",
    "draws_needed",
    "examine_composition",
    "linear_gaussian",
    "moment_errors",
    "skewed_counts",
    "small_problem",
]
