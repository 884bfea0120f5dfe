"""``shift``: does a classifier become less sure as its images become worse?

Test images of Fashion-MNIST are rotated by up to 180 degrees, and corrupted in five severities. For each method and
each shift: accuracy, log-loss, calibration error, and how uncertain the predictions say they are. "Scaled MAP" has a
temperature chosen on clean rows held out, which makes it as well calibrated as one number can, on clean images.

Severity 0 is no corruption. Means over corruptions have equal weights. Settings were chosen as in ``ood``, without a
look at shifted images. Whether the chain of SGHMC is sound is told in ``ood``, which has the same one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.figures import COLOURS, curve, panels
from temperance.lab.image_methods import (
    CHAIN,
    LARGE,
    MAP,
    SCALED,
    SMALL,
    ImageSettings,
    against,
    ask,
    clean_scores,
    corrupted,
    load_parts,
    mean_of,
    method_cells,
    of_methods,
    told,
    train,
)
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate
from temperance.lab.problems import Images

MEASURES = {
    "accuracy": "accuracy",
    "log_loss": "log-loss (nats)",
    "ece": "calibration error (ECE)",
    "entropy": "mean entropy (nats)",
}
WORST = 5
OVADIA = (
    "along with accuracy, calibration falls with shift for all methods; deep ensembles fall least (Ovadia et al. 2019)"
)
PAPER = {
    "Ensemble": "deep ensembles perform best across most measures and are more robust to shift (Ovadia et al. 2019)",
    "last-layer Laplace": "(Ovadia et al. 2019 tried last-layer VI and dropout)",
    "SGHMC": "HMC is less robust than MAP to corruptions (Izmailov et al. 2021)",
    "MC dropout": "better than a temperature under shift (Ovadia et al. 2019)",
}


@dataclass(frozen=True)
class ShiftSettings(ImageSettings):
    """``corruptions`` in severities 1 to 5, and turns by ``angles`` in degrees."""

    corruptions: tuple[str, ...] = ("gaussian_noise", "blur", "contrast", "occlude")
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    angles: tuple[int, ...] = (30, 60, 90, 120, 150, 180)


PRESETS = {
    "quick": Preset(
        ShiftSettings(seeds=3, corruptions=("gaussian_noise", "blur"), severities=(3, 5), angles=(45, 90), **SMALL), 0.4
    ),
    "standard": Preset(ShiftSettings(seeds=5, data=Images("fashion-mnist", train=5000, test=2000)), 4),
    "paper": Preset(
        ShiftSettings(
            seeds=5, corruptions=("gaussian_noise", "shot_noise", "blur", "contrast", "brightness", "pixelate",
                                   "occlude"),
            angles=tuple(range(15, 181, 15)), **LARGE,
        ),
        1000,
    ),
}  # fmt: skip


def turned(x: Tensor, degrees: float, image_shape: Sequence[int]) -> Tensor:
    """Images turned to the left about their centres; what comes into view is black, as the background is.

    >>> x = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> turned(x.view(1, 1, 2, 2), 90, (1, 2, 2)).round().view(2, 2)
    tensor([[1., 0.],
            [0., 0.]])
    """
    images = x.reshape(-1, *image_shape)
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]], dtype=x.dtype).expand(len(images), 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    made = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return made.clamp(0.0, 1.0).reshape(x.shape)


def run(settings: ShiftSettings, cell: Cell) -> dict[str, Any]:
    """One method on every shift of the test images."""
    name, seed = cell["method"], cell["seed"]
    parts = load_parts(settings, seed)
    fitted = train(settings, name, parts, seed)
    test = parts.test
    assert isinstance(test.x, Tensor)
    result: dict[str, Any] = {}

    def look(place: str, x: Tensor) -> None:
        predictive = ask(settings, fitted, x)
        found = clean_scores(predictive, test.y)
        found["entropy"] = float(predictive.entropy().double().mean())
        found["information"] = float(predictive.mutual_information().double().mean())
        result.update({entry(measure, place): value for measure, value in found.items()})

    look("clean", test.x)
    for kind in settings.corruptions:
        for severity in settings.severities:
            look(f"{kind}-{severity}", corrupted(test, kind, severity))
    for angle in settings.angles:
        look(f"turned-{angle}", turned(test.x, angle, test.info.image_shape or (1, 8, 8)))
    return result


def entry(measure: str, place: str) -> str:
    """The name of a number.

    >>> entry("ece", "blur-3")
    'ece blur-3'
    """
    return f"{measure} {place}"


# ---------------------------------------------------------------------- judging


def at_severity(settings: ShiftSettings, measure: str, severity: int) -> list[str]:
    """The entries of a measure for all corruptions at a severity; 0 is clean."""
    if severity == 0:
        return [entry(measure, "clean")]
    return [entry(measure, f"{kind}-{severity}") for kind in settings.corruptions]


def at_angles(settings: ShiftSettings, measure: str, least: int = 45) -> list[str]:
    """The entries of a measure for all turns by at least so much."""
    return [entry(measure, f"turned-{angle}") for angle in settings.angles if angle >= least]


def growth(done: Cells, entries: Sequence[str], before: Sequence[str], name: str) -> Estimate:
    """How much a method's mean over entries is above that over others, paired by seed."""
    return difference(mean_of(done, entries, name), mean_of(done, before, name))


