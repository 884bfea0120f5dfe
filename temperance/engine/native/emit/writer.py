"""A graph of tensor operations as the text of a C function.

Every value knows how to write the number at an index: elementwise operations and views write no loop of their own but
become part of the expression of whoever reads them, and are put into memory only where they would be computed twice.
What is left are loops over reductions, products and results, which a compiler turns into vector instructions. What is
known before the function is called (data, and whatever is computed of data alone) is computed here, once.

Operations that are not in the table of :mod:`temperance.engine.native.emit.operations` raise :class:`Unknown`; nothing
is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

Index = Sequence[str]
Shape = tuple[int, ...]

C_TYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}
_LONGEST = 4000  # characters of an expression, before it is put into memory
_MOST_NUMBERS = 2**22  # computed in one call; beyond that PyTorch's own kernels gain
_MOST_NODES = 20_000  # a compiler takes half a minute for more


class Unknown(Exception):
    """A graph that cannot be written in C here."""


@dataclass
class Value:
    """A tensor: ``at`` writes the number at an index, and ``cost`` says how long that text is. What is ``in_memory``
    need not be computed again; if it is there row by row, ``base`` writes where. ``constant`` is what does not depend
    on the input."""

    shape: Shape
    dtype: torch.dtype
    at: Callable[[Index], str]
    in_memory: bool = False
    base: Callable[[], str] | None = None
    cost: int = 0
    constant: Tensor | None = None

    @property
    def numel(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def c_type(self) -> str:
        """What C calls its numbers."""
        return C_TYPES[self.dtype]


@dataclass
class Written:
    """The body of a function of ``theta`` (and ``scratch``, bytes), with the tensors that it reads by number."""

    lines: list[str]
    constants: list[Tensor]
    scratch_bytes: int
    numbers: int


@dataclass
class Writer:
    """Writes node after node; ``values`` are those of the nodes so far, and ``operation`` finds what writes one."""

    operation: Callable[[fx.Node], Callable[..., Any]]
    lines: list[str] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    scratch_bytes: int = 0
    numbers: int = 0
    made: int = 0

    # ------------------------------------------------------------------ memory

    def given(self, tensor: Tensor) -> Value:
        """A tensor that is known now: a number in the text, or a place that the function is handed."""
        tensor = tensor.detach()
        if tensor.dtype not in C_TYPES or tensor.device.type != "cpu":
            raise Unknown(f"a tensor of {tensor.dtype} on {tensor.device}")
        shape = tuple(tensor.shape)
        if not tensor.numel():
            raise Unknown("a tensor without numbers")
        first = tensor.flatten()[0]
        if bool((tensor == first).all()) and bool((torch.signbit(tensor) == torch.signbit(first)).all()):
            text = number(first.item(), tensor.dtype)
            return Value(shape, tensor.dtype, lambda index: text, constant=tensor)
        place: list[int] = []

        def base() -> str:  # handed over once it is read: much is known that only other constants needed
            if not place:
                place.append(len(self.constants))
                self.constants.append(tensor.contiguous().clone())
            return f"((const {C_TYPES[tensor.dtype]} *)plan->given[{place[0]}])"

        return in_rows(base, shape, tensor.dtype, tensor)

    def room(self, shape: Shape, dtype: torch.dtype) -> Value:
        """Memory for a tensor, to be written by the caller."""
        self.made += 1
        name, c_type = f"v{self.made}", C_TYPES[dtype]
        if math.prod(shape) == 1:
            self.lines.append(f"{c_type} {name};")
            return Value(shape, dtype, lambda index: name, True, lambda: f"(&{name})")
        place = self.scratch_bytes
        self.scratch_bytes += -(-math.prod(shape) * dtype.itemsize // 64) * 64
        self.lines.append(f"{c_type} *restrict const {name} = ({c_type} *)(bytes + {place});")
        return in_rows(lambda: name, shape, dtype)

    def keep(self, value: Value) -> Value:
        """The same value in memory, or as the number that it is."""
        if value.in_memory or value.constant is not None:
            return value
        made = self.room(value.shape, value.dtype)
        index = self.loop(value.shape)
        self.lines.append(f"{made.at(index)} = {value.at(index)};")
        self.close(value.shape)
        return made

    def loop(self, shape: Shape, letter: str = "i") -> list[str]:
        """Open a loop for each dimension that has more than one place; the index within."""
        self.count(math.prod(shape))
        index = []
        for k, size in enumerate(shape):
            if size == 1:
                index.append("0")
                continue
            name = f"{letter}{k}"
            self.lines.append(f"for (int64_t {name} = 0; {name} < {size}; {name}++) {{")
            index.append(name)
        return index

    def count(self, numbers: int) -> None:
        """So many more are computed."""
        self.numbers += numbers
        if self.numbers > _MOST_NUMBERS:
            raise Unknown("too much work for one function")

    def close(self, shape: Shape) -> None:
        """Close what :meth:`loop` opened."""
        self.lines.append("}" * sum(size != 1 for size in shape))

    # ------------------------------------------------------------------ nodes

    def write(self, graph: fx.Graph, inputs: Sequence[Value], at_node: Callable[[fx.Node, Value], None]) -> list[Value]:
        """All nodes in order; the values of what the graph returns. ``at_node`` is told of each as it is made."""
        if len(graph.nodes) > _MOST_NODES:
            raise Unknown("too many operations")
        given = iter(inputs)
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(given)
            elif node.op == "get_attr":
                self.values[node] = self.given(getattr(graph.owning_module, str(node.target)))
            elif node.op == "output":
                return [self.values[made] for made in node.args[0]]
            else:
                self.values[node] = self._call(node)
                if isinstance(self.values[node], Value):
                    at_node(node, self.values[node])
        raise Unknown("a graph without an end")

    def _call(self, node: fx.Node) -> Any:
        known = lambda a: self.values[a] if isinstance(a, fx.Node) else a  # noqa: E731
        args = map_aggregate(node.args, known)
        options = dict(map_aggregate(node.kwargs, known))
        folded = _folded(node, args, options)
        if folded is not None:
            return self.given(folded) if isinstance(folded, Tensor) else folded
        made = self.operation(node)(self, node, *args, **options)
        if not isinstance(made, Value):  # several, or nothing
            return made
        if made.shape != tuple(node.meta["val"].shape) or not made.numel:
            raise Unknown(f"{node.target} without numbers, or with a shape of its own")
        if made.in_memory or made.constant is not None:
            return made
        often = made.numel == 1 or made.cost > _LONGEST or _is_read_twice(node)
        return self.keep(made) if made.cost and often else made


def energy_of(graph: fx.Graph, theta: Value, operation: Callable[[fx.Node], Callable[..., Any]]) -> Written:
    """A graph from θ to (∇ log p, log p) as C that returns U = −log p, and writes ∇U into ``gradient`` unless that is
    null."""
    writer = Writer(operation)
    ends = next(n for n in graph.nodes if n.op == "output").args[0]

    def after(node: fx.Node, value: Value) -> None:
        if node is ends[1]:
            kept = writer.keep(value)
            writer.lines.append(f"if (!gradient) return -(double){kept.at([])};")

    slope, value = writer.write(graph, [theta], after)
    if value.constant is not None:  # it was no operation
        writer.lines.append(f"if (!gradient) return -(double){value.at([])};")
    index = writer.loop(slope.shape)
    writer.lines.append(f"gradient[{index[0]}] = -{cast(slope, slope.at(index), theta.dtype)};")
    writer.close(slope.shape)
    writer.lines.append(f"return -(double){writer.keep(value).at([])};")
    return Written(writer.lines, writer.constants, writer.scratch_bytes, writer.numbers)


def _folded(node: fx.Node, args: Any, options: dict[str, Any]) -> Any:
    """The operation's result where all that it reads is known now; ``None`` where it is not."""
    seen: list[Value] = []

    def open_up(a: Any) -> Any:
        if isinstance(a, Value):
            seen.append(a)
            return a.constant if a.constant is not None else a
        return a

    plain, named = map_aggregate(args, open_up), map_aggregate(options, open_up)
    if any(value.constant is None for value in seen) or not callable(node.target):
        return None
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise Unknown("random numbers")
    with torch.no_grad():
        return node.target(*plain, **named)


