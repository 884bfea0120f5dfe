"""Numbers in other places, in C: views, parts put together, put into and taken out of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from temperance.engine.native.emit.elementwise import out_of, spread
from temperance.engine.native.emit.writer import Index, Shape, Unknown, Value, Writer, cast, in_rows, number


def write_view(writer: Writer, node: fx.Node, value: Value, *_: Any) -> Value:
    """Another shape."""
    return viewed(writer, value, *out_of(node))


def viewed(writer: Writer, value: Value, shape: Shape, out: torch.dtype) -> Value:
    """A value in another shape: where only dimensions of one place come and go nothing moves."""
    if [n for n in shape if n != 1] == [n for n in value.shape if n != 1]:

        def at(index: Index) -> str:
            places = iter(i for i, size in zip(index, shape, strict=True) if size != 1)
            return value.at(["0" if size == 1 else next(places) for size in value.shape])

        return Value(shape, out, at, value.in_memory, value.base, value.cost)
    return in_rows(in_rows_of(writer, value), shape, out)


def in_rows_of(writer: Writer, value: Value) -> Callable[[], str]:
    """Where a value is in memory row by row: a copy, where it was only a number, or a view in another order."""
    kept = writer.keep(value)
    if kept.base is None:
        kept = copied(writer, kept, kept.shape, kept.dtype)
    assert kept.base is not None
    return kept.base


def expand(writer: Writer, node: fx.Node, value: Value, *_: Any, **__: Any) -> Value:
    """Broadcast."""
    shape, out = out_of(node)
    return Value(shape, out, lambda index: value.at(spread(value, index)), cost=value.cost)


def permute(writer: Writer, node: fx.Node, value: Value, order: Sequence[int]) -> Value:
    """Dimensions in another order."""
    shape, out = out_of(node)
    order = [k % len(shape) for k in order]
    back = [order.index(k) for k in range(len(order))]
    return Value(shape, out, lambda index: value.at([index[k] for k in back]), cost=value.cost)


def transpose(writer: Writer, node: fx.Node, value: Value, one: int = 0, two: int = 1) -> Value:
    """Two dimensions changed for one another."""
    order = list(range(len(value.shape)))
    if order:
        one, two = one % len(order), two % len(order)
        order[one], order[two] = order[two], order[one]
    return permute(writer, node, value, order[: len(value.shape)])


def write_select(writer: Writer, node: fx.Node, value: Value, dim: int, place: int) -> Value:
    """One place of a dimension."""
    shape, out = out_of(node)
    dim, place = dim % len(value.shape), place % value.shape[dim]
    return Value(shape, out, lambda i: value.at([*i[:dim], str(place), *i[dim:]]), cost=value.cost)


def _slice_bounds(size: int, start: Any, end: Any, step: int) -> tuple[int, int]:
    first, last, _ = slice(start, end, step).indices(size)
    return first, last


def write_slice(
    writer: Writer, node: fx.Node, value: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    """Some places of a dimension."""
    shape, out = out_of(node)
    dim %= len(value.shape)
    first, _ = _slice_bounds(value.shape[dim], start, end, step)
    return Value(
        shape, out, lambda i: value.at([*i[:dim], f"({first} + {i[dim]} * {step})", *i[dim + 1 :]]), cost=value.cost + 4
    )


def flip(writer: Writer, node: fx.Node, value: Value, dims: Sequence[int]) -> Value:
    """Backwards."""
    shape, out = out_of(node)
    turned = {d % len(shape) for d in dims}

    def at(index: Index) -> str:
        return value.at([f"({shape[k] - 1} - {i})" if k in turned else i for k, i in enumerate(index)])

    return Value(shape, out, at, cost=value.cost + 4)


def diagonal(writer: Writer, node: fx.Node, value: Value, offset: int = 0, one: int = 0, two: int = 1) -> Value:
    """The diagonal of two dimensions."""
    shape, out = out_of(node)
    where = _along_diagonal(len(value.shape), offset, one, two)
    return Value(shape, out, lambda index: value.at(where(index)), cost=value.cost + 4)


def diagonal_scatter(
    writer: Writer, node: fx.Node, value: Value, source: Value, offset: int = 0, one: int = 0, two: int = 1
) -> Value:
    """A copy with other numbers on the diagonal."""
    shape, out = out_of(node)
    where, made = _along_diagonal(len(shape), offset, one, two), copied(writer, value, shape, out)
    index = writer.loop(source.shape)
    writer.lines.append(f"{made.at(where(index))} = {cast(source, source.at(index), out)};")
    writer.close(source.shape)
    return made


def _along_diagonal(rank: int, offset: int, one: int, two: int) -> Callable[[Index], list[str]]:
    one, two = one % rank, two % rank
    down, right = max(0, -offset), max(0, offset)

    def at(index: Index) -> list[str]:
        rest = iter(index[:-1])
        here = {one: f"({index[-1]} + {down})", two: f"({index[-1]} + {right})"}
        return [here[k] if k in here else next(rest) for k in range(rank)]

    return at


def _strided(node: fx.Node, sizes: Sequence[int], strides: Sequence[int], offset: Any) -> Callable[[Index], str]:
    """Places in the memory of the first operand, which is there row by row."""
    whole: Any = node.args[0]
    if not whole.meta["val"].is_contiguous() or whole.meta["val"].storage_offset():
        raise Unknown("strides of memory in another order")

    def at(index: Index) -> str:
        return " + ".join([str(offset or 0), *(f"{i} * {n}" for i, n in zip(index, strides, strict=True))])

    return at


def as_strided(
    writer: Writer, node: fx.Node, value: Value, sizes: Sequence[int], strides: Sequence[int], offset: Any = None
) -> Value:
    """A view by strides."""
    shape, out = out_of(node)
    where, kept = _strided(node, sizes, strides, offset), in_rows_of(writer, value)
    return Value(shape, out, lambda index: f"{kept()}[{where(index)}]", True)


def as_strided_scatter(
    writer: Writer,
    node: fx.Node,
    value: Value,
    source: Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: Any = None,
) -> Value:
    """A copy with other numbers at a view by strides."""
    shape, out = out_of(node)
    where, made = _strided(node, sizes, strides, offset), copied(writer, value, shape, out)
    assert made.base is not None
    index = writer.loop(source.shape)
    writer.lines.append(f"{made.base()}[{where(index)}] = {cast(source, source.at(index), out)};")
    writer.close(source.shape)
    return made


# ---------------------------------------------------------------------- put together, put into, taken out


def cat(writer: Writer, node: fx.Node, parts: Sequence[Value], dim: int = 0) -> Value:
    """One after the other."""
    shape, out = out_of(node)
    made = writer.room(shape, out)
    dim %= len(shape)
    before = 0
    for part in parts:
        if part.shape == (0,):  # PyTorch lets an empty vector stand among any shapes
            continue
        index = writer.loop(part.shape)
        place = list(index)
        place[dim] = f"({index[dim]} + {before})"
        writer.lines.append(f"{made.at(place)} = {cast(part, part.at(index), out)};")
        writer.close(part.shape)
        before += part.shape[dim]
    return made


def slice_scatter(
    writer: Writer,
    node: fx.Node,
    value: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    """A copy with other numbers at some places of a dimension."""
    shape, out = out_of(node)
    dim %= len(shape)
    first, _ = _slice_bounds(shape[dim], start, end, step)
    made = copied(writer, value, shape, out)
    index = writer.loop(source.shape)
    place = list(index)
    place[dim] = f"({first} + {index[dim]} * {step})"
    writer.lines.append(f"{made.at(place)} = {cast(source, source.at(index), out)};")
    writer.close(source.shape)
    return made


def copied(writer: Writer, value: Value, shape: Shape, out: torch.dtype) -> Value:
    """A copy of its own."""
    made = writer.room(shape, out)
    index = writer.loop(shape)
    writer.lines.append(f"{made.at(index)} = {cast(value, value.at(index), out)};")
    writer.close(shape)
    return made


def pad(writer: Writer, node: fx.Node, value: Value, widths: Sequence[int], fill: Any = 0) -> Value:
    """With a number around it; a negative width cuts."""
    shape, out = out_of(node)
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (len(shape) - len(pairs)) + pairs
    text = number(fill, out)

    def at(index: Index) -> str:
        own = [f"({i} - {before})" if before else i for i, (before, _) in zip(index, pairs, strict=True)]
        inside = [f"{i} >= 0" for i, (before, _) in zip(own, pairs, strict=True) if before > 0]
        inside += [f"{i} < {n}" for i, n, (_, after) in zip(own, value.shape, pairs, strict=True) if after > 0]
        return f"({' && '.join(inside) or '1'} ? {value.at(own)} : {text})"

    return Value(shape, out, at, cost=value.cost + 16)


def _check_index(chosen: Value, size: int) -> None:
    """Whole numbers that are known now, and within: what comes of θ could lead anywhere in memory."""
    if chosen.dtype not in (torch.int64, torch.int32):
        raise Unknown("a mask for an index")
    if chosen.constant is None:
        raise Unknown("an index that depends on values")
    if int(chosen.constant.min()) < -size or int(chosen.constant.max()) >= size:
        raise Unknown("an index beyond the end")


def _taken(value: Value, indices: Sequence[Value | None], shape: Shape) -> Callable[[Index], list[str]]:
    """Where in ``value`` the numbers of ``value[indices]`` are."""
    used = [k for k, chosen in enumerate(indices) if chosen is not None]
    for size, chosen in zip(value.shape, indices, strict=False):
        if chosen is not None:
            _check_index(chosen, size)
    width = max(len(v.shape) for v in indices if v is not None)
    together = used == list(range(used[0], used[-1] + 1))
    first = used[0] if together else 0

    def at(index: Index) -> list[str]:
        mine, rest = index[first : first + width], iter([*index[:first], *index[first + width :]])
        found = []
        for k, size in enumerate(value.shape):
            chosen = indices[k] if k < len(indices) else None
            found.append(next(rest) if chosen is None else f"within({chosen.at(spread(chosen, mine))}, {size})")
        return found

    return at


def write_index(writer: Writer, node: fx.Node, value: Value, indices: Sequence[Value | None]) -> Value:
    """Places that tensors of whole numbers name."""
    shape, out = out_of(node)
    where = _taken(value, indices, shape)
    return Value(shape, out, lambda index: value.at(where(index)), cost=value.cost + 16)


def index_put(
    writer: Writer,
    node: fx.Node,
    value: Value,
    indices: Sequence[Value | None],
    source: Value,
    accumulate: bool = False,
) -> Value:
    """A copy with numbers put or added there."""
    shape, out = out_of(node)
    made = copied(writer, value, shape, out)
    kept = list(indices) + [None] * (len(shape) - len(indices))
    chosen = [v.shape for v in kept if v is not None]
    used = [k for k, v in enumerate(kept) if v is not None]
    together = used == list(range(used[0], used[-1] + 1))
    rest = [n for n, v in zip(shape, kept, strict=True) if v is None]
    first = used[0] if together else 0
    reach = (*rest[:first], *torch.broadcast_shapes(*chosen), *rest[first:])
    where = _taken(value, indices, reach)
    index = writer.loop(reach)
    sign = "+=" if accumulate else "="
    writer.lines.append(f"{made.at(where(index))} {sign} {cast(source, source.at(spread(source, index)), out)};")
    writer.close(reach)
    return made


def gather(writer: Writer, node: fx.Node, value: Value, dim: int, chosen: Value, **_: Any) -> Value:
    """Along one dimension, by an index."""
    shape, out = out_of(node)
    dim %= len(shape)
    _check_index(chosen, value.shape[dim])

    def at(index: Index) -> str:
        return value.at([*index[:dim], chosen.at(index), *index[dim + 1 :]])

    return Value(shape, out, at, cost=value.cost + 16)


def scatter_add(writer: Writer, node: fx.Node, value: Value, dim: int, chosen: Value, source: Value) -> Value:
    """A copy with numbers added along one dimension."""
    shape, out = out_of(node)
    dim %= len(shape)
    _check_index(chosen, shape[dim])
    made = copied(writer, value, shape, out)
    index = writer.loop(chosen.shape)
    place = [*index[:dim], chosen.at(index), *index[dim + 1 :]]
    writer.lines.append(f"{made.at(place)} += {cast(source, source.at(index), out)};")
    writer.close(chosen.shape)
    return made
