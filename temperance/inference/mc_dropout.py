"""``MCDropout``: the dropout that a network was trained with, kept on at prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance import evaluate
from temperance.data.data import Batch, Data
from temperance.data.sources import map_tensors
from temperance.errors import ArgumentError, NetworkError
from temperance.inference.base import Cost, Inference, Info, Stackable
from temperance.posteriors import DropoutPosterior, Point, Posterior
from temperance.posteriors.dropout import MaskedDropout, dropout_names, masked
from temperance.target import Target


@dataclass
class MCDropoutState:
    """The base's state; without a base, the weights as they were given, with their running statistics."""

    base: Any = None
    theta: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class MCDropout(Inference[MCDropoutState], Stackable):
    """Monte-Carlo dropout (Gal & Ghahramani, 2016): predictions are averaged over networks from which units were
    dropped at random, with the probabilities that the network's own dropout modules have,

        p(y | x) ≈ (1/S) Σ_s p(y | x, θ ⊙ mask_s),    mask entries 0 with probability p, else 1/(1 − p).

    One draw is one set of masks for *all* inputs, so draws are functions. Every ``nn.Dropout`` (1d, 2d, 3d, alpha)
    inside the network counts; dropout inside ``nn.LSTM`` or attention stays off, and ``F.dropout`` cannot be seen.

    Args:
        base: how the weights are trained, dropout included, e.g. ``MAP(lr=1e-3)``; ``None`` takes ``start``, or the
            target's network as it is: nothing is trained.

    A Gaussian prior of scale σ is weight decay 1/(N σ²) on the loss in nats; Gal & Ghahramani have l²(1 − p)/N for it,
    with l a length scale (over τ where the loss is a squared error and τ the noise's precision). The spread is set by
    p, not by the data: it does not shrink as N grows.

    >>> import temperance as tp
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Dropout(0.1), nn.Linear(50, 1))
    >>> target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> fitted = tp.fit(target, tp.MCDropout(tp.MAP(lr=0.01)), (x, x.sin()), epochs=20)
    >>> fitted.predict(x, draws=100).mean().shape
    torch.Size([20, 1])
    """

    base: Inference[Any] | None = None

    def __post_init__(self) -> None:
        if self.base is not None and not isinstance(self.base, Inference):
            raise ArgumentError(f"`base` must be a method such as MAP(lr=1e-3), or None; got {self.base!r}.")

    # ------------------------------------------------------------------ as the base has it

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the base does."""
        return "minibatch" if self.base is None else self.base.reads

    @property
    def default_steps(self) -> int | None:  # type: ignore[override]
        """None to train: no steps."""
        return 0 if self.base is None else self.base.default_steps

    @property
    def streams(self) -> int:
        """As the base has it."""
        return 1 if self.base is None else self.base.streams

    @property
    def needs_held_out(self) -> bool:
        """As the base does."""
        return self.base is not None and self.base.needs_held_out

    def check_run(self, steps: int) -> None:
        """As the base does; without one there is nothing to run."""
        if self.base is not None:
            self.base.check_run(steps)
        elif steps:
            raise ArgumentError(
                "`epochs` or `steps`: MCDropout() without a base trains nothing; leave both out, or give a base: "
                "MCDropout(MAP(lr=1e-3))."
            )

    def keep_in(self, state: Any, folder: Path) -> None:
        """As the base does; the state of all members at once is the base's own."""
        if self.base is not None:
            self.base.keep_in(state.base if isinstance(state, MCDropoutState) else state, folder)

    def cost(self) -> Cost:
        """The base's."""
        return Cost(0, 1) if self.base is None else self.base.cost()

    # ------------------------------------------------------------------ the contract

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> MCDropoutState:
        """See :class:`Inference`."""
        check_dropout(target)
        if self.base is not None:
            return MCDropoutState(self.base.init(target, theta, rng))
        start = target.initial_theta() if theta is None else theta
        if start.dim() != 1:
            raise ArgumentError(f"`start` must be a vector for MCDropout; got shape {tuple(start.shape)}.")
        return MCDropoutState(None, start.clone(), target.workspace.running_buffers())

    def step(self, target: Target, state: MCDropoutState, batch: Batch) -> tuple[MCDropoutState, Info]:
        """A step of the base."""
        assert self.base is not None
        state.base, info = self.base.step(target, state.base, batch)
        return state, info

    def posterior(self, target: Target, state: MCDropoutState, data: Data | None) -> Posterior:
        """A :class:`DropoutPosterior` at the base's point."""
        if self.base is None:
            assert state.theta is not None
            return self._around(target, Point(state.theta, state.buffers))
        return self._around(target, self.base.posterior(target, state.base, data))

    def _around(self, target: Target, found: Posterior) -> Posterior:
        if not isinstance(found, Point):
            raise ArgumentError(
                f"`base` must find a point for MCDropout; {type(self.base).__name__} gives a {type(found).__name__}."
            )
        return DropoutPosterior(found.theta, tuple(dropout_names(target.network)), found.buffers)

    # ------------------------------------------------------------------ all members of an ensemble at once

    def can_stack(self, target: Target) -> bool:
        """As the base can."""
        return isinstance(self.base, Stackable) and self.base.can_stack(target)

    def init_stack(self, target: Target, theta: Tensor, rngs: Sequence[torch.Generator]) -> Any:
        """See :class:`Stackable`."""
        check_dropout(target)
        assert isinstance(self.base, Stackable)
        return self.base.init_stack(target, theta, rngs)

    def step_stack(self, target: Target, state: Any, batch: Batch) -> tuple[Any, Info]:
        """See :class:`Stackable`."""
        assert isinstance(self.base, Stackable)
        return self.base.step_stack(target, state, batch)

    def posteriors_stack(self, target: Target, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """See :class:`Stackable`."""
        assert isinstance(self.base, Stackable)
        return tuple(self._around(target, point) for point in self.base.posteriors_stack(target, state, data))


def check_dropout(target: Target) -> None:
    """Raise :class:`NetworkError` unless the network has dropout modules, and calls at least one of them."""
    names = dropout_names(target.network)
    if not names:
        raise NetworkError(
            "MCDropout needs a network with dropout: modules such as nn.Dropout(0.1) with p > 0. This one has none "
            "(F.dropout in a forward method cannot be seen: use the module)."
        )
    if target.workspace.example is None:
        return
    called: list[bool] = []
    modules = dict(target.network.named_modules())
    handles = [modules[name].register_forward_hook(lambda *_: called.append(True)) for name in names]
    try:
        target.probe_outputs(target.workspace.example)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise NetworkError(f"MCDropout: the network has dropout modules ({names[0]}) but never calls them.")
    _check_rows(target, names)


def _check_rows(target: Target, names: Sequence[str]) -> None:
    """One row, given several times, must have one answer under one set of masks."""
    example = target.workspace.example
    assert example is not None
    network = masked(target.network).eval()
    for module in network.modules():
        if isinstance(module, MaskedDropout):
            module.draw.fill_(1)
    with torch.no_grad():
        outputs = evaluate.call(network, map_tensors(lambda t: t[:1].expand(4, *t.shape[1:]), example))
    if not torch.allclose(outputs, outputs[:1].expand_as(outputs), rtol=1e-3, atol=1e-4, equal_nan=True):
        raise NetworkError(
            f"MCDropout needs tensors whose first dimension is the rows of the batch where dropout is applied "
            f"({names[0]}, ...): here four copies of one row get four answers under one set of masks. Use "
            "batch_first=True, or another method."
        )
