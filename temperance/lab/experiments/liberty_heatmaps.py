"""``liberty-heatmaps``: what becomes of independent weights when layers are multiplied.

Mean-field VI makes all weights independent, so the covariance of the entries of one weight matrix is diagonal. A deep
network of linear layers computes P x with P = W_L … W_1, and the entries of P are not independent; a network of leaky
ReLUs does so around an input x*, with P = W_L D_{L−1} W_{L−1} … D_1 W_1, D the slopes of the activations there.

Networks of ``layers`` weight matrices learn Fashion-MNIST; over ``draws`` of their posterior the correlations between
the entries of a block are taken: of one hidden weight matrix, and of P at a test image (classes × some pixels in its
middle). Their size is the mean of |r| over different entries. Independent entries have, with n draws, about

    mean |r| = √(2 / (π n)),

which is the floor. For linear networks the covariance of P is also computed exactly from the means and variances.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels, plain_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, difference, estimate, near
from temperance.lab.problems import Images, features, fit

LINEAR, LEAKY = "linear", "leaky ReLU"
FAR = 3.0
"""Times the floor: far above it."""
SEEN = 1.5
"""Times the floor: seen above it."""
LEARNED = 0.5
"""Test accuracy below which a network has not learned enough to be looked at."""
_PART = 1000  # draws worked on at once


@dataclass(frozen=True)
class HeatSettings(Settings):
    """MLPs of ``layers`` weight matrices and ``width`` units; images are averaged over ``pool`` × ``pool`` pixels.

    Mean-field VI under N(0, ``scale``²): ``steps`` of Adam with AMSGrad and local reparametrisation, the learning rate
    falling from ``lr`` to 0 along a cosine. ``block`` rows and columns of a matrix are looked at.
    """

    data: Images = field(default_factory=lambda: Images("fashion-mnist", test=2000))
    pool: int = 2
    width: int = 16
    layers: tuple[int, ...] = (5, 10)
    scale: float = 0.23
    steps: int = 4000
    lr: float = 0.005
    batch_size: int = 128
    draws: int = 10000
    block: int = 10


PRESETS = {
    "quick": Preset(
        HeatSettings(
            seeds=3, data=Images("digits", test=100), pool=1, width=8, layers=(3, 4), scale=0.5, steps=150, lr=0.02,
            draws=1000, block=6,
        ),
        0.4,
    ),
    "standard": Preset(HeatSettings(), 4),
    "paper": Preset(HeatSettings(seeds=5, pool=1, steps=10000, lr=1e-3, batch_size=64), 60),
}  # fmt: skip


def cells(settings: HeatSettings) -> list[Cell]:
    """Activation × layers × seed, the slow ones first."""
    return [
        Cell.of(activation=activation, layers=layers, seed=seed)
        for seed in settings.all_seeds()
        for layers in sorted(settings.layers, reverse=True)
        for activation in (LINEAR, LEAKY)
    ]


def run(settings: HeatSettings, cell: Cell) -> dict[str, Any]:
    """One network: trained, drawn from, and the correlations of a weight matrix and of the product."""
    train, test = small_images(settings, cell["seed"])
    network = make_network(settings, train, cell["activation"], cell["layers"], cell["seed"])
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(settings.scale))
    method = tp.Variational(
        tp.MeanField(),
        lr=settings.lr,
        optimizer_args={"amsgrad": True},
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": settings.steps},
        schedule_steps=True,
        estimator="local",
    )
    fitted = fit(target, method, train, steps=settings.steps, batch_size=settings.batch_size, seed=cell["seed"])
    single, product = entries(settings, fitted, test, cell["seed"])
    single, product = correlation(single), correlation(product)
    scored = fitted.evaluate(test)
    result: dict[str, Any] = {"accuracy": scored["accuracy"], "ce": scored["log_loss"], "elbos": fitted.info.elbos}
    for name, found in (("single", single), ("product", product)):
        result |= {name: size(found), f"{name}_apart": size(found, apart(settings.block, len(found)))}
    if cell["activation"] == LINEAR:
        exact = exact_correlation(settings, fitted, test)
        result |= {"exact": size(exact), "exact_error": float((exact - product).square().mean().sqrt())}
    if cell["seed"] == settings.seed:  # for the figure
        result |= {"single_map": rounded(single), "product_map": rounded(product)}
    return result


def small_images(settings: HeatSettings, seed: int) -> tuple[tp.data.Data, tp.data.Data]:
    """Training and test images, averaged over small squares and flat."""
    return tuple(_pooled(part, settings.pool) for part in settings.data.load(seed))  # type: ignore[return-value]


def _pooled(data: tp.data.Data, pool: int) -> tp.data.Data:
    assert isinstance(data.x, Tensor)
    x = F.avg_pool2d(data.x, pool) if pool > 1 else data.x
    return tp.data.Data(x.flatten(1), data.y, info=data.info)


def make_network(settings: HeatSettings, data: tp.data.Data, activation: str, layers: int, seed: int) -> nn.Module:
    """An MLP whose weights start so that signals keep their size."""
    slope = 1.0 if activation == LINEAR else 0.01
    act = nn.Identity if activation == LINEAR else functools.partial(nn.LeakyReLU, slope)
    assert data.info.num_classes is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = tp.nn.MLP(features(data), [settings.width] * (layers - 1), data.info.num_classes, act)
        for module in network:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (1 + slope**2) / module.in_features))
                nn.init.zeros_(module.bias)
    return network


def entries(settings: HeatSettings, fitted: tp.Fitted, test: tp.data.Data, seed: int) -> tuple[Tensor, Tensor]:
    """Draws × entries: of the block of a hidden weight matrix (the one in the middle), and of that of P at the first
    test image."""
    assert isinstance(test.x, Tensor)
    names = [e.name for e in fitted.target.layout.entries if len(e.shape) == 2][1:-1]
    middle = names[len(names) // 2]
    single, product = [], []
    for part in range(-(-settings.draws // _PART)):
        theta = fitted.posterior.sample(min(_PART, settings.draws - part * _PART), seed=1000 * seed + part)
        single.append(_block(settings, fitted.target.layout.unflatten(theta)[middle]))
        product.append(_block(settings, diagnose.local_products(fitted.target, theta, test.x[0])[..., :-1], True))
    return torch.cat(single).double(), torch.cat(product).double()


def _block(settings: HeatSettings, matrices: Tensor, centred: bool = False) -> Tensor:
    """``block`` rows and columns of each matrix, flat; columns from the middle (of an image) if asked."""
    count = settings.block
    first = (matrices.shape[-1] - count) // 2 if centred else 0
    return matrices[..., :count, first : first + count].flatten(-2)


def exact_correlation(settings: HeatSettings, fitted: tp.Fitted, test: tp.data.Data) -> Tensor:
    """Of the block of a linear network's product, in closed form."""
    posterior: Any = fitted.posterior
    layout = fitted.target.layout
    means, variances = layout.unflatten(posterior.mean), layout.unflatten(posterior.operator.diagonal())
    names = [e.name for e in layout.entries if len(e.shape) == 2]
    factors = [(means[name].double(), variances[name].double()) for name in reversed(names)]
    first = (factors[-1][0].shape[1] - settings.block) // 2
    columns = slice(first, first + settings.block)
    factors[0] = (factors[0][0][: settings.block], factors[0][1][: settings.block])
    factors[-1] = (factors[-1][0][:, columns], factors[-1][1][:, columns])
    return diagnose.product_matrix([m for m, _ in factors], [v for _, v in factors]).correlation()


