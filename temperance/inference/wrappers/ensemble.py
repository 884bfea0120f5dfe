"""``Ensemble``: several runs of any method, from different starts and in different orders of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from temperance.core.checks import check_count, check_flag
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator, spawn
from temperance.core.status import EARLY_STOPPED, OK
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, Info, Starts, Wrapper, refuse
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.posteriors import Mixture, Posterior


@dataclass
class EnsembleState:
    """One state for all members at once, or one each; and which members have finished."""

    stack: Any = None
    members: list[Any] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Ensemble(Wrapper):
    """``size`` independent runs of ``base``; their posteriors become the components of a mixture.

    Each member has its own initialisation (unless ``start`` is given to ``fit``) and its own order of the data. Small
    networks are trained all at once, as one batched network; ``batched`` forces (``True``) or forbids (``False``) it.
    Both ways give the same members up to rounding.

    >>> import temperance as tp
    >>> Ensemble(tp.MAP(lr=1e-3), 5).size
    5
    """

    card: ClassVar[Card] = Card(
        "independent runs of any method, from fresh starts, averaged",
        MethodFamily.WRAPPERS,
        papers=(
            "Lakshminarayanan et al., Simple and scalable predictive uncertainty estimation using deep ensembles, "
            "NeurIPS 2017",
        ),
        cost="base × `size`",
        shown=(
            "Ensemble(MAP(), 5)",
            "Ensemble(Laplace(MAP()), 5)",
            "Ensemble(SWAG(), 5)",
            "Ensemble(Collect(SGHMC()), 4)",
            "Ensemble(Warmup(NUTS()), 4)",
        ),
        recipes=(Recipe("ensemble", "Ensemble(MAP(lr=5e-3), 5)", "five networks, each from its own start"),),
        demo=(Recipe("Ensemble × 5", "Ensemble(MAP(lr=1e-3), 5)"),),
    )

    base: Inference[Any]
    size: int = 5
    batched: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.size, "size")
        check_flag(self.batched, "batched", optional=True)

    def check_base(self, base: Inference[Any]) -> None:
        """Its members must have one likelihood."""
        if base.facts().own_likelihood:
            refuse(
                self,
                base,
                "it chooses a noise level by evidence, and members of an ensemble would choose different ones",
                "Normal(), whose noise is learned, in place of Tune(noise=True)",
            )

    def facts(self) -> Facts:
        """``size`` times the base's."""
        base = super().facts()
        return replace(
            base,
            gives=Mixture,
            exact=Exactness.APPROXIMATE,
            cost=base.cost.times(self.size),
            streams=self.size * base.streams,
        )

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Always: how members are run is decided inside."""
        return True

    def on_part(self, subset: Any) -> Inference[Any] | None:
        """An ensemble of what the base is on the part."""
        found = self.base.on_part(subset)
        return None if found is None else replace(self, base=found)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> EnsembleState:
        """See :class:`Inference`. Each of E members asks for ``size`` of the base's."""
        seeds = [spawn(rng) for rng in rngs for _ in range(self.size)]
        inside, own = starts.spread(seeds), [generator(seed, "member") for seed in seeds]
        self._check_apart(inside)
        if self._goes_at_once(engine, inside):
            return EnsembleState(stack=self.base.init(engine, inside, own), done=[False])
        members = [self.base.init(engine, inside.member(k), [rng]) for k, rng in enumerate(own)]
        return EnsembleState(members=members, done=[False] * len(seeds))

    def _check_apart(self, inside: Starts) -> None:
        """Members that train nothing must begin apart."""
        alike = inside.given is None or len(inside.given) == 1
        if inside.count > 1 and alike and self.base.facts().default_steps == 0:
            name = type(self.base).__name__
            refuse(
                self,
                self.base,
                "nothing is trained, so that all members would be one and the same network",
                f"{name}() alone, Ensemble({name}(MAP(lr=1e-3)), {self.size}), or give a row of trained weights for "
                "each member",
            )

    def _goes_at_once(self, engine: Engine, inside: Starts) -> bool:
        able = self.base.at_once(engine, inside)
        if self.batched is None:
            return able and inside.count > 1 and engine.prefers_batched_training()
        if self.batched and not able:
            raise ArgumentError(
                "`batched=True` needs a method and a network that can be batched over members (an elementwise "
                "optimiser, no batch norm, no operation that torch.func.vmap refuses); use batched=None."
            )
        return self.batched

    def step(self, engine: Engine, state: EnsembleState, batch: Batch) -> tuple[EnsembleState, Info]:
        """See :class:`Inference`. The one place where members run one after the other."""
        if state.stack is not None:
            state.stack, info = self.base.step(engine, state.stack, batch)
            return state, info
        losses, status, info = [], OK, Info(0.0, EARLY_STOPPED)
        metrics: dict[str, list[float]] = {}
        each = self.base.facts().streams
        for k, member in enumerate(state.members):
            if state.done[k]:
                continue
            state.members[k], info = self.base.step(engine, member, _share(batch, k, each))
            losses.append(info.loss)
            for name, value in info.metrics.items():
                metrics.setdefault(name, []).append(value)
            state.done[k] = info.done
            if not info.status.ok:
                status = info.status.about(f"member {k + 1} of {len(state.members)}")
                break
        done = all(state.done)
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        return state, Info(sum(losses) / max(1, len(losses)), info.status if done else status, done, means)

    def posteriors(self, engine: Engine, state: EnsembleState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`Mixture` with ``size`` components for each member."""
        if state.stack is not None:
            found = list(self.base.posteriors(engine, state.stack, data))
        else:
            found = [part for member in state.members for part in self.base.posteriors(engine, member, data)]
        return tuple(Mixture(tuple(found[k : k + self.size])) for k in range(0, len(found), self.size))

    def keep_in(self, state: EnsembleState, folder: Path) -> None:
        """Each member for itself."""
        for member in state.members if state.stack is None else [state.stack]:
            self.base.keep_in(member, folder)

    def remarks(self, state: EnsembleState) -> list[str]:
        """Those of all members at once, or of each."""
        if state.stack is not None:
            return self.base.remarks(state.stack)
        told = [(k, remark) for k, member in enumerate(state.members) for remark in self.base.remarks(member)]
        return [f"member {k + 1} of {len(state.members)}: {remark}" for k, remark in told]


def _share(batch: Batch, k: int, each: int) -> Batch:
    """The streams of member ``k``, which takes ``each`` of them."""
    if batch.streams is None:
        return batch
    return batch.stream(k) if each == 1 else batch.stream_range(k * each, (k + 1) * each)
