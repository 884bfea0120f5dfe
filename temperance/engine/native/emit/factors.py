"""Factorisations of small matrices and what is solved by them, in C.

A matrix is copied into memory of its own, in float64 whatever its type, and worked on there by the functions of
``FACTORS``. Their inner loops run along rows, so that a compiler turns them into vector instructions; for matrices of
some hundred rows, where LAPACK's blocks begin to pay, :class:`Writer` counts too much work and PyTorch goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from temperance.engine.native.emit.elementwise import out_of, spread
from temperance.engine.native.emit.writer import Index, Shape, Unknown, Value, Writer, cast

_WIDE = torch.float64
_LANES = 8  # additions that a processor does at once, more or less: how cheap these loops are beside others

FACTORS = """
static inline void less_row(double *restrict a, const double *restrict b, double factor, int64_t size) {
    for (int64_t j = 0; j < size; j++) a[j] -= factor * b[j];
}
static double inner_product(const double *a, const double *b, int64_t size) {
    double lane[8] = {0}, found = 0;
    int64_t j = 0;
    for (; j + 8 <= size; j += 8) for (int k = 0; k < 8; k++) lane[k] += a[j + k] * b[j + k];
    for (; j < size; j++) lane[0] += a[j] * b[j];
    for (int k = 0; k < 8; k++) found += lane[k];
    return found;
}
/* the upper half of a becomes U with a = U'U; 0, or the number of the first leading part that is not positive */
static __attribute__((noinline)) int64_t cholesky(double *a, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        double *row = a + k * n;
        if (!(row[k] > 0)) return k + 1;
        double root = sqrt(row[k]);
        for (int64_t j = k; j < n; j++) row[j] /= root;
        for (int64_t i = k + 1; i < n; i++) less_row(a + i * n + i, row + i, row[i], n - i);
    }
    return 0;
}
/* x (n rows of m) becomes the solution of a x = what it was, for a triangle a, whose diagonal may count as ones */
static __attribute__((noinline)) void solve_triangle(const double *a, double *x, int64_t n, int64_t m, int upper,
                                                     int ones) {
    for (int64_t s = 0; s < n; s++) {
        int64_t i = upper ? n - 1 - s : s, first = upper ? i + 1 : 0;
        const double *row = a + i * n;
        if (m == 1) x[i] -= inner_product(row + first, x + first, s);
        else for (int64_t k = first; k < first + s; k++) less_row(x + i * m, x + k * m, row[k], m);
        if (!ones) for (int64_t j = 0; j < m; j++) x[i * m + j] /= row[i];
    }
}
/* a becomes L and U with rows of a in the order in which `swaps` puts them; 0, or the number of the first pivot that is
   zero. *sign is that of the order. */
