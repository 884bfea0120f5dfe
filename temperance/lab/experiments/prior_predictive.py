"""``prior-predictive``: what a network says before it has seen data.

A draw of θ from the prior is a classifier. Its class marginal is E_x p(y | x, θ); where one class has nearly all of it,
the prior believes that all images are of one class. For ReLU layers with symmetric weights of variance σ_w² and biases
of variance σ_b², the second moment q of the pre-activations follows exactly, at any width,

    q₁ = σ_w² ‖x‖² + σ_b²,      q_{l+1} = σ_w² · fan_in · q_l / 2 + σ_b²,

because half of a symmetric variable's second moment is above zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels, whole_numbers
from temperance.lab.judge import RULE, above, all_of, difference, estimate, near
from temperance.lab.problems import MLP_NAME, Images, make_network

HE = 2**0.5
PRIORS: Mapping[str, tuple[str, tp.Prior]] = {
    "normal": ("N(0, 1)", tp.GaussianPrior(1.0)),
    "laplace": ("Laplace, variance 1", tp.LaplacePrior(0.5**0.5)),
    "student-t": ("Student-t (3), variance 1", tp.StudentTPrior(3**-0.5, df=3.0)),
    "normal-fan-in": ("N(0, 2 / fan-in)", tp.GaussianPrior(tp.FanIn(HE))),
    "laplace-fan-in": ("Laplace, variance 2 / fan-in", tp.LaplacePrior(tp.FanIn(HE * 0.5**0.5, 0.5**0.5))),
    "student-t-fan-in": (
        "Student-t (3), variance 2 / fan-in",
        tp.StudentTPrior(tp.FanIn(HE * 3**-0.5, 3**-0.5), df=3.0),
    ),
}
"""Every prior in two sizes, of equal variance within a size; biases have variance 1 throughout."""


@dataclass(frozen=True)
class PriorSettings(Settings):
    """``draws`` of θ for each prior and MLP, looked at on test rows of ``data``; ``photo_draws`` for the convolutional
    networks on those of ``photos``."""

    data: Images = field(default_factory=Images)
    networks: tuple[str, ...] = ()
    draws: int = 100
    photos: Images = field(default_factory=lambda: Images("cifar10"))
    photo_networks: tuple[str, ...] = ()
    photo_draws: int = 100

    def paper_network(self) -> str:
        """The network that comes closest to the paper's: a ResNet, or the deepest MLP."""
        return next(iter(self.photo_networks), depths(self)[max(depths(self))])


_FASHION = Images("fashion-mnist", test=500)
PRESETS = {
    "quick": Preset(
        PriorSettings(
            seeds=3, data=Images("digits", test=100), networks=("mlp-50x1", "mlp-50x4", "mlp-50x16"), draws=40
        ),
        0.2,
    ),
    "standard": Preset(
        PriorSettings(
            seeds=6,
            data=_FASHION,
            networks=("mlp-100x1", "mlp-100x3", "mlp-100x5", "mlp-100x10", "mlp-100x20"),
            photos=Images("cifar10", test=128),
            photo_networks=("resnet20-bn", "resnet20-frn"),
            photo_draws=20,
        ),
        6,
    ),
    "paper": Preset(
        PriorSettings(
            seeds=10,
            data=Images("cifar10"),
            networks=("mlp-128x1", "mlp-128x3", "mlp-128x8", "mlp-128x20"),
            photo_networks=("resnet20-bn", "resnet20-frn"),
        ),
        60,
    ),
}


def cells(settings: PriorSettings) -> list[Cell]:
    """Prior × network × seed."""
    return [
        Cell.of(network=network, prior=prior, seed=seed)
        for network in (*settings.networks, *settings.photo_networks)
        for prior in PRIORS
        for seed in settings.all_seeds()
    ]


