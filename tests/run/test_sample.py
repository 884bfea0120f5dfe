"""``tp.sample``: draws from a log density of one's own."""

from __future__ import annotations

import contextlib

import pytest
import torch

import temperance as tp
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.core.growing import Rows
from temperance.engine.compiling import has_compiler
from temperance.run import density as density_room
from temperance.run import sample as sample_room
from temperance.testing.inference import _Stopped, _stopped_after


def round_one(theta):
    return -0.5 * (theta - 1.0).square().sum()


def test_shapes_seeds_and_summaries():
    found = tp.sample(round_one, [0.0, 0.0, 0.0], tp.NUTS(), draws=300, warmup=200, chains=3, progress=False)
    assert found.theta.shape == (3, 300, 3)
    assert found.theta.dtype == torch.float32
    assert found.divergences == 0
    assert len(found.transitions) == 3
    assert bool((found.rhat() < 1.05).all())
    assert bool((found.ess() > 100).all())
    assert bool(((found.mean() - 1.0).abs() < 5 * found.mcse()).all())
    assert torch.allclose(found.covariance(), torch.eye(3).double(), atol=0.3)
    again = tp.sample(round_one, [0.0, 0.0, 0.0], tp.NUTS(), draws=300, warmup=200, chains=3, progress=False)
    assert torch.equal(found.theta, again.theta)
    other = tp.sample(round_one, torch.zeros(3), tp.NUTS(), draws=5, warmup=200, chains=3, seed=1, progress=False)
    assert not torch.equal(found.theta[:, :5], other.theta)


def test_a_function_that_cannot_be_batched_gives_the_same_draws():
    def branching(theta):
        if bool(theta.isnan().any()):  # a decision on data stops vmap
            raise ValueError("never")
        return round_one(theta)

    options = {"draws": 50, "chains": 2, "warmup": 0, "progress": False}
    kernel, start = tp.HMC(step_size=0.3, length=4), torch.zeros(2).double()
    batched, looped = (tp.sample(f, start, kernel, **options) for f in (round_one, branching))
    assert torch.allclose(batched.theta, looped.theta, atol=1e-12)


def test_any_sampler_serves():
    method = tp.BAOAB(lr=0.1, momentum=0.9)
    found = tp.sample(round_one, torch.zeros(2).double(), method, draws=4000, warmup=100, chains=4, progress=False)
    assert bool(((found.mean() - 1.0).abs() < 5 * found.mcse()).all())
    assert found.transitions == ()


def test_every_chain_has_a_start_of_its_own():
    start = torch.tensor([[0.0], [100.0]]).double()
    found = tp.sample(
        lambda t: -1e-6 * t.square().sum(), start, tp.HMC(step_size=0.01, length=1), draws=2, chains=2, warmup=0,
        progress=False,
    )  # fmt: skip
    assert abs(float(found.theta[0, 0])) < 1
    assert abs(float(found.theta[1, 0]) - 100) < 1


def test_resumes_bit_for_bit(tmp_path):
    options = {"draws": 30, "chains": 2, "warmup": 150, "progress": False}
    straight = tp.sample(round_one, torch.zeros(2).double(), tp.NUTS(), **options)
    with contextlib.suppress(_Stopped), _stopped_after(tp.Ensemble, 130):
        tp.sample(round_one, torch.zeros(2).double(), tp.NUTS(), checkpoint=tmp_path / "run", **options)
    resumed = tp.sample(round_one, torch.zeros(2).double(), tp.NUTS(), checkpoint=tmp_path / "run", **options)
    assert torch.equal(straight.theta, resumed.theta)


def test_a_second_ctrl_c_between_two_chains_gives_the_draws_that_both_have(tmp_path, monkeypatch):
    options = {"draws": 8, "chains": 2, "warmup": 2, "progress": False}
    start, kernel = torch.zeros(2).double(), tp.HMC(step_size=0.3, length=4)
    whole = tp.sample(round_one, start, kernel, **options)
    append, rows = Rows.append, []

    def interrupted(self, row):
        append(self, row)
        rows.extend([row] * (len(row) == 2))  # draws, not readings of the thermometer
        if len(rows) == 7:  # the first chain has its fourth draw, the second has three
            raise KeyboardInterrupt

    monkeypatch.setattr(Rows, "append", interrupted)
    found = tp.sample(round_one, start, kernel, checkpoint=tmp_path / "run", **options)
    monkeypatch.undo()
    assert found.fitted.info.status.code == "interrupted"
    assert torch.equal(found.theta, whole.theta[:, :3])
    assert [len(chain.theta) for chain in found.chains] == [3, 3]
    assert torch.equal(tp.sample(round_one, start, kernel, checkpoint=tmp_path / "run", **options).theta, whole.theta)


