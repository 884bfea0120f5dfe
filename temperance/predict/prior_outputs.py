"""How large a network's outputs are before any data: priors that are absurd, for ``fit`` to tell and ``judge``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_instance, shown
from temperance.core.errors import ArgumentError, DataError
from temperance.core.outcomes import Categories
from temperance.core.seeds import check_seed, generator
from temperance.data.sources import Inputs, map_tensors, named_tensors
from temperance.engine.engine import Engine
from temperance.engine.outputs import small_enough
from temperance.model.target import Target

SANE = 3.0
"""Outputs of this size: logits that tell classes apart at 95 %, or targets that were standardised, tails included."""
ABSURD = 20.0
"""So many times the spread of N(0, 1) weights at inputs of size one is a mistake. Measured on the 25 tasks of
``temperance.lab.tasks`` that train a network (split 0, 16 rows, 4 draws): N(0, 1) gives outputs of 7 to 860, formally
absurd and the best choice there, which is 0.05 to 2.1 times what it gives at inputs of size one. Of images with pixels
from 0 to 255 it is 74 to 148 times, with scale=100 490 to 2,000,000 times, with a column of 1e6 more than 100,000."""
WIDE = 30.0
"""The size of weights from which a prior is too wide by itself. Optimisers take scales of 3 and 10 for little weight
decay, and 3 was often the best of five for MAP, though outputs grow with the scale to the power of the depth."""
LARGE = 1000.0
"""And smaller outputs are never warned of: a wide prior on a linear model is a choice."""
_SATURATED = 0.999
_ROWS, _DRAWS = 16, 4  # for a warning: some two steps' worth


@dataclass(frozen=True, eq=False)
class PriorOutputs:
    """What a prior says of the network's outputs at some inputs.

    Attributes:
        spread: the root mean square of each output over draws and rows.
        saturated: the share of draws and rows in which one class has more than 99.9 %; ``None`` where there are none.
        inputs: the root mean square of the inputs; NaN where none is a real number.
        factor: what a draw's weights have to be multiplied with for outputs of size 3 over all.
        usual: the size of the outputs under N(0, 1) weights at these inputs, divided by their size.
    """

    spread: Tensor
    saturated: float | None
    inputs: float
    factor: float
    usual: float

    @property
    def size(self) -> float:
        """The root mean square over all outputs."""
        return float(self.spread.square().mean().sqrt())

    @property
    def absurd(self) -> bool:
        """Whether it is far beyond what N(0, 1) gives at standardised inputs."""
        return math.isfinite(self.usual) and self.size > LARGE and not self.size <= ABSURD * self.usual

    def __str__(self) -> str:
        told = f"outputs of size {self.size:.3g} before any data, at inputs of size {self.inputs:.3g}"
        if self.saturated is not None:
            told += f"; one class has more than 99.9 % in {self.saturated:.0%} of draws and rows"
        return f"{told}; weights {self.factor:.2g} times as large give outputs of size {SANE:g}"


def prior_outputs(target: Target, x: Inputs, draws: int = 32, seed: int = 0) -> PriorOutputs:
    """The size of the network's outputs at the rows ``x`` under ``draws`` draws from the prior, and what would be sane.

    The outputs of L layers grow as the L-th power of the weights' scale, so the factor that brings them to a given size
    is found by bisection: a prior with this many times the scale is one whose functions have the size of what is
    learned. (What predicts best is another question: N(0, 1) is often too wide by this measure and good all the same.)

    >>> import temperance as tp
    >>> target = tp.Target(tp.nn.MLP(5, [50, 50], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    >>> found = prior_outputs(target, x)
    >>> found.size > 30, found.saturated > 0.5, found.absurd
    (True, True, False)
    >>> sane = target.with_prior(tp.GaussianPrior(found.factor))
    >>> 2 < prior_outputs(sane, x, seed=1).size < 4
    True
    >>> prior_outputs(target, 255 * x).absurd
    True
    """
    check_instance(target, "target", Target, "a temperance Target")
    check_count(draws, "draws")
    check_seed(seed)
    rows = target.cast(_as_inputs(x))
    target.probe_outputs(map_tensors(lambda t: t[:2], rows))  # names the shapes where the network cannot take them
    return examine(Engine(target), rows, draws, seed)


def _as_inputs(x: Any) -> Inputs:
    """A tensor or an array, or a tuple or dict of such, with rows and finite numbers."""
    try:
        made: Inputs
        if isinstance(x, dict):
            made = {str(name): torch.as_tensor(value) for name, value in x.items()}
        elif isinstance(x, tuple):
            made = tuple(torch.as_tensor(value) for value in x)
        else:
            made = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"`x` must be rows of inputs, a tensor or an array; got {shown(x)}.") from None
    for name, tensor in named_tensors(made):
        if not tensor.dim() or not len(tensor):
            raise DataError(f"`x` must have at least one row; {name} has the shape {tuple(tensor.shape)}.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DataError(f"`x` must be finite; got NaN or infinity in {name}. Remove or impute them.")
    return made


def examine(engine: Engine, x: Inputs, draws: int, seed: int) -> PriorOutputs:
    """See :func:`prior_outputs`; ``x`` is prepared."""
    x = map_tensors(lambda t: t.to(engine.device), x)
    theta, standard = _draws(engine, draws, seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # a network may draw random numbers of its own
        found = engine.outputs(theta, x).double()
        usual = _size(engine.outputs(standard, _of_size_one(x)))
        factor = _sane_factor(engine, theta, x)
        outcome, saturated = engine.likelihood.outcome, None
        if isinstance(outcome, Categories) and outcome.exclusive and found.shape[-1] > 1:
            saturated = float((found.softmax(-1).amax(-1) > _SATURATED).double().mean())
    return PriorOutputs(found.square().mean((0, 1)).sqrt().cpu(), saturated, size_of(x), factor, usual)


def _sane_factor(engine: Engine, theta: Tensor, x: Inputs) -> float:
    """By bisection on its logarithm; 0 or infinity where no factor between 1e-8 and 1e8 does it."""
    low, high = -8.0, 8.0
    weights = engine.layout.network_size

    def size_at(power: float) -> float:
        moved = theta.clone()
        moved[:, :weights] *= 10.0**power
        return _size(engine.outputs(moved, x))

    if size_at(low) > SANE:
        return 0.0
    for _ in range(24):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if not size_at(middle) <= SANE else (middle, high)
    return math.inf if low > 7.99 else float(10.0 ** (0.5 * (low + high)))


def _size(outputs: Tensor) -> float:
    return float(outputs.double().square().mean().sqrt())


def _usual_size(draws: Tensor) -> float:
    """The median over draws of their root mean squares: under hyper-priors of heavy tails a few are beyond all bounds,
    which is what such are for."""
    return float(draws.double().flatten(1).square().mean(1).sqrt().nan_to_num(nan=math.inf).median())


def size_of(x: Inputs) -> float:
    """The root mean square of all real numbers of some inputs."""
    real = [t.double() for _, t in named_tensors(x) if t.is_floating_point() and t.numel()]
    count = sum(t.numel() for t in real)
    return math.sqrt(sum(float(t.square().sum()) for t in real) / count) if count else math.nan


def _of_size_one(x: Inputs) -> Inputs:
    """Inputs as they would be, in size, if somebody had standardised them."""
    size = size_of(x)
    unit = size if math.isfinite(size) and size > 0 else 1.0
    return map_tensors(lambda t: t / unit if t.is_floating_point() else t, x)


def absurdity(engine: Engine, x: Inputs, seed: int) -> str | None:
    """What to warn of before a run: sizes of outputs and inputs, and what would be sane; ``None`` where all is well, or
    where it would cost more than a few steps to know."""
    x = map_tensors(lambda t: t[:_ROWS], x)
    rows = next(len(t) for _, t in named_tensors(x))
    if not small_enough(engine.network, engine.layout, rows, engine.device):
        return None
    try:
        found = _quick(engine, x, seed)
    except (NotImplementedError, RuntimeError):  # a prior that cannot be sampled; a network that cannot be batched
        return None
    if found is None:
        return None
    size, usual, at_unit, width = found
    if width <= WIDE and size <= ABSURD * at_unit:
        return None
    head = (
        f"before any data the network's outputs have a size of {size:.2g} (root mean square over draws of the prior), "
        f"at inputs of size {size_of(x):.2g}; N(0, 1) weights and standardised inputs give {usual:.2g}. "
    )
    if width <= WIDE:
        return f"{head}Standardise the inputs, x = (x - x.mean(0)) / x.std(0), or divide pixels by 255."
    factor = _sane_factor(engine, _draws(engine, _DRAWS, seed)[0], x)
    return (
        f"{head}The prior is too wide: a scale {factor:.2g} times as large gives outputs of size {SANE:g}, and "
        "GaussianPrior(scale=1.0) is the usual choice. See tp.diagnose.prior_outputs."
    )


def _draws(engine: Engine, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Of the prior, and the same with N(0, 1) weights."""
    rng = generator(seed, "prior outputs", device=engine.device)
    theta = engine.target.sample_prior(count, rng)
    standard = theta.clone()
    standard[:, : engine.layout.network_size].normal_(generator=rng)
    return theta, standard


def _quick(engine: Engine, x: Inputs, seed: int) -> tuple[float, float, float, float] | None:
    """Sizes of the outputs under the prior, under N(0, 1) at inputs of size one, under the prior there, and of the
    prior's weights; ``None`` where nothing is absurd."""
    theta, standard = _draws(engine, _DRAWS, seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        size = _usual_size(engine.outputs(theta, x))
        if size <= LARGE:
            return None
        scaled = _of_size_one(x)
        usual = _size(engine.outputs(standard, scaled))
        if not math.isfinite(usual) or size <= ABSURD * usual:
            return None
        width = _usual_size(theta[:, : engine.layout.network_size])
        return size, usual, _usual_size(engine.outputs(theta, scaled)), width
