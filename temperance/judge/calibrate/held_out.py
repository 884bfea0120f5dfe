"""Calibration on held-out data: splitting, refusing the training rows, and a fitted model that is calibrated."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError, CorruptRunError, DataError, MismatchError, TemperanceWarning
from temperance.core.seeds import check_seed, generator
from temperance.data.data import Data
from temperance.data.sources import named_tensors
from temperance.judge.calibrate.base import CalibrationRule, Calibrator
from temperance.model.target import Target
from temperance.predict import Predictive
from temperance.run.fitted import Fitted
from temperance.run.loading import load, register_part
from temperance.run.parts import Parts as Written
from temperance.run.parts import value_part
from temperance.run.store import Run

_PART = "calibrator"
_NUMBERS = 2 * 10**8  # rows of more numbers than these are not compared one by one


class Parts(NamedTuple):
    """Rows to train on, to calibrate on and to test on; no row is in two of them."""

    train: Data
    calibration: Data
    test: Data


def split_for_calibration(
    data: Any, fraction: float = 0.2, *, test: float = 0.2, seed: int = 0, stratify: bool | Any = False
) -> Parts:
    """Split at random into disjoint parts: ``fraction`` of the rows to calibrate on, ``test`` of them to test on.

    ``stratify=True`` keeps the share of each class of y in all parts, as nearly as whole rows allow; a list of labels,
    one a row, does so for these.

    >>> train, calibration, test = split_for_calibration((torch.arange(10.0).unsqueeze(1), torch.arange(10)))
    >>> len(train), len(calibration), len(test)
    (6, 2, 2)
    """
    whole = Data.of(data)
    for name, share in (("fraction", fraction), ("test", test)):
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise ArgumentError(f"`{name}` must lie strictly between 0 and 1; got {shown(share)}.")
    if fraction + test >= 1:
        raise ArgumentError(f"`fraction` and `test` must leave rows to train on; got {fraction} and {test}.")
    rng = generator(check_seed(seed), "calibration-split")
    order = torch.randperm(len(whole), generator=rng)
    if stratify is not False:
        labels = _labels(whole, stratify)
        order = order[labels[order].argsort(stable=True)]  # class by class, shuffled within each
        place = torch.arange(len(order), dtype=torch.float64) + 0.5
        counts = torch.bincount(labels)[labels[order]].double()
        first = torch.searchsorted(labels[order].contiguous(), labels[order].contiguous())
        order = order[((place - first) / counts).argsort(stable=True)]  # every prefix has each class's share
    held, last = round(fraction * len(whole)), round(test * len(whole))
    if held < 1 or last < 1 or len(whole) - held - last < 1:
        raise DataError(f"`data` of {len(whole)} rows is too small for {fraction} to calibrate and {test} to test on.")
    pieces = order[held + last :], order[:held], order[held : held + last]
    return Parts(*(whole.subset(piece.sort().values) for piece in pieces))


def _labels(data: Data, stratify: Any) -> Tensor:
    """Class numbers, one a row."""
    given = data.y if stratify is True else stratify
    try:
        labels = torch.as_tensor(given).cpu()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"`stratify` must be True or numbers, one a row; got {type(stratify).__name__}.") from error
    if labels.is_floating_point() and stratify is True and not bool((labels == labels.round()).all()):
        raise ArgumentError("`stratify` must be False for real targets: give labels, one a row, to keep shares of.")
    if labels.dim() == 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.dim() != 1 or len(labels) != len(data):
        raise ArgumentError(f"`stratify` must have one label for each of {len(data)} rows; got {tuple(labels.shape)}.")
    return torch.unique(labels, return_inverse=True)[1]


@dataclass
class CalibratedFitted(Fitted):
    """A fitted model whose predictions pass through a calibrator; made by :func:`calibrated`.

    ``predict``, ``evaluate`` and everything made of them are calibrated; ``posterior``, ``network()`` and the evidence
    are those of the model as it was trained. ``draws`` and ``by`` are what it was calibrated with, and the defaults of
    ``predict``.
    """

    calibrator: Calibrator = field(kw_only=True)
    draws: int | None = field(default=None, kw_only=True)
    by: str | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return f"CalibratedFitted({self.uncalibrated!r}, {type(self.calibrator).__name__})"

    @property
    def uncalibrated(self) -> Fitted:
        """The model as it was trained."""
        return Fitted(**{f.name: getattr(self, f.name) for f in fields(Fitted) if f.init})

    def predict(
        self,
        x: Any,
        *,
        draws: int | None = None,
        seed: int = 0,
        batch_size: int = 1024,
        by: str | None = None,
        precision: float | None = None,
        limit: int | None = None,
    ) -> Predictive:
        """The calibrated predictive distribution at ``x``; ``precision`` is that of the predictive to be calibrated."""
        chosen = draws or (self.draws if precision is None else None)
        plain = super().predict(
            x,
            draws=chosen,
            seed=seed,
            batch_size=batch_size,
            by=by or self.by,
            precision=precision,
            limit=limit,
        )
        return self.calibrator(plain)

    def written(self) -> tuple[dict[str, Any], Written]:
        """A run like any other with the calibrator beside the posterior; :func:`temperance.load` reads both."""
        manifest, parts = super().written()
        beside = {"calibrator": self.calibrator, "draws": self.draws, "by": self.by}
        return manifest, {**parts, **value_part(_PART, beside)}


def _finish(run: Run, fitted: Fitted) -> CalibratedFitted:
    """What :func:`temperance.load` gives of a run with a calibrator."""
    found = run.value(_PART)
    kinds = {"calibrator": Calibrator, "draws": int | None, "by": str | None}
    if not isinstance(found, dict) or set(found) != set(kinds):
        raise CorruptRunError(f"the run {str(run.path)!r} holds no calibrator.")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind):
            raise CorruptRunError(f"the run {str(run.path)!r} is damaged: its {name} cannot be {found[name]!r}.")
    if found["draws"] is not None:
        run.read(lambda: check_count(found["draws"], "draws"), "the calibrator")
    return _with(fitted, **found)


register_part(_PART, _finish)


def load_calibrated(path: str | Path, network: nn.Module, *, target: Target | None = None) -> CalibratedFitted:
    """A calibrated run, as :func:`temperance.load` reads it; a run without a calibrator is refused."""
    fitted = load(path, network, target=target)
    if not isinstance(fitted, CalibratedFitted):
        raise MismatchError(f"the run {str(path)!r} is not a calibrated one: use temperance.load.")
    return fitted


def _with(fitted: Fitted, calibrator: Calibrator, draws: int | None, by: str | None) -> CalibratedFitted:
    known = {f.name: getattr(fitted, f.name) for f in fields(Fitted) if f.init}
    return CalibratedFitted(**known, calibrator=calibrator, draws=draws, by=by)


def calibrated(
    fitted: Fitted,
    held_out: Any,
    rule: CalibrationRule,
    *,
    draws: int | None = None,
    by: str | None = None,
    seed: int = 0,
) -> CalibratedFitted:
    """``fitted`` with predictions calibrated by ``rule`` on ``held_out``, data that it was not trained on.

    The data of the run are refused. They are known by their fingerprint (as a whole, or as the whole from which
    ``fit(held_out=0.1)`` took its part), and in the session of the fit, where the rows are at hand, one by one: more
    than half of ``held_out`` among them is refused too (a few may be true duplicates). Of a run that was loaded, a
    subset of its rows is not noticed. The rows that early stopping looked at are not quite fresh, and are taken with a
    warning. Split first: :func:`split_for_calibration`.

    >>> import temperance as tp
    >>> train, calibration, test = split_for_calibration(tp.data.load("iris")[0], 0.3, stratify=True)
    >>> target = tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.MAP(lr=1e-2), train, epochs=30, seed=0, progress=False)
    >>> better = calibrated(fitted, calibration, tp.calibrate.Temperature())
    >>> better.evaluate(calibration)["log_loss"] <= fitted.evaluate(calibration)["log_loss"]
    True
    """
    if not isinstance(fitted, Fitted):
        raise ArgumentError(f"`fitted` must be what temperance.run.fit gives; got {type(fitted).__name__}.")
    if not isinstance(rule, CalibrationRule):
        raise ArgumentError(f"`rule` must be a calibration rule such as Temperature(); got {shown(rule)}.")
    if isinstance(fitted, CalibratedFitted):
        raise ArgumentError("`fitted` is calibrated already: calibrate `fitted.uncalibrated`, by one rule.")
    known = Data.of(held_out, "held_out")
    known.check_finite("held_out")
    refuse_training_rows(fitted, known)
    calibrator = rule.fit(fitted.predict(known.x, draws=draws, by=by, seed=seed), known.y)
    if not math.isfinite(calibrator.after):
        raise DataError("the log-loss of `held_out` is not finite after calibration.")
    return _with(fitted, calibrator, draws, by)


def refuse_training_rows(fitted: Fitted, held_out: Data) -> None:
    """Raise :class:`DataError` if ``held_out`` is the data of the run, warn if early stopping looked at it."""
    trained, stopped_by, rows = (fitted.run.get(name) for name in ("data", "held_out", "num_data"))
    if trained is None:
        return
    same = held_out.fingerprint() == trained
    if not same and stopped_by is not None and rows is not None and 1 < rows < len(held_out):
        rest, _ = held_out.hold_out(1 - rows / len(held_out), seed=fitted.seed)
        same = rest.fingerprint() == trained
    if same or _share_known(held_out, getattr(fitted, "data", None)) > 0.5:
        raise DataError(
            "`held_out` must be data that the model was not trained on; got the rows of its training. Split first: "
            "split_for_calibration(data)."
        )
    if held_out.fingerprint() == stopped_by:
        warnings.warn(
            "`held_out` has decided when training stopped: calibration on it is a little too optimistic.",
            TemperanceWarning,
            stacklevel=3,
        )


def _share_known(held_out: Data, trained: Data | None) -> float:
    """The share of held-out rows that are, to the bit, those of a training row, target included; 0 where the rows are
    not in memory, or too many to look at."""
    if trained is None or not (held_out.in_memory and trained.in_memory):
        return 0.0
    if sum(t.numel() for d in (held_out, trained) for _, t in named_tensors(d.x)) > _NUMBERS:
        return 0.0
    seen, mine = set(_row_hashes(trained)), _row_hashes(held_out)
    return sum(row in seen for row in mine) / len(mine)


def _row_hashes(data: Data) -> list[int]:
    parts = [*(t for _, t in named_tensors(data.x)), data.y]
    flat = [t.detach().cpu().reshape(len(t), -1).contiguous().view(torch.uint8).numpy() for t in parts]
    return [hash(b"".join(part[row].tobytes() for part in flat)) for row in range(len(data))]
