"""Runs made wrong on purpose, and the verdict that finds each of them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.core.status import DIVERGED, INTERRUPTED
from temperance.judge import diagnose
from temperance.judge.diagnose import checks
from temperance.judge.diagnose.checks import check_loss
from temperance.judge.diagnose.temperature import Temperatures
from temperance.posteriors import Draws, Mixture
from temperance.run.fitted import Fitted, RunInfo
from temperance.testing import linear_gaussian
from temperance.testing.problems import solve_linear_gaussian

from .simulate import exact_draws, of_network, on_linear_gaussian, symplectic_euler

OF_DRAWS = "configurational temperature of the draws"
STEPS = {"steps": 3000, "burn_in": 500}


def fitted(problem, run, info: RunInfo | None = None) -> Fitted:
    return Fitted(problem.target, run, info or RunInfo(steps=3000, total_steps=3000, data={"rows": 40}))


def failed(verdict: diagnose.Verdict) -> list[str]:
    return [check.name for check in verdict.failed]


@pytest.fixture(scope="module")
def problem():
    return linear_gaussian()


@pytest.fixture(scope="module")
def healthy(problem):
    return on_linear_gaussian(problem, lr=0.01, **STEPS)


def test_a_healthy_run_passes_every_check(problem, healthy):
    verdict = diagnose.sampling(fitted(problem, healthy), problem.data)
    assert verdict.passed, str(verdict)
    assert [check.name for check in verdict.checks if check.passed] == [
        "run",
        "draws",
        "kinetic temperature",
        "configurational temperature",
        OF_DRAWS,
        "temperature by curvature",
        "R-hat of predictions",
        "effective draws",
        "R-hat away from the data",
        "loss settled",
    ]
    text = str(verdict)
    assert text.startswith("The run looks right. 10 checks: 10 passed")
    assert "→" not in text


def test_healthy_runs_rarely_fail(problem):
    """Four more seeds; a verdict is six judged means, each with a false alarm of one in a hundred."""
    verdicts = [
        diagnose.sampling(on_linear_gaussian(problem, lr=0.01, seed=s, **STEPS), problem.data, target=problem.target)
        for s in range(1, 5)
    ]
    assert sum(not v.passed for v in verdicts) <= 1, [failed(v) for v in verdicts]


def test_a_step_that_is_too_large(problem):
    run = on_linear_gaussian(problem, lr=0.09, **STEPS)
    verdict = diagnose.sampling(fitted(problem, run), problem.data)
    assert not verdict.passed
    check = verdict["kinetic temperature"]
    assert check.passed is False
    assert "lower the learning rate" in check.remedy
    without_momenta = Mixture(tuple(Draws(chain.theta) for chain in run.components))
    verdict = diagnose.sampling(without_momenta, problem.data, target=problem.target)
    assert not verdict.passed  # draws alone tell as well


class TwoTensors(nn.Module):
    """Linear, with one tensor of which the data know a hundred times more."""

    def __init__(self) -> None:
        super().__init__()
        self.calm = nn.Parameter(torch.zeros(20, dtype=torch.float64))
        self.stiff = nn.Parameter(torch.zeros(10, dtype=torch.float64))
        self.loose = nn.Parameter(torch.zeros(15, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        parts = x[:, :20] @ self.calm + 10 * x[:, 20:30] @ self.stiff + x[:, 30:] @ self.loose
        return parts.unsqueeze(-1)


def test_a_missing_preconditioner_is_told_by_the_stiff_tensor():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(150, 45, generator=rng, dtype=torch.float64)
    y = torch.randn(150, 1, generator=rng, dtype=torch.float64)
    problem = solve_linear_gaussian(TwoTensors(), x, y, 1.0, tp.GaussianPrior(1.0))
    mass = torch.ones(45, dtype=torch.float64)
    mass[20:30] = 100.0
    options = {"lr": 0.012, "steps": 3000, "burn_in": 500}
    off = diagnose.sampling(on_linear_gaussian(problem, **options), problem.data, target=problem.target)
    assert "kinetic temperature" in failed(off)
    check = off["kinetic temperature"]
    assert check.measured.startswith("worst stiff:")
    assert "2 of 3 tensors right" in check.measured
    assert "tp.Layerwise()" in check.remedy
    on = diagnose.sampling(on_linear_gaussian(problem, mass=mass, **options), problem.data, target=problem.target)
    assert on["kinetic temperature"].passed
    assert on.passed, str(on)


def classes() -> tuple[tp.Target, tp.data.Data]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=rng)
    y = (x[:, 0] * x[:, 1] + 0.3 * torch.randn(100, generator=rng) > 0).long()
    torch.manual_seed(0)
    network = tp.nn.MLP(2, [10], 2, activation=nn.Tanh)
    return tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0)), tp.data.Data(x, y)


@pytest.mark.parametrize(("claim", "word"), [(10.0, "Too cold"), (1.0, ""), (0.1, "Too hot")])
def test_a_loop_of_ones_own_that_is_wrong_about_n_by_a_factor_of_ten(claim, word):
    """Draws without a trace, from a network, by batches that claim another N; and the same loop with the right one."""
    target, data = classes()
    start = 0.5 * target.sample_prior(4, torch.Generator().manual_seed(3))
    gradient = of_network(target, data, 4, claim=claim)
    run = symplectic_euler(
        target, gradient, start, round(100 * claim), lr=0.3 if claim > 1 else 0.1, steps=1800, burn_in=600, every=15
    )
    draws = Mixture(tuple(Draws(chain.theta) for chain in run.components))
    verdict = diagnose.sampling(draws, data, target=target)
    check = verdict["temperature by curvature"]
    assert check.passed is (claim == 1.0), str(verdict)
    if claim != 1:
        assert not verdict.passed
        assert check.remedy.startswith(word)
        assert "N (`num_data` of the batches)" in check.remedy
    else:
        assert verdict.passed, str(verdict)


def test_a_wrong_temperature(problem):
    run = on_linear_gaussian(problem, lr=0.01, temperature=0.2, **STEPS)
    verdict = diagnose.sampling(fitted(problem, run), problem.data)
    assert verdict["kinetic temperature"].passed  # the trace believes what the sampler believed
    assert failed(verdict) == [OF_DRAWS, "temperature by curvature"]
    cold = problem.target.with_temperature(0.2)
    assert diagnose.sampling(run, problem.data, target=cold).passed


def test_a_burn_in_that_was_too_short(problem):
    start = problem.mean + 3 * torch.ones(4, 16, dtype=torch.float64)
    run = on_linear_gaussian(problem, lr=1e-4, start=start, steps=3000, burn_in=0)
    verdict = diagnose.sampling(fitted(problem, run), problem.data)
    assert "loss settled" in failed(verdict)
    alone = diagnose.sampling(fitted(problem, run))  # from the trace's losses, which here are energies
    assert "loss settled" in failed(alone)


@pytest.mark.parametrize(("fall", "passed"), [(0.0, True), (1.5, True), (3.0, False)])
def test_a_loss_that_falls_by_less_than_the_energy_varies_is_no_news(fall, passed):
    """N = 100, d = 50, T = 1: news is a fall of N·loss by 2·√25 = 10, of the loss by 0.1."""
    loss = 0.01 * torch.randn(4, 200, generator=torch.Generator().manual_seed(0)) + 1.0
    falling = loss + 0.05 * fall * torch.linspace(2, 0, 200)
    check = check_loss(falling, 100, 50, 1.0)
    assert check.passed is passed
    assert check_loss(falling, 100, 50, 10.0).passed  # hotter, so that the energy varies more
    assert check_loss(falling[:, :4], 100, 50, 1.0).passed is None


def test_chains_that_predict_different_things(problem):
    theta = exact_draws(problem.mean, problem.covariance, (4, 100))
    theta[3] += 2.0
    verdict = diagnose.sampling(Mixture(tuple(map(Draws, theta))), x=problem.data.x, target=problem.target)
    assert failed(verdict) == ["R-hat of predictions", "effective draws"]
    assert "run longer" in verdict["R-hat of predictions"].remedy


def test_too_few_draws_and_repeated_ones(problem):
    theta = exact_draws(problem.mean, problem.covariance, (3,))
    verdict = diagnose.sampling(Draws(theta), problem.data, target=problem.target)
    assert failed(verdict) == ["draws"]
    assert verdict["R-hat of predictions"].passed is None
    assert "FAIL" in str(verdict)
    assert "→ Run longer, or draw more often." in str(verdict)
    stuck = theta[:1].expand(20, -1).clone()
    check = diagnose.sampling(Draws(stuck), problem.data, target=problem.target)["draws"]
    assert check.passed is False
    assert "19 repeat" in check.measured


def test_how_the_run_ended(problem, healthy):
    bad = RunInfo(steps=7, total_steps=3000, status=DIVERGED)
    check = diagnose.sampling(fitted(problem, healthy, bad))["run"]
    assert check.passed is False
    assert check.remedy == DIVERGED.remedy
    early = RunInfo(steps=7, total_steps=3000, status=INTERRUPTED)
    assert diagnose.sampling(fitted(problem, healthy, early))["run"].passed is None
    other = diagnose.sampling(fitted(problem, healthy), problem.data[:30])
    assert other["data"].passed is None
    assert "40 rows, `data` has 30" in other["data"].measured


def test_cyclical_runs_are_judged_at_their_slow_ends(problem, healthy):
    """Readings at full pace are made hot, as a large step makes them."""
    changed = []
    for chain in healthy.components:
        trace = chain.trace
        pace = torch.tensor([1.0, 0.7, 0.3, 0.1]).repeat(len(trace.pace) // 4)
        hot = torch.where(pace > 0.5, 1.6, 1.0).unsqueeze(1)
        changed.append(replace(chain, trace=replace(trace, pace=pace, kinetic=trace.kinetic * hot)))
    cyclical = Mixture(tuple(changed))
    check = diagnose.sampling(cyclical, target=problem.target)["kinetic temperature"]
    assert check.passed
    assert "cyclical: at up to half the pace, 0.5" in check.measured
    level = tuple(replace(c, trace=replace(c.trace, pace=torch.ones(len(c.trace.pace)))) for c in changed)
    assert diagnose.sampling(Mixture(level), target=problem.target)["kinetic temperature"].passed is False


def test_nothing_to_judge_by_is_no_pass(problem):
    verdict = diagnose.sampling(Draws(exact_draws(problem.mean, problem.covariance, (20,))), target=problem.target)
    assert not verdict.failed
    assert not verdict.passed
    assert str(verdict).startswith("Too little to judge by.")
    with pytest.raises(ArgumentError, match="`name` must be one of"):
        verdict["no such check"]
    with pytest.raises(ArgumentError, match="`target` must be given"):
        diagnose.sampling(Draws(torch.zeros(3, 2)))


def test_thermometers_that_cannot_be_read_are_no_pass_though_predictions_mix():
    """A chain whose temperature rises in bursts: twice T, with an error as large."""
    time = torch.arange(400, dtype=torch.float64)
    bursts = 0.7 + 6.0 * torch.exp(-((time - 180.0) / 30.0).square()).unsqueeze(-1).expand(-1, 2)
    found = Temperatures("kinetic", ("a", "b"), (50, 50), bursts.unsqueeze(0), time, torch.tensor([0.4, 0.4]), 0.99)
    mixed = checks.Finding("R-hat of predictions", True, "100% below 1.1")
    for unread in (checks.check_kinetic(found), checks.check_configurational(found, OF_DRAWS)):
        assert unread.passed is None
        assert unread.inconclusive
        verdict = diagnose.Verdict((mixed, unread))
        assert not verdict.passed
        assert str(verdict).startswith("Too little to judge by.")
    absent = checks.Finding("kinetic temperature", None, "the sampler has no momenta")
    assert diagnose.Verdict((mixed, absent)).passed


class Sign(nn.Module):
    """w² x on the right, |w| · x on the left: of the sign of w the data on the right know nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, self.w.square() * x, self.w * x)


