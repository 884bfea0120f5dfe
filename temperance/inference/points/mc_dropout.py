"""``MCDropout``: the dropout that a network was trained with, kept on at prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from temperance.core.errors import NetworkError
from temperance.data.data import Data
from temperance.data.sources import map_tensors
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, NeedsData, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.points.around_point import AroundPoint
from temperance.inference.weighing import log_densities, weight_of_first
from temperance.posteriors import DropoutPosterior, Point, Posterior
from temperance.posteriors.dropout import choose_masks, dropout_names, dropout_rates, masked


@dataclass(frozen=True, eq=False)
class MCDropout(AroundPoint):
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
    p, not by the data: it does not shrink as N grows. Where ``base`` stops by held-out rows these also say how much the
    masks are worth beside the network with nothing dropped, which gets the weight w (see
    :func:`~temperance.inference.weighing.weight_of_first`).

    >>> import temperance as tp
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Dropout(0.1), nn.Linear(50, 1))
    >>> target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> fitted = tp.fit(target, tp.MCDropout(tp.MAP(lr=0.01)), (x, x.sin()), epochs=20)
    >>> fitted.predict(x, draws=100).mean().shape
    torch.Size([20, 1])
    """

    card: ClassVar[Card] = Card(
        "masks of the network's own dropout, averaged over",
        MethodFamily.POINTS,
        papers=("Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016",),
        cost="as its base",
        shown=("MCDropout(MAP())",),
    )

    def facts(self) -> Facts:
        """The base's, but for what is put around its point."""
        return replace(super().facts(), gives=DropoutPosterior, exact=Exactness.APPROXIMATE)

    def check_base(self, base: Inference[Any]) -> None:
        """It must train with the dropout that the masks have."""
        super().check_base(base)
        if base.facts().own_dropout:
            refuse(
                self,
                base,
                f"{type(base).__name__} chooses how often to drop units, and masks around it would not know",
                "Refit(MCDropout(MAP(lr=1e-3)), TunedDecay(MAP(lr=1e-3, patience=0.1), dropout=(0.0,)))",
            )

    def check_target(self, engine: Engine) -> None:
        """A network with dropout."""
        check_dropout(engine)

    def around(self, engine: Engine, point: Point, data: Data | None) -> Posterior:
        """A :class:`DropoutPosterior`, weighed against the network with nothing dropped where rows were held out."""
        rates = dropout_rates(engine.network)
        found = DropoutPosterior(point.theta, tuple(rates), point.buffers, rates=tuple(rates.values()))
        if not any(rates.values()):  # whoever chose how often to drop chose never
            return replace(found, whole=1.0)
        if not self.base.facts().held_out:
            return found
        if data is None:
            raise NeedsData("the rows that were held out weigh masks against the network with nothing dropped.")
        others = data.held_out
        if others is None:
            return found
        plain, dropped = (log_densities(engine, each, others) for each in (replace(found, whole=1.0), found))
        return replace(found, whole=weight_of_first(plain, dropped, others.weights))


def check_dropout(engine: Engine) -> None:
    """Raise :class:`NetworkError` unless the network has dropout modules, and calls at least one of them."""
    names = dropout_names(engine.network)
    if not names:
        raise NetworkError(
            "MCDropout needs a network with dropout: modules such as nn.Dropout(0.1) with p > 0. This one has none "
            "(F.dropout in a forward method cannot be seen: use the module)."
        )
    if engine.example is None:
        return
    called: list[bool] = []
    modules = dict(engine.network.named_modules())
    handles = [modules[name].register_forward_hook(lambda *_: called.append(True)) for name in names]
    try:
        engine.outputs(engine.target.initial_theta().unsqueeze(0), engine.example, batched=False)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise NetworkError(f"MCDropout: the network has dropout modules ({names[0]}) but never calls them.")
    _check_rows(engine, names)


def _check_rows(engine: Engine, names: Sequence[str]) -> None:
    """One row, given several times, must have one answer under one set of masks."""
    example = engine.example
    assert example is not None
    network = masked(engine.network).eval()
    choose_masks(network, 1)
    with torch.no_grad():
        outputs = forward.call(network, map_tensors(lambda t: t[:1].expand(4, *t.shape[1:]), example))
    if not torch.allclose(outputs, outputs[:1].expand_as(outputs), rtol=1e-3, atol=1e-4, equal_nan=True):
        raise NetworkError(
            f"MCDropout needs tensors whose first dimension is the rows of the batch where dropout is applied "
            f"({names[0]}, ...): here four copies of one row get four answers under one set of masks. Use "
            "batch_first=True, or another method."
        )
