"""The benchmark harness with small made-up jobs. Nothing here judges how long anything takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks import __main__ as command  # noqa: E402
from benchmarks import harness, peers  # noqa: E402
from benchmarks.harness import (  # noqa: E402
    Goal,
    Job,
    Ratio,
    Script,
    WorkerError,
    WorkerProcess,
    interval_of_median,
    peak_memory,
    run,
)

SCRIPT = """
from pathlib import Path

def appending(file, letter):
    print("a library that prints must not disturb the protocol")
    def one_round():
        with Path(file).open("a") as log:
            log.write(letter)
    return one_round

def allocating(size):
    return lambda: bytearray(size).count(1)

def failing():
    def one_round():
        raise ZeroDivisionError("as told")
    return one_round

def failing_to_build():
    raise ImportError("no such thing")

def dying():
    import os, sys
    sys.stderr.write("last words\\n")
    sys.stderr.flush()
    return lambda: os._exit(3)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return lambda function, **arguments: Script(str(path), function, arguments=arguments, versions=("pytest",))


def clocked(monkeypatch, **series):
    """Replace the clock: every contestant takes the next of the seconds that are written down for it."""
    left = {name: iter(values) for name, values in series.items()}
    monkeypatch.setattr(harness, "seconds", lambda work: next(left[work()]))
    return lambda: {name: (lambda name=name: name) for name in series}


def test_ratio_is_taken_within_each_round(monkeypatch):
    setup = clocked(monkeypatch, ours=[2.0, 30.0, 8.0, 4.0, 5.0], floor=[1.0, 10.0, 2.0, 1.0, 1.0])
    (ratio,) = run(Job("j", "d", setup, rounds=5, warmup=0)).ratios
    assert ratio.rounds == (2.0, 3.0, 4.0, 4.0, 5.0)
    assert (ratio.median, ratio.quartiles) == (4.0, (3.0, 4.0))
    assert Ratio("a", "b", rounds=(1.5,)).quartiles == (1.5, 1.5)


def test_interval_of_the_median_is_the_sign_tests():
    assert interval_of_median(range(5)) == (-float("inf"), float("inf"))
    assert interval_of_median(range(6)) == (0, 5)
    assert interval_of_median(range(1, 16)) == (4, 12)
    assert interval_of_median(range(25, 0, -1)) == (8, 18)


def test_verdict_says_when_noise_could_have_decided():
    goal = Goal("ours", "floor", at_most=1.05)
    assert Ratio("ours", "floor", goal, (1.0, 1.01, 1.02) * 5).verdict == "met"
    assert Ratio("ours", "floor", goal, (1.0, 1.01, 1.1) * 5).verdict == "met (within noise)"
    assert Ratio("ours", "floor", goal, (1.0, 1.07, 1.1) * 5).verdict == "not met (within noise)"
    assert Ratio("ours", "floor", goal, (1.06, 1.07, 1.1) * 5).verdict == "not met"
    assert Ratio("ours", "floor", goal, missing="why").verdict == "not measured: why"


def test_rounds_are_per_unit_and_warmup_is_left_out(monkeypatch):
    setup = clocked(monkeypatch, ours=[99.0, 2.0, 6.0, 4.0], floor=[99.0, 2.0, 3.0, 1.0])
    job = Job("j", "d", setup, goals=(Goal("ours", "floor", at_most=1.5),), units=2, rounds=3, warmup=1)
    result = run(job)
    assert result.measured["ours"].rounds == [1.0, 3.0, 2.0]
    assert result.measured["floor"].median == 1.0
    (ratio,) = result.ratios
    assert (ratio.median, ratio.quartiles, ratio.verdict) == (2.0, (1.5, 3.0), "not met (within noise)")


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("a", "b", at_most=2.0), True),
        (Goal("a", "b", at_most=1.9), False),
        (Goal("a", "b", at_least=2.0), True),
        (Goal("a", "b", at_least=2.1), False),
    ],
)
def test_goal(goal, met):
    assert goal.met_by(2.0) is met


def test_goal_has_one_bound():
    with pytest.raises(ValueError, match="exactly one"):
        Goal("a", "b")
    with pytest.raises(ValueError, match="exactly one"):
        Goal("a", "b", at_most=1.0, at_least=1.0)


