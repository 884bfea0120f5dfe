from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.core import encoding as values
from temperance.core.errors import ArgumentError, DataError, TemperanceWarning
from temperance.judge.calibrate import Isotonic, Temperature, TemperatureCalibrator, VarianceScale, Vector
from temperance.judge.calibrate.base import search
from temperance.predict import ClassPredictive
from temperance.predict.calibrated import MovedPredictive, from_outputs


def draw(probs: Tensor, seed: int) -> Tensor:
    return torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(10_000 + seed)).squeeze(1)


def logits(n: int, classes: int, seed: int, members: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    shared = torch.randn(1, n, classes, generator=rng, dtype=torch.float64)
    return shared + 0.7 * torch.randn(members, n, classes, generator=rng, dtype=torch.float64)


def same_value(value):
    tensors: dict[str, Tensor] = {}
    again = values.decode(values.encode(value, tensors), tensors)
    assert values.fingerprint(again) == values.fingerprint(value)
    return again


@pytest.mark.parametrize("members", [1, 4])
def test_the_temperature_is_found_within_its_standard_error(members):
    """z = (log T̂ − log T) / se over 40 data sets is standard normal; se from the curvature of the log-loss."""
    z = []
    for seed in range(40):
        f = logits(400, 3, seed, members)
        truth = f.softmax(-1).mean(0)
        y = draw(truth, seed)
        found = Temperature().fit(from_outputs(2.5 * f, tp.Categorical()), y)

        def loss(at: float, f: Tensor = f, y: Tensor = y) -> float:
            probs = (2.5 * f / math.exp(at)).softmax(-1).mean(0)
            return -float(probs.gather(1, y.unsqueeze(1)).log().mean())

        at, h = math.log(found.temperature), 1e-3
        assert loss(at) == pytest.approx(found.after, abs=1e-9)
        assert loss(at) <= min(loss(at - 0.01), loss(at + 0.01))
        curvature = (loss(at + h) - 2 * loss(at) + loss(at - h)) / h**2
        z.append((at - math.log(2.5)) * math.sqrt(400 * curvature))
    assert abs(np.mean(z)) < 4 / math.sqrt(40)
    assert 0.6 < np.std(z) < 1.5  # of 40 normals: 1 ± 4 · 0.11


def test_the_temperature_of_yes_no_labels():
    rng = torch.Generator().manual_seed(0)
    f = torch.randn(3000, 2, generator=rng, dtype=torch.float64)
    y = torch.bernoulli(f.sigmoid(), generator=rng)
    found = Temperature().fit(from_outputs(3 * f, tp.Bernoulli()), y)
    assert found.temperature == pytest.approx(3.0, rel=0.12)  # se of log T about 0.03
    assert isinstance(found(from_outputs(3 * f, tp.Bernoulli())), ClassPredictive)


def test_a_temperature_of_one_changes_nothing_to_the_bit():
    base = from_outputs(logits(50, 4, 0, 3).float(), tp.Categorical())
    same = TemperatureCalibrator(1.0)(base)
    y = draw(base.probs, 0)
    assert torch.equal(same.probs, base.probs)
    assert torch.equal(same.log_prob(y), base.log_prob(y))
    assert torch.equal(same.joint_log_prob(y), base.joint_log_prob(y))
    for method in ("entropy", "aleatoric", "mutual_information", "std", "epistemic_variance", "sample"):
        assert torch.equal(getattr(same, method)(), getattr(base, method)()), method


def test_scaling_keeps_the_split_and_one_members_choice():
    f = logits(300, 4, 1, 3)
    base = from_outputs(f, tp.Categorical())
    warm = TemperatureCalibrator(3.0)(base)
    assert torch.allclose(warm.probs, (f / 3).softmax(-1).mean(0))
    assert torch.allclose(warm.entropy(), warm.aleatoric() + warm.mutual_information())
    assert (warm.mutual_information() > 0).all()
    one = from_outputs(f[:1], tp.Categorical())
    for temperature in (0.05, 0.5, 7.0, 80.0):
        assert torch.equal(TemperatureCalibrator(temperature)(one).predict(), one.predict())


def test_the_vector_is_found():
    f = logits(6000, 3, 3)
    scale, shift = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([0.6, 0.0, -0.6]).double()
    y = draw((f[0] * scale + shift).softmax(-1), 3)
    found = Vector().fit(from_outputs(f, tp.Categorical()), y)
    parameters = torch.cat([found.scale, found.shift]).requires_grad_()

    def loss(p: Tensor) -> Tensor:
        return -(f[0] * p[:3] + p[3:]).log_softmax(-1).gather(1, y.unsqueeze(1)).sum()

    hessian = torch.autograd.functional.hessian(loss, parameters)
    error = torch.linalg.pinv(hessian).diagonal().sqrt()
    truth = torch.cat([scale, shift])
    assert ((parameters - truth).abs() < 4 * error).all()
    assert float(found.shift.sum()) == pytest.approx(0.0, abs=1e-9)
    assert found.after < found.before


@pytest.mark.parametrize("rule", [Temperature(), Vector(), VarianceScale(), VarianceScale(per_output=True)])
@pytest.mark.parametrize("seed", range(6))
def test_the_held_out_log_loss_never_rises(rule, seed):
    rng = torch.Generator().manual_seed(seed)
    if isinstance(rule, VarianceScale):
        y = torch.randn(30, 2, generator=rng) * (0.3 + 2 * torch.rand(2, generator=rng))
        base = from_outputs(torch.randn(3, 30, 2, generator=rng), tp.Normal(scale=1.0))
    else:
        base = from_outputs(3 * torch.randn(3, 60, 3, generator=rng), tp.Categorical())
        y = torch.randint(3, (60,), generator=rng)
        y[:30] = base.predict()[:30]
    found = rule.fit(base, y)
    before, after = (-float(p.log_prob(y).double().mean()) for p in (base, found(base)))
    assert before == pytest.approx(found.before, abs=1e-5)
    assert after == pytest.approx(found.after, abs=1e-5)
    assert after <= before + 1e-6  # float32 rounding of the calibrated predictive
    same_value(found)


def overconfident(n: int, seed: int, binary: bool = False) -> tuple[ClassPredictive, Tensor]:
    """Probabilities bent in a way that no temperature undoes."""
    f = logits(n, 3, seed, 3)
    if binary:
        rng = torch.Generator().manual_seed(10_000 + seed)
        p = f[..., :1].sigmoid()
        y = torch.bernoulli(p.mean(0), generator=rng)
        return from_outputs(4 * f[..., :1] + 2, tp.Bernoulli()), y
    y = draw((f.softmax(-1).mean(0)), seed)
    return from_outputs(4 * f + torch.tensor([2.0, 0.0, 0.0]), tp.Categorical()), y


def test_isotonic_lowers_the_calibration_error_of_fresh_rows():
    base, y = overconfident(3000, 0)
    fresh, answers = overconfident(3000, 1)
    found = Isotonic().fit(base, y)
    made = found(fresh)
    before, after = tp.scores.ece(fresh.probs, answers).value, tp.scores.ece(made.probs, answers).value
    assert after < 0.2 * before
    assert made.log_prob(answers).mean() > fresh.log_prob(answers).mean()
    assert torch.allclose(made.probs.sum(-1), torch.ones(3000).double())
    assert float(made.probs.min()) > 1 / (3 * 3001) / 3  # never 0: one row more, of all classes alike, renormalised
    for c in range(3):  # each class's curve rises
        p, order = fresh.probs[:, c].sort()
        q = found.probabilities(fresh.probs)[order, c]
        assert (q.diff() >= -1e-12).all()
        assert p.diff().min() >= 0
    assert torch.equal(same_value(found)(fresh).probs, made.probs)


def test_isotonic_of_yes_no_labels():
    base, y = overconfident(2000, 0, binary=True)
    made = Isotonic().fit(base, y)(base)
    assert float(made.probs.mean()) == pytest.approx(float(y.mean()), abs=1e-3)
    assert -float(made.log_prob(y).mean()) < -float(base.log_prob(y).mean())
    again = torch.stack([made.probs, 1 - made.probs], -1)
    assert torch.allclose(made.log_prob(y), again.gather(-1, (1 - y).long().unsqueeze(-1)).log().flatten(1).sum(-1))
    assert torch.allclose(made.entropy(), made.aleatoric() + made.mutual_information())


def test_isotonic_keeps_what_is_open_about_theta_and_its_members_average_to_the_new_probabilities():
    base, y = overconfident(400, 2)
    made = Isotonic().fit(base, y)(base)
    assert isinstance(made, MovedPredictive)
    expected = torch.minimum(base.mutual_information(), made.entropy())
    assert torch.allclose(made.mutual_information(), expected)
    assert float(made.mutual_information().mean()) > 0.01
    assert torch.allclose(made.entropy(), made.aleatoric() + made.mutual_information())
    twin = ClassPredictive(made.source, made.likelihood)
    assert torch.allclose(twin.probs, made.probs)
    p = made.probs
    assert torch.allclose(made.variance(), p * (1 - p))
    assert (twin.mutual_information() <= base.mutual_information() + 1e-9).all()  # data processing
    low, high = made.interval(0.8)
    assert (low <= high).all()
    n = 3000
    counts = torch.nn.functional.one_hot(made.sample(n, seed=4)[:, :30], 3).double().mean(0)
    assert ((counts - p[:30]).abs() < 5 * (p[:30] * (1 - p[:30]) / n).sqrt() + 1e-3).all()
    first = ClassPredictive(made.source, made.likelihood)
    assert made.joint_log_prob(y) == first.joint_log_prob(y)


def test_probabilities_that_are_given_back_change_nothing():
    base, y = overconfident(50, 3)
    same = MovedPredictive(base, base.probs)
    assert torch.allclose(same.std(), base.std(), atol=1e-9)
    assert torch.allclose(same.mutual_information(), base.mutual_information())
    assert torch.allclose(same.log_prob(y), base.log_prob(y))
    assert torch.allclose(same.joint_log_prob(y), base.joint_log_prob(y), atol=1e-7)


def test_the_spread_is_found():
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 2000, 2, generator=rng, dtype=torch.float64)
    y = mean[0] + torch.tensor([0.5, 2.0]) * torch.randn(2000, 2, generator=rng, dtype=torch.float64)
    base = from_outputs(mean, tp.Normal(scale=1.0))
    residual = (y - mean[0]).square()
    one, two = VarianceScale().fit(base, y), VarianceScale(per_output=True).fit(base, y)
    assert float(one.scale) == pytest.approx(float(residual.mean().sqrt()), rel=1e-4)  # the closed form of a Gaussian
    assert torch.allclose(two.scale, residual.mean(0).sqrt(), rtol=1e-3)
    assert ((two.scale.log() - torch.tensor([0.5, 2.0]).log()).abs() < 4 / math.sqrt(2 * 2000)).all()
    made = two(base)
    assert torch.allclose(made.mean(), base.mean())
    assert torch.allclose(made.std(), two.scale.expand(2000, 2))
    assert torch.allclose(made.mutual_information(), base.mutual_information())
    low, high = made.interval(0.9)
    assert float(((y >= low) & (y <= high)).double().mean()) == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 4000))


