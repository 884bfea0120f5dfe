"""What evaluates a problem: networks at many θ, energies, compilation, C kernels. Users need none of it by name;
those who write methods meet :class:`Engine`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from temperance.core.demand import on_demand as _on_demand

if _TYPE_CHECKING:  # imported when it is used: the engine stands above the model, which uses smaller parts of this room
    from temperance.engine.engine import Engine

    __all__ = ["Engine"]

_find = _on_demand(__name__, {"Engine": "engine"})


def __getattr__(name: str) -> _Any:
    return _find(name)
