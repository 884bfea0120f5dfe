"""A classifier of images trained by one method or another, and asked about images that it was not made for: what the
experiments ``ood``, ``shift`` and ``deferral`` share.

Every method has the same network (that of MC dropout has dropout besides), prior, training rows, batches and steps; an
ensemble takes these for each member. Rows that are held out serve the temperature of "scaled MAP" and thresholds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import temperance as tp
from temperance.judge.calibrate import Temperature, calibrated
from temperance.lab.experiment import Cell, Cells, Settings
from temperance.lab.judge import Estimate, difference, estimate
from temperance.lab.problems import Images, fit, make_network, make_prior
from temperance.lab.sampling import Chain

if TYPE_CHECKING:  # matplotlib takes its time to import
    from matplotlib.axes import Axes

MAP, SCALED = "MAP", "scaled MAP"
POINTS = (MAP, SCALED)
"""Methods with one setting of θ; all others average over several."""
METHODS = (MAP, SCALED, "MC dropout", "last-layer Laplace", "SWAG", "Ensemble", "SGHMC")
ENSEMBLES = ("Ensemble", "MultiSWAG")
CHAIN = ". Whether the chain is sound, `ood` tells"
SHORT = {"MC dropout": "dropout", "last-layer Laplace": "Laplace", SCALED: "scaled\nMAP"}


@dataclass(frozen=True)
class ImageSettings(Settings):
    """A ``network`` under a ``prior``: ``steps`` of Adam whose learning rate falls from ``lr`` to 0 along a cosine.

    SWAG walks with SGD at ``swag_lr`` for as many steps; SGHMC is ``chain``. Predictions of SWAG and dropout average
    ``draws``. ``held_out`` rows come from the training file and are not trained on.
    """

    methods: tuple[str, ...] = METHODS
    network: str = "mlp-100x2"
    prior: str = "fan-in-5"
    data: Images = field(default_factory=lambda: Images("fashion-mnist", train=5000, test=5000))
    held_out: int = 2000
    batch_size: int = 100
    steps: int = 1000
    lr: float = 2e-3
    members: int = 5
    swag_lr: float = 0.05
    swag_rank: int = 20
    draws: int = 20
    chain: Chain = field(default_factory=lambda: Chain(start=1000, cycle=100, cycles=15))

    @property
    def marginal(self) -> tuple[str, ...]:
        """The methods that average over θ."""
        return tuple(name for name in self.methods if name not in POINTS)


SMALL: dict[str, Any] = {
    "network": "mlp-20x1",
    "data": Images("digits", train=200, test=200),
    "held_out": 100,
    "batch_size": 50,
    "steps": 100,
    "lr": 0.01,
    "members": 3,
    "swag_rank": 3,
    "draws": 10,
    "chain": Chain(batch_size=50, start=60, cycle=20, cycles=5, preconditioned=False),
}
"""What ``quick`` presets have in common: data that come with scikit-learn, and a second or less for a fit."""

LARGE: dict[str, Any] = {
    "methods": (*METHODS, "MultiSWAG"),
    "network": "cnn",
    "data": Images("fashion-mnist", train=50000),
    "held_out": 10000,
    "steps": 20000,
    "members": 10,
    "chain": Chain(start=20000, cycle=500, cycles=100),
}
"""What ``paper`` presets have in common."""


def method_cells(settings: ImageSettings) -> list[Cell]:
    """Method × seed."""
    return [Cell.of(method=name, seed=seed) for seed in settings.all_seeds() for name in settings.methods]


# ---------------------------------------------------------------------- training and asking


@dataclass(frozen=True)
class Parts:
    """Rows to train on, rows held out, and test rows; the first two differ from seed to seed."""

    train: tp.data.Data
    held_out: tp.data.Data
    test: tp.data.Data


def load_parts(settings: ImageSettings, seed: int) -> Parts:
    """The rows for a seed."""
    whole, test = Images(settings.data.name, test=settings.data.test).load(seed)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(1000 + seed))
    count = settings.data.train or len(whole) - settings.held_out
    return Parts(whole.subset(order[:count]), whole.subset(order[count : count + settings.held_out]), test)


def train(settings: ImageSettings, name: str, parts: Parts, seed: int) -> tp.Fitted:
    """A network trained by a method; "scaled MAP" has its temperature chosen on the rows held out."""
    ending = "-dropout" if name == "MC dropout" else ""
    network = make_network(settings.network + ending, parts.train, seed)
    target = tp.Target(network, tp.Categorical(), make_prior(settings.prior))
    steps = settings.chain.steps if name == "SGHMC" else settings.steps
    batch_size = settings.chain.batch_size if name == "SGHMC" else settings.batch_size
    options: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "seed": seed}
    if name in ENSEMBLES:  # begun like the others: of its own accord an ensemble takes torch's first weights, not ours
        networks = [make_network(settings.network, parts.train, seed + 1000 * k) for k in range(settings.members)]
        options["start"] = torch.stack([target.layout.flatten(member) for member in networks])
    fitted = fit(target, build(settings, name), parts.train, **options)
    return calibrated(fitted, parts.held_out, Temperature()) if name == SCALED else fitted


def build(settings: ImageSettings, name: str) -> tp.Inference[Any]:
    """A method by name."""
    best = tp.MAP(
        lr=settings.lr,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": settings.steps},
        schedule_steps=True,
    )
    walk = tp.MAP(lr=settings.swag_lr, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    swag = tp.SWAG(walk, settings.swag_rank, every=max(1, settings.steps // 50))
    made: dict[str, tp.Inference[Any]] = {
        MAP: best,
        SCALED: best,
        "MC dropout": tp.MCDropout(best),
        "last-layer Laplace": tp.On(tp.last_layer, tp.Laplace(best, tp.KFAC(), tune=None)),
        "SWAG": swag,
        "Ensemble": tp.Ensemble(best, settings.members),
        "MultiSWAG": tp.Ensemble(swag, settings.members),
        "SGHMC": settings.chain.method(),
    }
    if name not in made:
        raise tp.errors.ArgumentError(f"`methods` must be among {', '.join(made)}; got {name!r}.")
    return made[name]


def ask(settings: ImageSettings, fitted: tp.Fitted, x: Any) -> Any:
    """What a fitted model says about images."""
    drawn = fitted.posterior.finite or isinstance(fitted.posterior, tp.posteriors.LaplacePosterior)
    return fitted.predict(x, draws=None if drawn else settings.draws)


def clean_scores(predictive: Any, y: Tensor) -> dict[str, float]:
    """Accuracy, log-loss in nats, and ECE with 15 bins."""
    return {
        "accuracy": tp.scores.accuracy(predictive.probs, y),
        "log_loss": -float(predictive.log_prob(y).double().mean()),
        "ece": tp.scores.ece(predictive.probs, y, bins=15, resamples=10).value,
    }


def corrupted(data: tp.data.Data, kind: str, severity: int) -> Tensor:
    """The images of ``data`` under one of :data:`temperance.data.corruptions.CORRUPTIONS`."""
    assert isinstance(data.x, Tensor)
    shape = data.info.image_shape or (1, 8, 8)
    return tp.data.corrupt(data.x.clamp(0.0, 1.0), kind, severity, seed=0, image_shape=shape)


# ---------------------------------------------------------------------- judging and drawing


def against(
    done: Cells, entries: str | Sequence[str], methods: Iterable[str], base: str = MAP, minus: Sequence[str] = ()
) -> dict[str, Estimate]:
    """For each method, its mean over ``entries`` less that of ``base``, paired by seed; with ``minus``, less the same
    of those entries too (how much further apart the two are)."""
    wanted = [entries] if isinstance(entries, str) else list(entries)

    def value(name: str) -> dict[int, float]:
        found = mean_of(done, wanted, name)
        less = mean_of(done, list(minus), name) if minus else {}
        return {seed: v - less.get(seed, 0.0) for seed, v in found.items()}

    first = value(base)
    return {name: difference(value(name), first) for name in methods}


def mean_of(done: Cells, entries: Sequence[str], method: str) -> dict[int, float]:
    """A method's mean over several entries, by seed.

    >>> from temperance.lab.experiment import Finished
    >>> done = Cells([Finished(Cell.of(method="MAP", seed=3), {"a": 1.0, "b": 2.0}, 0.1)])
    >>> mean_of(done, ["a", "b"], "MAP")
    {3: 1.5}
    """
    found = [done.by_seed(entry, method=method) for entry in entries]
    seeds = set.intersection(*(set(values) for values in found)) if found else set()
    return {seed: sum(values[seed] for values in found) / len(found) for seed in sorted(seeds)}


def of_methods(done: Cells, entries: str | Sequence[str], methods: Iterable[str]) -> dict[str, Estimate]:
    """For each method, the mean over ``entries`` and seeds."""
    wanted = [entries] if isinstance(entries, str) else list(entries)
    return {name: estimate(list(mean_of(done, wanted, name).values())) for name in methods}


def told(values: Mapping[str, Estimate]) -> str:
    """In words."""
    return "; ".join(f"{name} {value}" for name, value in values.items())


def by_method(
    axis: Axes, values: Mapping[str, Estimate], label: str | None, colour: str, marker: str = "o", offset: float = 0.0
) -> None:
    """Means with bars of one standard error, one place for each method."""
    known = [(place, e) for place, e in enumerate(values.values()) if e.count]
    axis.errorbar(
        [place + offset for place, _ in known],
        [e.mean for _, e in known],
        yerr=[e.error if e.count > 1 else 0.0 for _, e in known],
        fmt=marker,
        color=colour,
        capsize=2.5,
        label=label,
    )
    axis.set_xticks(range(len(values)), [SHORT.get(name, name) for name in values], fontsize=8)
    axis.margins(x=0.08)