def test_rows_that_cannot_be_learned_from_are_refused():
    f = logits(40, 3, 0)
    base, y = from_outputs(f, tp.Categorical()), torch.arange(40) % 3
    few = from_outputs(f[:, :5], tp.Categorical())
    for rule in (Temperature(), Vector(), Isotonic()):
        with pytest.raises(DataError, match="at least"):
            rule.fit(few, y[:5])
        with pytest.raises(DataError, match="more than one class"):
            rule.fit(base, torch.ones(40, dtype=torch.long))
        with pytest.raises(DataError, match="same probabilities"):
            rule.fit(from_outputs(torch.zeros(40, 3), tp.Categorical()), y)
        with pytest.raises(ArgumentError, match="`y` must have one entry"):
            rule.fit(base, y[:-1])
        with pytest.raises(ArgumentError, match="that of classes"):
            rule.fit(from_outputs(f[..., :1], tp.Normal(scale=1.0)), y.float())
    for rule in (Vector(), Isotonic()):
        with pytest.raises(DataError, match=r"no row of \[2\]"):
            rule.fit(base, torch.arange(40) % 2)
    with pytest.raises(DataError, match="zeros and ones of each label"):
        Temperature().fit(from_outputs(f[..., :1], tp.Bernoulli()), torch.ones(40))
    real = from_outputs(f[..., :1], tp.Normal(scale=1.0))
    with pytest.raises(DataError, match="finite"):
        VarianceScale().fit(real, torch.full((40, 1), math.nan))
    with pytest.raises(DataError, match="at least 10 rows"):
        VarianceScale().fit(from_outputs(f[:, :5, :1], tp.Normal(scale=1.0)), torch.zeros(5, 1))
    for other in (base, from_outputs(f[..., :1], tp.Poisson())):
        with pytest.raises(ArgumentError, match="real targets"):
            VarianceScale().fit(other, y)
    found = Vector().fit(base, y)
    with pytest.raises(ArgumentError, match="the 3 classes"):
        found(from_outputs(logits(5, 4, 0), tp.Categorical()))