_FREE = (
    "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "t", "alias", "detach", "clone", "select",
    "slice", "lift_fresh_copy",
)  # fmt: skip


def name_of(node: fx.Node) -> str:
    """What the operation is called, without its overload."""
    return str(node.target).removeprefix("aten.").split(".")[0]


def _is_read_twice(node: fx.Node) -> bool:
    """Whether numbers would be computed more than once if they were not kept: by several readers, or by one that reads
    each of them often."""
    if len(node.users) != 1:
        return True
    (user,) = node.users
    if user.op == "output":
        return False
    name = name_of(user)
    if name in _FREE:
        return _is_read_twice(user)
    return name in ("expand", "mm", "bmm", "index", "index_put", "gather", "cumsum", "cat", "repeat") or (
        getattr(user.meta["val"], "shape", None) != node.meta["val"].shape
        and name not in ("sum", "mean", "amax", "amin", "prod")
    )


# ---------------------------------------------------------------------- words of C


def number(value: Any, dtype: torch.dtype) -> str:
    """A number as C has it, to the last bit."""
    if not dtype.is_floating_point:
        return f"INT64_C({int(value)})" if int(value) > -(2**63) else "INT64_MIN"
    value = float(value)
    text = "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "(-INFINITY)") if math.isinf(value) else ""
    return f"(({C_TYPES[dtype]}){text or value.hex()})"


def cast(value: Value, text: str, dtype: torch.dtype) -> str:
    """The text of a number in another type."""
    if value.dtype == dtype:
        return text
    if dtype == torch.bool:
        return f"(({text}) != 0)"
    return f"(({C_TYPES[dtype]})({text}))"


def in_rows(base: Callable[[], str], shape: Shape, dtype: torch.dtype, constant: Tensor | None = None) -> Value:
    """Numbers in memory, row by row."""

    def at(index: Index) -> str:
        return f"{base()}[{flat_index(index, shape)}]"

    return Value(shape, dtype, at, True, base, constant=constant)


def flat_index(index: Index, shape: Shape) -> str:
    """The place of an index in memory."""
    places: list[str] = []
    stride = 1
    for size, i in zip(reversed(shape), reversed(index), strict=True):
        if size != 1 and i != "0":
            places.append(i if stride == 1 else f"({i}) * {stride}")
        stride *= size
    return " + ".join(reversed(places)) or "0"
