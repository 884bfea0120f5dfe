"""The energy U(θ) = −log p(θ) of a log density that a user wrote in PyTorch, and its slope, as machine code.

A density of a few parameters is some hundred operations on small tensors, and PyTorch takes microseconds for each: a
gradient of three parameters takes as long as that of a network. So the function is traced once, with its gradient,
written in C (:mod:`temperance.engine.native.emit`), built by the machine's compiler in a fraction of a second, and
compared with what it was made from. Where any of that cannot be, :class:`Unknown` says why, and PyTorch does the work.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property

from temperance.core.errors import ArgumentError
from temperance.engine.native.build import library_of
from temperance.engine.native.emit.elementwise import HELPERS
from temperance.engine.native.emit.factors import FACTORS
from temperance.engine.native.emit.operations import operation
from temperance.engine.native.emit.writer import Unknown, Written, energy_of, in_rows
from temperance.engine.native.walk import NativeEnergy, Walks

LogDensity = Callable[[Tensor], Tensor]
_TRIALS = 12  # places near the starts where machine code and PyTorch are compared
_WORTH_THREADS = 20_000  # numbers computed in a call, below which threads cost more than they do

_ONE_AT_A_TIME = threading.Lock()  # PyTorch's tracer, and what distributions look at meanwhile, are the process's

_SOURCE = """
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#define REAL {real}
#define N(name) name##_{real}
#define LOOP static __attribute__((noinline)) void
typedef struct {{
    int64_t parameters, scratch_size;
    const void *const *given;
    void *scratch;
}} plan_t;
static inline unsigned flush_subnormals(void) {{ return 0; }} /* a density may take logarithms of very small numbers */
static inline void restore_subnormals(unsigned before) {{ (void)before; }}
{helpers}
static double N(chain)(const plan_t *plan, const REAL *theta, REAL *gradient, REAL *scratch) {{
char *const bytes = (char *)scratch;
(void)bytes;
{body}
}}
#include "walk.c"
"""


class _CPlan(ctypes.Structure):
    _fields_ = [
        ("parameters", ctypes.c_int64),
        ("scratch_size", ctypes.c_int64),
        ("given", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
    ]


class NativeDensity(NativeEnergy):
    """U and ∇U of a user's log density. Made by :meth:`of`.

    >>> theta, energy = torch.ones(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    >>> try:
    ...     NativeDensity.of(lambda theta: -theta.square().sum(), theta).energies(theta, None, energy)
    ... except Unknown:  # without a compiler
    ...     energy += 3.0
    >>> float(energy)
    3.0
    """

    def __init__(self, made: Written, walks: Walks, dtype: torch.dtype, size: int) -> None:
        self._given = made.constants
        places = [tensor.data_ptr() for tensor in made.constants]
        self._table = (ctypes.c_void_p * max(1, len(places)))(*places)
        scratch = made.scratch_bytes // dtype.itemsize + 64
        plan = _CPlan(size, scratch, ctypes.addressof(self._table), None)
        threads = 64 if made.numbers >= _WORTH_THREADS else 1
        super().__init__(walks, plan, dtype, size, scratch, threads)

    @classmethod
    def of(cls, log_density: LogDensity, starts: Tensor) -> NativeDensity:
        """Machine code that agrees with ``log_density`` at the ``starts`` (C × P) and near them; raises
        :class:`Unknown` where that cannot be."""
        dtype, size = starts.dtype, starts.shape[1]
        if dtype not in (torch.float32, torch.float64) or starts.device.type != "cpu":
            raise Unknown(f"numbers of {dtype} on {starts.device}")
        works = _works(log_density, starts[0]) is None  # a real call comes first, so that what it caches is real
        try:
            with _ONE_AT_A_TIME:
                made = _written(log_density, starts[0])
        except Unknown:
            raise
        except Exception as error:  # whatever stops the tracer
            raise Unknown(_reason(error)) from error
        finally:
            if works:
                _refuse_leaks(log_density, starts[0])
        real = "float" if dtype == torch.float32 else "double"
        text = _SOURCE.format(real=real, helpers=HELPERS + FACTORS, body="\n".join(made.lines))
        library = library_of(text, Path(__file__).parent)
        if library is None:
            raise Unknown("there is no C compiler that could build it")

        def found(name: str, arguments: tuple[Any, ...]) -> Callable[..., None]:
            function: Callable[..., None] = getattr(library, name)
            function.argtypes, function.restype = list(arguments), None  # type: ignore[attr-defined]
            return function

        walks = Walks.of(found, dtype)
        assert walks is not None
        native = cls(made, walks, dtype, size)
        try:
            agrees = _agrees(native, log_density, starts)
        except Exception as error:  # of the function's own
            raise Unknown(_reason(error)) from error
        if not agrees:
            raise Unknown("what was built differs from the function, whose value may depend on more than its argument")
        return native


def _works(log_density: LogDensity, start: Tensor) -> Exception | None:
    """``None`` if a plain call gives numbers, else what is wrong."""
    try:
        float(log_density(start.clone()).detach())  # a tensor of the tracer's has no number to give
    except Exception as error:
        return error
    return None


def _refuse_leaks(log_density: LogDensity, start: Tensor) -> None:
    """A function that filled a cache while it was traced has put tensors without numbers into it, and works no more:
    not here, and not when its user calls it. Nobody can mend that from outside, so it is said."""
    error = _works(log_density, start)
    if isinstance(error, RuntimeError | TypeError | AssertionError):  # others are the function's own
        raise ArgumentError(
            "`log_density` must not keep tensors of one call for another, unless its first call makes them; got a "
            "function that worked, was traced in order to make machine code of it, and fails since "
            f"({type(error).__name__}: {str(error)[:80]}): it has kept tensors of the tracing. Make what it caches "
            "before sampling, or give compile=False, with a function whose cache is new."
        ) from error


def _reason(error: Exception) -> str:
    if "data-dependent" in str(error):
        return "its course depends on values, as with `if theta[0] > 0`; torch.where does without"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def _written(log_density: LogDensity, start: Tensor) -> Written:
    graph = _traced(log_density, start)
    theta = in_rows(lambda: "theta", tuple(start.shape), start.dtype)
    return energy_of(graph, theta, operation)


def _traced(log_density: LogDensity, start: Tensor) -> fx.Graph:
    """θ → (∇ log p, log p) in PyTorch's core operations, without control flow: where that depends on θ it raises."""
    from torch._decomp import core_aten_decompositions, get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    more = [aten._log_softmax, aten._softmax, aten._log_softmax_backward_data, aten._softmax_backward_data]
    more += [aten.mv, aten.dot, aten.addmm, aten.addmv, aten.logsumexp, aten.logaddexp, aten.index_select]
    more += [aten.linalg_vector_norm]
    table = {**core_aten_decompositions(), **get_decompositions(more), aten.var.correction: _variance}

    def value(theta: Tensor) -> Tensor:
        with _conditions() as conditions:
            found = log_density(theta)
        for condition in conditions:
            found = torch.where(condition.all(), found, -torch.inf)
        if found.shape != () or not found.is_floating_point():
            raise Unknown("a density of another shape")
        return found

    both = torch.func.functionalize(torch.func.grad_and_value(value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = make_fx(both, table, tracing_mode="fake", _allow_non_fake_inputs=True)(start.clone())
    made.graph.eliminate_dead_code()
    return made.graph


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """The variance in simpler operations: PyTorch has no decomposition of it in its core set."""
    dims = tuple(range(x.dim())) if dim is None or not list(dim) else tuple(dim)
    away = x - x.mean(dims, keepdim=True)
    count = x.numel() / max(1, x.mean(dims).numel())
    return away.square().sum(dims, keepdim=keepdim) / (count - (1 if correction is None else correction))


@contextmanager
def _conditions() -> Iterator[list[Tensor]]:
    """Distributions raise where parameters or values are outside of what they are defined for, which a function without
    control flow cannot. Here they note the condition instead; where one fails the density is none."""
    found: list[Tensor] = []
    tracer = threading.get_ident()  # other threads' distributions look as ever

    def begin(self: Distribution, batch_shape: Any = (), event_shape: Any = (), validate_args: Any = None) -> None:
        if threading.get_ident() != tracer:
            plain(self, batch_shape, event_shape, validate_args=validate_args)
            return
        plain(self, batch_shape, event_shape, validate_args=False)
        if Distribution._validate_args if validate_args is None else validate_args:
            self._validate_args = True
            for name, constraint in self.arg_constraints.items():
                derived = name not in vars(self) and isinstance(getattr(type(self), name, None), lazy_property)
                if not constraints.is_dependent(constraint) and not derived:
                    found.append(_check(constraint, getattr(self, name)))

    def look(self: Distribution, value: Any) -> None:
        if threading.get_ident() != tracer:
            check(self, value)
        elif isinstance(value, Tensor) and self.support is not None:
            found.append(_check(self.support, value))

    plain, check = Distribution.__init__, Distribution._validate_sample
    Distribution.__init__, Distribution._validate_sample = begin, look  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Distribution.__init__, Distribution._validate_sample = plain, check  # type: ignore[method-assign]


def _check(constraint: Any, value: Tensor) -> Tensor:
    """The constraint's own check; that of a positive definite matrix asks in between whether it is symmetric, which is
    a decision on values, and is put together here without it."""
    if type(constraint) is not type(constraints.positive_definite):
        found: Tensor = constraint.check(value)
        return found
    symmetric = torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)
    return symmetric & torch.linalg.cholesky_ex(value).info.eq(0)


def _agrees(native: NativeDensity, log_density: LogDensity, starts: Tensor) -> bool:
    """Whether value and slope are those of PyTorch, at the starts and at places around them."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(_TRIALS, starts.shape[1], generator=rng, dtype=starts.dtype)
    near = starts[torch.arange(_TRIALS) % len(starts)]
    widths = torch.tensor([1e-2, 0.3, 1.0, 3.0], dtype=starts.dtype).repeat(_TRIALS // 4).unsqueeze(1)
    places = torch.cat([starts, near + widths * noise]).contiguous()
    energy, slope = torch.empty(len(places), dtype=torch.float64), torch.empty_like(places)
    native.energies(places, slope, energy)
    alone = torch.empty_like(energy)
    native.potentials(places, alone)
    if not torch.equal(energy.nan_to_num(), alone.nan_to_num()):
        return False
    tolerance = 1e-8 if starts.dtype == torch.float64 else 1e-3
    for k, place in enumerate(places):
        leaf = place.clone().requires_grad_()
        try:
            value = log_density(leaf)
        except Exception:
            if bool(torch.isfinite(energy[k])):
                return False
            continue
        (wanted,) = torch.autograd.grad(value, leaf, allow_unused=True) if value.requires_grad else (None,)
        wanted = torch.zeros_like(leaf) if wanted is None else wanted
        value = -value.detach().double()
        if bool(torch.isfinite(value)) != bool(torch.isfinite(energy[k])):
            return False
        if not bool(torch.isfinite(value)):
            continue
        if not torch.allclose(value, energy[k], rtol=tolerance, atol=tolerance):
            return False
        scale = float(wanted.abs().max().nan_to_num(0.0, 0.0, 0.0)) + float(value.abs()) * 1e-3
        if not torch.allclose(-wanted, slope[k], rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return False
    return True