def test_ratios_without_goals_are_taken_too_and_none_twice(monkeypatch):
    setup = clocked(monkeypatch, ours=[2.0], floor=[1.0], compiled=[1.0])
    result = run(Job("j", "d", setup, goals=(Goal("ours", "compiled", at_least=1.0),), rounds=1, warmup=0))
    pairs = [(ratio.numerator, ratio.denominator) for ratio in result.ratios]
    assert pairs == [("ours", "compiled"), ("ours", "floor")]
    assert result.ratios[1].verdict == ""


def test_contestants_take_turns_in_this_process_and_in_others(tmp_path, script):
    log = tmp_path / "log"

    def append(letter):
        def one_round():
            with log.open("a") as file:
                file.write(letter)

        return one_round

    there = script("appending", file=str(log), letter="C")
    job = Job("j", "d", lambda: {"ours": append("A"), "floor": append("B")}, {"there": there}, rounds=3, warmup=1)
    result = run(job)
    turns = log.read_text()
    rounds = [turns[start : start + 3] for start in range(0, 12, 3)]
    assert len(turns) == 12
    assert [sorted(one) for one in rounds] == [["A", "B", "C"]] * 4
    assert len(set(rounds)) > 1, "nobody should always come first"
    assert [len(result.measured[name].rounds) for name in ("ours", "floor", "there")] == [3, 3, 3]
    assert result.measured["there"].versions["pytest"] == pytest.__version__
    assert not result.broken


def test_missing_peer_is_reported_and_not_fatal(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "nowhere")
    peer = Script("peer_scripts/posteriors_step.py", "step", environment="torch-peers")
    goal = Goal("posteriors", "ours", at_least=1.0)
    result = run(Job("j", "d", lambda: {"ours": int, "floor": int}, {"posteriors": peer}, (goal,), rounds=2))
    assert result.missing == {"posteriors": "not installed, run `make peers`"}
    assert [len(ratio.rounds) for ratio in result.ratios] == [0, 2]
    assert result.ratios[0].verdict == "not measured: posteriors: not installed, run `make peers`"
    assert set(result.measured) == {"ours", "floor"}
    assert not result.broken


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("failing", "ZeroDivisionError: as told"),
        ("failing_to_build", "ImportError: no such thing"),
        ("absent", "AttributeError: .*absent"),
        ("dying", "its process ended: last words"),
    ],
)
def test_failing_worker_says_why(script, function, reason):
    def build_and_run():
        with WorkerProcess(script(function)) as worker:
            worker.round_seconds()

    with pytest.raises(WorkerError, match=reason):
        build_and_run()


def test_failing_contestants_leave_the_others_alone(script):
    def broken():
        raise ZeroDivisionError("mine")

    result = run(Job("j", "d", lambda: {"ours": broken, "floor": int}, {"there": script("failing")}, rounds=2))
    assert result.missing == {"ours": "ZeroDivisionError: mine", "there": "ZeroDivisionError: as told"}
    assert len(result.measured["floor"].rounds) == 2
    assert result.broken


def test_failing_setup_is_reported():
    def setup():
        raise ZeroDivisionError("mine")

    result = run(Job("j", "d", setup, goals=(Goal("ours", "floor", at_most=1.0),)))
    reason = "setup failed: ZeroDivisionError: mine"
    assert result.missing == {"floor": reason, "ours": reason}
    assert result.broken