def correlation(values: Tensor) -> Tensor:
    """Between the columns of draws × entries."""
    return torch.corrcoef(values.T).nan_to_num(0.0)


def apart(block: int, count: int) -> Tensor:
    """Which pairs of entries share neither row nor column.

    >>> apart(2, 4).int()
    tensor([[0, 0, 0, 1],
            [0, 0, 1, 0],
            [0, 1, 0, 0],
            [1, 0, 0, 0]], dtype=torch.int32)
    """
    rows, columns = torch.arange(count) // block, torch.arange(count) % block
    return (rows != rows.unsqueeze(1)) & (columns != columns.unsqueeze(1))


def size(matrix: Tensor, pairs: Tensor | None = None) -> float:
    """The mean of |r| over pairs of different entries."""
    if pairs is None:
        pairs = ~torch.eye(len(matrix), dtype=torch.bool)
    return float(matrix[pairs].abs().mean())


def floor(draws: int) -> float:
    """The mean of |r| between independent entries, in n draws.

    >>> round(floor(10000), 5)
    0.00798
    """
    return math.sqrt(2 / (math.pi * draws))


def rounded(matrix: Tensor) -> list[list[float]]:
    """Three digits are enough for a picture."""
    return [[round(float(value), 3) for value in row] for row in matrix]


