"""A method of your own in a few lines: a snapshot ensemble along one SGD run, checked by the public battery."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

import temperance as tp
from temperance.engine.engine import Engine
from temperance.inference.base import WrapperState
from temperance.posteriors import Draws
from temperance.testing import check_composition, check_inference


@dataclass
class SnapshotState(WrapperState):
    kept: list[Tensor] = field(default_factory=list)
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Snapshots(tp.Wrapper):
    """Keep θ every ``every`` steps of ``base``; the posterior is the set of what was kept. Everything that it does not
    say is its base's, and θ has a row for each member: so it works in an ensemble, on a part of a network, ..."""

    card: ClassVar[tp.Card] = tp.Card(
        "what one run of training passed through",
        papers=("Huang et al., Snapshot ensembles: train 1, get M for free, ICLR 2017",),
        cost="base + 10 copies",
    )

    base: tp.MAP = field(default_factory=tp.MAP)
    every: int = 2

    def facts(self) -> tp.Facts:
        base = super().facts()
        return replace(base, gives=Draws, exact=tp.Exactness.APPROXIMATE, cost=base.cost.plus(10))

    def init(self, engine: Engine, starts: tp.Starts, rngs: Sequence[torch.Generator]) -> SnapshotState:
        return SnapshotState(self.base.init(engine, starts, rngs))

    def step(self, engine: Engine, state: SnapshotState, batch: tp.data.Batch) -> tuple[SnapshotState, tp.Info]:
        state, info = super().step(engine, state, batch)
        state.steps += 1
        if state.steps % self.every == 0 and info.status.ok:
            state.kept.append(state.base.theta.clone())
        return state, info

    def posteriors(
        self, engine: Engine, state: SnapshotState, data: tp.data.Data | None
    ) -> tuple[tp.posteriors.Posterior, ...]:
        kept = torch.stack(state.kept or [state.base.theta.clone()])
        return tuple(Draws(rows.clone()) for rows in kept.unbind(1))


print(check_inference(Snapshots(tp.MAP(lr=0.05)), steps=20))
print(check_composition(lambda method: tp.Ensemble(method, 3), Snapshots(tp.MAP(lr=0.05))))
