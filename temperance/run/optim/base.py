"""What the optimisers share: groups and their numbers, noise that can be resumed, checks of gradients."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from temperance.core.checks import check_positive, is_whole, real, shown
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import check_seed, derive_seed
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.inference.langevin.sampler import ChainState, LangevinSampler, Tempo
from temperance.run.optim.blocks import STEP, ParameterBlock, Signature, build, signature_of

Group = dict[str, Any]


def weight_decay_of(scale: float, num_data: int) -> float:
    """The ``weight_decay`` that is a Gaussian prior N(0, σ²) on each weight: λ = 1/(N σ²), with σ = ``scale``.

    >>> weight_decay_of(scale=0.5, num_data=100)
    0.04
    """
    return 1.0 / (_count(num_data) * check_positive(scale, "scale") ** 2)


@dataclass
class _Record:
    """What is worked out once for a group and holds until something changes."""

    signature: Signature
    blocks: list[ParameterBlock]


class ChainOptimizer(Optimizer, ABC):
    """An optimiser whose parameters are a Markov chain. See :class:`SGHMC` for the arguments.

    Each group has a stream of noise of its own, known by the group's ``noise_seed`` and ``noise_count``; with them
    ``state_dict`` holds all that the next step needs.
    """

    settings: ClassVar[tuple[str, ...]] = ("lr", "num_data", "temperature", "weight_decay", "pace")

    def __init__(self, params: ParamsT, seed: int, **defaults: Any) -> None:
        self._records: dict[int, _Record] = {}
        self._checked: dict[int, tuple[Any, ...]] = {}
        super().__init__(check_params(params), {**defaults, "seed": seed})

    def add_param_group(self, param_group: Group) -> None:
        """See ``torch.optim.Optimizer``; the group may have numbers of its own."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        group = self.param_groups[index]
        try:
            self._admit(group, index)
        except ArgumentError:
            self.param_groups.pop()
            raise
        # Two groups of one seed must not share their noise.
        group.setdefault("noise_seed", derive_seed(group["seed"], "optim", index))
        group.setdefault("noise_count", 0)
        self._records.pop(index, None)

    def _admit(self, group: Group, index: int) -> None:
        check_positive(group["lr"], "lr")
        self.check(group)
        group["seed"] = check_seed(group["seed"])
        for name in self.settings:  # plain numbers, so that a file of them needs no pickled classes
            value = group[name]
            if isinstance(value, numbers.Integral) and not isinstance(value, int):
                group[name] = int(value)
            elif isinstance(value, numbers.Real) and not isinstance(value, int):
                group[name] = float(value)
        if len({id(p) for p in group["params"]}) < len(group["params"]):
            raise ArgumentError("`params` must name each parameter once; one is there twice.")
        for place, p in enumerate(group["params"]):
            if not p.is_floating_point():
                where = _name(group, index, place)
                raise ArgumentError(f"`params` must be of a floating dtype; {where} is of {p.dtype}.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by ``load_state_dict``, by copying and by unpickling: what was worked out before is forgotten."""
        super().__setstate__(state)
        self._records, self._checked = {}, {}

    # ------------------------------------------------------------------ what an optimiser says

    @abstractmethod
    def slots(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        """The vectors kept beside θ, at the start."""

    def check(self, group: Group) -> None:
        """Raise if a number of the group breaks its rule. A learning rate of 0 (of a schedule) stands still."""
        _count(group["num_data"])
        for name in ("lr", "temperature", "weight_decay"):
            check_from_zero(group[name], name)
        if not 0.0 <= real(group["pace"]) <= 1.0:
            raise ArgumentError(f"`pace` must lie in [0, 1]; got {shown(group['pace'])}.")
        if "mass" in self.settings:
            check_positive(group["mass"], "mass")

    # ------------------------------------------------------------------ gradients

    def _gather(self, index: int) -> list[ParameterBlock]:
        """The group's blocks with gradients copied in. Nothing of the user's has changed yet."""
        group = self.param_groups[index]
        values = tuple(group[name] for name in self.settings)
        if self._checked.get(index) != values:
            self.check(group)
            self._checked[index] = values
        blocks = self._blocks(index, group, self._active(index, group))
        for block in blocks:
            block.read_grad()
        return blocks

    def _active(self, index: int, group: Group) -> list[Tensor]:
        """The parameters that have a gradient."""
        active = [p for p in group["params"] if p.grad is not None]
        for p in active:
            if p.grad.layout is not torch.strided:
                where = _name(group, index, _place(group, p))
                raise ArgumentError(
                    f"gradients must be dense (noise moves every weight, not only some); that of {where} is sparse. "
                    "Use nn.Embedding(..., sparse=False)."
                )
        return active

    def _blocks(self, index: int, group: Group, active: list[Tensor]) -> list[ParameterBlock]:
        signature, record = signature_of(active), self._records.get(index)
        if record is not None:
            if record.signature == signature and all(block.intact(self.state) for block in record.blocks):
                return record.blocks
            for block in record.blocks:
                block.release(self.state, {id(p) for p in active})
        blocks = build(active, self.state, lambda theta: self.slots(theta, group))
        self._records[index] = _Record(signature, blocks)
        return blocks

    def _refuse_non_finite(self, index: int, blocks: list[ParameterBlock]) -> None:
        for block in blocks:
            if math.isfinite(float(block.chain.grad.sum())):
                continue
            for p, grad in zip(block.params, block.grad, strict=True):  # a sum of finite numbers may overflow
                if not bool(torch.isfinite(grad).all()):
                    group = self.param_groups[index]
                    where = _name(group, index, _place(group, p))
                    raise NumericalError(
                        f"the gradient of {where} is not finite; no parameter was changed. A smaller `lr` often helps; "
                        "else look for the first loss that is not finite."
                    )


class LangevinOptimizer(ChainOptimizer):
    """An optimiser that moves by the rule of a method of :mod:`temperance.inference`, with one gradient a step.

    ``method`` is that method, and ``rule_takes`` are the numbers of a group that it is made with.
    """

    method: ClassVar[type[LangevinSampler]]
    rule_takes: ClassVar[tuple[str, ...]] = ("lr",)

    def rule(self, group: Group) -> LangevinSampler:
        """The method whose ``move`` is a step, with the group's numbers."""
        return self.method(**{name: group[name] for name in self.rule_takes})

    def check(self, group: Group) -> None:
        """See :class:`ChainOptimizer`; the rule knows what it needs of its own numbers."""
        super().check(group)
        self.rule({**group, "lr": group["lr"] or 1.0})

    def slots(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        """The rule's; none of them looks at the target."""
        return self.rule({**group, "lr": 1.0}).slots(theta, cast(Engine, None))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One move of every parameter that has a gradient.

        Args:
            closure: if given, computes loss and gradients; its value is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gathered = [self._gather(index) for index in range(len(self.param_groups))]
        for index, blocks in enumerate(gathered):
            self._refuse_non_finite(index, blocks)
        for index, blocks in enumerate(gathered):
            if self.param_groups[index]["lr"] > 0:
                self._move(index, blocks)
        return loss

    def _move(self, index: int, blocks: list[ParameterBlock]) -> None:
        group = self.param_groups[index]
        rule = self.rule(group)
        tempo = Tempo(group["num_data"], float(group["temperature"]), group["pace"])
        mass = group.get("mass", 1.0)
        for block in blocks:
            chain = block.chain
            block.read_theta()
            if group["weight_decay"]:
                chain.grad.add_(chain.theta, alpha=group["weight_decay"])
            stream = NormalStream(group["noise_seed"], group["noise_count"])
            chain.scale = None
            if mass != 1.0 or tempo.temperature == 0 or not rule.move_at_once(chain, tempo, stream):
                self._draw_and_move(rule, chain, tempo, stream, mass)
            group["noise_count"] = stream.count
            block.write_theta()
            if block.counter is not None:
                step = int(block.counter)
                for p in block.params:
                    self.state[p][STEP] = step

    @staticmethod
    def _draw_and_move(
        rule: LangevinSampler, chain: ChainState, tempo: Tempo, stream: NormalStream, mass: float
    ) -> None:
        if tempo.temperature > 0:
            stream.fill_(chain.noise)
        else:
            chain.noise.zero_()
        if mass != 1.0:  # a rule sees the gradient over M and the noise over √M
            chain.grad.mul_(1.0 / mass)
            chain.noise.mul_(mass**-0.5)
            chain.scale = torch.tensor([mass**-0.5], dtype=torch.float64)
        rule.move(chain, tempo)


def check_from_zero(value: object, argument: str) -> None:
    """A finite number, 0 or more."""
    if not 0.0 <= real(value) < math.inf:
        raise ArgumentError(f"`{argument}` must be a finite number, 0 or more; got {shown(value)}.")


def check_params(params: ParamsT) -> ParamsT:
    """What torch takes as ``params``: tensors, pairs of name and tensor, or groups (dicts) of these. torch raises
    errors of its own for anything else, which do not say whose argument it was."""
    made = list(params) if isinstance(params, Iterable) and not isinstance(params, str | bytes | Tensor) else []
    if not made or not all(_is_params(entry) for entry in made):
        raise ArgumentError(
            "`params` must be parameters such as network.parameters(), or a list of groups of them; got "
            f"{shown(params)}."
        )
    return made  # type: ignore[return-value]


def _is_params(entry: object) -> bool:
    if isinstance(entry, Mapping):
        return "params" in entry
    if isinstance(entry, tuple):
        return len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], Tensor)
    return isinstance(entry, Tensor)


def _count(num_data: object) -> int:
    if not is_whole(num_data, 1):
        raise ArgumentError(
            "`num_data` must be a positive integer (the size of the whole training set, not of a batch); "
            f"got {shown(num_data)}."
        )
    return int(num_data)  # type: ignore[call-overload]


def _place(group: Group, parameter: Tensor) -> int:
    return next(i for i, p in enumerate(group["params"]) if p is parameter)


def _name(group: Group, index: int, place: int) -> str:
    """What to call a parameter: its name, where the optimiser was given names, and its place."""
    shape = tuple(group["params"][place].shape)
    where = f"parameter {place} of group {index}, of shape {shape}"
    return f"{group['param_names'][place]!r} ({where})" if "param_names" in group else where
