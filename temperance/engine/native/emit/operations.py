"""Which operation of PyTorch's core set is written by which function."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from temperance.engine.native.emit import elementwise as each
from temperance.engine.native.emit import factors as by
from temperance.engine.native.emit import places as at
from temperance.engine.native.emit import reductions as over
from temperance.engine.native.emit.writer import Unknown, name_of

Writes = Callable[..., Any]  # a value, several, or nothing

OPERATIONS: dict[str, Writes] = {
    **dict.fromkeys((*each.ELEMENTWISE, *each.JUDGEMENTS, *each.BITS), each.elementwise),
    **dict.fromkeys(("alias", "clone", "detach", "lift_fresh_copy", "contiguous", "_to_copy"), each.write_same),
    **dict.fromkeys(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty_strided"), each.write_empty),
    **dict.fromkeys(("full", "full_like"), each.write_full),
    **dict.fromkeys(("clamp", "clamp_min"), each.clamp),
    "pow": each.power,
    "polygamma": each.polygamma,
    "copy": each.write_copy,
    "where": each.write_where,
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"), at.write_view),
    **dict.fromkeys(("transpose", "t"), at.transpose),
    **dict.fromkeys(("index", "_unsafe_index"), at.write_index),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), at.index_put),
    "expand": at.expand,
    "permute": at.permute,
    "select": at.write_select,
    "slice": at.write_slice,
    "flip": at.flip,
    "diagonal": at.diagonal,
    "diagonal_scatter": at.diagonal_scatter,
    "as_strided": at.as_strided,
    "as_strided_scatter": at.as_strided_scatter,
    "cat": at.cat,
    "slice_scatter": at.slice_scatter,
    "constant_pad_nd": at.pad,
    "gather": at.gather,
    "scatter_add": at.scatter_add,
    **dict.fromkeys(over.REDUCTIONS, over.reduction),
    **dict.fromkeys(("mm", "bmm"), over.product),
    **dict.fromkeys(("cumsum", "cumprod"), over.running),
    "mean": over.mean,
    **dict.fromkeys(("min", "max"), over.extreme),
    "linalg_cholesky_ex": by.cholesky_ex,
    "linalg_solve_triangular": by.solve_triangular,
    "cholesky_solve": by.cholesky_solve,
    "cholesky_inverse": by.cholesky_inverse,
    "_linalg_solve_ex": by.solve_ex,
    "linalg_inv_ex": by.inv_ex,
    "_linalg_slogdet": by.slogdet,
    "_linalg_check_errors": by.check_errors,
}


def operation(node: fx.Node) -> Writes:
    """The function that writes a node."""
    if node.target is operator.getitem:
        return lambda writer, node, several, place: several[place]
    found = OPERATIONS.get(name_of(node)) if str(node.target).startswith("aten.") else None
    if found is None:
        raise Unknown(str(node.target))
    return found