def test_impossible_places_are_never_drawn():
    def half(theta):
        return torch.where(theta[0] > 0, -theta[0], -torch.inf)

    with pytest.warns(tp.errors.TemperanceWarning, match="diverged"):
        found = tp.sample(
            half, torch.tensor([1.0]).double(), tp.HMC(step_size=0.5, length=5), draws=1000, warmup=50, progress=False
        )
    assert bool((found.theta > 0).all())
    assert abs(float(found.mean()) - 1.0) < 5 * float(found.mcse())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_density": 3}, "`log_density` must be a function"),
        ({"log_density": lambda t: t}, r"must return a tensor of one number, of shape \(\); got shape \(2,\)"),
        ({"log_density": lambda t: 0.0}, r"must return a tensor of one number.*got float"),
        ({"log_density": lambda t: t.sum() * torch.nan}, "must be finite where the chains start; got nan for chain 1"),
        ({"log_density": lambda t: t.sum() - torch.inf}, "got -inf for chain 1"),
        ({"start": torch.tensor([0.0, torch.inf])}, "`start` must be finite"),
        ({"start": torch.zeros(3, 2)}, r"a row for each of the 4 chains; got shape \(3, 2\)"),
        ({"start": torch.zeros(0)}, "`start` must be a vector"),
        ({"start": "here"}, "`start` must be a vector"),
        ({"method": tp.MAP()}, "`method` must be a sampler"),
        ({"chains": 0}, "`chains` must be a positive integer; got 0"),
        ({"draws": 0}, "`draws` must be a positive integer"),
        ({"warmup": 100}, "at least 150, the sum of the warm-up's windows"),
        ({"warmup": -1}, "`warmup` must be a number of steps"),
        ({"seed": -1}, "`seed` must be an integer"),
    ],
)
def test_bad_input(options, message):
    given = {"log_density": round_one, "start": torch.zeros(2), "method": tp.NUTS(), **options}
    with pytest.raises(ArgumentError, match=message):
        tp.sample(given.pop("log_density"), given.pop("start"), given.pop("method"), progress=False, **given)


def test_a_density_of_ones_own_has_no_prior_for_an_ellipse():
    with pytest.raises(ArgumentError, match="must be Gaussian with independent weights for EllipticalSlice"):
        tp.sample(lambda theta: -theta.square().sum(), torch.zeros(2), tp.EllipticalSlice(), draws=5, warmup=1)


@pytest.mark.filterwarnings("ignore:.*transitions diverged")
def test_places_where_the_density_raises_are_rejected_counted_and_said():
    """A Cholesky factor that does not exist on the wrong side of −1, and an error that is the user's own."""

    def by_cholesky(theta):
        root = torch.linalg.cholesky(torch.eye(2, dtype=theta.dtype) * (1 + theta[0]))
        return -0.5 * theta.square().sum() + 0.0 * root.sum()

    def raises(theta):
        if float(theta[0]) < -1:
            raise ValueError("outside")
        return -0.5 * theta.square().sum()

    plain = tp.sample(
        lambda theta: torch.where(theta[0] < -1, -torch.inf, -0.5 * theta.square().sum()),
        torch.zeros(2, dtype=torch.float64), tp.HMC(step_size=0.6, length=4), draws=300, warmup=0, progress=False,
    )  # fmt: skip
    for density, what in ((by_cholesky, "LinAlgError"), (raises, "ValueError: outside")):
        with pytest.warns(TemperanceWarning, match=rf"`log_density` raised at \d+ trial places.*{what}"):
            found = tp.sample(
                density, torch.zeros(2, dtype=torch.float64), tp.HMC(step_size=0.6, length=4), draws=300, warmup=0,
                progress=False,
            )  # fmt: skip
        assert torch.allclose(found.theta, plain.theta)
        assert any("trial places" in remark for remark in found.fitted.info.remarks)
    with pytest.raises(TypeError):  # no number is at fault here
        tp.sample(lambda theta: theta.sum() + "a", torch.zeros(2), tp.NUTS(), draws=5, warmup=150)


