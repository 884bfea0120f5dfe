"""What a predictive's members say: class probabilities S × rows × C, or the joint covariance of their means.

Decisions about several rows at once need members that are *functions*: member s at one row and member s at another must
come from one θ. A linearised predictive has points of each row's own Gaussian instead, so its draws of functions are
taken (64 unless ``predict(..., draws=...)`` asks for more); with Gaussian noise its exact covariance is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.predict import CategoryPredictive, PositionPredictive, Predictive, ValuePredictive


def check_predictive(predictive: object) -> Predictive:
    """A predictive, or an error that says how to come by one."""
    if not isinstance(predictive, Predictive):
        raise ArgumentError(f"`predictive` must be what `fitted.predict(x)` gives; got {type(predictive).__name__}.")
    if isinstance(predictive, PositionPredictive):
        raise ArgumentError(
            "`predictive` has positions, and a decision is about rows: decide on `predictive.flat`, in which each "
            "position is a row, and put the answers back with `predictive.place`."
        )
    return predictive


def check_classes(predictive: object) -> CategoryPredictive:
    """A predictive of classes, or of one yes/no label."""
    made = check_predictive(predictive)
    if not isinstance(made, CategoryPredictive):
        raise ArgumentError(f"`predictive` must be of classes; got {type(made).__name__}.")
    if not made.exclusive and made.source.num_outputs > 1:
        raise ArgumentError(
            f"`predictive` must be of classes or of one yes/no label; got {made.source.num_outputs} labels. Decide on "
            "each label by itself."
        )
    return made


def class_probabilities(predictive: object) -> Tensor:
    """Averaged probabilities rows × C; a yes/no label has the two classes no and yes.

    >>> class_probabilities(3)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `predictive` must be what `fitted.predict(x)` gives; got int.
    """
    made = check_classes(predictive)
    return _as_classes(made, made.probs)


def member_probabilities(predictive: object) -> tuple[Tensor, Tensor]:
    """Each member's class probabilities, S × rows × C, and the members' weights, S, both in float64.

    Member s is one function: its probabilities at different rows belong together.
    """
    known = check_classes(predictive)
    made = known.as_functions()
    parts = [made.likelihood.mean(outputs, learned).double() for _, outputs, learned in made.source.blocks()]
    weights = made.weights.double()
    return _as_classes(known, torch.cat(parts, dim=1)), weights / weights.sum()


def _as_classes(predictive: CategoryPredictive, probs: Tensor) -> Tensor:
    if predictive.exclusive:
        return probs
    return torch.cat([1 - probs, probs], dim=-1)


@dataclass(frozen=True)
class JointMoments:
    """Covariance of the members' means between any rows, Σ_k factor_ik factor_jkᵀ, and the noise of each row.

    ``factor`` is rows × outputs × K, ``noise`` (a variance) rows × outputs, both in float64.
    """

    factor: Tensor
    noise: Tensor

    def __len__(self) -> int:
        return len(self.factor)

    def whitened(self) -> Tensor:
        """The factor in units of the noise: what is learned of a row is a function of this alone."""
        return self.factor / self.noise.sqrt().unsqueeze(-1)

    def at(self, rows: Tensor) -> JointMoments:
        """The same of some rows."""
        return JointMoments(self.factor[rows], self.noise[rows])


def joint_moments(predictive: object, *, by_draws: bool = False) -> JointMoments:
    """Covariance of the means of real targets or counts: that of the members, Σ_s w_s (f_s − f̄)(f_s − f̄)ᵀ, or, for a
    linearised network with Gaussian noise and up to 2048 rows times outputs, its own. ``by_draws`` takes draws even
    then, so that two predictives of the same draws fit together."""
    made = check_predictive(predictive)
    if not isinstance(made, ValuePredictive):
        raise ArgumentError(f"`predictive` must be of real targets or counts; got {type(made).__name__}.")
    return JointMoments(*made.joint_moments(by_draws))


def check_same_draws(first: Predictive, second: Predictive, argument: str) -> None:
    """Raise unless member s of both predictives is the same θ."""
    a, b = (each.as_functions().source.origin for each in (first, second))
    if a.same_draws(b):
        return
    raise ArgumentError(
        f"`{argument}` must come from the same draws of θ as `predictive`: predict both from one Fitted with one seed, "
        "or predict all rows at once and give row numbers."
    )
