"""What the optimisers of natural-gradient VI share: weights that are means, a block in which they are draws."""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import check_seed, derive_seed
from temperance.engine.native import NormalStream
from temperance.inference.variational.natural import check_betas
from temperance.run.optim.base import check_from_zero, check_params

Group = dict[str, Any]


class NaturalOptimizer(Optimizer):
    """Base of :class:`IVON` and :class:`VOGN`. The parameters are the means m of q = N(m, σ²), with
    σ² = T / (N (h + δ)); inside :meth:`perturbed` they are a draw of it."""

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        num_data: int,
        betas: tuple[float, float],
        initial_hessian: float,
        weight_decay: float,
        temperature: float,
        clip: float | None,
        samples: int,
        seed: int,
    ) -> None:
        self.samples = check_count(samples, "samples")
        check_betas(betas)
        self._kept: list[tuple[Tensor, Tensor]] | None = None
        self._forget()
        defaults = {
            "lr": lr,
            "num_data": num_data,
            "betas": tuple(betas),
            "initial_hessian": initial_hessian,
            "weight_decay": weight_decay,
            "temperature": temperature,
            "clip": clip,
            "seed": check_seed(seed),
        }
        super().__init__(check_params(params), defaults)

    def _forget(self) -> None:
        """Nothing was seen since the last step."""
        self._norm: float | None = None  # Σ g² after the last block; None: no block since the last step
        self._last: list[list[Tensor]] = []  # the noise of that block
        self._seen: set[int] = set()  # which of the samples there were

    def __getstate__(self) -> dict[str, Any]:
        """For copies: what ``torch.optim.Optimizer`` keeps, and the number of samples."""
        return {**super().__getstate__(), "samples": self.samples}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also called by ``load_state_dict``: gradients seen before belong to other weights."""
        super().__setstate__(state)
        self._kept = None
        self._forget()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See ``torch.optim.Optimizer``; what the blocks since the last step have shown is forgotten too."""
        super().zero_grad(set_to_none)
        if self._kept is None:
            self._forget()

    def add_param_group(self, param_group: Group) -> None:
        """See ``torch.optim.Optimizer``; the group may have numbers of its own."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        group = self.param_groups[index]
        try:
            self._check(group)
        except ArgumentError:
            self.param_groups.pop()
            raise
        group.setdefault("noise_seed", derive_seed(group["seed"], "optim", index))
        group.setdefault("step", 0)

    @staticmethod
    def _check(group: Group) -> None:
        check_positive(group["lr"], "lr")
        check_count(group["num_data"], "num_data")
        check_positive(group["initial_hessian"], "initial_hessian")
        check_positive(group["temperature"], "temperature")
        check_betas(group["betas"])
        check_from_zero(group["weight_decay"], "weight_decay")
        if group["clip"] is not None:
            check_positive(group["clip"], "clip")
        for p in group["params"]:
            if not p.is_floating_point():
                raise ArgumentError(f"`params` must be of a floating dtype; one is of {p.dtype}.")

    # ------------------------------------------------------------------ draws

    def _state_of(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        state = self.state[p]
        if not state:
            state["hessian"] = torch.full_like(p, group["initial_hessian"], memory_format=torch.preserve_format)
            state["momentum"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state

    def _noise(self, group: Group, sample: int) -> list[Tensor]:
        """Standard normal numbers for each parameter: a function of seed, step and sample, so nothing is saved."""
        stream = NormalStream(group["noise_seed"], group["step"] * self.samples + sample)
        return self._split(group, stream)

    @staticmethod
    def _split(group: Group, stream: NormalStream) -> list[Tensor]:
        made = []
        where = {(p.device, p.dtype) for p in group["params"]}
        if len(where) == 1:
            device, dtype = next(iter(where))
            flat = torch.empty(sum(p.numel() for p in group["params"]), device=device, dtype=dtype)
            stream.fill_(flat)
            return [piece.view(p.shape) for piece, p in zip(_cut(flat, group), group["params"], strict=True)]
        for k, p in enumerate(group["params"]):
            part = NormalStream(derive_seed(stream.seed, "parameter", k), stream.count)
            made.append(part.fill_(torch.empty(p.shape, device=p.device, dtype=p.dtype)))
        return made

    def _inverse_scale(self, p: Tensor, group: Group) -> Tensor:
        """1/σ."""
        total = self._state_of(p, group)["hessian"] + group["weight_decay"]
        return total.mul_(group["num_data"] / group["temperature"]).sqrt_()

    @torch.no_grad()
    def scale_of(self, p: Tensor) -> Tensor:
        """σ, the standard deviations of a parameter."""
        for group in self.param_groups:
            if any(p is other for other in group["params"]):
                return self._inverse_scale(p, group).reciprocal_()
        raise ArgumentError("`p` must be a parameter of this optimiser.")

    @contextlib.contextmanager
    def _moved(self, noises: list[list[Tensor]]) -> Iterator[None]:
        if self._kept is not None:
            raise ArgumentError("the weights are a draw already: blocks of `perturbed` and `drawn` do not nest.")
        self._kept = []
        try:
            with torch.no_grad():
                for group, noise in zip(self.param_groups, noises, strict=True):
                    for p, z in zip(group["params"], noise, strict=True):
                        if p.requires_grad:  # what is frozen is known
                            self._kept.append((p, p.detach().clone()))
                            p.add_(z / self._inverse_scale(p, group))
            yield
        finally:
            with torch.no_grad():
                for p, mean in self._kept:
                    p.copy_(mean)  # a copy, so the means come back bit for bit
            self._kept = None

    @contextlib.contextmanager
    def perturbed(self, sample: int = 0) -> Iterator[None]:
        """A block in which the weights are a draw of q, for the forward *and* backward pass of training.

        Until the next :meth:`step` it is the same draw every time, so micro-batches whose losses are divided by their
        number add up to one large batch. With ``samples`` = S, there are S draws, ``perturbed(0)`` … ``perturbed(S −
        1)``; write ``loss.backward()`` in each, the step takes their average.
        """
        if not 0 <= sample < self.samples:
            raise ArgumentError(f"`sample` must be from 0 to {self.samples - 1}, for `samples` is so; got {sample}.")
        noises = [self._noise(group, sample) for group in self.param_groups]
        if all(p.grad is None for group in self.param_groups for p in group["params"]):
            self._forget()  # gradients were thrown away by hand
        before = self._put_aside()
        self._begin()
        try:
            with self._moved(noises):
                yield
        except BaseException:
            self._abandon()
            self._bring_back(before, keep=False)
            raise
        self._end(noises)
        self._bring_back(before, keep=True)
        self._norm, self._last = self._gradients(), noises
        self._seen.add(sample)

    def _put_aside(self) -> dict[int, Tensor | None] | None:
        """With several samples: gradients so far, so that what a block adds is seen alone."""
        if self.samples == 1:
            return None
        before: dict[int, Tensor | None] = {}
        for group in self.param_groups:
            for p in group["params"]:
                before[id(p)], p.grad = p.grad, None
        return before

    def _bring_back(self, before: dict[int, Tensor | None] | None, keep: bool) -> None:
        """Add the gradients that were put aside to those of the block, or take them in their place."""
        if before is None:
            return
        for group in self.param_groups:
            for p in group["params"]:
                earlier = before[id(p)]
                if not keep or p.grad is None:
                    p.grad = earlier
                elif earlier is not None:
                    p.grad = earlier.add_(p.grad)

    @contextlib.contextmanager
    def drawn(self, seed: int) -> Iterator[None]:
        """A block in which the weights are draw number ``seed`` of q, for predictions: average over several."""
        check_seed(seed)
        noises = [
            self._split(group, NormalStream(derive_seed(group["noise_seed"], "drawn", seed)))
            for group in self.param_groups
        ]
        with self._moved(noises):
            yield

    # ------------------------------------------------------------------ a step

    def _begin(self) -> None:
        """Before a block of training."""
        return

    def _abandon(self) -> None:
        """After a block that ended in an error."""
        return

    @abstractmethod
    def _end(self, noises: list[list[Tensor]]) -> None:
        """After a block of training, whose gradients the parameters hold (with several samples: its alone): take what
        they tell of the curvature."""

    @abstractmethod
    def _curvature(self, p: Tensor, gradient: Tensor, noise: Tensor, root: Tensor, factor: float) -> Tensor:
        """ĥ for a parameter; ``factor`` is by what gradients were scaled since the block."""

    @abstractmethod
    def _learn(self, hessian: Tensor, estimate: Tensor, total: Tensor, beta: float) -> None:
        """Take an estimate in."""

    @abstractmethod
    def _rate(self, group: Group) -> float:
        """On the preconditioned gradient."""

    def _gradients(self) -> float:
        """Σ g² over all parameters."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(grad.layout is not torch.strided for grad in grads):
            raise ArgumentError("gradients must be dense: use nn.Embedding(..., sparse=False).")
        if not grads:
            return 0.0
        norms = torch.stack([norm.double().to(grads[0].device) for norm in torch._foreach_norm(grads)])
        return float(norms.square().sum())

    def _refuse_non_finite(self) -> None:
        if math.isfinite(self._gradients()):
            return
        for index, group in enumerate(self.param_groups):
            for place, p in enumerate(group["params"]):
                if p.grad is not None and not bool(torch.isfinite(p.grad).all()):
                    raise NumericalError(
                        f"the gradient of parameter {place} of group {index} is not finite; no parameter was changed. "
                        "A smaller `lr` often helps; else look for the first loss that is not finite."
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step from the gradients of the ``perturbed`` blocks since the last one. A ``closure``, if given, is
        called inside such a block (once for each sample) and its last value returned."""
        loss = None
        if closure is not None:
            self.zero_grad()
            for sample in range(self.samples):
                with torch.enable_grad(), self.perturbed(sample):
                    loss = closure()
        if self._norm is None:
            raise ArgumentError(
                f"{type(self).__name__}.step() needs gradients at a draw: put forward and backward pass in "
                "`with optimizer.perturbed():`."
            )
        if self._seen != set(range(self.samples)):
            raise ArgumentError(
                f"`samples` is {self.samples}, so a step needs blocks perturbed(0) to perturbed({self.samples - 1}); "
                f"there were {sorted(self._seen)}."
            )
        self._refuse_non_finite()
        factor = math.sqrt(self._gradients() / self._norm) if self._norm > 0 else 1.0
        for group, noise in zip(self.param_groups, self._last, strict=True):
            self._step_group(group, noise, factor)
        self._forget()
        return loss

    def _step_group(self, group: Group, noise: list[Tensor], factor: float) -> None:
        group["step"] += 1
        beta1, beta2 = group["betas"]
        correction = 1.0 / (1.0 - beta1 ** group["step"])
        for p, z in zip(group["params"], noise, strict=True):
            if p.grad is None:
                continue
            state = self._state_of(p, group)
            gradient = p.grad if self.samples == 1 else p.grad / self.samples
            root = self._inverse_scale(p, group)
            estimate = self._curvature(p, gradient, z, root, factor)
            state["momentum"].lerp_(gradient, 1 - beta1)
            total = state["hessian"] + group["weight_decay"]
            self._learn(state["hessian"], estimate, total, beta2)
            step = torch.mul(state["momentum"], correction).add_(p, alpha=group["weight_decay"])
            step.div_(state["hessian"] + group["weight_decay"]).mul_(self._rate(group))
            if group["clip"] is not None:
                step.clamp_(-group["clip"], group["clip"])
            p.sub_(step)


def _cut(flat: Tensor, group: Group) -> tuple[Tensor, ...]:
    return flat.split([p.numel() for p in group["params"]])
