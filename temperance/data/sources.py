"""Where rows come from: tensors in memory, or a ``torch`` ``Dataset`` read as it is needed."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from temperance.core.errors import DataError, TemperanceWarning
from temperance.core.seeds import derive_seed, generator

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a network takes: one tensor, a tuple (positional) or a dict (keyword) of tensors, rows first."""


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply ``function`` to each tensor of ``inputs``."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {key: function(value) for key, value in inputs.items()}
    return tuple(function(value) for value in inputs)


def first_tensor(inputs: Inputs) -> Tensor:
    """Any one tensor of ``inputs``, for its length and device."""
    if isinstance(inputs, Tensor):
        return inputs
    return next(iter(inputs.values() if isinstance(inputs, dict) else inputs))


def named_tensors(inputs: Inputs) -> list[tuple[str, Tensor]]:
    """The tensors of ``inputs`` with names fit for a message."""
    if isinstance(inputs, Tensor):
        return [("x", inputs)]
    items = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return [(f"x[{key!r}]", value) for key, value in items]


def row_uniforms(inputs: Inputs, seed: int) -> Tensor:
    """A number in [0, 1) for each row, uniform and independent of all else: scattered by ``seed`` and every bit of the
    row's inputs, so that it is the same wherever the row stands and whichever rows come with it. In float64.

    >>> rows = torch.eye(3)
    >>> bool((row_uniforms(rows, 0)[1:] == row_uniforms(rows[1:], 0)).all())
    True
    """
    total: np.ndarray[Any, np.dtype[np.uint64]] | None = None
    for place, (_, tensor) in enumerate(named_tensors(inputs)):
        wide = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        data = wide.detach().cpu().reshape(len(tensor), -1).contiguous().view(torch.uint8).numpy()
        data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8)))
        words = np.ascontiguousarray(data).view(np.uint64)
        salt = np.array([derive_seed(seed, "row", place)], np.uint64)
        places = np.arange(1, words.shape[1] + 1).astype(np.uint64)
        keys = _scattered(salt + places * np.array([_GOLDEN], np.uint64))
        found = _scattered(words ^ keys).sum(1, dtype=np.uint64) + salt
        total = found if total is None else _scattered(total) + found
    assert total is not None
    return torch.from_numpy((_scattered(total) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


_GOLDEN = 0x9E3779B97F4A7C15


def _scattered(words: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finaliser of SplitMix64 (Steele et al. 2014): a bijection in which every bit decides every other."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


class Parts:
    """The numbers of rows, so many at a time: cut from an ``order`` (N, or streams × N; as they are stored, where there
    is none) when they are asked for, so that many rows cost no list of as many pieces.

    >>> parts = Parts(5, 2)
    >>> len(parts), [part.tolist() for part in parts], [part.tolist() for part in parts.after(2)]
    (3, [[0, 1], [2, 3], [4]], [[4]])
    """

    def __init__(self, num_data: int, size: int, order: Tensor | None = None, first: int = 0) -> None:
        self.num_data, self.size, self.order, self.first = num_data, size, order, first

    def after(self, first: int) -> Parts:
        """Without those before part number ``first``."""
        return Parts(self.num_data, self.size, self.order, first)

    def __len__(self) -> int:
        return max(0, -(-self.num_data // self.size) - self.first)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(self.first * self.size, self.num_data, self.size):
            stop = min(start + self.size, self.num_data)
            yield torch.arange(start, stop) if self.order is None else self.order[..., start:stop]


class _Lists:
    """Parts as the lists that a ``DataLoader`` wants, made one by one."""

    def __init__(self, parts: Parts, rows: Tensor | None) -> None:
        self.parts, self.rows = parts, rows

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[list[int]]:
        for part in self.parts:
            flat = part.flatten()
            yield (flat if self.rows is None else self.rows[flat]).tolist()


Row = tuple[Tensor, Inputs, Tensor]
Convert = Callable[[Inputs, Tensor], tuple[Inputs, Tensor]]


class RowSource(ABC):
    """Rows by number."""

    num_data: int

    @abstractmethod
    def walk(self, parts: Parts, derive: tuple[int, int]) -> Iterator[Row]:
        """For each part (B numbers, or streams × B): the numbers, inputs and targets of these rows."""

    @abstractmethod
    def everything(self) -> tuple[Inputs, Tensor]:
        """All rows at once."""

    @abstractmethod
    def probe(self) -> list[tuple[str, Tensor]]:
        """Named tensors to check and to fingerprint."""

    @abstractmethod
    def subset(self, rows: Tensor) -> RowSource:
        """Some rows as a source."""

    @abstractmethod
    def to(self, device: torch.device) -> RowSource:
        """The source on a device."""

    @abstractmethod
    def convert(self, function: Convert) -> RowSource:
        """The source with ``function`` applied to inputs and targets."""

    @abstractmethod
    def describe(self) -> str:
        """A few words for ``repr``."""


class TensorSource(RowSource):
    """Everything in memory."""

    def __init__(self, x: Inputs, y: Tensor) -> None:
        lengths = {name: len(value) if value.dim() else 0 for name, value in [*named_tensors(x), ("y", y)]}
        if len(set(lengths.values())) != 1:
            raise DataError(f"`x` and `y` must have the same number of rows; got {lengths}.")
        self.x, self.y, self.num_data = x, y, lengths["y"]

    def walk(self, parts: Parts, derive: tuple[int, int]) -> Iterator[Row]:
        """Gather rows; see :class:`RowSource`."""
        device = self.y.device
        for index in parts:
            at = index if device.type == "cpu" else index.to(device)
            yield index, map_tensors(lambda t, at=at: t[at], self.x), self.y[at]  # type: ignore[misc]

    def everything(self) -> tuple[Inputs, Tensor]:
        """All rows."""
        return self.x, self.y

    def probe(self) -> list[tuple[str, Tensor]]:
        """All tensors."""
        return [*named_tensors(self.x), ("y", self.y)]

    def subset(self, rows: Tensor) -> RowSource:
        """Copies of the rows."""
        at = rows.to(self.y.device)
        return TensorSource(map_tensors(lambda t: t[at], self.x), self.y[at])

    def to(self, device: torch.device) -> RowSource:
        """Moved tensors."""
        return TensorSource(map_tensors(lambda t: t.to(device), self.x), self.y.to(device))

    def convert(self, function: Convert) -> RowSource:
        """Converted at once."""
        return TensorSource(*function(self.x, self.y))

    def describe(self) -> str:
        """Shapes."""
        shapes = ", ".join(f"{name}{tuple(value.shape)}" for name, value in self.probe())
        return shapes


class DatasetSource(RowSource):
    """A map-style ``Dataset``, read through a ``DataLoader`` with the user's workers and collate function."""

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Callable[[list[Any]], Any] = default_collate,
        workers: int = 0,
        rows: Tensor | None = None,
        conversions: tuple[Convert, ...] = (),
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise DataError(
                "`data` must have a known number of rows N (the posterior weighs the prior against N data); got "
                f"{type(dataset).__name__}, which has no length. Give a map-style Dataset or tensors."
            )
        self.dataset, self.collate, self.workers, self.conversions = dataset, collate, workers, conversions
        self.rows = rows  # all of them in their order, where there are none
        self.num_data = len(dataset) if rows is None else len(rows)

    @classmethod
    def from_loader(cls, loader: DataLoader[Any], argument: str) -> DatasetSource:
        """The loader's dataset, collate function and workers. Order and batch size are those of ``fit``."""
        if loader.collate_fn is None:
            raise DataError(f"`{argument}` must be a DataLoader with a collate function; got one without.")
        made = cls(loader.dataset, loader.collate_fn, loader.num_workers)
        if not isinstance(loader.sampler, SequentialSampler | RandomSampler):
            warnings.warn(
                f"the sampler of the DataLoader ({type(loader.sampler).__name__}) is not used: a posterior is of the "
                "data as they are, each row once an epoch, in an order that fit's seed decides.",
                TemperanceWarning,
                stacklevel=4,
            )
        return made

    def walk(self, parts: Parts, derive: tuple[int, int]) -> Iterator[Row]:
        """Read rows; see :class:`RowSource`."""
        loader = DataLoader(
            self.dataset,
            batch_sampler=_Lists(parts, self.rows),
            num_workers=self.workers,
            collate_fn=self.collate,
            generator=generator(derive[0], "loader", derive[1]),
        )
        for index, item in zip(parts, loader, strict=True):
            x, y = self._converted(item)
            if index.dim() == 2:
                x = map_tensors(lambda t, shape=index.shape: t.unflatten(0, shape), x)  # type: ignore[misc]
                y = y.unflatten(0, index.shape)
            yield index, x, y

    def everything(self) -> tuple[Inputs, Tensor]:
        """Read the data set once, in order."""
        (_, x, y), *_ = list(self.walk(Parts(self.num_data, self.num_data), (0, 0)))
        return x, y

    def probe(self) -> list[tuple[str, Tensor]]:
        """Up to 32 rows spread over the data set, the same at each call also where the data set augments at random
        (by torch's generator; numpy's and Python's own are not ours to seed)."""
        rows = torch.linspace(0, self.num_data - 1, min(32, self.num_data), dtype=torch.float64).long()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            items = [self.dataset[int(k)] for k in (rows if self.rows is None else self.rows[rows])]
            try:
                item = self.collate(items)
            except (RuntimeError, TypeError, ValueError) as error:
                raise DataError(
                    f"`data` must have rows that go together in a batch: {error} Pad them to one length, or give a "
                    "DataLoader with a `collate_fn` that does."
                ) from error
            x, y = self._converted(item)
        return [*named_tensors(x), ("y", y)]

    def subset(self, rows: Tensor) -> RowSource:
        """The same data set, fewer rows."""
        chosen = (torch.arange(self.num_data) if self.rows is None else self.rows)[rows.cpu()]
        return DatasetSource(self.dataset, self.collate, self.workers, chosen, self.conversions)

    def convert(self, function: Convert) -> RowSource:
        """Converted as batches are read."""
        return DatasetSource(self.dataset, self.collate, self.workers, self.rows, (*self.conversions, function))

    def _converted(self, item: Any) -> tuple[Inputs, Tensor]:
        x, y = _inputs_and_targets(item, self.collate is default_collate)
        for function in self.conversions:
            x, y = function(x, y)
        return x, y

    def to(self, device: torch.device) -> RowSource:
        """Itself: batches are moved when they are used."""
        return self

    def describe(self) -> str:
        """The type of data set."""
        return type(self.dataset).__name__


LABELS = ("labels", "label", "targets", "target", "y")
"""What the target is called in rows whose parts have names."""


def _inputs_and_targets(item: Any, plain: bool) -> tuple[Inputs, Tensor]:
    """A collated batch apart: a pair (x, y), or named parts of which one is called as in ``LABELS``. ``plain``: by
    PyTorch's own collate function, which makes a list of columns of rows that are lists."""
    fields = getattr(item, "_fields", None)
    named = dict(item) if isinstance(item, Mapping) else None
    if fields is not None and (len(fields) != 2 or set(fields) & set(LABELS)):
        named = dict(zip(fields, item, strict=True))
    if named is not None:
        return _of_names(named, plain, mapping=fields is None)
    if isinstance(item, Sequence) and len(item) == 2 and isinstance(item[1], Tensor):
        x = item[0]
        if isinstance(x, Tensor):
            return x, item[1]
        if isinstance(x, Mapping):
            return {str(key): _column(value, plain) for key, value in x.items()}, item[1]
        if hasattr(x, "_fields"):
            return dict(zip(x._fields, x, strict=True)), item[1]
        if isinstance(x, Sequence):
            return tuple(x), item[1]
    raise DataError(f"{RULE}; got {type(item).__name__} from the Dataset.")


RULE = (
    "`data` must give pairs (x, y), y a tensor once collated, or dicts and named tuples of tensors in which one is "
    f"called {', '.join(LABELS)}"
)


def _of_names(named: dict[str, Any], plain: bool, mapping: bool) -> tuple[Inputs, Tensor]:
    """The target, and the other tensors by name; what is no tensor (texts, say) is left out."""
    columns = {str(key): _column(value, plain) for key, value in named.items()}
    targets = [name for name in columns if name in LABELS]
    if len(targets) != 1:
        raise DataError(f"{RULE}; got the names {list(columns)}.")
    y = columns.pop(targets[0])
    x = {name: value for name, value in columns.items() if isinstance(value, Tensor)}
    if not isinstance(y, Tensor) or not x:
        raise DataError(f"{RULE}, and others the inputs; got tensors in {[*x, *targets] if x else targets} alone.")
    return (x if mapping or len(x) > 1 else next(iter(x.values()))), y


def _column(value: Any, plain: bool) -> Any:
    """Rows that were lists of numbers come as a list of their columns; they are put together again."""
    listed = plain and isinstance(value, list) and value and all(isinstance(part, Tensor) for part in value)
    return torch.stack(value, dim=1) if listed else value