def run(settings: PriorSettings, cell: Cell) -> dict[str, Any]:
    """Class marginals of prior draws, and for MLPs the second moments of the pre-activations."""
    photo = cell["network"] in settings.photo_networks
    _, test = (settings.photos if photo else settings.data).load(0)
    draws = settings.photo_draws if photo else settings.draws
    x = test.x
    assert isinstance(x, Tensor)
    network = make_network(cell["network"], test, 0).train(cell["network"].endswith("-bn"))
    target = tp.Target(network, tp.Categorical(), PRIORS[cell["prior"]][1])
    theta = target.sample_prior(draws, torch.Generator().manual_seed(cell["seed"]))
    with torch.no_grad():
        marginals, argmax = [], []
        for row in theta:
            probs = torch.func.functional_call(network, target.layout.unflatten(row), (x,)).softmax(-1)
            marginals.append(probs.mean(0))
            argmax.append(probs.argmax(-1).bincount(minlength=probs.shape[-1]).max() / len(probs))
        marginal = torch.stack(marginals)
        result: dict[str, Any] = {
            "largest": float(marginal.max(-1).values.mean()),
            "same_class": float(torch.stack(argmax).mean()),
            "entropy": float(torch.special.entr(marginal).sum(-1).mean()),
            "shown": marginal[:8],
        }
        found = MLP_NAME.match(cell["network"])
        if found:
            measured = moments(target.layout.unflatten(theta), x.flatten(1))
            expected = closed_form(cell["prior"], x.flatten(1), int(found[1]), int(found[2]))
            ratio = [m / e for m, e in zip(measured, expected, strict=True)]
            result |= {"moments": measured, "closed_form": expected, "last_ratio": ratio[-1]}
    return result


