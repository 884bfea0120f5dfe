"""A run under way: its steps, its checkpoints, and its end. :func:`temperance.run.fit.fit` is the only caller."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.core import files
from temperance.core.checks import check_path, real
from temperance.core.encoding import restore
from temperance.core.errors import CorruptRunError, MismatchError, NumericalError, StoreError, TemperanceWarning
from temperance.core.interrupts import GracefulInterrupt
from temperance.core.progress import ProgressBar
from temperance.core.seeds import generator
from temperance.core.status import EARLY_STOPPED, INTERRUPTED, OK, UNFINISHED, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Inference, Info, NeedsData, Starts
from temperance.run import store
from temperance.run.fitted import Fitted
from temperance.run.loading import check_same_network, load
from temperance.run.parts import RunInfo, describe, info_in, value_part

_DIGESTS = {
    "method": "the method",
    "target": "the target (likelihood, prior, temperature or subset)",
    "data": "the data",
    "held_out": "the held-out data",
    "start": "the start",
}


class Loop:
    """A run under way: everything that :func:`fit` keeps between steps."""

    def __init__(
        self,
        engine: Engine,
        method: Inference[Any],
        data: Data,
        held_out: Data | None,
        rows: int,
        per_epoch: int,
        total: int,
        seed: int,
        run: dict[str, Any],
        checkpoint: str | Path | None,
        every: int,
    ) -> None:
        self.engine, self.method, self.held_out = engine, method, held_out
        self.data = data if held_out is None else data.keeping_apart(held_out)
        self.facts = method.facts()
        self.rows, self.per_epoch, self.total, self.seed = rows, per_epoch, total, seed
        self.settings = run
        self.path = None if checkpoint is None else check_path(checkpoint, "checkpoint")
        if self.path is not None:
            store.check_one_writer(self.path, "checkpoint")
        self.every = every
        self.state: Any = None
        self.info = RunInfo(total_steps=total, data={"rows": len(data), "name": data.info.name})
        # Of rows: the sum of losses and the number, within the epoch under way.
        self.epoch_loss: list[float] = [0.0, 0.0]
        self.finished: Fitted | None = None
        self.torn = False
        self.background = store.Background()
        self.given: tuple[Data | None, Data | None] = (None, None)  # as the caller brought them, for reports

    # ------------------------------------------------------------------ before the first step

    def prepare(self, theta: Tensor | None) -> None:
        """The state to start from: new, or as the checkpoint has it."""
        resumable = self.path is not None and files.is_file(self.path / store.MANIFEST)
        if not resumable:
            self.state = self._begin(theta)
            if self.path is not None:
                self.method.keep_in(self.state, self.path)
                self.save_unbroken()  # a folder that cannot be written to is found out now, not after the first epoch
            return
        assert self.path is not None
        saved = store.open_run(self.path)
        store.tidy(saved)
        if not saved.has("state"):
            raise MismatchError(
                f"the folder {str(self.path)!r} holds a result written by `save`, from which no run can go on; choose "
                "another folder for `checkpoint`."
            )
        self._check_same_run(saved)
        info, finished = info_in(saved), saved.manifest.get("finished")
        if info.steps > self.total:
            raise MismatchError(
                f"the checkpoint {str(self.path)!r} has made {info.steps} steps, more than the {self.total} wanted: "
                "ask for as many or more, or choose another folder for `checkpoint`."
            )
        if finished is not None and (info.status.code == EARLY_STOPPED.code or finished == self.total):
            self.finished = load(self.path, self.engine.target.network, target=self.engine.target)
            return
        self.state = self._begin(theta)
        saved.read(lambda: self._restore(saved), "the state")
        self.info = replace(info, status=OK, total_steps=self.total)

    def _begin(self, theta: Tensor | None) -> Any:
        return self.method.init(self.engine, Starts.of(theta), [generator(self.seed, "method")])

    def _restore(self, saved: store.Run) -> None:
        """Put the saved state into the one that ``init`` has made, and random generators where they were."""
        assert self.path is not None
        state = restore(
            {"method": self.state, "global": None, "cuda": None, "epoch_loss": self.epoch_loss},
            saved.form("state"),
            saved.tensors("state"),
            self.engine.device,
        )
        self.state, self.epoch_loss = state["method"], state["epoch_loss"]
        if not isinstance(self.epoch_loss, list) or len(self.epoch_loss) != 2:
            raise CorruptRunError("the loss of the epoch under way must be a sum and a number of rows.")
        for number in self.epoch_loss:
            if math.isnan(real(number)):
                raise CorruptRunError("the loss of the epoch under way must be a sum and a number of rows.")
        self.method.keep_in(self.state, self.path)
        torch.set_rng_state(state["global"].cpu())
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([generator_state.cpu() for generator_state in state["cuda"]])

    def _check_same_run(self, saved: store.Run) -> None:
        check_same_network(saved, self.engine.target)
        then = saved.entry("run", dict)
        now = self.settings
        changed = [key for key in dict.fromkeys([*now, *then]) if then.get(key) != now.get(key)]
        differences = [_DIGESTS.get(key) or f"{key} ({then.get(key)!r}, now {now.get(key)!r})" for key in changed]
        if differences:
            raise MismatchError(
                f"the checkpoint {str(self.path)!r} belongs to another run; these differ: {'; '.join(differences)}. "
                "Choose another folder, or delete this one to start anew."
            )

    # ------------------------------------------------------------------ the loop

    def run(self, progress: bool | None) -> Status:
        """Step until done."""
        began = time.perf_counter() - self.info.seconds
        title = type(self.method).__name__
        with ProgressBar(title, self.total, progress) as bar, GracefulInterrupt() as interrupt:
            try:
                for batch in self._batches():
                    self.state, info = self.method.step(self.engine, self.state, batch)
                    if not info.status.ok:
                        return info.status
                    self._record(batch, info)
                    self.info.seconds = time.perf_counter() - began
                    bar.advance_to(self.info.steps, info.loss, last=self.info.steps == self.total)
                    if info.done:
                        if interrupt.wanted:  # it came in a step after which there is none: nothing is cut short
                            print("temperance: interrupted in the last step of the run, which is whole.")
                        return info.status
                    if interrupt.wanted:
                        return INTERRUPTED
                    if self.path is not None and self.info.steps % self.every == 0 and self.info.steps < self.total:
                        self.save(later=True)
            except KeyboardInterrupt:
                if self.info.steps == 0:
                    raise
                self.torn = True  # it may have come in the middle of a step: the last checkpoint is the one to trust
                return INTERRUPTED
        return INTERRUPTED if interrupt.wanted else OK  # after the last look at it: a second phase may be long

    def _batches(self) -> Iterator[Batch]:
        """The batches still to come, each knowing its place in the run."""
        streams = None if self.facts.streams == 1 or self.facts.reads == "full" else self.facts.streams
        while self.info.steps < self.total:
            epoch, first = divmod(self.info.steps, self.per_epoch)
            if self.facts.reads == "full":
                walk = self.data.full_pass(self.rows)
            else:
                walk = self.data.batches(self.rows, seed=self.seed, epoch=epoch, streams=streams, first=first)
            for batch in walk:
                step = self.info.steps
                placed = replace(
                    batch,
                    step=step,
                    epoch=epoch,
                    progress=step / self.total,
                    total_steps=self.total,
                    steps_per_epoch=self.per_epoch,
                    held_out=self.held_out,
                    whole=self.data,
                )
                yield placed.to(self.engine.device)
                if self.info.steps >= self.total:
                    return

    def _record(self, batch: Batch, info: Info) -> None:
        self.info.steps += 1
        self.epoch_loss[0] += info.loss * batch.size  # the last batch of an epoch may be smaller
        if "held_out_score" in info.metrics:
            self.info.held_out_scores.append(info.metrics["held_out_score"])
        if "elbo" in info.metrics:
            self.info.elbos.append(info.metrics["elbo"])
        self.epoch_loss[1] += batch.size
        if batch.last:
            self.info.losses.append(self.epoch_loss[0] / self.epoch_loss[1])
            self.epoch_loss = [0.0, 0.0]

    # ------------------------------------------------------------------ after the last step

    def _fitted(self, data: Data | None) -> Fitted:
        (posterior,) = self.method.posteriors(self.engine, self.state, data)
        target = posterior.retarget(self.engine.target)
        made = Fitted(target, posterior, self.info, self.method, self.seed, self.settings, *self.given)
        made.engine = self.engine.on(target)  # what is known of the network need not be found out again
        return made

    def _needs_data(self) -> bool:
        """Whether the method has a second phase over the data."""
        try:
            self._fitted(None)
        except NeedsData:
            return True
        except NumericalError:
            return False
        return False

    def save(self, fitted: Fitted | None = None, finished: bool = False, later: bool = False) -> None:
        """Write the state, and the posterior as it stands where the method can tell it without the data; ``later``:
        while the run goes on."""
        assert self.path is not None
        if later:
            self.background.wait()
        else:  # a save that failed meanwhile is made good by this one, or fails again
            with contextlib.suppress(StoreError):
                self.background.wait()
        state = {
            "method": self.state,
            "global": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "epoch_loss": self.epoch_loss,
        }
        manifest, parts = describe(self.engine.target, self.info, self.method, self.seed, self.settings)
        parts |= value_part("state", state)
        if fitted is None:
            with contextlib.suppress(NeedsData, NumericalError):
                fitted = self._fitted(None)
        if fitted is not None:
            parts.update(value_part("posterior", fitted.posterior))
        manifest["finished"] = self.total if finished else None
        if self.info.status is OK and not finished:
            manifest["info"]["status"] = asdict(UNFINISHED)
        if later:
            self.background.write(self.path, manifest, parts)
        else:
            store.write_run(self.path, manifest, parts)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """The folder is left when what is being written there is written, however the run ends."""
        try:
            yield
        finally:
            self.background.settle()
        self.background.wait()  # raises what went wrong there, unless something else has ended the run

    def save_unbroken(self) -> None:
        """Save outside the loop: a Ctrl-C takes effect when the run is on the disk."""
        with GracefulInterrupt() as interrupt:
            self.save()
        if interrupt.wanted:
            raise KeyboardInterrupt

    def _end_without_posterior(self, error: Exception) -> None:
        """A Ctrl-C came before there was anything to give back: it stays one, and whoever called is not told of a
        failure of the method, which it might answer by another one. What was trained is kept."""
        words = "there is no checkpoint to go on from"
        if self.path is not None:
            if not self.torn:
                self.save_unbroken()
            words = "call fit again with the same checkpoint to go on"
        raise KeyboardInterrupt(f"interrupted after {self.info.steps} of {self.total} steps; {words}. {error}")

    def finish(self, status: Status, throw: bool) -> Fitted:
        """The result, saved; or an error that carries it."""
        self.info.status = status
        self.info.remarks = [] if self.torn else self.method.remarks(self.state)
        fitted: Fitted | None = None
        if self.path is not None and status.ok and not self.torn and self._needs_data():
            self.save_unbroken()  # the second phase may be long: what was trained is safe before it begins
        began = time.perf_counter()
        try:
            fitted = self._fitted(self.data)
        except NumericalError as error:
            if status is INTERRUPTED:
                self._end_without_posterior(error)
            if status.ok:
                raise
        except NeedsData as error:  # it has them: it was interrupted before it has looked at any
            if status is INTERRUPTED:
                self._end_without_posterior(error)
            raise
        except Exception as error:
            if self.torn:  # half a step may leave anything
                self._end_without_posterior(error)
            raise
        self.info.seconds += time.perf_counter() - began
        if self.path is not None and fitted is not None:
            try:
                with GracefulInterrupt() as interrupt:  # what was learned is saved and returned, as in the loop
                    if self.torn:
                        self.background.wait()
                    else:
                        self.save(fitted, finished=status.ok and status is not INTERRUPTED)
                if interrupt.wanted and status is not INTERRUPTED:
                    print("temperance: interrupted while the finished run was being saved; it is whole.")
            except StoreError as error:
                error.fitted = fitted  # the disk failed, not the run: nothing that was learned is lost
                raise
        if not status.ok and (throw or fitted is None):
            where = f" after {self.info.steps} of {self.total} steps"
            raise NumericalError(f"{type(self.method).__name__} stopped{where}: {status}", fitted)
        assert fitted is not None
        for remark in self.info.remarks:
            warnings.warn(remark, TemperanceWarning, stacklevel=3)
        if status is INTERRUPTED:
            print(f"temperance: {status}")
        return fitted