# ---------------------------------------------------------------------- judging and drawing


def by_layers(settings: HeatSettings, done: Cells, entry: str, activation: str) -> dict[int, Estimate]:
    """An entry for each number of layers."""
    found = {n: done.values(entry, activation=activation, layers=n) for n in sorted(settings.layers)}
    return {layers: estimate(values) for layers, values in found.items()}


def told(values: Mapping[int, Estimate]) -> str:
    """In words."""
    return "; ".join(f"{layers} layers: {value}" for layers, value in values.items())


def claims(settings: HeatSettings, done: Cells) -> list[Claim]:
    """A matrix, products of both kinds, what shares neither row nor column, depth, and the closed form."""
    least = floor(settings.draws)
    alone = estimate(done.values("single", activation=LEAKY, layers=min(settings.layers)))
    made = [
        Claim(
            "The covariance of one weight matrix is diagonal",
            "a single layer has diagonal covariance (Figure 1a)",
            f"mean |r| between its entries {alone}; independent entries: {least:.4f}",
            near(Estimate(alone.mean / least, alone.error / least, alone.count), 1.0, 0.1),
            f"within a tenth of the floor of independent entries; {RULE}",
        )
    ]
    for activation in (LINEAR, LEAKY):
        name = "product" if activation == LINEAR else "local product"
        whole, neither = (by_layers(settings, done, entry, activation) for entry in ("product", "product_apart"))
        made += [
            Claim(
                f"{activation}: the entries of the {name} matrix are correlated",
                "off-diagonal covariance (Figure 1b–e)",
                f"mean |r|: {told(whole)}; independent entries: {least:.4f}",
                all_of(*(above(value, FAR * least) for value in whole.values())),
                f"above {FAR:g} times the floor of independent entries; {RULE}",
            ),
            Claim(
                f"{activation}: so are entries that share neither row nor column",
                "possible from three layers on, for any two entries (Propositions 1 and 3)",
                f"mean |r|: {told(neither)}; independent entries: {least:.4f}",
                all_of(*(above(value, SEEN * least) for value in neither.values())),
                f"above {SEEN:g} times the floor of independent entries; {RULE}",
            ),
        ]
    few, many = min(settings.layers), max(settings.layers)
    for activation in (LINEAR, LEAKY):
        more = difference(*(done.by_seed("product", activation=activation, layers=layers) for layers in (many, few)))
        made.append(
            Claim(
                f"{activation}: more layers, more correlation",
                "as the model gets deeper, complex off-diagonal covariance (Figure 1)",
                f"mean |r| with {many} layers less that with {few}: {more}",
                above(more),
                f"difference above 0; {RULE}",
            )
        )
    return [*made, *_alike(settings, done), _closed_form(settings, done), _trained(settings, done)]


def _alike(settings: HeatSettings, done: Cells) -> list[Claim]:
    ratios = {}
    for layers in sorted(settings.layers):
        leaky, linear = (done.by_seed("product", activation=a, layers=layers) for a in (LEAKY, LINEAR))
        ratios[layers] = estimate([leaky[s] / linear[s] for s in leaky if s in linear])
    measured = f"mean |r| with leaky ReLUs over that of linear networks: {told(ratios)}"
    return [
        Claim(
            "Leaky ReLUs and linear networks are alike",
            "local product matrices have similar covariance (Figure 1d–e)",
            measured,
            all_of(*(near(ratio, 1.25, 0.75) for ratio in ratios.values())),
            f"ratio between a half and two; {RULE}",
        ),
        Claim(
            "Leaky ReLUs have the larger correlations",
            "shared activations introduce extra correlations (Figure 1)",
            measured,
            all_of(*(above(ratio, 1.0) for ratio in ratios.values())),
            f"ratio above 1; {RULE}",
        ),
    ]


