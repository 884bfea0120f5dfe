"""Units that answer nothing, and networks whose answer is one number: what too large a step leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_count
from temperance.core.errors import DataError
from temperance.data.data import Data, _as_inputs
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.engine.outputs import functional
from temperance.engine.workspace import working_copy
from temperance.posteriors import Posterior, centre_of
from temperance.posteriors.nodes import Buffers
from temperance.run.fitted import Fitted

MOST_DEAD = 0.85
"""Share of a layer's units, averaged over draws, above which a run is said to have gone wrong. Of two layers of 50
units the worse has 0 to 0.80 (freesolv) after a good fit by any recipe, on fourteen tables; MAP with a learning rate
of 0.5, where it neither diverges nor gets away with it, leaves 0.84 to 1, or a constant."""
ENDED = "training ended"
"""How remarks begin."""
MOST_CONSTANT = 0.1
"""Share of draws whose network answers the same on all rows, above which that is said. Healthy runs have none."""

_SAME = 1e-5  # spread of an output over rows, of its size, that is rounding and no answer
_ROWS = 1000
_REMEDY = (
    "Steps were too large or too many, for which a smaller learning rate (a tenth), fewer epochs or another method are "
    "the remedy; or the inputs say nothing of what was to be learned."
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, eq=False)
class DeadUnits:
    """How many units are 0 on every row, and whether the network's answer is the same on all of them.

    Attributes:
        layers: the ReLUs by name, in the order in which they are reached; one that is reached again is ``name (2)``.
        units: how many units each has. Of a convolution they are channels, and dead where they are 0 at every place.
        dead: how many of these are 0 on every row, draws × layers.
        constant: for each draw, whether no output varies over rows.
        weights: of the draws; they sum to one.
        rows: how many rows were looked at.
    """

    layers: tuple[str, ...]
    units: tuple[int, ...]
    dead: Tensor
    constant: Tensor
    weights: Tensor
    rows: int

    @property
    def shares(self) -> dict[str, float]:
        """The share of dead units of each layer, averaged over draws."""
        mean = (self.weights.unsqueeze(1) * self.dead.double()).sum(0)
        return {name: float(mean[k]) / self.units[k] for k, name in enumerate(self.layers)}

    @property
    def constant_share(self) -> float:
        """The share of draws whose network answers the same on all rows."""
        return float((self.weights * self.constant.double()).sum())

    @property
    def worst(self) -> float:
        """The largest of the shares; 0 for networks without a ReLU."""
        return max(self.shares.values(), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to say: some dead units are usual."""
        return self.worst <= MOST_DEAD and self.constant_share <= MOST_CONSTANT

    def remarks(self) -> list[str]:
        """What went wrong, how many of how many and where, and what to change; nothing for a healthy network."""
        if self.ok:
            return []
        draws, said, shares = len(self.weights), [], self.shares
        if self.constant_share > MOST_CONSTANT:
            of = "the network" if draws == 1 else f"{self.constant_share:.0%} of the {draws} networks"
            said.append(f"at a constant: the answer of {of} is the same on all {self.rows:,} rows.")
        for k, name in enumerate(self.layers):
            if shares[name] > MOST_DEAD:
                many = f"{shares[name] * self.units[k]:.3g} of {self.units[k]} units"
                mean = "" if draws == 1 else f" (on average over {draws} networks)"
                said.append(
                    f"with dead units: {many} of ReLU {k + 1} of {len(self.layers)} (`{name}`) are 0 on all "
                    f"{self.rows:,} rows{mean}, and learn nothing more."
                )
        return [" ".join([*(f"{ENDED} {words}" for words in said), _REMEDY])]

    def __str__(self) -> str:
        shares = self.shares
        parts = [
            f"{name}: {shares[name] * self.units[k]:.3g} of {self.units[k]} units dead"
            for k, name in enumerate(self.layers)
        ]
        parts.append(f"{self.constant_share:.0%} of {len(self.weights)} draws constant")
        return f"on {self.rows:,} rows {'; '.join(parts)}"


