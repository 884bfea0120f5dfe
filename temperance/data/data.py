"""``Data``: rows that can be walked through again and again, in an order that only a seed decides.

A posterior needs to know how many data there are, so ``Data`` always knows N. Batches carry N along, which lets
:class:`temperance.Target` scale a batch to the whole without asking anyone:

    log p(D | θ) ≈ (N / B) Σ_{i ∈ batch} log p(y_i | x_i, θ),

with B the number of rows in *this* batch, so that a ragged last batch is as unbiased as the others.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_count, check_instance, shown
from temperance.core.encoding import tensor_bytes
from temperance.core.errors import ArgumentError, DataError
from temperance.core.fields import check_fields
from temperance.core.outcomes import Outcome
from temperance.core.seeds import check_seed, generator
from temperance.data.sources import DatasetSource, Inputs, Parts, RowSource, TensorSource, first_tensor, map_tensors

_PIECE = 2**21  # numbers in a piece


@dataclass(frozen=True)
class DataInfo:
    """What is known of a data set beside its numbers: the outcome, class and feature names, the standardisation."""

    name: str = "data"
    outcome: Outcome | None = None
    num_classes: int | None = None
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    x_mean: Tensor | None = None
    x_scale: Tensor | None = None
    y_mean: Tensor | None = None
    y_scale: Tensor | None = None
    image_shape: tuple[int, ...] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "x_mean", "x_scale", "y_mean", "y_scale")
        if self.num_classes is not None:
            check_count(self.num_classes, "num_classes")

    def in_units(self, y: Tensor) -> Tensor:
        """Targets, predictive means, quantiles or draws of standardised data, back in the original units."""
        if self.y_mean is None or self.y_scale is None:
            return y
        return y * self.y_scale.to(y) + self.y_mean.to(y)

    def spread_in_units(self, std: Tensor) -> Tensor:
        """Standard deviations of standardised data, back in the original units."""
        return std if self.y_scale is None else std * self.y_scale.to(std)


@dataclass(frozen=True)
class Batch:
    """Some rows of the data, and what a step has to know of the whole.

    With several streams (an ensemble, whose members each have an order of their own) ``x``, ``y`` and ``index`` have
    one leading dimension more, of size ``streams``.
    """

    x: Inputs
    y: Tensor
    num_data: int
    index: Tensor | None = None
    step: int = 0
    epoch: int = 0
    last: bool = False
    progress: float = 0.0
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    streams: int | None = None
    held_out: Data | None = None
    whole: Data | None = None
    weights: Tensor | None = None
    """How often each row counts; once, where there are none."""

    @property
    def size(self) -> int:
        """B, the number of rows (of each stream)."""
        return int(self.y.shape[0 if self.streams is None else 1])

    def stream(self, k: int) -> Batch:
        """The rows of stream ``k`` alone."""
        return self if self.streams is None else self._taken(k, None)

    def stream_range(self, first: int, stop: int) -> Batch:
        """The rows of some streams, still stacked."""
        return self._taken(slice(first, stop), stop - first)

    def rows(self, first: int, stop: int) -> Batch:
        """Some of the rows, of each stream."""
        own = slice(first, stop)
        return self._taken(own if self.streams is None else (slice(None), own), self.streams)

    def _taken(self, at: Any, streams: int | None) -> Batch:
        """What stands at an index of all its tensors, so many streams of it."""
        return replace(
            self,
            x=map_tensors(lambda t: t[at], self.x),
            y=self.y[at],
            index=None if self.index is None else self.index[at],
            weights=None if self.weights is None else self.weights[at],
            streams=streams,
        )

    def pieces(self, count: int) -> list[Batch]:
        """The rows in at most ``count`` pieces, as equal as can be; each still of the same epoch, step and N."""
        size = -(-self.size // count)
        return [self.rows(k, min(k + size, self.size)) for k in range(0, self.size, size)] if count > 1 else [self]

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``; itself when it is there already."""
        if self.y.device == device and (self.weights is None or self.weights.device == device):
            return self
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, x=map_tensors(lambda t: t.to(device), self.x), y=self.y.to(device), weights=weights)


