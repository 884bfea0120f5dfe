"""The verdict on runs of the library's own samplers."""

from __future__ import annotations

import pytest

import temperance as tp
from temperance.judge import diagnose
from temperance.testing import linear_gaussian


def run(method: tp.Inference, steps: int = 2000, batch_size: int = 40) -> tuple[tp.Fitted, diagnose.Verdict]:
    problem = linear_gaussian()
    fitted = tp.fit(problem.target, method, problem.data, steps=steps, batch_size=batch_size, seed=0, progress=False)
    return fitted, diagnose.sampling(fitted, problem.data)


def chains(sampler: tp.Inference) -> tp.Ensemble:
    return tp.Ensemble(tp.Collect(sampler, burn=500, every=10), 4)


def test_a_healthy_run():
    fitted, verdict = run(chains(tp.SGHMC(lr=0.02, momentum=0.95)), steps=1600)
    assert verdict.passed, str(verdict)
    assert not verdict.unknown
    raw, corrected = (diagnose.kinetic(fitted, corrected=c).network_mean for c in (False, True))
    assert raw == pytest.approx(corrected * 2 / 1.95)


def test_a_step_that_is_too_large():
    _, verdict = run(chains(tp.SGHMC(lr=0.08, momentum=0.9)), steps=1000)
    assert verdict["kinetic temperature"].passed is False
    assert not verdict.passed


def test_batches_that_are_too_noisy():
    _, verdict = run(chains(tp.SGHMC(lr=0.01, momentum=0.9)), steps=1500, batch_size=10)
    for name in ("kinetic temperature", "temperature by curvature"):
        assert verdict[name].passed is False
        assert "larger batches" in verdict[name].remedy


def test_one_chain_without_momenta():
    fitted, verdict = run(tp.Collect(tp.SGLD(lr=0.02), burn=300, every=20), steps=1100)
    check = verdict["kinetic temperature"]
    assert check.passed is None
    assert check.measured == "the sampler has no momenta"
    assert verdict["temperature by curvature"].passed
    assert diagnose.configurational(fitted).network_error > 0


def test_a_cyclical_run_is_judged_at_its_slow_ends():
    cyclical = tp.Cyclical(tp.SGHMC(lr=0.04, momentum=0.9), cycle=60, start=300)
    _, verdict = run(tp.Ensemble(tp.Collect(cyclical, read_every=5), 4), steps=1500)
    assert "cyclical" in verdict["kinetic temperature"].measured
    assert verdict["kinetic temperature"].passed
    assert verdict["temperature by curvature"].passed
    assert verdict["draws"].measured == "80 in 4 chains"
