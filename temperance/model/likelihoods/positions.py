"""One target at each position of a row: a tag for each word, a class for each pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_choice, check_sizes, real, shown
from temperance.core.errors import ArgumentError, DataError, NetworkError
from temperance.core.outcomes import ByPosition, Categories, Classes, Outcome
from temperance.model.likelihoods.base import LearnedValues, Likelihood

IGNORED = -100  # PyTorch's own number for targets that do not count


@dataclass(frozen=True, eq=False)
class PerPosition(Likelihood):
    """A target at each position of a row, independent given the network's outputs there:

        log p(y | x, θ) = Σ_p log p(y_p | f_p(x; θ)),

    over the positions p that are not ignored. The row is the example: N counts rows, and a row of T positions says as
    much about θ as T rows of one position. The network gives rows × positions × numbers (a tagger's B × T × C), or,
    with ``channels="first"``, rows × numbers × positions (a segmentation network's B × C × H × W); y has the positions
    alone for classes (B × T, B × H × W), and for labels and numbers the shape of the outputs.

    Args:
        each: what a position has: ``Categorical()``, ``Bernoulli()``, ``Normal(scale=0.1)``. It may learn nothing
            itself, for what it would learn is not told which positions count.
        ignore: the target of positions that do not count (padding, unknown pixels). ``None`` is −100 for classes and
            labels, as in PyTorch, and nothing for numbers, of which any may be true.
        channels: where the network has the numbers of a position.
        shape: positions × numbers of one row. Found from the network when it first meets data.

    The Fisher information of a row is block-diagonal over its positions, F = diag(F_1, …, F_P) with the blocks of
    ignored positions zero: a Laplace method with ``kind="ggn"`` takes one backward pass for each number of each
    position, ``kind="monte-carlo"`` one in all, with a draw of y at every position.

    >>> from temperance.model.likelihoods import Categorical
    >>> likelihood = PerPosition(Categorical(), shape=(3, 2))  # three positions, two classes
    >>> likelihood.log_prob(torch.zeros(1, 6), torch.tensor([[0, 1, -100]]), {})  # the third is not known
    tensor([-1.3863])
    """

    outcome: ClassVar[Outcome] = ByPosition(Classes())

    each: Likelihood
    ignore: float | None = None
    channels: Literal["last", "first"] = "last"
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.each, Likelihood) or isinstance(self.each, PerPosition):
            raise ArgumentError(
                f"`each` must be the likelihood of one position, e.g. Categorical(); got {shown(self.each)}."
            )
        if self.each.learned_parameters():
            raise ArgumentError(
                f"`each` must learn nothing itself: give the scale of the noise, Normal(scale=...); got {self.each!r}."
            )
        check_choice(self.channels, "channels", ("last", "first"))
        if self.ignore is not None and not math.isfinite(real(self.ignore)):
            raise ArgumentError(f"`ignore` must be a finite number, or None; got {shown(self.ignore)}.")
        if self.shape is not None:
            check_sizes(self.shape, "shape")
            if len(self.shape) < 2 or any(not isinstance(n, int) or n < 1 for n in self.shape):
                raise ArgumentError(
                    f"`shape` must be positions × numbers of one row, e.g. (20, 5); got {self.shape!r}."
                )
            object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "outcome", ByPosition.each(self.each.outcome))

    # ------------------------------------------------------------------ shapes

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of a row's positions."""
        return self._shape[:-1]

    @property
    def _shape(self) -> tuple[int, ...]:
        if self.shape is None:
            raise ArgumentError(
                f"`shape` of {self!r} is not known yet: it is found when the target first meets data (fit, or "
                "Engine(target, data)); or give it, positions × numbers of one row, e.g. shape=(20, 5)."
            )
        return self.shape

    @property
    def ignored(self) -> float | None:
        """The target that does not count."""
        if self.ignore is None:
            return IGNORED if isinstance(self.each.outcome, Categories) else None
        return int(self.ignore) if float(self.ignore).is_integer() else self.ignore

    @property
    def single(self) -> bool:
        """Whether the target of a position is one number without a dimension of its own: a class."""
        return isinstance(self.each.outcome, Categories) and self.each.outcome.exclusive

    def arrange(self, outputs: Tensor, leading: int = 1) -> Tensor:
        """Numbers last, then positions and numbers as one dimension."""
        if outputs.dim() < leading + 2:
            raise NetworkError(
                "the network must give rows × positions × numbers for PerPosition (channels first: rows × numbers × "
                f"positions); got shape {tuple(outputs.shape[leading - 1 :])}. For one target a row use "
                f"{type(self.each).__name__} itself."
            )
        return self._last(outputs, leading).flatten(leading)

    def _last(self, values: Tensor, leading: int) -> Tensor:
        return values.movedim(leading, -1) if self.channels == "first" else values

    def shaped(self, probe: Callable[[], Tensor]) -> PerPosition:
        """See :class:`Likelihood`: itself, where that is its shape already."""
        raw = probe()
        self.arrange(raw)  # an error where it has no positions
        found = tuple(self._last(raw, 1).shape[1:])
        return self if found == self.shape else replace(self, shape=found)

    def check_outputs(self, outputs: Tensor) -> None:
        """See :class:`Likelihood`."""
        self.each.check_outputs(self._apart(outputs).flatten(0, -2))

    def _apart(self, outputs: Tensor) -> Tensor:
        """... × B × (P·C) to ... × B × P × C; P is that of the outputs."""
        width = self._shape[-1]
        if outputs.shape[-1] % width:
            raise NetworkError(
                f"the network must give {width} numbers a position, as it did first; got {outputs.shape[-1]} in all."
            )
        return outputs.unflatten(-1, (-1, width))

    def _targets(self, y: Tensor, positions: int) -> tuple[Tensor, Tensor | None]:
        """Targets by position, ... × B × P (× D), a valid one in place of those ignored; and which count, ... × B × P
        (``None``: all)."""
        if y.shape[-1] % positions or (self.single and y.shape[-1] != positions):
            raise DataError(
                f"`y` must have a target for each of the network's {positions} positions; got {y.shape[-1]} in all."
            )
        split = y if self.single else y.unflatten(-1, (positions, -1))
        if self.ignored is None:
            return split, None
        counts = split != self.ignored
        return torch.where(counts, split, torch.zeros_like(split)), counts if self.single else counts[..., 0]

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """B × P for classes, B × (P·D) for labels and numbers; ignored positions have the ignored target."""
        *positions, width = self._shape
        count, rows = math.prod(positions), len(y)
        if num_outputs != count * width:
            raise DataError(
                f"all rows must have one shape, here {tuple(positions)} positions of {width} numbers; got "
                f"{num_outputs} numbers a row. Pad rows to one length, with `y` {self.ignored} at the padding."
            )
        each = 1 if self.single else y.numel() // max(1, rows * count)
        flat = (rows, count * each)
        if self.single or (each == 1 and tuple(y.shape[1:]) == tuple(positions)):
            fits = tuple(y.shape) == flat or tuple(y.shape[1:]) in (tuple(positions), (*positions, 1), (1, *positions))
            wanted = str(tuple(positions))
        elif y.dim() == 2:  # as it was prepared
            fits, wanted = tuple(y.shape) == flat, str(flat[1:])
        else:
            moved = self._last(y, 1)
            fits = tuple(moved.shape[1:-1]) == tuple(positions)
            y = moved
            wanted = f"{tuple(positions)} and the targets of a position"
        if not fits:
            raise DataError(
                f"`y` must have one target for each position of a row, shape (rows, …) with … {wanted} as the network "
                f"gives them (channels={self.channels!r}); got {tuple(y.shape)}."
            )
        y = y.reshape(rows * count, each)
        ignored = self.ignored
        if ignored is None:
            return self.each.prepare(y, width, dtype).reshape(rows, -1)
        out = (y == ignored).any(-1)
        made = self.each.prepare(torch.where(out.unsqueeze(-1), torch.zeros_like(y), y), width, dtype)
        made = made.masked_fill(out if made.dim() == 1 else out.unsqueeze(-1), ignored)
        return made.reshape(rows, -1)

    def seen(self, y: Tensor) -> Tensor | None:
        """All numbers of the positions that count."""
        positions = y.shape[-1] if self.single else math.prod(self.positions)
        counts = self._targets(y, positions)[1]
        return None if counts is None else counts.repeat_interleave(self._shape[-1], -1)

    def counting(self, y: Tensor) -> Tensor:
        """Which positions of (prepared) targets count: B × P."""
        positions = math.prod(self.positions)
        counts = self._targets(y, positions)[1]
        return torch.ones(len(y), positions, dtype=torch.bool, device=y.device) if counts is None else counts

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Of the positions that count."""
        split, counts = self._targets(y, math.prod(self.positions))
        known = split.flatten(0, 1) if counts is None else split[counts]
        if len(known) == 0:
            raise DataError(f"`y` must have a position that counts; all of them are {self.ignored} (`ignore`).")
        if weights is None:
            return self.each.begin(known)
        each = weights.unsqueeze(-1).expand(split.shape[:2])
        return self.each.begin(known, each.flatten() if counts is None else each[counts])

    # ------------------------------------------------------------------ noise

    @property
    def normalised(self) -> bool:
        """As a position's."""
        return self.each.normalised

    @property
    def for_new_rows(self) -> PerPosition:
        """That of each position."""
        return self if self.each.for_new_rows is self.each else replace(self, each=self.each.for_new_rows)

    def outputs_for(self, targets: int) -> int:
        """Of a position."""
        return self.each.outputs_for(targets)

    @property
    def given_noise(self) -> float | None:
        """That of a position."""
        return self.each.given_noise

    def with_noise(self, scale: float) -> PerPosition:
        """See :class:`Likelihood`."""
        return replace(self, each=self.each.with_noise(scale))

    def perturb(self, y: Tensor, learned: LearnedValues, temperature: float, rng: torch.Generator) -> Tensor | None:
        """That of a position; ``None`` where some are ignored, whose target noise would hide."""
        return None if self.ignored is not None else self.each.perturb(y, learned, temperature, rng)

    # ------------------------------------------------------------------ the density

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_p log p(y_p | f_p), ... × B."""
        apart = self._apart(outputs)
        split, counts = self._targets(y, apart.shape[-2])
        found = self.each.log_prob(apart, split, learned)
        return (found if counts is None else torch.where(counts, found, torch.zeros_like(found))).sum(-1)

    def negative_log_likelihood(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The positions that count as rows of their own, by their own hot path."""
        if outputs.dim() != 2:
            return super().negative_log_likelihood(outputs, y, learned)
        apart = self._apart(outputs)
        split, counts = self._targets(y, apart.shape[-2])
        if counts is not None and not bool(counts.all()):
            return self.each.negative_log_likelihood(apart[counts], split[counts], learned)
        return self.each.negative_log_likelihood(apart.flatten(0, 1), split.flatten(0, 1), learned)

    def score(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """That of each position; zero where it is ignored."""
        apart = self._apart(outputs)
        split, counts = self._targets(y, apart.shape[-2])
        found = self.each.score(apart, split, learned)
        return (found if counts is None else found * counts.unsqueeze(-1)).flatten(-2)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Block-diagonal; the blocks of ignored positions are zero."""
        apart = self._apart(outputs)
        split, counts = self._targets(y, apart.shape[-2])
        blocks = self.each.hessian(apart, split, learned)
        return _block_diagonal(blocks if counts is None else blocks * counts[..., None, None])

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Block-diagonal: for tests and small problems; methods ask for its columns or its product."""
        return _block_diagonal(self.each.fisher(self._apart(outputs), learned))

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """The columns of one position after those of another, P·C in all: none of them may have two positions, for
        their product would stand for a correlation that there is not."""
        apart = self._apart(outputs)
        for column in self.each.fisher_columns(apart, learned):
            for p in range(apart.shape[-2]):
                alone = torch.zeros_like(column)
                alone[..., p, :] = column[..., p, :]
                yield alone.flatten(-2)

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """Position by position."""
        return self.each.fisher_product(self._apart(outputs), learned, self._apart(v)).flatten(-2)

    def fisher_draw(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """That of each position, whose draws are independent and zero on average."""
        return self.each.fisher_draw(self._apart(outputs), learned, rng).flatten(-2)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Of each position, ... × B × (P·D)."""
        return self.each.mean(self._apart(outputs), learned).flatten(-2)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Of each position, ... × B × (P·D)."""
        return self.each.variance(self._apart(outputs), learned).flatten(-2)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_p, for positions are independent given θ."""
        return self.each.entropy(self._apart(outputs), learned).sum(-1)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """A draw at every position, as :meth:`prepare` arranges them."""
        found = self.each.sample(self._apart(outputs), learned, rng)
        return found if self.single else found.flatten(-2)


def _block_diagonal(blocks: Tensor) -> Tensor:
    """... × P × C × C to ... × (P·C) × (P·C)."""
    count, width = blocks.shape[-3], blocks.shape[-1]
    made = blocks.new_zeros(*blocks.shape[:-3], count, width, count, width)
    for p in range(count):
        made[..., p, :, p, :] = blocks[..., p, :, :]
    return made.flatten(-2).flatten(-3, -2)