class Data:
    """Inputs and targets, re-iterable, of known length.

    ``x`` is a tensor or array with rows first (or a tuple or mapping of such, for networks of several inputs), ``y``
    has the same number of rows.

    ``weights`` say how often each row counts: the log-likelihood is Σ_i w_i log p(y_i | x_i, θ), so that a weight of 2
    is the row twice and a weight of 0 a row that is not there. They are finite numbers from 0 on, of any mean: N stays
    the number of rows, and nothing is normalised. They weigh what is learned; scores of ``evaluate`` count each row
    once.

    >>> data = Data(torch.arange(10.0).reshape(5, 2), [0, 1, 0, 1, 1])
    >>> len(data), data.num_data
    (5, 5)
    >>> [batch.size for batch in data.full_pass(batch_size=2)]
    [2, 2, 1]
    """

    def __init__(self, x: Any, y: Any, *, weights: Any = None, info: DataInfo | None = None) -> None:
        self._take(TensorSource(_as_inputs(x, "x"), _as_tensor(y, "y")), info, weights)

    @classmethod
    def of(cls, source: Any, argument: str = "data") -> Data:
        """Make ``Data`` from what people have: ``Data``, a pair ``(x, y)``, a ``Dataset`` or a ``DataLoader``, whose
        items are pairs, or dicts and named tuples in which one entry is called ``labels``, ``label``, ``targets``,
        ``target`` or ``y``; a list of such dicts, or Hugging Face's own ``Dataset`` of them.

        >>> Data.of([{"ids": [1, 2, 3], "labels": 0}, {"ids": [4, 5, 6], "labels": 1}]).y
        tensor([0, 1])
        """
        if isinstance(source, Data):
            return source
        if isinstance(source, torch.utils.data.DataLoader):
            made = cls._from_source(DatasetSource.from_loader(source, argument))
            made.batch_size = source.batch_size
            return made
        if isinstance(source, torch.utils.data.TensorDataset) and len(source.tensors) == 2:
            return cls(*source.tensors)
        if isinstance(source, torch.utils.data.Dataset) or _has_named_rows(source):
            return cls._from_source(DatasetSource(source))
        if isinstance(source, Sequence) and not isinstance(source, str) and len(source) == 2:
            return cls(source[0], source[1])
        raise ArgumentError(
            f"`{argument}` must be a temperance Data, a pair (x, y) of tensors or arrays, a torch Dataset, a "
            f"DataLoader, or rows that are dicts; got {type(source).__name__}."
        )

    @classmethod
    def _from_source(cls, source: RowSource, info: DataInfo | None = None, weights: Any = None) -> Data:
        made = cls.__new__(cls)
        made._take(source, info, weights)
        return made

    def _take(self, source: RowSource, info: DataInfo | None, weights: Any = None) -> None:
        if source.num_data < 1:
            raise DataError("`data` must have at least one row; got an empty data set.")
        check_instance(info, "info", DataInfo, "a DataInfo", optional=True)
        self._source = source
        self.weights = None if weights is None else _as_weights(weights, source.num_data)
        """How often each row counts; once, where there are none."""
        self.info = DataInfo() if info is None else info
        self.batch_size: int | None = None  # what a DataLoader asked for
        self.held_out: Data | None = None
        """Rows kept apart from these, that a method may choose by; ``fit`` says which."""
        self._together: Data | None = None

    def __len__(self) -> int:
        return self._source.num_data

    def __repr__(self) -> str:
        weighted = "" if self.weights is None else ", weighted"
        return f"Data({self.info.name!r}, rows={len(self)}, {self._source.describe()}{weighted})"

    def weighing(self, weights: Any) -> Data:
        """The same rows with other ``weights``, one a row; ``None`` for none. Of a ``Dataset`` too."""
        made = Data._from_source(self._source, self.info, weights)
        made.batch_size = self.batch_size
        return made

    def keeping_apart(self, held_out: Data | None) -> Data:
        """The same rows, knowing of those that were ``held_out`` from them."""
        made = Data._from_source(self._source, self.info, self.weights)
        made.batch_size, made.held_out = self.batch_size, held_out
        return made

    def with_held_out(self) -> Data:
        """These rows and those held out from them, for a method that has nothing left to choose: made once. Rows that
        are loaded when they are needed stay as they are."""
        if self.held_out is None or not (self.in_memory and self.held_out.in_memory):
            return self
        if self._together is None:
            both = (self, self.held_out)
            weights = None
            if any(part.weights is not None for part in both):
                ones = [torch.ones(len(p), dtype=torch.float64) if p.weights is None else p.weights for p in both]
                weights = torch.cat([w.to(ones[0].device) for w in ones])
            x = joined([part.x for part in both])
            self._together = Data(x, torch.cat([part.y for part in both]), weights=weights, info=self.info)
        return self._together

    def _weights_of(self, index: Tensor) -> Tensor | None:
        return None if self.weights is None else self.weights[index.to(self.weights.device)]

    @property
    def num_data(self) -> int:
        """N, the number of rows."""
        return self._source.num_data

    @property
    def in_memory(self) -> bool:
        """Whether the rows are there as tensors, rather than loaded when they are needed."""
        return isinstance(self._source, TensorSource)

    @property
    def x(self) -> Inputs:
        """All inputs as one tensor (a ``Dataset`` is read through once)."""
        return self._source.everything()[0]

    @property
    def y(self) -> Tensor:
        """All targets as one tensor."""
        return self._source.everything()[1]

    def steps_per_epoch(self, batch_size: int) -> int:
        """How many batches cover the data once."""
        return -(-self.num_data // min(check_count(batch_size, "batch_size"), self.num_data))

    def order(self, seed: int, epoch: int = 0, stream: int = 0) -> Tensor:
        """The order of rows in one epoch of one stream: a permutation that depends on these numbers alone."""
        rng = generator(check_seed(seed), "shuffle", stream, epoch)
        return torch.randperm(self.num_data, generator=rng)

    def batches(
        self, batch_size: int = 128, *, seed: int = 0, epoch: int = 0, streams: int | None = None, first: int = 0
    ) -> Iterator[Batch]:
        """One epoch of shuffled batches, from batch number ``first`` on.

        With ``streams=k`` each batch holds k independent shuffles, stacked.
        """
        size = min(check_count(batch_size, "batch_size"), self.num_data)
        order: Tensor | None
        if size == self.num_data:  # a full batch: its order does not matter
            order = None if streams is None else torch.arange(size).expand(streams, -1)
        elif streams is None:
            order = self.order(seed, epoch)
        else:
            order = torch.stack([self.order(seed, epoch, stream) for stream in range(streams)])
        parts = Parts(self.num_data, size, order)
        count = len(parts)
        walk = self._source.walk(parts.after(first), derive=(seed, epoch))
        for k, (index, x, y) in enumerate(walk, start=first):
            yield Batch(
                x=x,
                y=y,
                num_data=self.num_data,
                index=index,
                epoch=epoch,
                last=k == count - 1,
                streams=streams,
                weights=self._weights_of(index),
            )

    def full_pass(self, batch_size: int = 1000) -> Iterator[Batch]:
        """All rows once, in the order in which they are stored."""
        size = min(check_count(batch_size, "batch_size"), self.num_data)
        if size == self.num_data and self.in_memory:
            x, y = self._source.everything()  # as they are: a method that reads all rows at each step copies none
            rows = torch.arange(self.num_data)
            yield Batch(x=x, y=y, num_data=self.num_data, index=rows, last=True, weights=self.weights)
            return
        parts = Parts(self.num_data, size)
        for k, (index, x, y) in enumerate(self._source.walk(parts, derive=(0, 0))):
            last, weights = k == len(parts) - 1, self._weights_of(index)
            yield Batch(x=x, y=y, num_data=self.num_data, index=index, last=last, weights=weights)

    def __getitem__(self, index: Any) -> Data:
        return self.subset(index)

    def probe(self) -> list[tuple[str, Tensor]]:
        """Named tensors to look at: everything in memory, 32 rows of a lazy ``Dataset``."""
        return self._source.probe()

    def probed_weights(self) -> Tensor:
        """How often the rows of :meth:`probe` count: once each, where there are no weights."""
        rows = len(dict(self.probe())["y"])
        weights = torch.ones(self.num_data, dtype=torch.float64) if self.weights is None else self.weights
        return (
            weights
            if rows == self.num_data
            else weights[torch.linspace(0, self.num_data - 1, rows, dtype=torch.float64).long()]
        )

    def standardise(self, like: DataInfo | None = None) -> Data:
        """Inputs and real targets shifted and scaled to mean 0 and standard deviation 1, column by column (rows with
        weights count so often); the numbers used are kept in ``info``. Test data are standardised like the training
        data: ``test.standardise(train.info)``.

        >>> data = Data(torch.randn(50, 2) * 7 + 3, torch.randn(50) * 100 + 1000).standardise()
        >>> data.info.in_units(data.y).mean() > 900
        tensor(True)
        """
        x, y = self.x, self.y
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise DataError("`standardise` needs inputs that are one tensor of real numbers.")
        if like is None:
            mean, scale = _units(x, self.weights)
            like = replace(self.info, x_mean=mean, x_scale=scale)
            if y.is_floating_point():
                mean, scale = _units(y if y.dim() > 1 else y.unsqueeze(1), self.weights)
                like = replace(like, y_mean=mean, y_scale=scale)
        if like.x_mean is None or like.x_scale is None:
            raise ArgumentError("`like` must be the info of standardised data; its means and scales are missing.")
        made = (x - like.x_mean.to(x)) / like.x_scale.to(x)
        if y.is_floating_point() and like.y_mean is not None and like.y_scale is not None:
            y = ((y if y.dim() > 1 else y.unsqueeze(1)) - like.y_mean.to(y)) / like.y_scale.to(y)
        return Data(made, y, weights=self.weights, info=like)

    def subset(self, index: Any) -> Data:
        """The rows ``index`` (a slice, numbers, or a mask) as data of their own (N becomes their number)."""
        if isinstance(index, slice):
            index = range(self.num_data)[index]
        rows = torch.as_tensor(list(index) if isinstance(index, range) else index)
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows.long()
        return Data._from_source(self._source.subset(rows), self.info, self._weights_of(rows))

    def hold_out(self, fraction: float = 0.1, *, seed: int = 0) -> tuple[Data, Data]:
        """Split at random in (the rest, the held-out ``fraction``)."""
        if not 0.0 < fraction < 1.0:
            raise ArgumentError(f"`fraction` must lie strictly between 0 and 1; got {shown(fraction)}.")
        held = max(1, round(fraction * self.num_data))
        if held >= self.num_data:
            raise DataError(f"`fraction` {fraction} of {self.num_data} rows leaves none to learn from.")
        order = torch.randperm(self.num_data, generator=generator(check_seed(seed), "hold-out"))
        return self.subset(order[held:].sort().values), self.subset(order[:held].sort().values)

    def to(self, device: torch.device | str) -> Data:
        """The data on ``device``; a ``Dataset`` stays where it is and its batches are moved when they are used."""
        weights = None if self.weights is None else self.weights.to(device)
        return Data._from_source(self._source.to(torch.device(device)), self.info, weights)

    def convert(self, function: Callable[[Inputs, Tensor], tuple[Inputs, Tensor]]) -> Data:
        """The data with ``function`` applied to inputs and targets: at once in memory, batch by batch otherwise."""
        return Data._from_source(self._source.convert(function), self.info, self.weights)

    def check_finite(self, argument: str = "data") -> None:
        """Raise :class:`DataError` if any number is NaN or infinite. A lazy ``Dataset`` is probed, not read."""
        for name, value in self._source.probe():
            if value.is_floating_point() and not all(bool(torch.isfinite(part).all()) for part in pieces(value)):
                bad = int((~torch.isfinite(value)).flatten(1).any(1).sum() if value.dim() > 1 else 0) or "some"
                raise DataError(
                    f"`{argument}` must be finite; got NaN or infinity in {name} ({bad} rows). Remove or impute them."
                )

    def fingerprint(self) -> str:
        """A digest by which a resumed run knows its data again: shapes, dtypes and content (of a lazy ``Dataset``:
        its length and 32 rows)."""
        digest = hashlib.sha256(str(self.num_data).encode())
        weights = [] if self.weights is None else [("weights", self.weights)]
        for name, value in [*self._source.probe(), *weights]:
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            for part in pieces(value):
                digest.update(tensor_bytes(part))
        return digest.hexdigest()


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Some rows of a tensor after the other, views of a few megabytes: to look at many without a copy of them all.

    >>> [len(part) for part in pieces(torch.zeros(5, 2**20))]
    [2, 2, 1]
    """
    rows = max(1, _PIECE // max(1, tensor[:1].numel())) if tensor.dim() else 1
    yield from tensor.split(rows) if tensor.dim() else [tensor]


def _has_named_rows(source: Any) -> bool:
    """Whether this is a collection whose rows are dicts, as Hugging Face has them."""
    if isinstance(source, str | Mapping | Tensor) or not (
        hasattr(source, "__getitem__") and hasattr(source, "__len__")
    ):
        return False
    return len(source) > 0 and isinstance(source[0], Mapping) and isinstance(source[len(source) - 1], Mapping)


def _units(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means and standard deviations by column; a deviation of one for columns that do not vary."""
    if weights is None:
        mean, spread = values.mean(0), values.std(0, correction=0)
    else:
        shares = (weights / weights.sum()).to(values).view(-1, *[1] * (values.dim() - 1))
        mean = (shares * values).sum(0)
        spread = (shares * (values - mean).square()).sum(0).sqrt()
    return mean, torch.where(spread > 0, spread, torch.ones_like(spread))


def _as_weights(weights: Any, rows: int) -> Tensor:
    """One number a row, in float64."""
    made = _as_tensor(weights, "weights").double()
    if made.shape != (rows,):
        raise DataError(f"`weights` must be one number for each of the {rows} rows; got shape {tuple(made.shape)}.")
    if not bool(((made >= 0) & torch.isfinite(made)).all()) or float(made.sum()) <= 0:
        raise DataError(
            "`weights` must be finite numbers from 0 on, not all zero; got values from "
            f"{float(made.min())} to {float(made.max())}."
        )
    return made


def _as_tensor(value: Any, argument: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    # NumPy takes whatever has `__getitem__` for a sequence, and walks through a data set that never says IndexError.
    known = hasattr(value, "__array__") or hasattr(value, "__array_interface__") or not hasattr(value, "__getitem__")
    if not known and not isinstance(value, Sequence | memoryview):
        raise DataError(f"`{argument}` must be a tensor or an array of numbers; got {type(value).__name__}.")
    try:
        array = np.asarray(value)
        if array.dtype == object or array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
        if array.dtype == np.float64 and not isinstance(value, np.ndarray):
            array = array.astype(np.float32)
        with warnings.catch_warnings():  # of arrays that may not be written to, a file that is mapped: nobody does
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"`{argument}` must be a tensor or an array of numbers; got {type(value).__name__} ({error})."
        ) from error


def _as_inputs(value: Any, argument: str) -> Inputs:
    if isinstance(value, Mapping | tuple) and not value:
        raise DataError(f"`{argument}` must hold at least one tensor; got {shown(value)}.")
    if isinstance(value, Mapping):
        return {str(key): _as_tensor(entry, f"{argument}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_tensor(entry, f"{argument}[{k}]") for k, entry in enumerate(value))
    return _as_tensor(value, argument)


def joined(parts: Sequence[Any]) -> Any:
    """Inputs of several pieces, all of one form, as one."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        return {name: torch.cat([part[name] for part in parts]) for name in first}
    return tuple(torch.cat([part[k] for part in parts]) for k in range(len(first)))


__all__ = ["Batch", "Data", "DataInfo", "first_tensor", "joined", "map_tensors"]
