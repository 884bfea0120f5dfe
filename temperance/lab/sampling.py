"""Chains as data: the sampler of the cold-posterior paper with its numbers, run on a target and scored."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.problems import fit, scores

_ESTIMATION = 32  # batches for the masses, as in the paper's code


@dataclass(frozen=True)
class Chain:
    """SGHMC (symplectic Euler) with cyclical time steps; one draw is kept at the end of each cycle.

    Attributes:
        lr: ℓ, the learning rate of SGD that the step amounts to.
        momentum: β.
        batch_size: rows a step.
        start: steps at full pace before the first cycle; the temperature ramps up in the second half of them.
        cycle: steps in a cycle.
        cycles: how many, and so how many draws.
        preconditioned: layerwise masses, estimated anew for each cycle.
        allow_batch_norm: sample though the network has batch norm.
    """

    lr: float = 0.02
    momentum: float = 0.98
    batch_size: int = 100
    start: int = 1000
    cycle: int = 100
    cycles: int = 20
    preconditioned: bool = True
    allow_batch_norm: bool = False

    @property
    def steps(self) -> int:
        """All of them, with those for which the chain stands still while its masses are estimated: at the start and
        before each cycle."""
        still = _ESTIMATION if self.preconditioned else 0
        return self.start + still + (self.cycle + still) * self.cycles

    def method(self) -> tp.Inference[Any]:
        """The method."""
        sampler = tp.SGHMC(
            self.lr,
            self.momentum,
            preconditioner=tp.Layerwise(batches=_ESTIMATION) if self.preconditioned else None,
            allow_batch_norm=self.allow_batch_norm,
        )
        return tp.Collect(tp.Cyclical(sampler, cycle=self.cycle, start=self.start, ramp=self.start // 2))

    def but(self, **changes: Any) -> Chain:
        """The same chain with some numbers changed."""
        return dataclasses.replace(self, **changes)


def sample(target: tp.Target, chain: Chain, data: Any, test: tp.data.Data, seed: int) -> dict[str, float]:
    """Run a chain; the scores of its draws, and how hot it was in units of T while it sampled."""
    fitted = fit(target, chain.method(), data, steps=chain.steps, batch_size=chain.batch_size, seed=seed)
    return scores(fitted, test) | temperatures(fitted, data, chain.start)


def temperatures(fitted: tp.Fitted, data: Any, after: int) -> dict[str, float]:
    """How hot a chain was in units of T, over time and the whole network, from step ``after`` on.

    The kinetic temperature is without the integrator's own factor; ``slow`` and the share of readings inside the χ²
    interval are of the slow half of cycles, where draws are taken. The one by curvature is computed anew from ten
    draws: stiff directions, which feel the step and the noise of minibatches most, count most.
    """
    kinetic = diagnose.kinetic(fitted, corrected=True, after=after)
    slow = diagnose.kinetic(fitted, corrected=True, after=after, max_pace=0.5)
    configurational = diagnose.configurational(fitted, after=after)
    return {
        "kinetic": kinetic.network_mean,
        "kinetic_slow": slow.network_mean,
        "kinetic_inside": slow.inside_share,
        "configurational": configurational.network_mean,
        "curvature": diagnose.curvature_temperature(fitted.target, fitted, data, max_draws=10).network_mean,
    }


def sgd(lr: float, momentum: float, steps: int) -> tp.MAP:
    """SGD with momentum and a learning rate that falls to nothing along a cosine."""
    return tp.MAP(
        lr=lr,
        optimizer=torch.optim.SGD,
        optimizer_args={"momentum": momentum},
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": steps},
        schedule_steps=True,
    )