def moments(weights: Mapping[str, Tensor], x: Tensor) -> list[float]:
    """E z² of each layer's pre-activations, over draws, inputs and units; ``weights`` are stacked over draws."""
    made, signal = [], x.expand(len(next(iter(weights.values()))), -1, -1)
    for number in range(len(weights) // 2):
        z = signal @ weights[f"{2 * number}.weight"].mT + weights[f"{2 * number}.bias"].unsqueeze(1)
        made.append(float(z.double().square().mean()))
        signal = z.relu()
    return made


def closed_form(prior: str, x: Tensor, width: int, depth: int) -> list[float]:
    """The same in expectation over the prior, by the recursion of the module's docstring."""
    fan_in = prior.endswith("fan-in")
    q = float(x.double().square().sum(-1).mean()) * (2 / x.shape[1] if fan_in else 1.0) + 1.0
    made = [q]
    for _ in range(depth):
        q = (2 / width if fan_in else 1.0) * width * q / 2 + 1.0
        made.append(q)
    return made


def depths(settings: PriorSettings) -> dict[int, str]:
    """The MLPs by number of hidden layers."""
    found = {network: MLP_NAME.match(network) for network in settings.networks}
    return dict(sorted((int(match[2]), network) for network, match in found.items() if match))


def claims(settings: PriorSettings, done: Cells) -> list[Claim]:
    """Collapse under N(0, 1), more of it with depth, less with fan-in scaling, tails do not help; the closed form."""
    by_depth, network = depths(settings), settings.paper_network()
    shallow, deep = by_depth[min(by_depth)], by_depth[max(by_depth)]

    def largest(prior: str, of: str) -> dict[int, float]:
        return done.by_seed("largest", network=of, prior=prior)

    unit = estimate(list(largest("normal", network).values()))
    growth = difference(largest("normal", deep), largest("normal", shallow))
    scaled = difference(largest("normal", network), largest("normal-fan-in", network))
    calm = estimate(list(largest("normal-fan-in", network).values()))
    tails = {p: difference(largest(p, network), largest("normal", network)) for p in ("laplace", "student-t")}
    some = by_depth[
        next((depth for depth in by_depth if depth >= 3), max(by_depth))
    ]  # deeper, the mean is of rare draws
    ratios = {p: estimate(done.values("last_ratio", network=some, prior=p)) for p in ("normal", "normal-fan-in")}
    return [
        Claim(
            "Under N(0, 1) a draw puts nearly all inputs into one class",
            "typical draws give nearly all images of CIFAR-10 to one class (ResNet-20)",
            f"largest class marginal of a draw {unit} ({network})",
            above(unit, 0.9),
            f"above 0.9; {RULE}",
        ),
        Claim(
            "The collapse grows with depth",
            "stated for deep networks",
            f"largest class marginal {growth} higher with {max(by_depth)} than with {min(by_depth)} hidden layers",
            above(growth),
            f"difference above 0; {RULE}",
        ),
        Claim(
            "A prior scaled by fan-in collapses less",
            "– (expected: moderate for He-scaled priors)",
            f"largest class marginal {calm} ({network}), lower by {scaled}",
            above(scaled),
            f"difference above 0; {RULE}",
        ),
        Claim(
            "Heavy tails of the same variance do not help",
            "– (asked here)",
            "; ".join(f"{PRIORS[p][0]}: {e} against N(0, 1)" for p, e in tails.items()) + f" ({network})",
            all_of(*(above(e, -0.1) for e in tails.values())),
            f"largest class marginal lower by less than 0.1; {RULE}",
        ),
        Claim(
            "The second moment of pre-activations grows by σ_w² · fan-in / 2 a layer",
            "closed form",
            "; ".join(f"{PRIORS[p][0]}: {e} of it at the output of {some}" for p, e in ratios.items()),
            all_of(*(near(e, 1.0, 0.25) for e in ratios.values())),
            f"ratio within 0.25 of 1; {RULE}",
        ),
    ]


def figures(settings: PriorSettings, done: Cells) -> list[Picture]:
    """Class marginals of some draws; collapse against depth; growth of the second moment."""
    return [_marginals(settings, done), _collapse(settings, done), _growth(settings, done)]


def _marginals(settings: PriorSettings, done: Cells) -> Picture:
    sheet, axes = panels(3, 2, width=3.6, height=2.9)
    network, image = settings.paper_network(), None
    for axis, (prior, (label, _)) in zip(axes, PRIORS.items(), strict=True):
        cell = done.first(network=network, prior=prior)
        if cell is not None:
            image = axis.imshow(cell.result["shown"], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axis.set(title=label, xlabel="class", ylabel="prior draw")
        axis.set_xticks(range(0, 10, 3))
        axis.grid(False)
    if image is not None:
        sheet.colorbar(image, ax=axes, shrink=0.7, label="share of the class")
    words = f"Class marginals of eight draws from each prior, {network}: a row with one dark square is a network that "
    return Picture("class-marginals", words + "gives all inputs to one class.", sheet)


def _collapse(settings: PriorSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.8, height=3.8)
    for k, (prior, (label, _)) in enumerate(PRIORS.items()):
        colour, dashed = COLOURS[k % 3], prior.endswith("fan-in")
        for axis, entry in zip(axes, ("largest", "same_class"), strict=True):
            points = {
                float(depth): estimate(done.values(entry, network=network, prior=prior))
                for depth, network in depths(settings).items()
            }
            curve(axis, points, label, colour, dashed=dashed)
    axes[0].set(xlabel="hidden layers", ylabel="largest class marginal of a draw", ylim=(0, 1.03))
    axes[1].set(xlabel="hidden layers", ylabel="share of inputs in the commonest class", ylim=(0, 1.03))
    axes[0].legend(loc="lower right", fontsize=7.5)
    words = "How much of the inputs a draw of an MLP gives to one class, by depth: on the left by probability, on the "
    return Picture("collapse", words + "right by the most probable class.", sheet)


def _growth(settings: PriorSettings, done: Cells) -> Picture:
    sheet, (axis, *_) = panels(1, width=5.6, height=3.8)
    by_depth = depths(settings)
    deepest, layers = by_depth[max(by_depth)], range(1, max(by_depth) + 2)
    for k, (prior, (label, _)) in enumerate(PRIORS.items()):
        found = done.where(network=deepest, prior=prior)
        if not len(found):
            continue
        points = {float(layer): estimate([f.result["moments"][layer - 1] for f in found]) for layer in layers}
        curve(axis, points, label, COLOURS[k % 3], dashed=prior.endswith("fan-in"))
        if k % 3 == 0:
            closed = next(iter(found)).result["closed_form"]
            axis.plot(list(layers), closed, color="black", linestyle=":", linewidth=2.2, zorder=5)
    axis.plot([], [], color="black", linestyle=":", linewidth=2.2, label="closed form")
    axis.set(xlabel="layer", ylabel="second moment of pre-activations", yscale="log")
    whole_numbers(axis)
    axis.legend(fontsize=8)
    words = f"Growth of the signal through {deepest}: measured over draws, units and inputs, beside the closed form."
    return Picture("variance-growth", words, sheet)


EXPERIMENT = Experiment(
    name="prior-predictive",
    title="What a prior over weights says before data",
    paper="Wenzel et al. 2020, How good is the Bayes posterior in deep neural networks really? (section on priors)",
    question="Does N(0, 1) on every weight believe that all inputs are of one class? Do fan-in or heavy tails help?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
