"""The numbers of a run as TensorBoard events: afterwards, or while it runs.

write_tensorboard(fitted, "logs/first", test=test)

with TensorBoardLogger("logs/second", checkpoint="run"):          # live: looks at the checkpoint as it is written
    fitted = tp.fit(target, method, train, epochs=100, checkpoint="run")
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import ArgumentError, StoreError
from temperance.data.data import Data
from temperance.judge.diagnose.chains import chains_of, evenly
from temperance.model.theta import Layout
from temperance.posteriors import Trace
from temperance.run import store
from temperance.run.fitted import Fitted
from temperance.run.parts import info_in

_HISTORIES = {"losses": "train/loss", "held_out_scores": "train/held_out_score", "elbos": "train/elbo"}


def write_tensorboard(
    fitted: Fitted,
    folder: str | Path,
    *,
    test: Any = None,
    figures: Mapping[str, Any] | None = None,
    most: int = 1000,
) -> None:
    """Write what a finished run has to tell into ``folder``, for ``tensorboard --logdir``.

    * by epoch: ``train/loss``, ``train/held_out_score``, ``train/elbo``;
    * by step, for each chain of a sampler: the loss of the batch, kinetic and configurational temperature next to the
      one wished for, acceptance, and where it tells of each transition its energy, step size and divergences so far;
    * with ``test``: the scores of :meth:`Fitted.evaluate`, and a figure of calibration;
    * method and target as text.

    Args:
        fitted: what ``fit`` returned.
        folder: where the events go; TensorBoard shows each folder as a run.
        test: data with known answers.
        figures: figures of matplotlib, by name.
        most: at most so many points of each series of a sampler, evenly spaced.

    >>> import tempfile
    >>> import temperance as tp
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=1.0), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.MAP(lr=1e-2), (torch.ones(5, 1), torch.ones(5, 1)), epochs=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensorboard(fitted, folder)
    ...     len(list(Path(folder).glob("events*")))
    1
    """
    if not isinstance(fitted, Fitted):
        raise ArgumentError(f"`fitted` must be what `fit` returned; got {type(fitted).__name__}.")
    check_count(most, "most")
    with _writer(folder) as writer:
        writer.add_text("method", repr(fitted.method))
        writer.add_text("target", repr(fitted.target))
        for name, tag in _HISTORIES.items():
            _series(writer, tag, range(1, len(getattr(fitted.info, name)) + 1), getattr(fitted.info, name))
        traces = _traces(fitted)
        for k, trace in enumerate(traces):
            prefix = "sampler" if len(traces) == 1 else f"sampler/chain_{k + 1}"
            for tag, steps, values in _told(trace, fitted.target.layout, fitted.info.steps):
                kept = evenly(len(values), most)
                _series(writer, f"{prefix}/{tag}", steps[kept].tolist(), values[kept].tolist())
        if test is not None:
            known = Data.of(test, "test")
            for name, value in fitted.evaluate(known).items():
                writer.add_scalar(f"test/{name}", value, fitted.info.steps)
            writer.add_figure("calibration", _calibration(fitted, known))
        for name, figure in (figures or {}).items():
            writer.add_figure(name, figure)


class TensorBoardLogger:
    """Follows a run through its checkpoint, from a thread that reads the manifest now and then: losses, held-out scores
    and the ELBO of each epoch appear in TensorBoard while ``fit`` runs, in this process or in another.

    Args:
        folder: where the events go.
        checkpoint: the folder given to ``fit``; it need not be there yet.
        seconds: between two looks.

    >>> import tempfile
    >>> import temperance as tp
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=1.0), tp.GaussianPrior(scale=1.0))
    >>> data = (torch.ones(5, 1), torch.ones(5, 1))
    >>> with tempfile.TemporaryDirectory() as folder, TensorBoardLogger(folder, folder + "/run") as logger:
    ...     _ = tp.fit(target, tp.MAP(lr=1e-2), data, epochs=3, checkpoint=folder + "/run")
    ...     logger.look()
    3
    """

    def __init__(self, folder: str | Path, checkpoint: str | Path, seconds: float = 5.0) -> None:
        self.folder, self.checkpoint = Path(folder), Path(checkpoint)
        self.seconds = check_positive(seconds, "seconds")
        self._written = dict.fromkeys(_HISTORIES, 0)
        self._writer: Any = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> TensorBoardLogger:
        self._writer = _writer(self.folder)
        self._ended.clear()
        self._thread = threading.Thread(target=self._follow, name="temperance-tensorboard", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.look()
        self._writer.close()

    def _follow(self) -> None:
        while not self._ended.wait(self.seconds):
            self.look()

    def look(self) -> int:
        """Write what is new; how many epochs have been written by now."""
        with self._lock:
            try:
                info = info_in(store.open_run(self.checkpoint))
            except (StoreError, OSError):  # not begun yet
                return self._written["losses"]
            for name, tag in _HISTORIES.items():
                begun = self._written[name]
                history = getattr(info, name)
                _series(self._writer, tag, range(begun + 1, len(history) + 1), history[begun:])
                self._written[name] = len(history)
            self._writer.flush()
            return self._written["losses"]


def _writer(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError('TensorBoard is needed: pip install "temperance[tensorboard]".') from error
    return SummaryWriter(str(folder))


def _series(writer: Any, tag: str, steps: Sequence[int], values: Sequence[float]) -> None:
    for step, value in zip(steps, values, strict=True):
        if not math.isnan(value):
            writer.add_scalar(tag, value, step)


def _traces(fitted: Fitted) -> list[Trace]:
    try:
        return [chain.trace for chain in chains_of(fitted.posterior) if chain.trace is not None]
    except ArgumentError:  # no sampler
        return []


def _told(trace: Trace, layout: Layout, steps: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, steps, values): the readings of a chain, and what it told of each transition."""
    share = torch.tensor([entry.size for entry in layout.entries], dtype=torch.float64) / layout.size
    yield "batch_loss", trace.step, trace.loss
    yield "temperature", trace.step, trace.temperature
    yield "kinetic_temperature", trace.step, trace.kinetic.double().cpu() @ share
    yield "configurational_temperature", trace.step, trace.configurational.double().cpu() @ share
    if trace.transitions is None:
        if trace.acceptance is not None:
            yield "acceptance", trace.step, trace.acceptance
        return
    told = trace.transitions
    at = torch.arange(len(told.energy)) + steps - len(told.energy) + 1
    yield "energy", at, told.energy
    yield "acceptance", at, told.acceptance
    yield "leapfrogs", at, told.leapfrogs.double()
    yield "step_size", at, told.step_size
    yield "divergences", at, told.divergent.long().cumsum(0).double()


def _calibration(fitted: Fitted, known: Data) -> Any:
    from matplotlib.figure import Figure

    from temperance.show.plot.calibration import CALIBRATION

    figure = Figure(figsize=(4.5, 4.0), layout="constrained")
    predictive = fitted.predict(known.x)
    CALIBRATION.of(predictive.outcome)(predictive, known.y, figure.add_subplot())
    return figure