def claims(settings: ShiftSettings, done: Cells) -> list[Claim]:
    """Uncertainty grows; averaging gains on MAP; a temperature does not last."""
    made = [_less_sure(settings, done), _turned_less_sure(settings, done)]
    for measure, words in (("log_loss", "log-loss"), ("ece", "calibration error")):
        made += [_robust(settings, done, name, measure, words) for name in settings.marginal]
    return [*made, _turned_robust(settings, done), *_temperature(settings, done)]


def _less_sure(settings: ShiftSettings, done: Cells) -> Claim:
    worst, clean = at_severity(settings, "entropy", WORST), at_severity(settings, "entropy", 0)
    grown = {name: growth(done, worst, clean, name) for name in settings.methods}
    each = {
        kind: estimate(
            [
                value
                for name in settings.methods
                for value in difference_by_seed(done, entry("entropy", f"{kind}-{WORST}"), clean[0], name)
            ]
        )
        for kind in settings.corruptions
    }
    return Claim(
        "Predictions are less sure where images are worse",
        "one hopes for higher entropy under shift (Ovadia et al. 2019)",
        f"entropy at severity {WORST} less that of clean images: {told(grown)}; mean of methods by corruption: "
        + "; ".join(f"{kind} {e.mean:.2f}" for kind, e in each.items()),
        all_of(*(above(e) for e in grown.values())),
        f"more for every method, mean over corruptions; {RULE}",
    )


def difference_by_seed(done: Cells, first: str, second: str, name: str) -> list[float]:
    """One entry less another, seed by seed."""
    a, b = done.by_seed(first, method=name), done.by_seed(second, method=name)
    return [a[seed] - b[seed] for seed in a if seed in b]


def _turned_less_sure(settings: ShiftSettings, done: Cells) -> Claim:
    clean = [entry("entropy", "clean")]
    grown = {name: growth(done, at_angles(settings, "entropy"), clean, name) for name in settings.methods}
    lost = {
        name: growth(done, at_angles(settings, "accuracy"), [entry("accuracy", "clean")], name)
        for name in settings.methods
    }
    return Claim(
        "Predictions are less sure where images are turned",
        "(Ovadia et al. 2019, rotated MNIST)",
        f"entropy at 45 degrees and more less that at 0: {told(grown)}; accuracy changes by {told(lost)}",
        all_of(*(above(e) for e in grown.values())),
        f"more for every method; {RULE}",
    )


def _robust(settings: ShiftSettings, done: Cells, name: str, measure: str, words: str) -> Claim:
    worst, clean = at_severity(settings, measure, WORST), at_severity(settings, measure, 0)
    at_clean, at_worst = (against(done, entries, [name])[name] for entries in (clean, worst))
    further = against(done, worst, [name], minus=clean)[name]
    return Claim(
        f"{name}: {words} grows less with shift than that of MAP",
        PAPER.get(name, OVADIA),
        f"less that of MAP: clean {at_clean}, severity {WORST} {at_worst}; change {further}",
        below(further),
        f"change below 0, mean over corruptions; {RULE}" + (CHAIN if name == "SGHMC" else ""),
    )


def _turned_robust(settings: ShiftSettings, done: Cells) -> Claim:
    turns = at_angles(settings, "log_loss")
    gains = against(done, turns, settings.marginal, minus=[entry("log_loss", "clean")])
    return Claim(
        "Turned images: log-loss grows less than that of MAP for every method that averages",
        OVADIA,
        f"log-loss at 45 degrees and more: {told(of_methods(done, turns, settings.methods))}; the gap to "
        f"MAP changes from that of clean images by {told(gains)}",
        all_of(*(below(e) for e in gains.values())),
        f"changes below 0; {RULE}",
    )