def test_rows_that_are_all_right_do_not_freeze_the_model():
    f = logits(30, 3, 0)
    base = from_outputs(f, tp.Categorical())
    with pytest.warns(TemperanceWarning, match="T = 1 is kept"):
        found = Temperature().fit(base, base.predict())
    assert found.temperature == 1.0
    vector = Vector().fit(base, base.predict())  # its prior keeps it in bounds
    assert float(vector.scale.max()) < 100


def test_predictions_no_better_than_chance_are_said_to_be():
    f = 5 * logits(300, 3, 0)
    with pytest.warns(TemperanceWarning, match="no better than chance"):
        found = Temperature().fit(from_outputs(f, tp.Categorical()), f[0].argmin(-1))
    assert found.temperature > 90


def test_the_search_finds_the_lowest_of_two_valleys():
    at, value = search(lambda t: min((t - 2) ** 2, (t + 3) ** 2 - 0.5))
    assert at == pytest.approx(-3, abs=1e-4)
    assert value == pytest.approx(-0.5, abs=1e-8)


def test_trimmed_scales_are_those_of_the_density_and_not_of_its_spread() -> None:
    """Four members that know and one that does not: their common spread says nothing of how sharp they are."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(2000, 1, generator=rng)
    y = truth + 0.1 * torch.randn(2000, 1, generator=rng)
    sharp, lost = torch.cat([truth, torch.full_like(truth, math.log(0.1))], 1), torch.zeros(2000, 2)
    mixture = from_outputs(torch.stack([sharp] * 4 + [lost]), tp.HeteroscedasticNormal())
    by_spread = float((((y - mixture.mean()) / mixture.std()).square().mean()).sqrt())
    assert by_spread < 0.7  # the broken twin: residuals are small beside the spread of the one that does not know
    found = VarianceScale(trim=0.02).fit(mixture, y)
    assert found.after <= found.before + 0.02
    untrimmed = VarianceScale().fit(mixture, y)
    assert float(found.scale) == pytest.approx(float(untrimmed.scale), rel=0.1)


@pytest.mark.parametrize("width", [1, 3])
def test_trimmed_scales_of_gaussian_predictives_are_unbiased(width: int) -> None:
    y = 3 * torch.randn(4000, width, generator=torch.Generator().manual_seed(0))
    base = from_outputs(torch.zeros(4000, width), tp.Normal(scale=1.0))
    for share in (0.02, 0.2):
        assert float(VarianceScale(trim=share).fit(base, y).scale) == pytest.approx(3.0, rel=0.04)
