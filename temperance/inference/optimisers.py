"""Building PyTorch optimisers and schedulers over one flat θ."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_mapping, shown
from temperance.core.errors import ArgumentError
from temperance.model.theta import Layout

# Optimisers whose update of a number depends on that number's own gradients alone: for these one long vector (or a
# matrix of members) is the same as many small tensors, and faster.
ELEMENTWISE = frozenset(
    {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop"}
)
_FUSED = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})


def is_elementwise(optimizer: type[torch.optim.Optimizer]) -> bool:
    """Whether ``optimizer`` is PyTorch's own and treats each number alone."""
    return optimizer.__name__ in ELEMENTWISE and optimizer.__module__.startswith("torch.optim")


_closures: dict[type[torch.optim.Optimizer], bool] = {}  # looked up at every step, and slow to find out


def needs_closure(optimizer: type[torch.optim.Optimizer]) -> bool:
    """Whether ``step`` insists on a closure (L-BFGS)."""
    if optimizer not in _closures:
        parameter = inspect.signature(optimizer.step).parameters.get("closure")
        _closures[optimizer] = parameter is not None and parameter.default is inspect.Parameter.empty
    return _closures[optimizer]


def check_settings(optimizer_args: object, scheduler: object, scheduler_args: object) -> None:
    """What is handed on to PyTorch must be what it takes: said where the method is made, not at the first step."""
    check_mapping(optimizer_args, "optimizer_args")
    check_mapping(scheduler_args, "scheduler_args")
    if scheduler is None:
        return
    schedulers = torch.optim.lr_scheduler
    if not (isinstance(scheduler, type) and issubclass(scheduler, schedulers.LRScheduler)):
        raise ArgumentError(f"`scheduler` must be a torch.optim.lr_scheduler class, or None; got {shown(scheduler)}.")
    if issubclass(scheduler, schedulers.ReduceLROnPlateau):
        raise ArgumentError(
            "`scheduler` must not need a metric, as ReduceLROnPlateau does: use `patience` of MAP in its place, or a "
            "schedule of the steps such as CosineAnnealingLR."
        )


def build_optimizer(
    optimizer: type[torch.optim.Optimizer],
    lr: float,
    args: Mapping[str, Any],
    layout: Layout,
    theta: Tensor,
    grad: Tensor,
) -> torch.optim.Optimizer:
    """``optimizer`` over θ: over the whole vector where that is the same, over named views of it otherwise."""
    options = dict(args)
    if "weight_decay" in inspect.signature(optimizer).parameters:
        options.setdefault("weight_decay", 0.0)  # the prior is the weight decay; AdamW's default would come on top
    if is_elementwise(optimizer) or needs_closure(optimizer):
        leaf = nn.Parameter(theta)
        leaf.grad = grad
        leaves = [leaf]
        if optimizer.__name__ in _FUSED and not {"fused", "foreach", "differentiable"} & set(options):
            options["fused"] = True
    else:
        if theta.dim() == 2 and len(theta) == 1:  # of one member: tensors of the network's own shapes
            theta, grad = theta[0], grad[0]
        leaves = []
        for entry in layout.entries:
            leaf = nn.Parameter(theta[..., entry.start : entry.stop].view((*theta.shape[:-1], *entry.shape)))
            leaf.grad = grad[..., entry.start : entry.stop].view((*theta.shape[:-1], *entry.shape))
            leaves.append(leaf)
    try:
        return optimizer(leaves, lr=lr, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"`optimizer_args` must suit {optimizer.__name__}; got {dict(args)}: {error}") from error


def build_scheduler(
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None,
    args: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """``scheduler`` over ``optimizer``, or ``None``."""
    if scheduler is None:
        return None
    try:
        return scheduler(optimizer, **args)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"`scheduler_args` must suit {scheduler.__name__}; got {dict(args)}: {error}") from error


def advance(scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    """One step of a scheduler; some look at their arguments only then."""
    try:
        scheduler.step()
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ArgumentError(f"`scheduler_args` must suit {type(scheduler).__name__}: {error}.") from error


def clip_(grad: Tensor, limit: float | None) -> None:
    """Scale each row's gradient to at most ``limit`` in Euclidean norm, in place."""
    if limit is None:
        return
    norm = torch.linalg.vector_norm(grad, dim=-1, keepdim=True)
    grad.mul_((limit / (norm + 1e-12)).clamp(max=1.0))
