"""The battery that every method must pass: exactness, reproducibility, resuming, failing loud, declared cost."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError, NumericalError, TemperanceWarning
from temperance.core.seeds import generator
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference import Collect, Ensemble, Exactness, Inference
from temperance.inference.base import Starts
from temperance.judge import diagnose
from temperance.model.likelihoods import Normal
from temperance.model.priors import GaussianPrior
from temperance.model.target import Target
from temperance.posteriors import Draws, Gaussian, Point, Posterior
from temperance.run.fit import fit
from temperance.run.fitted import Fitted
from temperance.run.loading import load
from temperance.testing.checks import Report
from temperance.testing.cost import check_cost, patched
from temperance.testing.problems import ClosedForm, linear_gaussian, skewed_counts
from temperance.testing.tolerance import assert_moments

_JUDGED = 8  # draws of a chain by which to say how many they are worth
_MOST_STEPS = 2**20


def check_inference(
    method: Inference[Any],
    *,
    steps: int = 2000,
    draws: int = 2000,
    temperatures: tuple[float, ...] = (1.0, 0.3),
    false_alarm: float = 1e-6,
    settled: bool = False,
    tolerance: float = 1e-3,
    noise: float = 0.5,
) -> Report:
    """Run ``method`` through everything that a method promises; raise :class:`CheckFailure` with the list if it fails.

    ``steps`` is how long the method needs to converge on the linear-Gaussian problem (full batches); ``draws`` how many
    draws to judge a covariance by. ``settled`` starts the chains of a sampler at draws of the posterior, so that they
    need only to settle from there into their own law. At each of ``temperatures`` mean and covariance are judged; with
    none, ``temperatures=()``, only what does not depend on how long the method runs. ``tolerance`` is how far, in
    posterior standard deviations, a Gaussian may be off that was learned from noisy gradients. ``noise`` is that of the
    linear-Gaussian problem: the larger, the rounder the posterior, for methods that take long in a narrow valley.

    >>> import temperance as tp
    >>> method = tp.MAP(lr=0.1, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    >>> report = check_inference(method, steps=300)
    >>> report.passed
    True

    A sampler's draws must be worth enough to see a covariance twice what it should be; fewer are *inconclusive*, which
    is a failure that says how many more it takes. Chains side by side, the last place of each, are the cheapest draws:

    >>> report = check_inference(tp.HMC(step_size=0.15, length=8), steps=60, draws=250, noise=5.0, temperatures=(0.5,))
    >>> report.checks[0]
    Check(name='mean μ, covariance T Λ⁻¹, T = 0.5', passed=True, detail='250 draws')
    """
    report = Report(repr(method))
    for temperature in temperatures:
        _check_exactness(report, method, steps, draws, temperature, false_alarm, settled, tolerance, noise)
    if temperatures:
        _check_limits(report, method, steps, draws, false_alarm, settled)
    _check_seeds(report, method, noise)
    _check_store(report, method, noise)
    _check_isolation(report, method, noise)
    _check_not_a_number(report, method)
    check_cost(report, method)
    return report.raise_if_failed()


# ---------------------------------------------------------------------- exactness


def _check_exactness(
    report: Report,
    method: Inference[Any],
    steps: int,
    draws: int,
    temperature: float,
    false_alarm: float,
    settled: bool,
    tolerance: float,
    noise: float,
) -> None:
    problem = linear_gaussian(noise=noise)
    name = f"{method.facts().exact.value}, T = {temperature}"
    covariance = temperature * problem.covariance
    run = _run(problem, method, temperature, steps, draws, settled)
    posterior = run.posterior
    if method.facts().exact is Exactness.APPROXIMATE:
        return
    if method.facts().exact is Exactness.OWN_LAW:
        covariance = method.law(problem.precision, len(problem.data), temperature)
    if method.facts().exact is Exactness.MEAN:
        error = _deviation(_all_nodes(posterior), problem, covariance)
        report.add(name, error < 1e-3, f"{error:.1e} posterior standard deviations off")
    elif isinstance(posterior, Gaussian):
        wanted = covariance
        if method.facts().exact is Exactness.DIAGONAL:
            wanted = torch.diag(temperature / problem.precision.diagonal())
        error = _deviation(posterior.mean.unsqueeze(0), problem, covariance)
        size = wanted.diagonal().sqrt()
        spread = float(((posterior.covariance().double() - wanted) / size / size.unsqueeze(1)).abs().max())
        report.add(name, max(error, spread) < tolerance, f"mean off by {error:.1e}, covariance by {spread:.1e}")
        _agree(
            report,
            "draws agree with the covariance",
            posterior.sample(draws, 0),
            posterior.mean,
            wanted if tolerance <= 1e-3 else posterior.covariance().double(),
            false_alarm,
        )
    else:
        found = _all_nodes(posterior) if posterior.finite else posterior.sample(draws, seed=0)
        _agree(report, name, found, problem.mean, covariance, false_alarm, _effective(posterior))


def _check_limits(
    report: Report, method: Inference[Any], steps: int, draws: int, false_alarm: float, settled: bool
) -> None:
    """Points on an asymmetric target (a symmetric one cannot see a sign error); posteriors of no data: the prior."""
    if method.facts().exact is Exactness.MEAN:
        skewed = skewed_counts()
        found = fit(skewed.target, method, skewed.data, steps=steps, batch_size=3, progress=False).posterior
        error = float((_all_nodes(found) - skewed.mode).abs().max())
        report.add("the mode of an asymmetric posterior", error < 1e-3, f"off by {error:.1e}")
    if method.facts().exact is Exactness.POSTERIOR:
        problem = linear_gaussian()
        blind = Target(problem.target.network, Normal(scale=1e6), problem.target.prior)
        scale = blind.bound_prior.pieces[0][1].scale  # type: ignore[attr-defined]
        centre, spread = torch.full_like(problem.mean, 0.3), torch.diag(scale.double() ** 2)
        empty = dataclasses.replace(problem, target=blind, mean=centre, covariance=spread)
        posterior = _run(empty, method, 1.0, steps, draws, settled).posterior
        nodes = _all_nodes(posterior) if posterior.finite else posterior.sample(draws, seed=0)
        _agree(report, "no data, the prior", nodes, centre, spread, false_alarm, _effective(posterior))


def _run(
    problem: ClosedForm, method: Inference[Any], temperature: float, steps: int, draws: int, settled: bool
) -> Fitted:
    """One fit; of ``draws`` members where a single run gives a single draw."""
    target = problem.target.with_temperature(temperature)
    rows = len(problem.data)
    if method.facts().exact in (Exactness.POSTERIOR, Exactness.OWN_LAW) and not isinstance(method, Collect):
        probe = fit(target, method, problem.data, steps=_least_steps(method, 1), batch_size=rows, progress=False)
        if isinstance(probe.posterior, Point | Draws):
            together = method.at_once(Engine(target, target.prepare(problem.data)), Starts())
            method = Ensemble(method, draws) if together else Collect(method, burn=0.1, every=1)  # type: ignore[arg-type]
    start = None
    if settled:
        root = torch.linalg.cholesky(temperature * torch.linalg.inv(problem.precision))
        noise = torch.randn(draws, len(root), generator=generator(0, "check-start"), dtype=root.dtype)
        start = problem.mean + noise @ root.T
        start = start if isinstance(method, Ensemble) else start[0]
    return fit(target, method, problem.data, steps=steps, batch_size=rows, start=start, progress=False)


def _agree(
    report: Report,
    name: str,
    draws: Tensor,
    mean: Tensor,
    covariance: Tensor,
    false_alarm: float,
    effective: float | None = None,
) -> None:
    try:
        assert_moments(draws, mean, covariance, ess=effective, false_alarm=false_alarm)
        worth = "" if effective is None else f", worth {effective:.0f}"
        report.add(name, True, f"{len(draws)} draws{worth}")
    except AssertionError as error:
        report.add(name, False, str(error))


def _effective(posterior: Posterior) -> float | None:
    """How many independent draws those of chains are worth: the worst of all coordinates and their squares. Members
    of one draw each are independent."""
    chains = [part.theta.double() for _, part in posterior.parts() if isinstance(part, Draws)]
    if not chains or max(len(chain) for chain in chains) == 1:
        return None
    shortest = min(len(chain) for chain in chains)
    theta = torch.stack([chain[-shortest:] for chain in chains])  # chains × draws × P
    if shortest < _JUDGED:
        return float(len(chains))  # of so few draws of a chain nobody can tell that they are independent
    rows = torch.cat([theta, (theta - theta.mean((0, 1))).square()], dim=-1)
    found = [float(diagnose.ess(rows[..., k])) for k in range(rows.shape[-1])]
    return min(0.0 if math.isnan(value) else value for value in found)


def _all_nodes(posterior: Posterior) -> Tensor:
    nodes = posterior.nodes()
    return nodes.fetch(0, len(nodes))[0]


def _deviation(rows: Tensor, problem: ClosedForm, covariance: Tensor) -> float:
    return float(((rows.double() - problem.mean) / covariance.diagonal().sqrt()).abs().max())


# ---------------------------------------------------------------------- reproducibility


def _least_steps(method: Inference[Any], wanted: int) -> int:
    """``wanted`` steps after the fewest that the method can be run for (a warm-up, a burn-in)."""
    low, high = 0, 1
    while not _can_run(method, high):
        low, high = high, 2 * high
        if high > _MOST_STEPS:
            return wanted  # the fit itself will say why
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _can_run(method, middle) else (middle, high)
    return wanted if high <= wanted else high - 1 + wanted


def _can_run(method: Inference[Any], steps: int) -> bool:
    try:
        method.check_run(steps)
    except ArgumentError:
        return False
    return True


def _short(method: Inference[Any], noise: float, seed: int = 0, **options: Any) -> Fitted:
    problem, steps = linear_gaussian(noise=noise), _least_steps(method, 6)
    return fit(problem.target, method, problem.data, steps=steps, batch_size=9, seed=seed, progress=False, **options)


def _same(one: Fitted, two: Fitted) -> bool:
    a, b = (_all_nodes(f.posterior) for f in (one, two))
    return a.shape == b.shape and torch.equal(a, b)


def _check_seeds(report: Report, method: Inference[Any], noise: float) -> None:
    first = _short(method, noise)
    torch.randn(7)  # the global random state must not matter
    report.add("same seed, same result", _same(first, _short(method, noise)))
    report.add("another seed, another result", not _same(first, _short(method, noise, seed=1)))


def _check_store(report: Report, method: Inference[Any], noise: float) -> None:
    whole = _short(method, noise)
    x = linear_gaussian().data.x
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with contextlib.suppress(_Stopped), _stopped_after(type(method), _least_steps(method, 6) - 1):
            _short(method, noise, checkpoint=path, every=2)
        resumed = _short(method, noise, checkpoint=path, every=2)
        report.add("resumed run equals uninterrupted run, bit for bit", _same(whole, resumed))
        saved = Path(folder) / "saved"
        whole.save(saved)
        loaded = load_any(saved, linear_gaussian().target.network)
        equal = torch.equal(loaded.predict(x).mean(), whole.predict(x).mean()) and _same(whole, loaded)
        report.add("loaded run predicts the same, bit for bit", equal)


class _Stopped(Exception):
    """Stands for a process that ends in the middle of a run."""


def load_any(path: Path, network: nn.Module) -> Fitted:
    """``load``, without its word on methods that only the caller's code can make: such a method is under test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the method of the run", TemperanceWarning)
        return load(path, network)


@contextlib.contextmanager
def _stopped_after(kind: type, steps: int) -> Iterator[None]:
    count = 0
    depth = 0

    def make(original: Any) -> Any:
        def step(self: Any, target: Target, state: Any, batch: Batch) -> Any:
            nonlocal count, depth
            if depth == 0:
                count += 1
                if count > steps:
                    raise _Stopped
            depth += 1
            try:
                return original(self, target, state, batch)
            finally:
                depth -= 1

        return step

    with patched(kind, "step", make):
        yield


def _check_isolation(report: Report, method: Inference[Any], noise: float) -> None:
    problem = linear_gaussian(noise=noise)
    network = problem.target.network
    before = [p.detach().clone() for p in network.parameters()]
    target = Target(network, problem.target.likelihood, problem.target.prior)
    state = torch.get_rng_state()
    fit(target, method, problem.data, steps=_least_steps(method, 2), batch_size=9, progress=False)
    report.add("global random state untouched", torch.equal(state, torch.get_rng_state()))
    same = all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    report.add("the user's network untouched", same)


# ---------------------------------------------------------------------- failing loud


class _RootOfInput(nn.Module):
    """Gives NaN for negative inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """√x through a linear layer."""
        return self.layer(x.sqrt())


def _check_not_a_number(report: Report, method: Inference[Any]) -> None:
    x = torch.rand(12, 2) + 0.1
    x[-1] = -1.0
    target = Target(_RootOfInput(), Normal(scale=1.0), GaussianPrior(scale=1.0))
    message = "the run reported success"
    passed = False
    try:
        data, steps = Data(x, torch.zeros(12, 1)), _least_steps(method, 12)
        fitted = fit(target, method, data, steps=steps, batch_size=12, progress=False, throw=False)
        finite = bool(torch.isfinite(_all_nodes(fitted.posterior)).all())
        passed = finite and not fitted.info.status.ok
        message = str(fitted.info.status) if passed else message
    except NumericalError as error:
        passed, message = True, str(error)
    report.add("a NaN batch gives a status, not a posterior", passed, message)