def _closed_form(settings: HeatSettings, done: Cells) -> Claim:
    exact, error = (by_layers(settings, done, entry, LINEAR) for entry in ("exact", "exact_error"))
    bound = 2 / math.sqrt(settings.draws)
    return Claim(
        "The draws of linear networks agree with the closed form",
        "the covariance of a product of factorised matrices (Appendix D.1)",
        f"mean |r| in closed form: {told(exact)}; root mean square difference of the draws' correlations from it: "
        f"{told(error)}",
        all_of(*(above(Estimate(bound - e.mean, e.error, e.count)) for e in error.values())),
        f"difference below 2 / √draws = {bound:.3g}; {RULE}",
    )


def _trained(settings: HeatSettings, done: Cells) -> Claim:
    accuracy = {activation: by_layers(settings, done, "accuracy", activation) for activation in (LINEAR, LEAKY)}
    return Claim(
        "The networks have learned",
        "(asked here)",
        "test accuracy: " + "; ".join(f"{a}, {told(values)}" for a, values in accuracy.items()),
        all_of(*(above(value, LEARNED) for values in accuracy.values() for value in values.values())),
        f"accuracy above {LEARNED:g}; {RULE}",
    )


def figures(settings: HeatSettings, done: Cells) -> list[Picture]:
    """The heat maps, and the size of correlations against depth."""
    return [_maps(settings, done), _sizes(settings, done)]


def _maps(settings: HeatSettings, done: Cells) -> Picture:
    few = min(settings.layers)
    wanted = [("one weight matrix", "single_map", LEAKY, few)]
    for activation, name in ((LINEAR, "product, linear"), (LEAKY, "local product, leaky ReLU")):
        wanted += [(f"{n}-layer {name}", "product_map", activation, n) for n in sorted(settings.layers)]
    sheet, axes = panels(len(wanted), width=3.0, height=3.3)
    image = None
    for axis, (title, entry, activation, layers) in zip(axes, wanted, strict=True):
        found = done.first(activation=activation, layers=layers, seed=settings.seed)
        if found is not None:
            image = axis.imshow(found.result[entry], cmap="RdBu_r", vmin=-0.6, vmax=0.6, interpolation="nearest")
        axis.set_title(title, fontsize=9.5)
        axis.grid(visible=False)
        axis.set_xticks([])
        axis.set_yticks([])
    if image is not None:
        sheet.colorbar(image, ax=axes, shrink=0.7, aspect=25, label="correlation", extend="both", pad=0.01)
    words = (
        f"Correlations between {settings.block} × {settings.block} entries of a matrix, row by row, over "
        f"{settings.draws} draws of mean-field posteriors on {settings.data.name}: one hidden weight matrix; the "
        "product of all weight matrices of linear networks; and the local product at a test image with leaky ReLUs."
    )
    return Picture("heatmaps", words, sheet)


def _sizes(settings: HeatSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.6, height=3.5)
    for axis, entry, other in ((axes[0], "product", "single"), (axes[1], "product_apart", "single_apart")):
        for k, activation in enumerate((LINEAR, LEAKY)):
            values = {float(n): e for n, e in by_layers(settings, done, entry, activation).items()}
            curve(axis, values, f"product, {activation}", COLOURS[k], marker="os"[k])
        alone = {float(n): e for n, e in by_layers(settings, done, other, LEAKY).items()}
        curve(axis, alone, "one weight matrix", COLOURS[2], marker="^", dashed=True)
        axis.axhline(floor(settings.draws), color="#444444", linewidth=0.9, linestyle=":", label="independent entries")
        axis.set_yscale("log")
        plain_numbers(axis)
        axis.set_xlabel("layers")
        axis.set_xticks(sorted(settings.layers))
    axes[0].set_ylabel("mean |r| of different entries")
    axes[1].set_ylabel("mean |r|, neither row nor column shared")
    axes[0].legend(fontsize=8)
    words = (
        "How large the correlations are, against what independent entries have in as many draws (dotted): of all pairs "
        "of entries, and of those that share neither row nor column. Bars: one standard error."
    )
    return Picture("sizes", words, sheet)


EXPERIMENT = Experiment(
    name="liberty-heatmaps",
    title="Products of independent weights",
    paper="Farquhar, Smith and Gal 2020, Liberty or depth (sections 3 and 4, Figure 1)",
    question="Do layers of independent weights make products whose entries are correlated, as trained posteriors?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
