"""A method of your own in a few lines: a snapshot ensemble along one SGD run, checked by the public battery."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.posteriors import Draws
from temperance.testing import check_inference


@dataclass
class SnapshotState:
    base: Any
    kept: list[Tensor] = field(default_factory=list)
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Snapshots(tp.Inference[SnapshotState]):
    """Keep θ every ``every`` steps of ``base``; the posterior is the set of what was kept."""

    base: tp.MAP = field(default_factory=tp.MAP)
    every: int = 2

    def cost(self) -> tp.Cost:
        each = self.base.cost()
        return tp.Cost(each.gradients_per_step, each.copies_of_theta + 10)

    def init(self, target: tp.Target, theta: Tensor | None, rng: torch.Generator) -> SnapshotState:
        return SnapshotState(self.base.init(target, theta, rng))

    def step(self, target: tp.Target, state: SnapshotState, batch: tp.data.Batch) -> tuple[SnapshotState, tp.Info]:
        state.base, info = self.base.step(target, state.base, batch)
        state.steps += 1
        if state.steps % self.every == 0 and info.status.ok:
            state.kept.append(state.base.theta.clone())
        return state, info

    def posterior(self, target: tp.Target, state: SnapshotState, data: tp.data.Data | None) -> Draws:
        return Draws(torch.stack(state.kept or [state.base.theta.clone()]))


print(check_inference(Snapshots(tp.MAP(lr=0.05)), steps=20))
