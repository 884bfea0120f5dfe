"""``make torture``: runs of every method are killed and interrupted at random, and must not show it."""

from benchmarks.torture.many import main

__all__ = ["main"]
