"""Operations number by number, and tensors made of nothing, in C."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import fx

from temperance.engine.native.emit.writer import C_TYPES, Index, Shape, Unknown, Value, Writer, cast, name_of, number

# {0}, {1}, ... are the operands, {f} is the suffix of C's functions of one precision
ELEMENTWISE = {
    "neg": "(-{0})", "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})",
    "exp": "exp{f}({0})", "exp2": "exp2{f}({0})", "expm1": "expm1{f}({0})", "log": "log{f}({0})",
    "log1p": "log1p{f}({0})", "log2": "log2{f}({0})", "log10": "log10{f}({0})", "sqrt": "sqrt{f}({0})",
    "rsqrt": "(1 / sqrt{f}({0}))", "reciprocal": "(1 / {0})", "abs": "fabs{f}({0})", "sin": "sin{f}({0})",
    "cos": "cos{f}({0})", "tan": "tan{f}({0})", "asin": "asin{f}({0})", "acos": "acos{f}({0})",
    "atan": "atan{f}({0})", "atan2": "atan2{f}({0}, {1})", "sinh": "sinh{f}({0})", "cosh": "cosh{f}({0})",
    "tanh": "tanh{f}({0})", "asinh": "asinh{f}({0})", "acosh": "acosh{f}({0})", "atanh": "atanh{f}({0})",
    "erf": "erf{f}({0})", "erfc": "erfc{f}({0})", "lgamma": "log_gamma({0})", "digamma": "digamma({0})",
    "sigmoid": "(1 / (1 + exp{f}(-({0}))))", "relu": "greater(0, {0})", "sign": "sign({0})", "sgn": "sign({0})",
    "floor": "floor{f}({0})", "ceil": "ceil{f}({0})", "round": "rint{f}({0})", "trunc": "trunc{f}({0})",
    "hypot": "hypot{f}({0}, {1})", "minimum": "lesser({0}, {1})", "maximum": "greater({0}, {1})",
    "square": "square({0})",
}  # fmt: skip
JUDGEMENTS = {
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})", "le": "({0} <= {1})", "gt": "({0} > {1})",
    "ge": "({0} >= {1})", "logical_and": "(({0} != 0) & ({1} != 0))", "logical_or": "(({0} != 0) | ({1} != 0))",
    "logical_not": "({0} == 0)", "logical_xor": "(({0} != 0) != ({1} != 0))", "isnan": "({0} != {0})",
    "isinf": "(fabs({0}) == INFINITY)",
}  # fmt: skip
BITS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_not": "logical_not"}

HELPERS = """
static inline double square(double x) { return x * x; }
static inline double cube(double x) { return x * x * x; }
static inline double lesser(double a, double b) { return a < b || a != a ? a : b; }
static inline double greater(double a, double b) { return a > b || a != a ? a : b; }
static inline double sign(double x) { return x != x ? x : (x > 0) - (x < 0); }
static inline double log_gamma(double x) { int sign; return lgamma_r(x, &sign); }
static inline int64_t within(int64_t i, int64_t size) { return i < 0 ? i + size : i; }
static double trigamma(double x) {
    double found = 0;
    if (x <= 0) return x == floor(x) ? INFINITY : square(M_PI / sin(M_PI * (x - floor(x)))) - trigamma(1 - x);
    for (; x < 12; x += 1) found += 1 / (x * x);
    double u = 1 / (x * x);
    found += 1 / x + 0.5 * u;
    return found + u / x * (1. / 6 - u * (1. / 30 - u * (1. / 42 - u * (1. / 30 - u * (5. / 66 - u * 691. / 2730)))));
}
static double digamma(double x) {
    double found = 0;
    if (x <= 0) {
        if (x == 0) return copysign(INFINITY, -x);
        if (x == floor(x)) return NAN;
        return digamma(1 - x) - M_PI / tan(M_PI * (x - floor(x)));
    }
    for (; x < 12; x += 1) found -= 1 / x;
    double u = 1 / (x * x);
    found += log(x) - 0.5 / x;
    return found - u * (1. / 12 - u * (1. / 120 - u * (1. / 252 - u * (1. / 240 - u * (1. / 132 - u * 691. / 32760)))));
}
"""


def out_of(node: fx.Node, place: int | None = None) -> tuple[Shape, torch.dtype]:
    """Shape and type of what a node gives, or of one of the several that it gives."""
    meta = node.meta["val"] if place is None else node.meta["val"][place]
    return tuple(meta.shape), meta.dtype


def operand(writer: Writer, given: Any, dtype: torch.dtype) -> Value:
    """A tensor, or a number as one."""
    if isinstance(given, Value):
        return given
    text = number(given, dtype)
    return Value((), dtype, lambda index: text)


def spread(value: Value, index: Index) -> Index:
    """The index of a value that is broadcast."""
    own = index[len(index) - len(value.shape) :]
    return ["0" if size == 1 else i for size, i in zip(value.shape, own, strict=True)]


def by_template(template: str, operands: Sequence[Value], within: torch.dtype, shape: Shape, out: torch.dtype) -> Value:
    """A text of C with the operands in it."""
    suffix = "f" if within == torch.float32 else ""

    def at(index: Index) -> str:
        texts = [cast(v, v.at(spread(v, index)), within) for v in operands]
        text = template.format(*texts, f=suffix)
        if out == torch.bool:
            return f"({text} != 0)"
        if not out.is_floating_point:  # so that it wraps around where C's own wider type would not
            return f"(({C_TYPES[out]}){text})"
        helped = within == torch.float32 and out == torch.float32 and not suffix_used
        return f"((float){text})" if helped else text

    suffix_used = "{f}" in template
    cost = sum(v.cost for v in operands) + len(template)
    return Value(shape, out, at, cost=cost)


def _computed_in(operands: Sequence[Any], out: torch.dtype) -> torch.dtype:
    """The type that a comparison promotes its operands to."""
    tensors = [v.dtype for v in operands if isinstance(v, Value)]
    dtype = reduce(torch.promote_types, tensors)
    if not dtype.is_floating_point and any(isinstance(v, float) for v in operands):
        return torch.float64
    return torch.int64 if dtype == torch.bool else dtype


def elementwise(writer: Writer, node: fx.Node, *operands: Any, **options: Any) -> Value:
    """One of the tables above."""
    shape, out = out_of(node)
    name = name_of(node)
    if name in BITS:
        if out != torch.bool:
            raise Unknown(f"{name} of numbers")
        name = BITS[name]
    judges = name in JUDGEMENTS
    within = _computed_in(operands, out) if judges else out
    alpha = options.pop("alpha", 1)
    if options.pop("rounding_mode", None) is not None or options.pop("decimals", 0) or set(options) - {"dtype"}:
        raise Unknown(f"{name} with {sorted(options)}")
    if name == "round" and len(operands) > 1:
        raise Unknown("round to decimals")
    if not judges and not out.is_floating_point and name not in ("neg", "add", "sub", "mul"):
        raise Unknown(f"{name} of whole numbers")
    values = [operand(writer, v, within) for v in operands]
    if alpha != 1:
        factor = operand(writer, alpha, within)
        values[1] = by_template("({0} * {1})", [values[1], factor], within, values[1].shape, within)
    if name == "isnan":  # its operand stands there twice
        values = [writer.keep(values[0])]
    template = (JUDGEMENTS if judges else ELEMENTWISE)[name]
    return by_template(template, values, within, shape, out)


_POWERS = {0: "1.0", 1: "{0}", 2: "square({0})", 3: "cube({0})", 0.5: "sqrt{f}({0})", -1: "(1 / {0})"}
_POWERS |= {-2: "(1 / square({0}))", -0.5: "(1 / sqrt{f}({0}))"}


def power(writer: Writer, node: fx.Node, base: Any, exponent: Any) -> Value:
    """A tensor to a power."""
    shape, out = out_of(node)
    if not out.is_floating_point:
        raise Unknown("powers of whole numbers")
    if isinstance(exponent, int | float) and exponent in _POWERS:
        return by_template(_POWERS[exponent], [base], out, shape, out)
    values = [operand(writer, v, out) for v in (base, exponent)]
    return by_template("pow{f}({0}, {1})", values, out, shape, out)


def polygamma(writer: Writer, node: fx.Node, order: int, value: Value) -> Value:
    """The derivative of digamma; the others are not known."""
    shape, out = out_of(node)
    if order != 1:
        raise Unknown(f"polygamma of order {order}")
    return by_template("trigamma({0})", [value], out, shape, out)


def write_copy(writer: Writer, node: fx.Node, value: Value, source: Value, *_: Any) -> Value:
    """``source`` in the shape and type of ``value``."""
    shape, out = out_of(node)
    return Value(shape, out, lambda index: cast(source, source.at(spread(source, index)), out), cost=source.cost + 8)


def write_where(writer: Writer, node: fx.Node, condition: Value, one: Any, other: Any) -> Value:
    """One or the other."""
    shape, out = out_of(node)
    one, other = operand(writer, one, out), operand(writer, other, out)

    def at(index: Index) -> str:
        texts = [cast(v, v.at(spread(v, index)), out) for v in (one, other)]
        return f"({condition.at(spread(condition, index))} ? {texts[0]} : {texts[1]})"

    return Value(shape, out, at, cost=condition.cost + one.cost + other.cost + 8)


def clamp(writer: Writer, node: fx.Node, value: Value, least: Any = None, greatest: Any = None, **more: Any) -> Value:
    """Between bounds."""
    shape, out = out_of(node)
    least, greatest = more.get("min", least), more.get("max", greatest)
    made = value
    for bound, template in ((least, "greater({0}, {1})"), (greatest, "lesser({0}, {1})")):
        if bound is not None:
            made = by_template(template, [made, operand(writer, bound, out)], out, shape, out)
    return made


def write_same(writer: Writer, node: fx.Node, value: Value, *_: Any, **__: Any) -> Value:
    """As it is, or in another type."""
    shape, out = out_of(node)
    if out == value.dtype:
        return value
    return Value(shape, out, lambda index: cast(value, value.at(index), out), cost=value.cost + 8)


# ---------------------------------------------------------------------- made of nothing


def write_full(writer: Writer, node: fx.Node, shape: Any, fill: Any = 0, **_: Any) -> Value:
    """``full`` and ``full_like`` alike."""
    shape, out = out_of(node)
    if isinstance(fill, Value):
        return Value(shape, out, lambda index: cast(fill, fill.at([]), out), cost=fill.cost + 1)
    text = number(fill, out)
    return Value(shape, out, lambda index: text)


def write_empty(writer: Writer, node: fx.Node, *_: Any, **__: Any) -> Value:
    """Memory that will be written to before it is read."""
    return write_full(writer, node, ())
