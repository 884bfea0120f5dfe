"""The jobs. Every module of this folder that has a list ``JOBS`` takes part; nothing needs to be registered."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.harness import Job


def discover() -> list[Job]:
    """Return the jobs of all modules here, in the order of the modules' names."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    jobs = [job for name in modules for job in getattr(importlib.import_module(f"{__name__}.{name}"), "JOBS", [])]
    names = [job.name for job in jobs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"job names must be unique, but these are not: {', '.join(twice)}")
    return jobs