def test_an_error_that_comes_once_is_not_lost():
    """Say, that of a clock that a user set."""
    count = [0]

    def density(theta):
        count[0] += 1
        if count[0] == 60:
            raise TimeoutError("too long")
        return -0.5 * theta.square().sum()

    with pytest.raises(TimeoutError):
        tp.sample(density, torch.zeros(2), tp.HMC(0.1, 5), draws=100, warmup=0, compile=False, progress=False)


def test_data_of_another_dtype_are_told():
    data = torch.eye(2, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"`start` must have the dtype.*got torch.float32.*start.double"):
        tp.sample(lambda t: -(data @ t).square().sum(), torch.zeros(2), tp.NUTS(), progress=False)


def test_draws_print_a_summary():
    found = tp.sample(round_one, torch.zeros(2), tp.NUTS(), draws=50, warmup=150, progress=False)
    text = repr(found)
    assert "4 chains × 50 draws of 2 numbers" in text
    assert "theta[1]" in text
    assert "R-hat" in text
    assert "tensor(" not in text
    many = tp.sample(lambda t: -0.5 * t.square().sum(), torch.zeros(30), tp.HMC(0.1, 2), draws=8, progress=False)
    assert "… and 20 more" in repr(many)


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_compiled_by_torch_it_gives_the_same_numbers():
    """Chains that need another number of rows at a time, and places that are impossible."""

    def density(theta):
        return torch.where(theta[0] < -1.5, -torch.inf, -0.5 * (theta * torch.tensor([1.0, 3.0])).square().sum())

    energies = density_room.DensityEnergies(density, 2, density_room.Failures(), rows=4)
    plain = density_room.DensityEnergies(density, 2, density_room.Failures())
    places = torch.tensor([[0.3, -1.0], [-2.0, 0.1], [1.0, 1.0], [0.0, 0.0], [5.0, 2.0]])
    for theta in (places[:4], places[:4], places[1:3], places[:1], places):
        slopes = [torch.full_like(theta, torch.nan) for _ in range(2)]
        values = [part(theta, slope) for part, slope in zip((energies, plain), slopes, strict=True)]
        assert torch.allclose(*values)
        assert torch.allclose(*slopes)
    assert energies.compiled.in_use == "compiled"


@pytest.mark.parametrize(
    ("method", "options", "pays"),
    [
        (tp.NUTS(), {}, True),
        (tp.NUTS(), {"draws": 20, "warmup": 100}, False),
        (tp.HMC(step_size=0.1, length=50), {"draws": 200, "warmup": 0}, True),
        (tp.SGLD(lr=0.1), {"draws": 5000}, None),
    ],
)
def test_long_runs_become_machine_code(monkeypatch, method, options, pays):
    """``None``: a method that has no use for it."""

    class Asked(Exception):
        pass

    asked = []

    def network(density, start, native=None, rows=None):
        asked.append(native is not None)
        raise Asked

    monkeypatch.setattr(sample_room, "DensityNetwork", network)
    monkeypatch.setattr(sample_room.NativeDensity, "of", lambda *_: object())
    for wanted in (None, True, False):
        with pytest.raises(Asked):
            tp.sample(round_one, torch.zeros(2), method, compile=wanted, **options)
    assert asked == [bool(pays), pays is not None, False]


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so(monkeypatch):
    def broken(function, **options):
        def call(*args):
            raise RuntimeError("no compiler today")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setenv("TEMPERANCE_NO_COMPILER", "1")
    options = {"draws": 20, "warmup": 150, "progress": False, "chains": 2}
    with pytest.warns(TemperanceWarning) as told:
        found = tp.sample(round_one, torch.zeros(2), tp.NUTS(), compile=True, **options)
    texts = " ".join(str(warning.message) for warning in told)
    assert "could not be made into machine code (there is no C compiler" in texts
    assert any("machine code" in remark for remark in found.fitted.info.remarks)
    if has_compiler():
        assert "torch.compile did not work here (no compiler today" in texts
    assert torch.allclose(found.theta, tp.sample(round_one, torch.zeros(2), tp.NUTS(), compile=False, **options).theta)


