"""Sums and their kin, products of matrices, running sums, in C."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from temperance.engine.native.emit.elementwise import out_of
from temperance.engine.native.emit.places import viewed, write_view
from temperance.engine.native.emit.writer import Index, Shape, Unknown, Value, Writer, cast, name_of, number

_LANES = 8  # running sums side by side: one alone would wait for itself
REDUCTIONS = {
    "sum": ("0", "{0} += {1};"),
    "prod": ("1", "{0} *= {1};"),
    "amax": ("-INFINITY", "{0} = greater({0}, {1});"),
    "amin": ("INFINITY", "{0} = lesser({0}, {1});"),
    "any": ("0", "{0} |= ({1} != 0);"),
    "all": ("1", "{0} &= ({1} != 0);"),
}


def reduction(writer: Writer, node: fx.Node, value: Value, dims: Any = None, *_: Any, **__: Any) -> Value:
    """Over some dimensions, which stay with one place or go."""
    shape, out = out_of(node)
    name = name_of(node).replace("mean", "sum")
    if name in ("amax", "amin") and not out.is_floating_point:
        raise Unknown(f"{name} of whole numbers")
    rank = len(value.shape)
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        gone = set(range(rank))
    else:
        gone = {d % rank for d in ([dims] if isinstance(dims, int) else dims)} if rank else set()
    kept = tuple(1 if k in gone else n for k, n in enumerate(value.shape))
    made = _reduced(writer, name, value.shape, gone, lambda index: cast(value, value.at(index), out), out)
    return made if shape == kept else write_view(writer, node, made)


def extreme(writer: Writer, node: fx.Node, value: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The least or greatest number along a dimension; where it is, nothing may ask."""
    name = {"min": ("amin", "all"), "max": ("amax", "any")}[name_of(node)][value.dtype == torch.bool]
    shape, out = out_of(node, 0)
    if out != torch.bool and not out.is_floating_point:
        raise Unknown(f"{name} of whole numbers")
    rank = len(value.shape)
    made = _reduced(writer, name, value.shape, {dim % rank} if rank else set(), value.at, out)
    kept = viewed(writer, made, shape, out)

    def nowhere(index: Index) -> str:
        raise Unknown(f"the place of {node.target}")

    return kept, Value(shape, torch.int64, nowhere)


def mean(writer: Writer, node: fx.Node, value: Value, dims: Any = None, *more: Any, **options: Any) -> Value:
    """The sum by its count."""
    total = reduction(writer, node, value, dims, *more, **options)
    count = number(value.numel / max(1, total.numel), total.dtype)
    return Value(total.shape, total.dtype, lambda index: f"({total.at(index)} / {count})", cost=8)


def _reduced(
    writer: Writer, name: str, shape: Shape, gone: set[int], text: Callable[[Index], str], out: torch.dtype
) -> Value:
    """Over the dimensions ``gone``, which stay with one place. The last dimension runs innermost: over lanes if it goes
    (a sum in one variable would wait for itself), over results if it stays."""
    first, template = REDUCTIONS[name]
    writer.count(math.prod(shape))
    kept = tuple(1 if k in gone else n for k, n in enumerate(shape))
    made = writer.room(kept, out)
    last = len(shape) - 1
    wide = torch.float64 if out.is_floating_point else out
    if last >= 0 and last not in gone and gone and shape[last] > 1:
        index = writer.loop(kept)
        writer.lines.append(f"{made.at(index)} = {first};")
        writer.close(kept)
        order = sorted(range(len(shape)), key=lambda k: (k in gone, k))
        order.remove(last)
        order.append(last)
        names = writer.loop(tuple(shape[k] for k in order))
        index = [names[order.index(k)] for k in range(len(shape))]
        place = ["0" if k in gone else i for k, i in enumerate(index)]
        writer.lines.append(template.format(made.at(place), text(index)))
        writer.close(tuple(shape[k] for k in order))
        return made
    index = writer.loop(kept)
    c_type = "double" if wide == torch.float64 else made.c_type
    lanes = _LANES if name in ("sum", "prod") and gone and last in gone and shape[last] >= 2 * _LANES else 1
    writer.lines.append(f"{{ {c_type} lane[{lanes}]; for (int k = 0; k < {lanes}; k++) lane[k] = {first};")
    inner = tuple(n if k in gone and k != last else 1 for k, n in enumerate(shape))
    over = writer.loop(inner, "j")
    index = [j if k in gone and shape[k] != 1 else i for k, (i, j) in enumerate(zip(index, over, strict=True))]
    size = shape[last] if last in gone else 1
    if size == 1 and lanes == 1:
        writer.lines.append(template.format("lane[0]", text(index)))
    else:
        whole = size - size % lanes
        index[last] = "(j + k)"
        body = template.format("lane[k]", text(index))
        writer.lines.append(f"for (int64_t j = 0; j < {whole}; j += {lanes}) for (int k = 0; k < {lanes}; k++) {body}")
        index[last] = "j"
        if whole < size:
            rest = template.format("lane[0]", text(index))
            writer.lines.append(f"for (int64_t j = {whole}; j < {size}; j++) {rest}")
    writer.close(inner)
    joined = f"for (int k = 1; k < {lanes}; k++) {template.format('lane[0]', 'lane[k]')}" if lanes > 1 else ""
    place = ["0" if k in gone else i for k, i in enumerate(_outer(kept))]
    writer.lines.append(f"{joined} {made.at(place)} = lane[0]; }}")
    writer.close(kept)
    return made


def _outer(kept: Shape) -> list[str]:
    return ["0" if size == 1 else f"i{k}" for k, size in enumerate(kept)]


def product(writer: Writer, node: fx.Node, one: Value, two: Value) -> Value:
    """Matrices, or batches of them: a sum over the dimension between rows and columns."""
    out = out_of(node)[1]
    one, two = writer.keep(one), writer.keep(two)
    *batch, rows, between = one.shape
    columns, depth = two.shape[-1], len(batch)

    def text(index: Index) -> str:
        lead = index[:depth]
        i, k, j = (*index[depth:], "0")[:3]
        return f"{one.at([*lead, i, k])} * {two.at([*lead, k, j])}"

    shape = (*batch, rows, between, columns) if columns > 1 else (*batch, rows, between)  # the last runs innermost
    made = _reduced(writer, "sum", shape, {depth + 1}, text, out)
    return write_view(writer, node, made)


def running(writer: Writer, node: fx.Node, value: Value, dim: int, **_: Any) -> Value:
    """``cumsum`` and ``cumprod``."""
    shape, out = out_of(node)
    if not shape:
        return value
    name = "+" if "cumsum" in str(node.target) else "*"
    dim %= len(shape)
    made = writer.room(shape, out)
    index = writer.loop(shape)
    here = cast(value, value.at(index), out)
    if shape[dim] == 1:
        writer.lines.append(f"{made.at(index)} = {here};")
    else:
        before = [*index[:dim], f"({index[dim]} - 1)", *index[dim + 1 :]]
        writer.lines.append(f"{made.at(index)} = {index[dim]} ? {made.at(before)} {name} {here} : {here};")
    writer.close(shape)
    return made
