"""What a chain told of itself along the way."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.fields import check_fields


@dataclass(frozen=True, eq=False, repr=False)
class Transitions(Value):
    """How each transition of a chain with a Metropolis decision went, since its tuning ended: R numbers each.

    Attributes:
        energy: U after it.
        acceptance: the mean probability of acceptance along its trajectory.
        leapfrogs: gradients it took.
        divergent: whether its trajectory gained more energy than any honest integration does.
        step_size: ε.
    """

    energy: Tensor
    acceptance: Tensor
    leapfrogs: Tensor
    divergent: Tensor
    step_size: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Value):
    """R readings of a chain, taken at regular intervals, of the E tensors that θ is made of (in the layout's order).

    All are taken at one instant, before a step: momentum, position and the gradient of the batch belong together.

    Attributes:
        step: which step of the run, R integers.
        pace: the factor c on the time step h that was in force, R.
        temperature: the temperature that was in force (T times a ramp), R.
        kinetic_bias: the factor by which the integrator's kinetic temperature exceeds T as the step vanishes: 2/(1+β)
            for symplectic Euler, 1 for BAOAB; R.
        kinetic: mᵀM⁻¹m/d of each tensor, R × E; NaN for methods without momenta.
        configurational: ⟨θ, N∇G̃(θ)⟩/d of each tensor, R × E, on the batch of the step.
        loss: the batch's mean negative log-likelihood, R.
        draw_step: at which step each of the S draws was taken, S integers.
        acceptance: the share of proposals accepted so far, R; NaN for methods that accept all.
        transitions: of samplers that tell of each transition, what they told.
    """

    step: Tensor
    pace: Tensor
    temperature: Tensor
    kinetic_bias: Tensor
    kinetic: Tensor
    configurational: Tensor
    loss: Tensor
    draw_step: Tensor
    acceptance: Tensor | None = None
    transitions: Transitions | None = None

    def __post_init__(self) -> None:
        check_fields(self)