static __attribute__((noinline)) int64_t factorise(double *a, int64_t *swaps, double *sign, int64_t n) {
    int64_t info = 0;
    *sign = 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t best = k;
        for (int64_t i = k + 1; i < n; i++) if (fabs(a[i * n + k]) > fabs(a[best * n + k])) best = i;
        swaps[k] = best;
        if (best != k) {
            *sign = -*sign;
            for (int64_t j = 0; j < n; j++) {
                double held = a[k * n + j];
                a[k * n + j] = a[best * n + j];
                a[best * n + j] = held;
            }
        }
        if (a[k * n + k] == 0) {
            if (!info) info = k + 1;
            continue;
        }
        for (int64_t i = k + 1; i < n; i++) {
            a[i * n + k] /= a[k * n + k];
            less_row(a + i * n + k + 1, a + k * n + k + 1, a[i * n + k], n - k - 1);
        }
    }
    return info;
}
static void solve_factorised(const double *a, const int64_t *swaps, double *x, int64_t n, int64_t m) {
    for (int64_t k = 0; k < n; k++) {
        if (swaps[k] == k) continue;
        for (int64_t j = 0; j < m; j++) {
            double held = x[k * m + j];
            x[k * m + j] = x[swaps[k] * m + j];
            x[swaps[k] * m + j] = held;
        }
    }
    solve_triangle(a, x, n, m, 0, 1);
    solve_triangle(a, x, n, m, 1, 0);
}
"""


def cholesky_ex(writer: Writer, node: fx.Node, matrix: Value, *, upper: bool = False, **_: Any) -> tuple[Value, ...]:
    """The factor, and whether there is one; no numbers where there is none."""
    shape, out = _meta(node, 0)
    *batch, size, _n = shape
    work = _copied(writer, matrix, shape, turned=not upper)  # the half that counts, above the diagonal
    info = writer.room(tuple(batch), torch.int32)
    made = writer.room(shape, out)
    writer.count(_cost(batch, size**3 / 6))
    lead = writer.loop(tuple(batch))
    writer.lines.append(f"{info.at(lead)} = cholesky(&{work.at([*lead, '0', '0'])}, {size});")
    writer.close(tuple(batch))
    index = writer.loop(shape)
    *lead, i, j = index
    place, half = ([i, j], f"{i} <= {j}") if upper else ([j, i], f"{j} <= {i}")
    text = f"{info.at(lead)} ? NAN : {half} ? {work.at([*lead, *place])} : 0"
    writer.lines.append(f"{made.at(index)} = {text};")
    writer.close(shape)
    return made, info


def check_errors(writer: Writer, node: fx.Node, info: Value, *_: Any, **__: Any) -> None:
    """PyTorch raises here, and the place counts as impossible: an infinite energy, without a slope."""
    index = writer.loop(info.shape)
    writer.lines.append(f"if ({info.at(index)}) {{")
    writer.lines.append("if (gradient) memset(gradient, 0, (size_t)plan->parameters * sizeof(REAL));")
    writer.lines.append("return INFINITY; }")
    writer.close(info.shape)


def solve_triangular(
    writer: Writer,
    node: fx.Node,
    matrix: Value,
    right: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value:
    """A X = B, or X A = B by its transpose."""
    shape, out = _meta(node)
    batch, size = shape[:-2], matrix.shape[-1]
    many = shape[-1] if left else shape[-2]
    a = _copied(writer, matrix, (*batch, size, size), turned=not left)
    x = _copied(writer, right, (*batch, size, many), turned=not left)
    _solve(writer, a, x, upper if left else not upper, unitriangular)
    return _taken(writer, x, shape, out, turned=not left)


def cholesky_solve(writer: Writer, node: fx.Node, right: Value, factor: Value, upper: bool = False) -> Value:
    """A X = B by the factor of A."""
    shape, out = _meta(node)
    size = shape[-2]
    down = _copied(writer, factor, (*shape[:-2], size, size), turned=upper)
    up = _copied(writer, factor, (*shape[:-2], size, size), turned=not upper)
    x = _copied(writer, right, shape)
    _solve(writer, down, x, False, False)
    _solve(writer, up, x, True, False)
    return _taken(writer, x, shape, out)


def cholesky_inverse(writer: Writer, node: fx.Node, factor: Value, upper: bool = False) -> Value:
    """A⁻¹ by the factor of A."""
    return cholesky_solve(writer, node, _identity(_meta(node)[0]), factor, upper)


def solve_ex(
    writer: Writer, node: fx.Node, matrix: Value, right: Value, *, left: bool = True, **_: Any
) -> tuple[Value, ...]:
    """A X = B for any square A; the solution, its factors (which nothing may read), and whether there is one."""
    shape, out = _meta(node, 0)
    size = matrix.shape[-1]
    vector = len(right.shape) == 1 or right.shape == matrix.shape[:-1]
    if vector and not left:
        raise Unknown("a vector from the left")
    wide = (*shape, 1) if vector else shape
    batch = wide[:-2]
    given = right if not vector else Value((*right.shape, 1), right.dtype, lambda i: right.at(i[:-1]))
    a = _copied(writer, matrix, (*batch, size, size), turned=not left)
    x = _copied(writer, given, (*batch, size, wide[-1] if left else wide[-2]), turned=not left)
    info, _sign = _factorise(writer, a, x)
    made = _taken(writer, x, wide, out, turned=not left)
    if vector:
        column = made
        made = Value(shape, out, lambda i: column.at([*i, "0"]), True, column.base)
    return made, _nothing(), _nothing(), info


def inv_ex(writer: Writer, node: fx.Node, matrix: Value, **_: Any) -> tuple[Value, ...]:
    """A⁻¹, and whether there is one."""
    shape, out = _meta(node, 0)
    a, x = _copied(writer, matrix, shape), _copied(writer, _identity(shape), shape)
    info, _sign = _factorise(writer, a, x)
    return _taken(writer, x, shape, out), info


def slogdet(writer: Writer, node: fx.Node, matrix: Value) -> tuple[Value, ...]:
    """Sign and logarithm of a determinant."""
    shape, out = _meta(node, 0)
    sign, log = writer.room(shape, out), writer.room(shape, out)
    a = _copied(writer, matrix, matrix.shape)
    _info, order = _factorise(writer, a, None)
    lead = writer.loop(shape)
    pivot = a.at([*lead, "k", "k"])
    writer.lines.append(f"{{ double turned = {order.at(lead)}, total = 0;")
    writer.lines.append(f"for (int64_t k = 0; k < {matrix.shape[-1]}; k++) {{")
    writer.lines.append(f"turned *= sign({pivot}); total += log(fabs({pivot})); }}")
    writer.lines.append(f"{sign.at(lead)} = turned; {log.at(lead)} = total; }}")
    writer.close(shape)
    return sign, log, _nothing(), _nothing()


# ---------------------------------------------------------------------- the work


def _meta(node: fx.Node, place: int | None = None) -> tuple[Shape, torch.dtype]:
    """Shape and type of what a node gives, or of one of several."""
    shape, out = out_of(node, place)
    if not out.is_floating_point:
        raise Unknown(f"matrices of {out}")
    return shape, out


def _cost(batch: Sequence[int], each: float) -> int:
    return int(math.prod(batch) * each / _LANES) + 1


def _copied(writer: Writer, value: Value, shape: Shape, turned: bool = False) -> Value:
    """Matrices (broadcast over what comes before rows and columns) in memory, for :data:`FACTORS` to work on."""
    made = writer.room(shape, _WIDE)
    index = writer.loop(shape)
    own = [*index[:-2], index[-1], index[-2]] if turned else index
    writer.lines.append(f"{made.at(index)} = {cast(value, value.at(spread(value, own)), _WIDE)};")
    writer.close(shape)
    return made


def _taken(writer: Writer, work: Value, shape: Shape, out: torch.dtype, turned: bool = False) -> Value:
    """What was worked out, in the type and order that PyTorch gives."""
    if work.dtype == out and not turned:
        return work
    made = writer.room(shape, out)
    index = writer.loop(shape)
    own = [*index[:-2], index[-1], index[-2]] if turned else index
    writer.lines.append(f"{made.at(index)} = {cast(work, work.at(own), out)};")
    writer.close(shape)
    return made


def _solve(writer: Writer, a: Value, x: Value, upper: bool, ones: bool) -> None:
    *batch, size, many = x.shape
    writer.count(_cost(batch, size * size * many / 2))
    lead = writer.loop(tuple(batch))
    place = f"&{a.at([*lead, '0', '0'])}, &{x.at([*lead, '0', '0'])}"
    writer.lines.append(f"solve_triangle({place}, {size}, {many}, {int(upper)}, {int(ones)});")
    writer.close(tuple(batch))


def _factorise(writer: Writer, a: Value, x: Value | None) -> tuple[Value, Value]:
    """``a`` becomes its factors, and ``x`` what they solve; whether a pivot is zero, and the sign of their order."""
    *batch, size, _n = a.shape
    info, sign = writer.room(tuple(batch), torch.int32), writer.room(tuple(batch), _WIDE)
    swaps = writer.room((size, 1), torch.int64)
    assert swaps.base is not None
    writer.count(_cost(batch, size**3 / 3 + (0 if x is None else size * size * x.shape[-1])))
    lead = writer.loop(tuple(batch))
    place = f"&{a.at([*lead, '0', '0'])}, {swaps.base()}"
    writer.lines.append(f"{info.at(lead)} = factorise({place}, &{sign.at(lead)}, {size});")
    if x is not None:
        writer.lines.append(f"solve_factorised({place}, &{x.at([*lead, '0', '0'])}, {size}, {x.shape[-1]});")
    writer.close(tuple(batch))
    return info, sign


def _identity(shape: Shape) -> Value:
    return Value(shape, _WIDE, lambda index: f"(double)({index[-2]} == {index[-1]})")


def _nothing() -> Value:
    """A result that is not written; whoever reads it cannot be written either."""

    def at(index: Index) -> str:
        raise Unknown("factors of a matrix")

    return Value((), _WIDE, at)