def test_chains_in_different_modes_that_agree_at_the_data_do_not_pass():
    x = torch.linspace(1, 3, 60, dtype=torch.float64).unsqueeze(1)
    rng = torch.Generator().manual_seed(0)
    data = tp.data.Data(x, 4 * x + 0.3 * torch.randn(60, 1, generator=rng, dtype=torch.float64))
    target = tp.Target(Sign(), tp.Normal(scale=0.3), tp.GaussianPrior(3.0))
    method = tp.Ensemble(tp.Collect(tp.HMC(step_size=0.004, length=10), burn=20, every=1), 4)
    start = torch.tensor([[2.0], [2.0], [-2.0], [-2.0]], dtype=torch.float64)
    apart = diagnose.sampling(tp.fit(target, method, data, steps=320, start=start), data)
    assert apart["R-hat of predictions"].passed
    assert apart["R-hat away from the data"].passed is False
    assert "different modes" in apart["R-hat away from the data"].remedy
    assert not apart.passed
    together = diagnose.sampling(tp.fit(target, method, data, steps=320, start=start.abs()), data)
    assert together["R-hat away from the data"].passed
    assert together.passed, str(together)


def test_weights_are_compared_up_to_the_symmetries_of_the_network():
    """Chains that differ by a permutation alone are alike; ones around other weights are told of, and do not fail."""
    torch.manual_seed(0)
    network = tp.nn.MLP(2, [3], 1, activation=nn.Tanh).double()
    target = tp.Target(network, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    theta = target.initial_theta() * 3
    swapped = theta.clone()
    parts = target.layout.unflatten(swapped)
    order = torch.tensor([2, 0, 1])
    for name in ("0.weight", "0.bias"):
        parts[name].copy_(parts[name][order])
    parts["2.weight"].copy_(parts["2.weight"][:, order])
    data = tp.data.Data(torch.randn(30, 2, dtype=torch.float64), torch.zeros(30, 1))
    rng = torch.Generator().manual_seed(1)

    def chains(*centres):
        noise = [0.02 * torch.randn(100, len(theta), generator=rng, dtype=torch.float64) for _ in centres]
        return Mixture(tuple(Draws(c + n) for c, n in zip(centres, noise, strict=True)))

    alike = diagnose.sampling(chains(theta, swapped, theta, swapped), data, target=target)
    assert alike["R-hat of weights, aligned"].passed
    other = diagnose.sampling(chains(theta, theta * 1.5, theta, theta * 1.5), data, target=target)
    assert other["R-hat of weights, aligned"].passed is None
    assert "different modes" in other["R-hat of weights, aligned"].measured