def _temperature(settings: ShiftSettings, done: Cells) -> list[Claim]:
    if SCALED not in settings.methods:
        return []
    clean, worst = (at_severity(settings, "ece", severity) for severity in (0, WORST))
    grown = growth(done, worst, clean, SCALED)
    values = {at: of_methods(done, e, settings.methods) for at, e in (("clean", clean), ("worst", worst))}
    scaled, plain = (of_methods(done, clean, (name,))[name] for name in (SCALED, MAP))
    others = against(done, worst, settings.marginal, base=SCALED)
    return [
        Claim(
            "A temperature chosen on clean rows does not stay calibrated",
            "calibrating on clean validation rows does not carry over to shifted data (Ovadia et al. 2019)",
            f"ECE clean: scaled MAP {scaled}, MAP {plain}; scaled MAP at severity {WORST} "
            f"{values['worst'][SCALED]}, more by {grown}",
            above(grown, 0.01),
            f"ECE grows by more than 0.01; {RULE}",
        ),
        Claim(
            f"At severity {WORST} every method that averages is better calibrated than scaled MAP",
            "temperature scaling is significantly outperformed under shift (Ovadia et al. 2019)",
            f"ECE: {told(values['worst'])}; less that of scaled MAP: {told(others)}",
            all_of(*(below(e) for e in others.values())),
            f"differences below 0; {RULE}",
        ),
    ]


# ---------------------------------------------------------------------- drawing


def figures(settings: ShiftSettings, done: Cells) -> list[Picture]:
    """Against severity, against the angle, and by corruption."""
    return [_against_severity(settings, done), _against_angle(settings, done), _by_corruption(settings, done)]


def _lines(
    axis: Any, settings: ShiftSettings, done: Cells, places: dict[float, list[str]], shown: Sequence[str]
) -> None:
    for name in shown:
        points = {at: estimate(list(mean_of(done, entries, name).values())) for at, entries in places.items()}
        k = settings.methods.index(name)
        curve(axis, points, name, COLOURS[k % len(COLOURS)], "osD^vP*X"[k % 8], dashed=name == SCALED)


def _against_severity(settings: ShiftSettings, done: Cells) -> Picture:
    sheet, axes = panels(len(MEASURES), width=3.7)
    for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        places = {float(s): at_severity(settings, measure, s) for s in (0, *settings.severities)}
        _lines(axis, settings, done, places, settings.methods)
        axis.set_xlabel("severity")
        axis.set_ylabel(label)
    axes[0].legend(fontsize=7.5)
    words = f"Against the severity, mean over {', '.join(settings.corruptions)}. Bars: one standard error."
    return Picture("severity", words, sheet)


def _against_angle(settings: ShiftSettings, done: Cells) -> Picture:
    sheet, axes = panels(len(MEASURES), width=3.7)
    for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        places = {float(a): [entry(measure, f"turned-{a}" if a else "clean")] for a in (0, *settings.angles)}
        _lines(axis, settings, done, places, settings.methods)
        axis.set_xlabel("angle (degrees)")
        axis.set_ylabel(label)
    axes[0].legend(fontsize=7.5)
    return Picture("angle", "Images turned about their centres. Bars: one standard error.", sheet)


def _by_corruption(settings: ShiftSettings, done: Cells) -> Picture:
    sheet, axes = panels(len(settings.corruptions), width=3.7)
    for axis, kind in zip(axes, settings.corruptions, strict=True):
        places = {float(s): [entry("log_loss", f"{kind}-{s}" if s else "clean")] for s in (0, *settings.severities)}
        _lines(axis, settings, done, places, settings.methods)
        axis.set_title(kind.replace("_", " "))
        axis.set_xlabel("severity")
    axes[0].set_ylabel("log-loss (nats)")
    axes[0].legend(fontsize=7.5)
    return Picture("corruptions", "Log-loss by corruption. Bars: one standard error.", sheet)


EXPERIMENT = Experiment(
    name="shift",
    title="Images that become worse",
    paper="Ovadia et al. 2019; Hendrycks & Dietterich 2019; Izmailov et al. 2021",
    question="As images are corrupted and turned, do predictions become less sure, and does averaging lose less?",
    presets=PRESETS,
    cells=method_cells,
    run=run,
    claims=claims,
    figures=figures,
)
