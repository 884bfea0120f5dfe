"""Active learning: fit, ask for the labels that would tell most, fit again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.encoding import fingerprint
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError
from temperance.core.progress import ProgressBar
from temperance.core.seeds import check_seed, derive_seed, generator
from temperance.data.data import Data, _as_inputs
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.decide.acquire import Acquisition, bald, choose, needs, takes
from temperance.decide.information import check_rows
from temperance.model.target import Target
from temperance.run import store
from temperance.run.fit import fit
from temperance.run.fitted import Fitted
from temperance.run.parts import target_settings, value_part


@dataclass
class ActiveLearning:
    """What :func:`learn_actively` found.

    Attributes:
        rows: the pool's rows in the order in which they were labelled.
        y: their labels.
        labels: after each round, how many rows had labels.
        scores: after each round, the scores on the test rows (empty without any).
        fitted: the last fit.
    """

    rows: Tensor
    y: Tensor
    labels: list[int]
    scores: list[dict[str, float]]
    fitted: Fitted | None = None

    def curve(self, score: str = "log_loss") -> tuple[list[int], list[float]]:
        """Labels against a score, to plot."""
        if not self.scores or score not in self.scores[0]:
            known = ", ".join(self.scores[0]) if self.scores else "none, for no `test` was given"
            raise ArgumentError(f"`score` must be one of {known}; got {score!r}.")
        return self.labels, [each[score] for each in self.scores]


def learn_actively(
    make_target: Callable[[], Target] | Target,
    method: Any,
    pool: Any,
    *,
    start: Any = 10,
    batch: int = 10,
    rounds: int = 10,
    acquire: Acquisition = bald,
    ask: Callable[[Tensor], Any] | None = None,
    test: Any = None,
    towards: Any = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    draws: int | None = None,
    by: str | None = None,
    candidates: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> ActiveLearning:
    """Label ``start`` rows, then ``rounds`` times fit, ask for the labels of ``batch`` more rows, and fit a last time.

    Args:
        make_target: makes a fresh problem for each fit (or a ``Target``, whose own start every fit shares).
        method, epochs, steps, batch_size: how each fit is done, see :func:`temperance.run.fit`.
        pool: rows to choose from: data with labels, or inputs alone where ``ask`` knows the labels.
        start: how many rows are labelled at random to begin with, or which.
        acquire: a score of a predictive, such as ``bald``, or a choice of a batch, such as ``batch_bald``.
        ask: the oracle: labels of some row numbers. Without it the labels of ``pool`` are looked up.
        test: data on which each fit is scored.
        towards: inputs that matter, for ``epig``.
        draws, by: of the predictions that rows are chosen by, see ``Fitted.predict``.
        candidates: at most so many rows of the pool, drawn at random each round, are looked at.
        seed: decides everything random, of each round by itself.
        folder: rows, labels and scores are written here after each round; called again with the same arguments it goes
            on from there, bit for bit, and asks for no label that is written there. More ``rounds`` go on too.
        progress: show a progress bar; ``None`` shows it on a terminal.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> make = lambda: tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> method = tp.Ensemble(tp.MAP(lr=0.05), 3)
    >>> found = learn_actively(make, method, train, start=6, batch=3, rounds=2, test=test, steps=60)
    >>> found.labels
    [6, 9, 12]
    """
    x, oracle = _pool(pool, ask)
    total = first_tensor(x).shape[0]
    check_seed(seed)
    check_count(batch, "batch")
    first = _start(start, total, seed)
    _check_rounds(rounds, len(first) + batch * rounds if isinstance(rounds, int) else 0, total)
    look = _Look.of(acquire, towards, candidates, draws, by)
    length: dict[str, Any] = {"epochs": epochs, "steps": steps, "batch_size": batch_size}
    settings = {
        "method": fingerprint(method),
        "target": _describe(make_fresh(make_target, derive_seed(seed, "round", 0))),
        "pool": Data(x, torch.zeros(total)).fingerprint(),
        "start": first.tolist(),
        "batch": batch,
        "acquire": getattr(acquire, "__name__", type(acquire).__name__),
        "fit": [epochs, steps, batch_size, draws, by, candidates],
        "seed": seed,
    }
    log = _Log(folder, settings)
    fitted: Fitted | None = None
    scored = Data.of(test, "test") if test is not None else None
    with store.held(folder, "folder"):
        log.read()
        if len(log.rows) == 0:
            log.add(first, oracle)
            log.write()
        begin = log.rounds_done()
        if begin > rounds:
            raise MismatchError(f"`folder` holds {begin} rounds, more than the {rounds} wanted.")
        with ProgressBar("active learning", rounds + 1, progress) as bar:
            for number in range(begin, rounds + 1):
                data = Data(map_tensors(lambda t: t[log.rows], x), log.y)
                own = derive_seed(seed, "round", number)
                fitted = fit(make_fresh(make_target, own), method, data, **length, seed=own, progress=False)
                if number == len(log.labels):
                    log.labels.append(len(log.rows))
                    log.scores.append(fitted.evaluate(scored, draws=draws, by=by) if scored is not None else {})
                if number < rounds:
                    log.add(look.rows(fitted, x, log.rows, batch, own), oracle)
                log.write()
                bar.advance_to(number + 1, log.scores[-1].get("log_loss", float("nan")), last=number == rounds)
    return ActiveLearning(log.rows, log.y, log.labels, log.scores, fitted)


def _check_rounds(rounds: Any, wanted: int, total: int) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
        raise ArgumentError(f"`rounds` must be zero or a positive integer; got {rounds!r}.")
    if wanted > total:
        raise ArgumentError(f"`rounds` × `batch` + `start` must be at most the pool's {total} rows; got {wanted}.")


def _pool(pool: Any, ask: Any) -> tuple[Inputs, Callable[[Tensor], Any]]:
    """The inputs to choose from, and who knows their labels."""
    if ask is None:
        data = Data.of(pool, "pool")
        if data.weights is not None:
            raise ArgumentError("`pool` must have no weights: its rows are asked for one by one, each counting once.")
        return data.x, lambda rows: data.y[rows]
    if not callable(ask):
        raise ArgumentError(f"`ask` must be a function of row numbers; got {type(ask).__name__}.")
    return (pool.x if isinstance(pool, Data) else _as_inputs(pool, "pool")), ask


def _start(start: Any, total: int, seed: int) -> Tensor:
    if isinstance(start, int):
        if check_count(start, "start") > total:
            raise ArgumentError(f"`start` must be at most the pool's {total} rows; got {start}.")
        return torch.randperm(total, generator=generator(seed, "start"))[:start]
    rows = check_rows(start, total, "start")
    if len(rows.unique()) != len(rows):
        raise ArgumentError("`start` must name each row once.")
    return rows


def make_fresh(make_target: Any, seed: int) -> Target:
    """The target given, or a fresh one whose network is initialised from ``seed``."""
    if isinstance(make_target, Target):
        return make_target
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive_seed(seed, "network"))
        made = make_target()
    if not isinstance(made, Target):
        raise ArgumentError(f"`make_target` must return a Target; got {type(made).__name__}.")
    return made


@dataclass(frozen=True)
class _Look:
    """How rows are chosen: by which score, towards what, among how many, and by which predictions."""

    acquire: Acquisition
    aims: Inputs | None
    candidates: int | None
    draws: int | None
    by: str | None

    @classmethod
    def of(cls, acquire: Acquisition, towards: Any, candidates: int | None, draws: int | None, by: str | None) -> _Look:
        if needs(acquire, "targets") and towards is None:
            raise ArgumentError("`towards` must give the inputs that matter for `epig`; got None.")
        aims = None if towards is None else _as_inputs(towards.x if isinstance(towards, Data) else towards, "towards")
        return cls(acquire, aims, candidates, draws, by)

    def rows(self, fitted: Fitted, x: Inputs, labelled: Tensor, batch: int, seed: int) -> Tensor:
        """Rows to ask for, among those without a label."""
        free = torch.ones(first_tensor(x).shape[0], dtype=torch.bool)
        free[labelled] = False
        rows = free.nonzero().flatten()
        if self.candidates is not None and check_count(self.candidates, "candidates") < len(rows):
            pick = torch.randperm(len(rows), generator=generator(seed, "candidates"))[: max(batch, self.candidates)]
            rows = rows[pick.sort().values]
        shown = map_tensors(lambda t: t[rows], x)
        targets: Tensor | None = None
        if takes(self.acquire, "targets") and self.aims is not None:  # one prediction, so that one θ speaks for both
            count = first_tensor(self.aims).shape[0]
            targets = torch.arange(len(rows), len(rows) + count)
            shown = _joined(shown, self.aims)
        predictive = fitted.predict(shown, draws=self.draws, by=self.by, seed=seed)
        own = derive_seed(seed, "acquire")
        chosen = choose(predictive, batch, self.acquire, among=len(rows), targets=targets, seed=own)
        return rows[chosen.rows.cpu()]


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor):
        return torch.cat([first, second.to(first)])
    if isinstance(first, dict):
        return {key: _joined(value, second[key]) for key, value in first.items()}
    return tuple(_joined(a, b) for a, b in zip(first, second, strict=True))


def _describe(target: Target) -> str:
    return fingerprint([target_settings(target), target.layout.describe()])


class _Log:
    """What is known so far, kept in a folder where one is given."""

    def __init__(self, folder: str | Path | None, settings: dict[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.settings = settings
        self.rows, self.y = torch.empty(0, dtype=torch.long), torch.empty(0)
        self.labels: list[int] = []
        self.scores: list[dict[str, float]] = []

    def add(self, rows: Tensor, oracle: Callable[[Tensor], Any]) -> None:
        """Ask for the labels of ``rows``."""
        found = torch.as_tensor(oracle(rows))
        if found.dim() == 0 or len(found) != len(rows):
            raise ArgumentError(f"`ask` must give a label for each of {len(rows)} rows; got {tuple(found.shape)}.")
        begun = len(self.rows) > 0
        self.y = torch.cat([self.y, found]) if begun else found
        self.rows = torch.cat([self.rows, rows]) if begun else rows

    def rounds_done(self) -> int:
        """Rounds that need not be fitted again: scored, and labels asked for since."""
        done = len(self.labels)
        return done - 1 if done and self.labels[-1] == len(self.rows) else done

    def read(self) -> None:
        if self.folder is None or not (self.folder / store.MANIFEST).is_file():
            return
        run = store.open_run(self.folder)
        then = run.manifest.get("active_learning")
        then = then if isinstance(then, dict) else {}
        changed = [name for name, now in self.settings.items() if then.get(name) != now]
        if changed or not run.has("active"):
            raise MismatchError(
                f"the folder {str(self.folder)!r} belongs to another run; these differ: {', '.join(changed) or 'all'}. "
                "Choose another folder, or delete this one to start anew."
            )
        found = run.value("active")
        kinds = {"rows": Tensor, "y": Tensor, "labels": list, "scores": list}
        if not isinstance(found, dict) or any(not isinstance(found.get(name), kind) for name, kind in kinds.items()):
            raise CorruptRunError(f"the folder {str(self.folder)!r} is damaged: it must hold {', '.join(kinds)}.")
        self.rows, self.y, self.labels, self.scores = (found[name] for name in kinds)

    def write(self) -> None:
        if self.folder is None:
            return
        found = {"rows": self.rows, "y": self.y, "labels": self.labels, "scores": self.scores}
        store.write_run(self.folder, {"active_learning": self.settings}, value_part("active", found))