def dead_units(fitted: Fitted, x: Any, draws: int = 30, seed: int = 0) -> DeadUnits:
    """Which ReLU units of a fit are 0 on every row of ``x`` (its training rows, say), and whether its outputs vary at
    all, for the settings of θ that prediction averages over: at most ``draws`` of them, evenly spaced where there are
    more. A posterior that predicts by a linearised network is looked at where it is linearised.

    A unit that is 0 on every row has no gradient, so training cannot bring it back. Some are usual; nearly all of a
    layer, or an answer that never varies, are what too large a learning rate leaves. ReLUs count where they are modules
    (``nn.ReLU``); other activations do not die.

    >>> import temperance as tp
    >>> train, _ = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [20], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> fitted = tp.fit(target, tp.MAP(lr=1e-2), train, epochs=20, seed=0)
    >>> dead_units(fitted, train.x).remarks()
    []
    >>> dead_units(fitted, 0 * train.x).remarks()[0][:40]  # rows that are all the same
    'training ended at a constant: the answer'
    """
    check_count(draws, "draws")
    target = fitted.target
    inputs = target.cast(_as_inputs(x.x if isinstance(x, Data) else x, "x"))
    rows = first_tensor(inputs).shape[0]
    if rows < 2:
        raise DataError(f"`x` must have two rows at least, for an answer to vary over them; got {rows}.")
    weights, fetch = _settings(fitted.posterior, draws, seed)
    network = working_copy(target.network, {entry.name for entry in target.layout.network_entries}).eval()
    dead, constant, layers, units = [], [], tuple[str, ...](), tuple[int, ...]()
    with torch.no_grad():
        for k in range(len(weights)):
            theta, buffers = fetch(k)
            values = {**target.layout.unflatten(theta.to(target.device), "network")}
            values |= {name: value.to(target.device) for name, value in buffers.items()}
            most, same = _look(network, values, inputs)
            layers, units = tuple(most), tuple(len(value) for value in most.values())
            dead.append([int((value <= 0).sum()) for value in most.values()])
            constant.append(same)
    counts = torch.tensor(dead, dtype=torch.int64).view(len(weights), len(layers))
    return DeadUnits(layers, units, counts, torch.tensor(constant), weights, rows)


def _settings(posterior: Posterior, draws: int, seed: int) -> tuple[Tensor, Callable[[int], tuple[Tensor, Buffers]]]:
    """Weights of settings of θ, and a function that makes each, with the statistics that belong to it."""
    if posterior.predicts != "network":
        parts = posterior.parts()
        centres = [centre_of(part) for _, part in parts]
        known = torch.tensor([weight for weight, _ in parts], dtype=torch.float64)
        return known / known.sum(), lambda k: (centres[k].mean, centres[k].buffers)
    nodes = posterior.nodes(None if posterior.finite else draws, seed)
    every, total = nodes.weights.double().cpu(), len(nodes)
    picked: list[Tensor] = []
    weights: list[Tensor] = []
    first = 0
    for stratum in nodes.strata:  # each keeps its weight, however few of its nodes are looked at
        here = range(first, first + stratum.count)
        count = max(1, min(stratum.count, draws * stratum.count // max(draws, total)))
        some = torch.linspace(here[0], here[-1], count).round().long()
        picked.append(some)
        weights.append(torch.full((count,), float(every[here[0] : here[-1] + 1].sum()) / count, dtype=torch.float64))
        first += stratum.count
    places, shares = torch.cat(picked), torch.cat(weights)

    def fetch(k: int) -> tuple[Tensor, Buffers]:
        place = int(places[k])
        theta, buffers = nodes.fetch(place, place + 1)
        return theta[0], {name: value[0] for name, value in buffers.items()}

    return shares / shares.sum(), fetch


def _look(network: nn.Module, values: dict[str, Tensor], x: Inputs) -> tuple[dict[str, Tensor], bool]:
    """The largest answer of each unit over all rows, and whether no output varies."""
    most: dict[str, Tensor] = {}
    low: Tensor | None = None
    high: Tensor | None = None
    rows = first_tensor(x).shape[0]
    device = next(network.parameters()).device
    for start in range(0, rows, _ROWS):
        part = map_tensors(lambda t, start=start: t[start : start + _ROWS].to(device), x)  # type: ignore[misc]
        with _watched(network, most):
            outputs = functional(network, values, part)
        least, largest = outputs.amin(0), outputs.amax(0)
        low = least if low is None else torch.minimum(low, least)
        high = largest if high is None else torch.maximum(high, largest)
    assert low is not None
    assert high is not None
    size = torch.maximum(low.abs(), high.abs())
    return {name: value.cpu() for name, value in most.items()}, bool((high - low <= _SAME * size).all())


@contextmanager
def _watched(network: nn.Module, most: dict[str, Tensor]) -> Iterator[None]:
    """Let every ReLU of ``network`` keep the largest answer of each of its units in ``most``, while this lasts."""
    calls: Counter[str] = Counter()
    channels = [False]  # whether the last layer with weights was a convolution, whose units are channels

    def noted(module: nn.Module, args: object, out: Tensor) -> None:
        channels[0] = isinstance(module, _CONVOLUTIONS)

    def answered(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, out: Tensor) -> None:
            calls[name] += 1
            key = name if calls[name] == 1 else f"{name} ({calls[name]})"
            wide = out.dim() > 2 and channels[0]
            found = out.transpose(1, -1).flatten(0, -2).amax(0) if wide else out.flatten(0, -2).amax(0)
            most[key] = torch.maximum(most[key], found) if key in most else found

        return hook

    handles = []
    for name, module in network.named_modules():
        if isinstance(module, nn.ReLU | nn.ReLU6):
            handles.append(module.register_forward_hook(answered(name)))
        elif isinstance(module, (nn.Linear, *_CONVOLUTIONS)):
            handles.append(module.register_forward_hook(noted))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
