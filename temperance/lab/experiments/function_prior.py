"""``function-prior``: a vague prior over weights is a structured prior over functions.

Weights are N(0, α² / fan-in), biases N(0, (bias · α)²). A draw of all of them is a function f: images → logits. Over
draws each logit has mean zero and the logits of the classes are alike, so the prior's correlation of two images is

    ρ(x, x′) = E Σ_c f_c(x) f_c(x′) / √(E Σ_c f_c(x)² · E Σ_c f_c(x′)²)

and that of class probabilities the same with p_c − 1/C in place of f_c: known means, so nothing is lost to estimating
them. Three networks of three hidden layers: an MLP; a CNN (convolution and max-pooling twice, then a hidden layer); and
one whose hidden layer sees the mean of each channel over the image (*pooled*).

Asked: are images of one class more alike than others before any training? Does ρ survive a small translation, or noise
on every pixel? How sure of itself is a draw, by α? And what do draws of one input look like, by depth?
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, curve, panels, whole_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate
from temperance.lab.problems import Images

NETWORKS = {"mlp": "MLP", "cnn": "CNN", "pooled": "CNN, pooled"}
HE = 2**0.5
"""The α that keeps the signal of ReLU layers at one size."""
LINES = {"relu": nn.ReLU, "tanh": nn.Tanh}
_COLOUR = dict(zip(NETWORKS, COLOURS, strict=False))


@dataclass(frozen=True)
class FunctionSettings(Settings):
    """``draws`` of θ at each of ``alphas``; correlations between ``per_class`` test images of each class, and between
    ``moved`` images and themselves after each of ``shifts`` (pixels, in four directions) and noise of standard
    deviation ``noises`` (in units of the pixels' own). Functions of one input: MLPs of ``line_width``, ``depths`` and
    ``line_alphas``, at ``points`` places of [−3, 3]."""

    data: Images = field(default_factory=lambda: Images("mnist"))
    alphas: tuple[float, ...] = (0.5, 1.0, HE, 2.0, 4.0)
    bias: float = 0.3
    draws: int = 100
    per_class: int = 8
    moved: int = 12
    shifts: tuple[int, ...] = (1, 2, 3)
    noises: tuple[float, ...] = (0.5, 1.0)
    width: int = 100
    channels: tuple[int, int] = (8, 16)
    depths: tuple[int, ...] = (1, 3, 10)
    line_alphas: tuple[float, ...] = (0.7, 2.5)
    line_width: int = 100
    line_draws: int = 100
    points: int = 241


PRESETS = {
    "quick": Preset(
        FunctionSettings(
            seeds=3, data=Images("digits"), alphas=(0.5, HE, 4.0), draws=40, per_class=4, moved=10, shifts=(1, 2),
            noises=(0.5,), width=50, channels=(6, 12), depths=(1, 6), line_width=50, line_draws=30, points=81,
        ),
        0.3,
    ),
    "standard": Preset(FunctionSettings(seeds=5), 4),
    "paper": Preset(
        FunctionSettings(
            seeds=10, alphas=(0.25, 0.5, 1.0, HE, 2.0, 4.0, 8.0), draws=1000, per_class=20, moved=100,
            shifts=(1, 2, 3, 4, 6), width=512, channels=(32, 64), depths=(1, 3, 10, 30), line_width=500, line_draws=300,
        ),
        240,
    ),
}  # fmt: skip


def cells(settings: FunctionSettings) -> list[Cell]:
    """Network × α × seed; then functions of one input."""
    made = [
        Cell.of(network=network, alpha=alpha, seed=seed)
        for seed in settings.all_seeds()
        for alpha in settings.alphas
        for network in reversed(NETWORKS)
    ]
    return made + [
        Cell.of(activation=activation, depth=depth, alpha=alpha, seed=seed)
        for seed in settings.all_seeds()
        for activation in LINES
        for depth in settings.depths
        for alpha in settings.line_alphas
    ]


def run(settings: FunctionSettings, cell: Cell) -> dict[str, Any]:
    """One prior looked at through its functions."""
    return run_line(settings, cell) if "activation" in cell.params else run_images(settings, cell)


# ---------------------------------------------------------------------- images


def make(settings: FunctionSettings, name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The three networks; all see images N × C × H × W."""
    count, height, width = shape
    if name == "mlp":
        return tp.nn.MLP(math.prod(shape), [settings.width] * 3, classes)
    layers: list[nn.Module] = []
    for channels in settings.channels:
        layers += [nn.Conv2d(count, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        count, height, width = channels, height // 2, width // 2
    if name == "pooled":
        layers.append(nn.AdaptiveAvgPool2d(1))
        height = width = 1
    head = (nn.Linear(count * height * width, settings.width), nn.ReLU(), nn.Linear(settings.width, classes))
    return nn.Sequential(*layers, nn.Flatten(), *head)


def draw_logits(network: nn.Module, alpha: float, bias: float, draws: int, seed: int, x: Tensor) -> Tensor:
    """Outputs of ``draws`` prior functions at the rows of ``x``: draws × N × outputs, in double precision."""
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(tp.FanIn(alpha, alpha * bias)))
    theta = target.sample_prior(draws, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        made = [functional_call(network, target.layout.unflatten(row), (x,)).double() for row in theta]
    return torch.stack(made)


def correlation(values: Tensor, others: Tensor) -> Tensor:
    """ρ for each pair of columns of two tensors draws × N × C and draws × M × C of known mean zero: N × M.

    >>> f = torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> correlation(f, 2 * f).diagonal().round(decimals=6)
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    products = torch.einsum("snc,smc->nm", values, others)
    sizes = (part.square().sum((0, 2)).sqrt() for part in (values, others))
    return products / torch.outer(*sizes)


def shifted(x: Tensor, rows: int, columns: int) -> Tensor:
    """Images moved down and right by so many pixels, the value of the first corner pixel moving in."""
    height, width = x.shape[-2:]
    made = x[..., :1, :1].expand_as(x).clone()
    to = (slice(max(0, rows), height + min(0, rows)), slice(max(0, columns), width + min(0, columns)))
    of = (slice(max(0, -rows), height - max(0, rows)), slice(max(0, -columns), width - max(0, columns)))
    made[..., to[0], to[1]] = x[..., of[0], of[1]]
    return made


def pick(settings: FunctionSettings, seed: int) -> tuple[Tensor, Tensor]:
    """``per_class`` test images of each class, standardised and sorted by class; and their labels."""
    _, test = settings.data.load(0)
    assert isinstance(test.x, Tensor)
    assert test.info.num_classes is not None
    x = test.x.view(-1, *(test.info.image_shape or (1, 8, 8)))
    x = (x - x.mean()) / x.std()
    rng = torch.Generator().manual_seed(seed)
    rows = []
    for label in range(test.info.num_classes):
        there = (test.y == label).nonzero().flatten()
        rows.append(there[torch.randperm(len(there), generator=rng)[: settings.per_class]])
    chosen = torch.cat(rows)
    return x[chosen], test.y[chosen]


def separation(rho: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean ρ of pairs of one class and of two, and how often a pair of one class is the closer (½ by chance)."""
    upper = torch.ones_like(rho, dtype=torch.bool).triu(1)
    alike = labels.unsqueeze(0) == labels.unsqueeze(1)
    same, different = rho[upper & alike], rho[upper & ~alike]
    wins = torch.searchsorted(different.sort().values, same).double() / len(different)
    return {
        "same": float(same.mean()),
        "different": float(different.mean()),
        "gap": float(same.mean() - different.mean()),
        "auc": float(wins.mean()),
    }


def run_images(settings: FunctionSettings, cell: Cell) -> dict[str, Any]:
    """Correlations between images, with moved and noisy copies, and how sure draws are of themselves."""
    x, labels = pick(settings, cell["seed"])
    classes = int(labels.max()) + 1
    rng = torch.Generator().manual_seed(cell["seed"])
    some = x[torch.randperm(len(x), generator=rng)[: settings.moved]]
    copies = {"shift 0": some}
    for size in settings.shifts:
        for k, (down, right) in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
            copies[f"shift {size} {k}"] = shifted(some, size * down, size * right)
    for level in settings.noises:
        copies[f"noise {level:g} 0"] = some + level * torch.randn(some.shape, generator=rng)
    network = make(settings, cell["network"], (x.shape[1], x.shape[2], x.shape[3]), classes)
    rows = torch.cat([x, *copies.values()])
    logits = draw_logits(network, cell["alpha"], settings.bias, settings.draws, cell["seed"], rows)
    result = looks(logits[:, : len(x)], labels)
    parts = dict(zip(copies, logits[:, len(x) :].split(len(some), 1), strict=True))
    for kind in [f"shift {k}" for k in settings.shifts] + [f"noise {k:g}" for k in settings.noises]:
        names = [name for name in copies if name.startswith(f"{kind} ")]
        found = [correlation(parts["shift 0"], parts[name]).diagonal().mean() for name in names]
        pixels = [torch.cosine_similarity(some.flatten(1), copies[name].flatten(1)).mean() for name in names]
        result |= {kind: float(torch.stack(found).mean()), f"input {kind}": float(torch.stack(pixels).mean())}
    flat = nn.functional.normalize(x.double().flatten(1))
    result |= {f"input_{name}": value for name, value in separation(flat @ flat.T, labels).items()}
    if cell["seed"] == settings.seed and cell["alpha"] == HE:
        result |= {"matrix": correlation(logits[:, : len(x)], logits[:, : len(x)]).float(), "labels": labels}
    return result


def looks(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Separation of the classes by logits and by probabilities; entropy of p(y | x, θ); the largest class marginal."""
    probs = logits.softmax(-1)
    classes = probs.shape[-1]
    centred = probs - 1 / classes
    result = separation(correlation(logits, logits), labels)
    result |= {f"probs_{name}": v for name, v in separation(correlation(centred, centred), labels).items()}
    result["entropy"] = float(torch.special.entr(probs).sum(-1).mean()) / math.log(classes)
    result["largest"] = float(probs.mean(1).max(-1).values.mean())
    return result


# ---------------------------------------------------------------------- functions of one input


def run_line(settings: FunctionSettings, cell: Cell) -> dict[str, Any]:
    """Draws of an MLP of one input and one output, and how often they turn."""
    network = tp.nn.MLP(1, [settings.line_width] * cell["depth"], 1, LINES[cell["activation"]]).double()
    x = torch.linspace(-3, 3, settings.points, dtype=torch.float64).unsqueeze(1)
    made = draw_logits(network, cell["alpha"], 1.0, settings.line_draws, cell["seed"], x).squeeze(-1)
    made = made - made.mean(1, keepdim=True)
    rising = made.diff(dim=1) > 0
    result: dict[str, Any] = {"turns": float((rising[:, 1:] != rising[:, :-1]).double().sum(1).mean())}
    if cell["seed"] == settings.seed:
        result["shown"] = (made[:5] / made.std()).float()
    return result


# ---------------------------------------------------------------------- judging and drawing


def told(values: dict[Any, Estimate], what: str) -> str:
    """In words."""
    return "; ".join(f"{what} {key:.3g}: {value}" for key, value in values.items())


def claims(settings: FunctionSettings, done: Cells) -> list[Claim]:
    """Classes, moves, scale, and functions of one input."""
    low, high = min(settings.alphas), max(settings.alphas)

    def at(entry: str, network: str, alpha: float = HE) -> dict[int, float]:
        return done.by_seed(entry, network=network, alpha=alpha)

    def by_alpha(entry: str, network: str) -> dict[float, Estimate]:
        return {alpha: estimate(list(at(entry, network, alpha).values())) for alpha in settings.alphas}

    made = []
    for prefix, kind in (("", "logits"), ("probs_", "class probabilities")):
        gaps = by_alpha(f"{prefix}gap", "cnn")
        made.append(
            Claim(
                f"CNN: {kind} of images of one class are more correlated than those of two",
                "higher for images of one class (LeNet-5 on MNIST, N(0, α²))",
                f"correlation within less that between classes: {told(gaps, 'α')}; at α = {HE:.3g} within "
                f"{estimate(list(at(prefix + 'same', 'cnn').values()))}, between "
                f"{estimate(list(at(prefix + 'different', 'cnn').values()))}",
                all_of(*(above(value) for value in gaps.values())),
                f"above 0 at each α; {RULE}",
            )
        )
    falls = {
        name: difference(at(f"{p}different", "cnn", low), at(f"{p}different", "cnn", high))
        for name, p in (("logits", ""), ("class probabilities", "probs_"))
    }
    better = {n: difference(at("auc", n), at("auc", "mlp")) for n in ("cnn", "pooled")}
    shares = {n: estimate(list(at("auc", n).values())) for n in NETWORKS}
    made += [
        Claim(
            "CNN: correlations fall as α grows",
            "correlations slightly decrease with increases in α",
            f"between classes, α = {low:g} less α = {high:g}: "
            + "; ".join(f"{name} {value}" for name, value in falls.items()),
            all_of(*(above(value) for value in falls.values())),
            f"difference above 0; {RULE}. Without biases those of logits could not change at all",
        ),
        *(
            Claim(
                f"{NETWORKS[name]}: the prior tells classes apart better than an MLP's",
                "– (asked here)",
                "how often a pair of one class is more correlated than one of two: "
                f"{shares[name]}, MLP {shares['mlp']}, pixels {estimate(list(at('input_auc', 'mlp').values()))}"
                f"; above the MLP by {value}",
                above(value),
                f"difference above 0; {RULE}",
            )
            for name, value in better.items()
        ),
    ]
    for size in settings.shifts[:2]:
        kept = {n: difference(at(f"shift {size}", n), at(f"shift {size}", "mlp")) for n in ("cnn", "pooled")}
        made.append(
            Claim(
                f"A CNN's prior functions are more invariant to a shift of {size} than an MLP's",
                "equivariance is in the prior; correlations of a PreResNet decay slowly with translations",
                "correlation of an image with itself, moved: "
                + "; ".join(f"{NETWORKS[n]} {estimate(list(at(f'shift {size}', n).values()))}" for n in NETWORKS)
                + f"; pixels {estimate(list(at(f'input shift {size}', 'mlp').values()))}; above the MLP: "
                + "; ".join(f"{NETWORKS[n]} {e}" for n, e in kept.items()),
                all_of(*(above(value) for value in kept.values())),
                f"difference above 0 for both CNNs; {RULE}",
            )
        )
    vague = {n: by_alpha("entropy", n) for n in NETWORKS}
    alone = {n: estimate(list(at("largest", n, high).values())) for n in NETWORKS}
    made += [
        Claim(
            "A draw is sure of nothing at small α and of itself at large α",
            "α decides the scale of logits, and so how sure a draw is",
            "entropy of a draw's p(y | x) over log C: "
            + "; ".join(f"{NETWORKS[n]}, {told(e, 'α')}" for n, e in vague.items()),
            all_of(*(v for e in vague.values() for v in (above(e[low], 0.8), below(e[high], 0.2)))),
            f"above 0.8 at α = {low:g}, below 0.2 at α = {high:g}, for each network; {RULE}",
        ),
        Claim(
            f"At α = {high:g} a draw gives most images to one class",
            "a consequence of a scale at which the softmax saturates, easily tuned",
            "largest class marginal of a draw: " + "; ".join(f"{NETWORKS[n]} {e}" for n, e in alone.items()),
            all_of(*(above(e, 0.5) for e in alone.values())),
            f"above 0.5 for each network; {RULE}",
        ),
        *_line_claims(settings, done),
    ]
    return made


def _line_claims(settings: FunctionSettings, done: Cells) -> list[Claim]:
    shallow, deep = min(settings.depths), max(settings.depths)
    calm, wild = min(settings.line_alphas), max(settings.line_alphas)
    turns = {
        (activation, alpha, depth): done.by_seed("turns", activation=activation, alpha=alpha, depth=depth)
        for activation in LINES
        for alpha in (calm, wild)
        for depth in settings.depths
    }
    growth = {
        alpha: {seed: more - turns["tanh", alpha, shallow][seed] for seed, more in turns["tanh", alpha, deep].items()}
        for alpha in (calm, wild)
    }
    grows, beside = estimate(list(growth[wild].values())), difference(growth[wild], growth[calm])
    words = [
        f"{activation}, α = {alpha:g}: "
        + told({d: estimate(list(turns[activation, alpha, d].values())) for d in settings.depths}, "depth")
        for activation in LINES
        for alpha in (calm, wild)
    ]
    return [
        Claim(
            "One input: with depth, draws of tanh networks grow rough at large α, far less at small",
            "order for small weights, chaos for large (Poole et al. 2016)",
            f"turning points on [−3, 3]: {'; '.join(words)}; tanh, growth at α = {wild:g} {grows}, more by {beside}",
            all_of(above(grows), above(beside)),
            f"tanh: more at depth {deep} than {shallow} for α = {wild:g}, by more than for α = {calm:g}; {RULE}",
        )
    ]


def figures(settings: FunctionSettings, done: Cells) -> list[Picture]:
    """Correlation matrices, moves, scale, functions of one input."""
    return [_matrices(settings, done), _moves(settings, done), _scale(settings, done), _lines(settings, done)]


def _matrices(settings: FunctionSettings, done: Cells) -> Picture:
    sheet, axes = panels(3, width=3.9, height=3.9)
    image = None
    shown = {f.cell["network"]: f for f in done.where(alpha=HE) if "matrix" in f.result}
    lowest = min((min(map(min, f.result["matrix"])) for f in shown.values()), default=0.0)
    for axis, (network, label) in zip(axes, NETWORKS.items(), strict=True):
        cell = shown.get(network)
        axis.set_title(label)
        axis.grid(False)
        if cell is None:
            continue
        rho, labels = cell.result["matrix"], cell.result["labels"]
        image = axis.imshow(rho, cmap="viridis", vmin=math.floor(10 * lowest) / 10, vmax=1, interpolation="nearest")
        places = [k * settings.per_class for k in range(int(max(labels)) + 1)]
        for place in places[1:]:
            axis.axhline(place - 0.5, color="white", linewidth=0.5)
            axis.axvline(place - 0.5, color="white", linewidth=0.5)
        middles = [place + settings.per_class / 2 - 0.5 for place in places]
        axis.set_xticks(middles, [str(k) for k in range(len(places))])
        axis.set_yticks(middles, [str(k) for k in range(len(places))])
        axis.set_xlabel("class")
    if image is not None:
        sheet.colorbar(image, ax=axes, shrink=0.8, label="correlation of logits over prior draws")
    words = (
        f"Prior correlation of logits between pairs of images of {settings.data.name}, sorted by class, α = {HE:.3g}."
    )
    return Picture("correlations", words, sheet)


def _moves(settings: FunctionSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.8, height=3.8)
    one = Estimate(1.0, 0.0, settings.seeds)
    for axis, kind, sizes in zip(axes, ("shift", "noise"), (settings.shifts, settings.noises), strict=True):
        for network, label in NETWORKS.items():
            found = {float(k): estimate(done.values(f"{kind} {k:g}", network=network, alpha=HE)) for k in sizes}
            curve(axis, {0.0: one, **found}, label, _COLOUR[network])
        found = {float(k): estimate(done.values(f"input {kind} {k:g}", network="mlp", alpha=HE)) for k in sizes}
        curve(axis, {0.0: one, **found}, "pixels (cosine)", GREY, marker="s", dashed=True)
        axis.set_ylabel("correlation with the image itself")
    axes[0].set_xlabel("shift (pixels)")
    whole_numbers(axes[0])
    axes[1].set_xlabel("noise (in standard deviations of a pixel)")
    axes[0].legend()
    words = (
        f"Prior correlation of the logits of an image and a copy that is moved (left) or noisy (right), α = {HE:.3g}."
    )
    return Picture("moves", words + " Bars: one standard error.", sheet)


def _scale(settings: FunctionSettings, done: Cells) -> Picture:
    sheet, axes = panels(3, width=4.2, height=3.6)
    for network, label in NETWORKS.items():
        for axis, entry in zip(axes, ("entropy", "largest", "probs_gap"), strict=True):
            found = {a: estimate(done.values(entry, network=network, alpha=a)) for a in settings.alphas}
            curve(axis, found, label, _COLOUR[network])
    for axis, label in zip(
        axes,
        (
            "entropy of p(y | x, θ) over log C",
            "largest class marginal of a draw",
            "correlation within − between classes",
        ),
        strict=True,
    ):
        axis.set(xlabel="α", ylabel=label, xscale="log")
        axis.set_xticks(settings.alphas, [f"{a:.2g}" for a in settings.alphas])
        axis.minorticks_off()
    axes[0].set_ylim(0, 1.03)
    axes[1].set_ylim(0, 1.03)
    axes[2].set_ylim(bottom=0)
    axes[0].legend()
    words = (
        "By α: how undecided a draw is about an image; how much of the images it gives to one class; and how much more "
    )
    return Picture("scale", words + "correlated the class probabilities of images of one class are than of two.", sheet)


def _lines(settings: FunctionSettings, done: Cells) -> Picture:
    rows = [(activation, alpha) for activation in LINES for alpha in settings.line_alphas]
    sheet, axes = panels(len(settings.depths), len(rows), width=3.3, height=1.9)
    x = torch.linspace(-3, 3, settings.points).tolist()
    for k, axis in enumerate(axes):
        (activation, alpha), depth = rows[k // len(settings.depths)], settings.depths[k % len(settings.depths)]
        found = done.where(activation=activation, alpha=alpha, depth=depth)
        cell = next((f for f in found if "shown" in f.result), None)
        for number, line in enumerate(cell.result["shown"] if cell is not None else ()):
            axis.plot(x, line, color=COLOURS[number % len(COLOURS)], linewidth=1.1)
        axis.set_title(f"{activation}, α = {alpha:g}, depth {depth}", fontsize=9)
        axis.set_yticks([])
    for axis in axes[-len(settings.depths) :]:
        axis.set_xlabel("x")
    words = (
        "Five draws each of MLPs with one input under N(0, α² / fan-in) and biases N(0, α²), centred, each panel in "
    )
    return Picture("lines", words + "units of its own standard deviation.", sheet)


EXPERIMENT = Experiment(
    name="function-prior",
    title="What functions a prior over weights is made of",
    paper="Wilson 2020, The case for Bayesian deep learning; Wilson and Izmailov 2020, Bayesian deep learning and a "
    "probabilistic perspective of generalization (section 5)",
    question="Which images does a network take for alike before it has seen data, and how sure is a draw of the prior?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
