"""Ctrl-C, without losing what was learned."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class GracefulInterrupt:
    """Turns the first Ctrl-C into a wish that the loop looks at between steps; the second interrupts at once."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: Any = None

    def __enter__(self) -> GracefulInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if callable(self._before):
                signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            # Put back here too: an exception that comes before the block is entered is not followed by its end.
            signal.signal(signal.SIGINT, self._before)
            raise KeyboardInterrupt
        self.wanted = True

    def __exit__(self, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)
