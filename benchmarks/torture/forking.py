"""Processes of their own for trials, forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

REAL = {name: getattr(os, name) for name in ("replace", "fsync", "unlink", "mkdir", "rmdir", "kill", "_exit")}


def fork(work: Callable[[], Any], words: Path | None = None) -> int:
    """A child that does ``work``, in a process group of its own so that a Ctrl-C at the terminal is the parent's."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        handle = os.open(os.devnull if words is None else words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        warnings.simplefilter("ignore")
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        REAL["_exit"](code)
    raise AssertionError("unreachable")


def in_child(work: Callable[[], Any]) -> None:
    """Do something that trains, and so is not for the process that forks."""
    _, status = os.waitpid(fork(work), 0)
    if status:
        raise RuntimeError("a run that others are compared with could not be made")
