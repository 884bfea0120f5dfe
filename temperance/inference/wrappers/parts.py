"""Runs of two parts: how long each is, and what a step of either sees."""

from __future__ import annotations

from dataclasses import replace

import torch

from temperance.core.errors import ArgumentError, MismatchError
from temperance.data.data import Batch
from temperance.data.sources import map_tensors


def split_run(steps: int | None, share: float) -> int:
    """How many steps the first of two parts has: ``share`` of all, at least one, and one is left."""
    if steps is None:
        raise ArgumentError("`total_steps` must be known: the run has two parts; got a batch without it.")
    if steps < 2:
        raise ArgumentError(f"`steps` must be at least 2, for the run has two parts; got {steps}.")
    return min(max(1, round(share * steps)), steps - 1)


def check_same_length(then: int | None, now: int | None) -> None:
    """The length of a run decides where its second part begins, so it cannot change on the way."""
    if then not in (None, now):
        raise MismatchError(
            f"the run was begun with {then} steps, which decides where its second part begins, and cannot go on to "
            f"{now}."
        )


def first_part(batch: Batch, first: int) -> Batch:
    """A batch that knows its place in a run of ``first`` steps."""
    return replace(batch, total_steps=first, progress=batch.step / first)


def second_part(batch: Batch, first: int) -> Batch:
    """A batch that counts from step ``first`` on."""
    if not first:
        return batch
    assert batch.total_steps is not None
    total, step = batch.total_steps - first, batch.step - first
    epochs = first // batch.steps_per_epoch if batch.steps_per_epoch else 0
    return replace(batch, step=step, total_steps=total, progress=step / total, epoch=batch.epoch - epochs)


def streams_of(batch: Batch, streams: int) -> Batch:
    """The first so many of a batch's streams."""
    if batch.streams is None or batch.streams == streams:
        return batch
    return batch.stream(0) if streams == 1 else batch.stream_range(0, streams)


def some_rows(batch: Batch, size: int, streams: int, rng: torch.Generator) -> Batch:
    """Of a batch that holds all data ``size`` rows at random for each of so many streams, with epochs of as many steps
    as cover all."""
    size = min(size, batch.size)
    every = -(-batch.size // size)
    drawn = [torch.randperm(batch.size, generator=rng)[:size] for _ in range(streams)]
    rows = torch.stack(drawn) if streams > 1 else drawn[0]
    return replace(
        batch,
        x=map_tensors(lambda t: t[rows.to(t.device)], batch.x),
        y=batch.y[rows.to(batch.y.device)],
        index=None if batch.index is None else batch.index[rows.to(batch.index.device)],
        weights=None if batch.weights is None else batch.weights[rows.to(batch.weights.device)],
        epoch=batch.step // every,
        last=(batch.step + 1) % every == 0,
        steps_per_epoch=every,
        streams=streams if streams > 1 else None,
    )
