"""The demo's plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

from temperance.predict import scores

matplotlib.use("Agg")  # needs no screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

_ACROSS = 3  # panels side by side
COLOURS = {"test": "#1b6ca8", "noisy": "#d98c21", "shuffled": "#b3344a"}


def draw_figures(shown: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Write the plots; returns file name → what it shows, in words."""
    made = {
        "reliability.png": _save(folder / "reliability.png", shown, _reliability),
        "uncertainty.png": _save(folder / "uncertainty.png", shown, _uncertainty),
        "risk_coverage.png": _risk_coverage(folder / "risk_coverage.png", shown),
    }
    return made


def _save(path: Path, shown: Mapping[str, Mapping[str, Any]], draw: Any) -> str:
    across = min(_ACROSS, len(shown))
    down = -(-len(shown) // across)
    figure, axes = plt.subplots(down, across, figsize=(4.2 * across, 3.7 * down), sharey=True, squeeze=False)
    words = ""
    for axis, (name, predictions) in zip(axes.flat, shown.items(), strict=False):
        words = draw(axis, predictions)
        axis.set_title(name)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    axes[0][-1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return words


def _reliability(axis: Axes, predictions: Mapping[str, Any]) -> str:
    curve = scores.reliability_curve(predictions["probs"], predictions["labels"], bins=10)
    seen = np.asarray(curve.count) > 0
    confidence, accuracy = np.asarray(curve.confidence)[seen], np.asarray(curve.accuracy)[seen]
    count = np.asarray(curve.count)[seen]
    error = np.sqrt(np.maximum(accuracy * (1 - accuracy), 0.25 / (count + 1)) / count)
    axis.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1, label="perfect")
    axis.errorbar(confidence, accuracy, yerr=error, fmt="o-", color="#1b6ca8", capsize=2, label="measured, ± 1 se")
    axis.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.05))
    return "Reliability on test digits: accuracy against confidence. Points above the diagonal are underconfident."


def _uncertainty(axis: Axes, predictions: Mapping[str, Any]) -> str:
    for kind, values in predictions["entropy"].items():
        axis.hist(values.numpy(), bins=30, range=(0, 2.35), density=True, alpha=0.55, color=COLOURS[kind], label=kind)
    axis.set(xlabel="predictive entropy (nats)", ylabel="density")
    return "How uncertain each method is about test digits, noisy digits, and images with shuffled pixels."


def _risk_coverage(path: Path, shown: Mapping[str, Mapping[str, Any]]) -> str:
    figure, axis = plt.subplots(figsize=(5.6, 4.0))
    for name, predictions in shown.items():
        wrong = (predictions["probs"].argmax(-1) != predictions["labels"]).double()
        curve = scores.risk_coverage(predictions["entropy"]["test"], wrong)
        axis.plot(torch.as_tensor(curve.coverage), torch.as_tensor(curve.risk), label=f"{name} ({curve.aurc:.4f})")
    axis.set(xlabel="share of digits answered, most certain first", ylabel="error rate among the answered")
    axis.legend(frameon=False, title="area under the curve")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return "Risk and coverage: the error rate if only the most certain share of digits is answered."
