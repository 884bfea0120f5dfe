"""A trial: blows on one run until it is left in peace, and what is then compared."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.torture.child import CALL, LINE, MOMENT, Blow, Board, Trap, child_run
from benchmarks.torture.forking import fork
from benchmarks.torture.subjects import Subject

WAYS = {CALL: 0.45, LINE: 0.25, MOMENT: 0.3}
_UNCOUNTED = 0.75  # of the time of a run whose lines are counted is that of one whose lines are not
PATIENCE = 60.0  # seconds after which a child hangs
MINE = {"notes.md": b"of the user", "posterior-mine.safetensors": b"not a run's", ".manifest.json-backup": b"{}"}
"""Files of the user's with names near to ours."""
_UNHEARABLE = r"Exception ignored in: <%s.*?\nKeyboardInterrupt: *\n"
_IMPORTING = re.compile(_UNHEARABLE % "function _get_module_lock", re.S)
"""What Python does with a Ctrl-C that comes while it forgets the lock of an import: nobody can hear that one."""
_CLOSING = re.compile(_UNHEARABLE % "generator object", re.S)
"""And with a second one that comes while the first closes the generators it passes: it has interrupted already."""


@dataclass
class Life:
    """How a child ended: what it said itself, and what it printed. A child that was killed says nothing."""

    report: dict[str, Any]
    words: str
    killed: bool
    struck: int
    under_way: bool
    where: str
    published: int
    hung: bool


@dataclass
class Undisturbed:
    """What a subject learns when it is left in peace, how long it takes, and where its saves are."""

    learned: dict[str, str]
    steps: int
    seconds: float
    calls: int
    lines: int
    saves: list[int]
    troubles: list[tuple[str, str]]


class Refused(Exception):
    """The library refuses this pair: there is nothing to strike."""