def test_worker_protocol_line_by_line(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    log = tmp_path / "log"
    build = {"cmd": "build", "script": str(path), "function": "appending", "threads": None, "versions": ["absent-one"]}
    requests = [
        {"cmd": "run", "rounds": 1},
        {**build, "arguments": {"file": str(log), "letter": "x"}},
        {"cmd": "run", "rounds": 2},
        {"cmd": "dance"},
        {"cmd": "quit"},
        {"cmd": "run", "rounds": 1},
    ]
    talk = "".join(json.dumps(request) + "\n" for request in requests)
    worker = [sys.executable, str(harness.WORKER)]
    done = subprocess.run(worker, input=talk, capture_output=True, text=True, timeout=60, check=True)
    early, built, ran, unknown = map(json.loads, done.stdout.splitlines())
    assert not early["ok"]
    assert "build" in early["error"]
    assert built["ok"]
    assert built["versions"]["absent-one"] is None
    assert len(ran["seconds"]) == 2
    assert unknown == {"ok": False, "error": "KeyError: 'dance'"}
    assert log.read_text() == "xx"
    assert "a library that prints" in done.stderr


def test_worker_ends_with_its_block(script, tmp_path):
    with WorkerProcess(script("appending", file=str(tmp_path / "log"), letter="x")) as worker:
        assert worker._process.poll() is None
    assert worker._process.poll() == 0


def test_peak_memory_sees_what_the_round_allocates_even_below_a_large_parent(script):
    ballast = bytearray(200_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    size = 64 * 2**20
    growth = peak_memory(script("allocating", size=size))
    assert 0.9 * size < growth < 1.5 * size
    assert len(ballast) == 200_000_000


def test_job_on_memory(script):
    contestants = {"ours": script("allocating", size=2**25), "floor": script("allocating", size=2**24)}
    job = Job("m", "d", peers=contestants, goals=(Goal("ours", "floor", at_most=3.0),), rounds=1, quantity="memory")
    (ratio,) = run(job).ratios
    assert ratio.met
    with pytest.raises(ValueError, match="fresh processes"):
        Job("m", "d", lambda: {"ours": int}, quantity="memory")


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """Offer made-up jobs to the command line, with no peer installed."""
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "nowhere")
    setup = clocked(monkeypatch, ours=[2.0] * 99, floor=[1.0] * 99)
    peer = Script("peer_scripts/posteriors_step.py", "step", environment="torch-peers")
    first = Job("first job", "Twice as slow.", setup, {"posteriors": peer}, (Goal("ours", "floor", at_most=1.05),))
    second = Job("second job", "Slow enough.", setup, goals=(Goal("ours", "floor", at_most=3.0),))
    monkeypatch.setattr(command, "discover", lambda: [first, second])
    return tmp_path / "results" / "out.json"


def test_command_lists(offered, capsys):
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "first job: Twice as slow. (peers: posteriors)",
        "second job: Slow enough.",
    ]


def test_command_writes_json_and_shows_a_table(offered, capsys):
    assert command.main(["--quick", "--out", str(offered)]) == 0
    document = json.loads(offered.read_text())
    assert document["quick"] is True
    assert document["versions"]["python"].startswith("3.")
    assert document["machine"]["cores"] > 0
    first, second = document["jobs"]
    assert first["contestants"]["ours"]["rounds"] == [2.0, 2.0, 2.0]
    assert first["not_measured"] == {"posteriors": "not installed, run `make peers`"}
    assert [(ratio["median"], ratio["met"]) for ratio in second["ratios"]] == [(2.0, True)]
    shown = capsys.readouterr().out
    assert "first job: peer posteriors: not installed, run `make peers`" in shown
    assert "ours / floor 2 [2, 2]" in shown
    assert "not met" in shown


@pytest.mark.parametrize(("only", "code"), [("first", 1), ("second", 0), ("s*d job", 0), ("neither", 0)])
def test_strict_and_only(offered, only, code):
    assert command.main(["--quick", "--strict", "--only", only, "--out", str(offered)]) == code


def test_a_broken_contestant_of_ours_is_an_error(offered, monkeypatch):
    monkeypatch.setattr(command, "discover", lambda: [Job("j", "d", lambda: {"ours": lambda: 1 / 0}, rounds=1)])
    assert command.main(["--out", str(offered)]) == 2


def test_real_jobs_are_discovered_and_have_names_of_their_own():
    names = [job.name for job in command.discover()]
    assert len(names) == len(set(names))


def test_pin_of_torch_comes_from_the_constraints(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "REPOSITORY", tmp_path)
    assert peers.torch_pin() == peers.FALLBACK_TORCH
    (tmp_path / "constraints.txt").write_text("numpy==2.0\ntorch == 2.9.0  # CPU\ntorchvision==0.1\n")
    assert peers.torch_pin() == "torch == 2.9.0"


def test_one_failing_peer_does_not_stop_the_others_and_nothing_is_done_twice(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    good, bad = peers.Peer("good", "1", "json", "jax-fake"), peers.Peer("bad", "1", "absent_module", "jax-fake")
    monkeypatch.setattr(peers, "PEERS", (bad, good))
    asked = []

    def pip(environment, constraints, *arguments):
        asked.append(arguments)
        if "bad==1" in arguments:
            raise peers.PeerError("no such package")

    def create(command, **_):
        Path(command[-1]).mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(peers, "_pip", pip)
    monkeypatch.setattr(peers, "_run", create)
    assert peers.main([]) == 0
    assert [arguments[-1] for arguments in asked[:2]] == ["bad==1", "good==1"]
    assert "install failed: no such package" in capsys.readouterr().out
    asked.clear()
    assert peers.main([]) == 0
    assert [arguments[-1] for arguments in asked if arguments[0] == "install"] == ["bad==1"]