# ---------------------------------------------------------------------- what a sampler cannot know


@pytest.mark.parametrize("chains", [1, 4])
def test_a_density_that_cannot_be_normalised_is_said(chains):
    with pytest.warns(TemperanceWarning, match=r"R-hat of theta\[1\] is .*cannot be normalised"):
        found = tp.sample(
            lambda t: -t[0].square(), torch.zeros(2).double(), tp.HMC(step_size=0.3, length=5), draws=200, warmup=0,
            chains=chains, progress=False,
        )  # fmt: skip
    assert any("cannot be normalised" in remark for remark in found.fitted.info.remarks)


@pytest.mark.parametrize(
    "density",
    [
        lambda t: -t.detach().square().sum(),
        lambda t: torch.tensor(-(t[0].item() ** 2) - t[1].item() ** 2),
        lambda t: torch.no_grad()(round_one)(t),
        lambda t: -t.detach().square().sum() + torch.zeros((), requires_grad=True),
    ],
)
@pytest.mark.parametrize("method", [tp.NUTS(), tp.SGLD(lr=0.1)])
def test_a_value_cut_off_from_its_argument_is_refused(density, method):
    with pytest.raises(ArgumentError, match=r"`log_density` must be differentiable.*\.detach\(\)"):
        tp.sample(density, torch.zeros(2), method, draws=20, progress=False)


def test_steps_without_a_slope_are_said():
    with pytest.warns(TemperanceWarning, match=r"gradient of zero.*torch\.round"):
        found = tp.sample(
            lambda t: -t.round().square().sum(), torch.zeros(2), tp.HMC(0.5, 3), draws=20, warmup=0, progress=False
        )
    assert any("torch.round" in remark for remark in found.fitted.info.remarks)


@pytest.mark.parametrize(
    "density",
    [
        lambda t: 0.0 * t.sum(),
        lambda t: torch.zeros(()),  # no gradient leads back, and none is missing
        round_one,
        lambda t: torch.where(t[0] > 1e-4, -t.square().sum(), torch.zeros(())),  # flat where the chains start
    ],
)
def test_a_flat_place_has_the_slope_that_it_says(density):
    tp.sample(density, torch.zeros(2), tp.HMC(0.1, 3), draws=10, warmup=0, progress=False)


HALF = "over an edge of the support.*log-Jacobian"


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("kernel", [tp.NUTS(step_size=0.5), tp.HMC(0.5, 5), tp.MCLMC(0.3)])
@pytest.mark.parametrize(
    ("half", "alone"),
    [
        (lambda t: torch.where(t[0] > 0, -t[0], -torch.inf) - t[1].square(), True),  # −∞, and no slope there
        (lambda t: t[0].log() - t[0] - t[1].square(), False),  # NaN, and a slope; steep before the edge
        (lambda t: -t[0].sqrt() - t[0] - t[1].square(), True),  # NaN, and so is the slope
    ],
)
@pytest.mark.filterwarnings("ignore:.*(R-hat|are worth|are the same)")
def test_an_edge_of_the_support_asks_for_other_coordinates_and_not_for_smaller_steps(half, alone, kernel, compile):
    with pytest.warns(TemperanceWarning, match=HALF) as told:
        tp.sample(half, torch.ones(2).double(), kernel, draws=100, warmup=0, compile=compile, progress=False)
    if alone:
        assert not any("too steep" in str(one.message) for one in told)


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("kernel", [tp.NUTS(step_size=1.5), tp.HMC(0.9, 20)])
@pytest.mark.filterwarnings("ignore:.*(R-hat|are worth|are the same)")
def test_steps_that_overflow_are_too_long(kernel, compile):
    """θ⁴ takes them beyond all numbers within a few steps, where there is no edge."""
    with pytest.warns(TemperanceWarning, match="too steep for the step") as told:
        tp.sample(
            lambda t: -t.pow(4).sum(), torch.ones(1).double(), kernel, draws=100, warmup=0, compile=compile,
            progress=False,
        )  # fmt: skip
    assert not any("edge of the support" in str(one.message) for one in told)