class Bench:
    """Runs trials one after the other, each in a folder of its own that goes when it is over."""

    def __init__(self, root: Path, seed: int, chosen: Sequence[Subject]) -> None:
        self.root, self.seed = root, seed
        self.subjects = list(chosen)
        self.turns = [k for k, subject in enumerate(chosen) for _ in range(subject.weight)]
        self.board = Board()
        self.known: dict[str, Undisturbed | Refused] = {}

    # -------------------------------------------------------------- one child

    def live(self, subject: Subject, place: Path | None, blow: Blow | None, lines: bool = False) -> Life:
        """A run of the subject, struck as told."""
        report, words = self.root / "report.json", self.root / "words.txt"
        report.unlink(missing_ok=True)
        self.board.clear()
        trap = Trap(self.board, blow, lines)
        pid = fork(lambda: child_run(subject, place, report, self.board, trap), words)
        hung = False
        try:
            if blow is not None and blow.way == MOMENT:
                self._strike_in_time(pid, blow)
            status = self._wait(pid)
            if status is None:
                hung = True
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        told = json.loads(report.read_text()) if report.is_file() and not os.WIFSIGNALED(status) else {}
        return Life(
            told,
            words.read_text(errors="replace") if words.is_file() else "",
            os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and not hung,
            self.board["struck"],
            self.board["phase"] == Board.UNDER_WAY,
            Board.SAVES[self.board["where"]],
            self.board["published"],
            hung,
        )

    def _strike_in_time(self, pid: int, blow: Blow) -> None:
        until = time.perf_counter() + PATIENCE
        while self.board["phase"] == Board.BEFORE and time.perf_counter() < until:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(0.0002)
        time.sleep(blow.at)
        for pause in (0.0, blow.second):
            if pause is None or self.board["phase"] != Board.UNDER_WAY:
                return
            time.sleep(pause)
            if self.board["phase"] == Board.UNDER_WAY:
                self.board.note_blow()
                os.kill(pid, blow.signal)  # not reaped yet, so the number is its own

    def _wait(self, pid: int) -> int | None:
        until = time.perf_counter() + PATIENCE
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status
            if time.perf_counter() > until:
                return None
            time.sleep(0.001)

    # -------------------------------------------------------------- what is compared with

    def undisturbed(self, subject: Subject) -> Undisturbed:
        """Two runs that must be equal: one in a folder, whose calls and lines are counted, and one without."""
        if subject.name not in self.known:
            try:
                self.known[subject.name] = self._undisturbed(subject)
            except Refused as refused:
                self.known[subject.name] = refused
        found = self.known[subject.name]
        if isinstance(found, Refused):
            raise found
        return found

    def _undisturbed(self, subject: Subject) -> Undisturbed:
        with self._place(subject) as place:
            lives = [self.live(subject, place, None, lines=True)]
            if lives[0].report.get("outcome") == "refused":
                raise Refused(lives[0].report["text"])
        lives.append(self.live(subject, None, None))
        for life in lives:
            if "learned" not in life.report:
                text = life.report.get("text") or life.words[-300:]
                return Undisturbed({}, 1, 0.1, 1, 1, [], [("message", f"left in peace, it fails: {text}")])
        whole, plain = (life.report for life in lives)
        troubles = [
            ("difference", f"left in peace, with and without a checkpoint: {key}")
            for key, value in plain["learned"].items()
            if value != whole["learned"][key]
        ]
        seconds = _UNCOUNTED * whole["seconds"]
        return Undisturbed(
            whole["learned"], whole["steps"] or 1, seconds, whole["calls"], whole["lines"], whole["saves"], troubles
        )

    @contextlib.contextmanager
    def _place(self, subject: Subject) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(dir=self.root))
        try:
            subject.begin(place / "run")
            yield place / "run"
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # -------------------------------------------------------------- one trial

    def subject_of(self, number: int) -> Subject:
        """Every subject has its turns in each round, in an order of the round's own."""
        lap, turn = divmod(number, len(self.turns))
        order = list(self.turns)
        random.Random(f"{self.seed} order {lap}").shuffle(order)
        return self.subjects[order[turn]]

    def kind_of(self, number: int) -> str:
        return "kill" if random.Random(f"{self.seed} kind {number}").random() < 0.62 else "interrupt"

    def trial(self, number: int) -> dict[str, Any] | None:
        """Strike, begin again, let end, compare; ``None`` where the library refuses the pair."""
        subject, kind = self.subject_of(number), self.kind_of(number)
        try:
            known = self.undisturbed(subject)
        except Refused:
            return None
        rng = random.Random(f"{self.seed} trial {number}")
        made: dict[str, Any] = {"number": number, "subject": subject.name, "kind": kind, "blows": []}
        made |= {"kills": 0, "interrupts": 0, "doubles": 0, "resumed": 0, "troubles": list(known.troubles)}
        if not known.learned:
            return made
        began = time.perf_counter()
        with self._place(subject) as place:
            self._suffer(subject, known, place, kind, rng, made)
        made["seconds"] = time.perf_counter() - began
        return made

    def _suffer(
        self, subject: Subject, known: Undisturbed, place: Path, kind: str, rng: random.Random, made: dict[str, Any]
    ) -> None:
        reached = self._look(subject, place, made, -1)
        mine: dict[Path, bytes] = {}
        for _ in range(rng.choices((1, 2, 3, 5), (0.5, 0.25, 0.15, 0.1))[0]):
            own = kind if kind == "kill" or rng.random() < 0.8 else "kill"
            blow = draw_blow(own, known, reached / known.steps if 0 <= reached < known.steps else 0.0, rng)
            life = self.live(subject, place, blow)
            where = "the first save" if life.where == "a save" and max(reached, life.published) < 0 else life.where
            told = {"struck": life.struck, "mid-run": life.under_way, "where": where}
            made["blows"].append(dataclasses.asdict(blow) | told)
            if blow.kind == "kill":
                made["kills"] += life.killed and life.under_way
            else:
                made["interrupts"] += life.struck > 0
                made["doubles"] += life.struck > 1
            self._judge(life, blow, made)
            reached = self._look(subject, place, made, max(reached, subject.after(life.published)), life)
            if reached >= 0 and not mine:
                for name, content in MINE.items():
                    (place / name).write_bytes(content)
                    mine[place / name] = content
            if made["troubles"]:
                return
            made["resumed"] += 1
        life = self.live(subject, place, None)
        if "learned" not in life.report:
            said = life.report.get("text") or ("it hangs" if life.hung else life.words[-300:])
            made["troubles"].append(("loss", f"cannot go on: {said}"))
            made["trace"] = life.report.get("trace", "")
            return
        now = life.report["learned"]
        made["troubles"] += [("difference", key) for key in known.learned if known.learned[key] != now.get(key)]
        for file, content in mine.items():
            if not file.is_file() or file.read_bytes() != content:
                made["troubles"].append(("loss", f"the user's {file.name} is gone or changed"))
        there = {str(f.relative_to(place)) for f in place.rglob("*") if not f.is_dir()} - {f.name for f in mine}
        made["troubles"] += [("leftover", name) for name in sorted(there - subject.expected(place))]

    def _look(self, subject: Subject, place: Path, made: dict[str, Any], least: int, life: Life | None = None) -> int:
        """How far the folder is: never behind what was published, nor behind what an interrupted run has said."""
        try:
            found = subject.look(place) if place.is_dir() else -1
        except Exception as error:
            made["troubles"].append(("loss", f"cannot be read: {type(error).__name__}: {error}"))
            return least
        if found < least:
            made["troubles"].append(("loss", f"went back from {least} to {found}"))
        if life is not None and life.struck == 1 and life.report.get("outcome") == "interrupted":
            said = life.report.get("steps")
            if said is not None and said != found:
                made["troubles"].append(("loss", f"interrupted after {said} steps, saved {found}"))
        return found

    def _judge(self, life: Life, blow: Blow, made: dict[str, Any]) -> None:
        """What a run that was struck has said."""
        add = made["troubles"].append
        if life.hung:
            add(("message", f"hangs: {life.words[-300:]}"))
            return
        if life.killed:
            return
        told = life.report
        if told.get("outcome") not in ("ended", "interrupted", "KeyboardInterrupt"):
            add(("message", told.get("text") or f"ended without a word: {life.words[-300:]}"))
            made["trace"] = told.get("trace", "")
        words, of_python = _IMPORTING.subn("", life.words)
        if life.struck > 1 and told.get("outcome") == "KeyboardInterrupt":
            words = _CLOSING.sub("", words)
        if "Traceback" in words or "Exception ignored" in words:
            add(("message", f"a traceback on the way: {words[-500:]}"))
        if blow.kind == "interrupt" and life.struck:
            if told.get("outcome") == "ended" and "interrupted" not in words and not of_python:
                add(("message", "nobody has heard the Ctrl-C"))
            if told.get("handler") is False:
                add(("message", "the handler of Ctrl-C was not put back"))


def draw_blow(kind: str, known: Undisturbed, done: float, rng: random.Random) -> Blow:
    """Where to strike a run of which the share ``done`` is behind it."""
    way = rng.choices(tuple(WAYS), tuple(WAYS.values()))[0]
    left = max(0.1, 1.0 - done)
    second: float | None = None
    double = kind == "interrupt" and rng.random() < 0.5
    if way == MOMENT:
        if double:
            second = rng.choice((0.0, 0.0005, 0.002, 0.01))
        return Blow(kind, way, rng.random() * known.seconds * left, second)
    total = known.calls if way == CALL else known.lines
    if double:
        second = rng.choice((0, 1, 2, 5, 20))
    at = rng.random() * total * left
    if way == CALL and len(known.saves) > 1:
        aim = rng.random()
        if aim < 0.25 and not done:
            at = rng.random() * (known.saves[0] + 4)  # the first save, and what is tidied after it
        elif aim < 0.5:
            at = (known.saves[-2] + rng.random() * (total - known.saves[-2])) - done * total
    return Blow(kind, way, float(int(max(0.0, at))), second)
