from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, MismatchError, StoreError, TemperanceWarning
from temperance.data import Data
from temperance.judge.calibrate import (
    CalibratedFitted,
    Isotonic,
    Temperature,
    TemperatureCalibrator,
    VarianceScale,
    Vector,
    VectorCalibrator,
    calibrated,
    load_calibrated,
    split_for_calibration,
)
from temperance.predict.linearised_classes import LinearisedClassPredictive


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return tp.nn.MLP(2, [8], 3)


def rows(n: int = 400) -> Data:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=rng)
    logits = torch.stack([x[:, 0], x[:, 1], -x.sum(1)], 1)
    return Data(x, torch.multinomial(logits.softmax(-1), 1, generator=rng).squeeze(1))


@pytest.fixture(scope="module")
def parts():
    return split_for_calibration(rows(), 0.3, test=0.3, seed=1, stratify=True)


@pytest.fixture(scope="module")
def laplace(parts) -> tp.Fitted:
    target = tp.Target(make_network(), tp.Categorical(), tp.GaussianPrior(1.0))
    return tp.fit(target, tp.Laplace(tp.MAP(lr=0.02), tune=None), parts.train, epochs=30, seed=0, progress=False)


@pytest.mark.parametrize("by", ["linearised", "probit", "bridge", "functions"])
@pytest.mark.parametrize("rule", [Temperature(), Vector()])
def test_linearised_predictives_are_calibrated_in_their_own_law(laplace, parts, by, rule):
    made = calibrated(laplace, parts.calibration, rule, by=by)
    assert made.calibrator.after <= made.calibrator.before
    base, warm = laplace.predict(parts.test.x, by=by), made.predict(parts.test.x)
    assert isinstance(warm, LinearisedClassPredictive)
    log_loss = -float(made.predict(parts.calibration.x).log_prob(parts.calibration.y).double().mean())
    assert log_loss == pytest.approx(made.calibrator.after, abs=1e-5)
    calibrator = made.calibrator
    if isinstance(calibrator, VectorCalibrator):
        scale, shift = calibrator.scale.float(), calibrator.shift.float()
    else:
        assert isinstance(calibrator, TemperatureCalibrator)
        scale, shift = torch.tensor([1 / calibrator.temperature]), torch.zeros(1)
    assert torch.allclose(warm.output_mean(), base.output_mean() * scale + shift, atol=1e-5)
    assert torch.allclose(warm.output_variance(), base.output_variance() * scale**2, atol=1e-5)
    assert torch.allclose(warm.output_functions(), base.output_functions() * scale + shift, atol=1e-5)
    assert (
        torch.allclose(
            warm.entropy(), warm.aleatoric() + warm.mutual_information(), atol=0.02 if by == "probit" else 1e-4
        )
        or by == "bridge"
    )
    assert (warm.mutual_information() >= -1e-6).all()
    assert warm.sample(3).shape == (3, len(parts.test))
    assert torch.isfinite(warm.joint_log_prob(parts.test.y))
    few = laplace.predict(parts.test.x[:3], by=by)
    each = scale.expand(3).repeat(3)
    assert torch.allclose(
        calibrator(few).output_covariance(), few.output_covariance() * torch.outer(each, each), atol=1e-5
    )


@pytest.mark.parametrize("by", ["linearised", "probit"])
def test_isotonic_of_a_linearised_predictive(laplace, parts, by):
    made = calibrated(laplace, parts.calibration, Isotonic(), by=by).predict(parts.test.x)
    n = 300
    counts = nn.functional.one_hot(made.sample(n), 3).double().mean(0)
    p = made.probs.double()
    assert ((counts - p).abs() < 6 * (p * (1 - p) / n).sqrt() + 0.02).all()
    assert torch.isfinite(made.joint_log_prob(parts.test.y))
    assert (made.mutual_information() > 0).all()


def test_a_calibrated_model_predicts_scores_saves_and_loads(laplace, parts, tmp_path):
    for rule in (Temperature(), Vector(), Isotonic()):
        made = calibrated(laplace, parts.calibration, rule, by="probit")
        assert isinstance(made, tp.Fitted)
        found = made.evaluate(parts.test)
        expected = -float(made.predict(parts.test.x).log_prob(parts.test.y).double().mean())
        assert found["log_loss"] == pytest.approx(expected)
        assert found["log_loss"] != laplace.evaluate(parts.test, by="probit")["log_loss"]
        made.save(tmp_path / "run")  # also over an earlier one
        again = tp.load(tmp_path / "run", make_network())
        assert isinstance(again, CalibratedFitted)
        assert torch.equal(again.predict(parts.test.x).probs, made.predict(parts.test.x).probs)
        assert again.calibrator == made.calibrator
    assert load_calibrated(tmp_path / "run", make_network()).calibrator == made.calibrator
    plain = again.uncalibrated
    assert torch.equal(plain.predict(parts.test.x).probs, laplace.predict(parts.test.x).probs)
    laplace.save(tmp_path / "plain")
    with pytest.raises(MismatchError, match="not a calibrated one"):
        load_calibrated(tmp_path / "plain", make_network())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="other files"):
        made.save(tmp_path / "other")


def test_a_calibrated_run_is_written_at_once_with_its_model(laplace, parts, tmp_path, monkeypatch):
    """A full disk leaves the old calibrator with the old model, whichever of the two could not be written."""
    made = calibrated(laplace, parts.calibration, Temperature())
    made.save(tmp_path / "run")
    target = tp.Target(make_network(), tp.Categorical(), tp.GaussianPrior(1.0))
    other = calibrated(tp.fit(target, tp.MAP(lr=0.01), parts.train, epochs=5), parts.calibration, Temperature())
    real, left = os.fsync, 0

    def full(handle):
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    for place in (1, 2):
        left = place
        with pytest.raises(StoreError, match="No space"):
            other.save(tmp_path / "run")
        again = tp.load(tmp_path / "run", make_network())
        assert torch.equal(again.predict(parts.test.x).probs, made.predict(parts.test.x).probs)


def test_tp_load_needs_no_import_of_the_room_to_read_a_calibrated_run(laplace, parts, tmp_path):
    made = calibrated(laplace, parts.calibration, Temperature())
    made.save(tmp_path / "run")
    code = (
        "import sys, torch, temperance as tp\n"
        "assert 'temperance.judge.calibrate' not in sys.modules\n"
        "net = torch.nn.Sequential(torch.nn.Linear(2, 1))\n"
        "try:\n    tp.load(sys.argv[1], net)\n"
        "except tp.errors.MismatchError as error:\n    print(error)\n"
        "from temperance.run import store\n"
        "print(store.open_run(sys.argv[1]).value('calibrator')['calibrator'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "network differs" in done.stdout
    assert "TemperatureCalibrator" in done.stdout


def test_the_rows_of_the_training_are_refused(laplace, parts):
    with pytest.raises(DataError, match="not trained on"):
        calibrated(laplace, parts.train, Temperature())
    with pytest.raises(DataError, match="not trained on"):
        calibrated(laplace, (parts.train.x.clone(), parts.train.y.clone()), Temperature())
    with pytest.raises(DataError, match="not trained on"):  # a subset, in another order
        calibrated(laplace, parts.train.subset(torch.arange(60, 0, -1)), Temperature())
    whole = rows(200)
    target = tp.Target(make_network(), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MAP(lr=0.02, patience=9), whole, epochs=10, seed=5, held_out=0.25, progress=False)
    with pytest.raises(DataError, match="not trained on"):  # the whole, of which a part was trained on
        calibrated(fitted, whole, Temperature())
    with pytest.warns(TemperanceWarning, match="when training stopped"):
        calibrated(fitted, whole.hold_out(0.25, seed=5)[1], Temperature())


def test_regression_is_calibrated():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, generator=rng)
    data = Data(x, 2 * x + torch.randn(300, 1, generator=rng))
    train, held, test = split_for_calibration(data, 0.4, test=0.4)
    target = tp.Target(nn.Linear(1, 1), tp.Normal(scale=0.2), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=0.1), tune=None), train, epochs=100, seed=0, progress=False)
    made = calibrated(fitted, held, VarianceScale())
    plain, better = fitted.evaluate(test), made.evaluate(test)
    assert better["log_loss"] < plain["log_loss"] - 1
    assert plain["coverage_90"] < 0.5 < 0.8 < better["coverage_90"] < 0.99
    assert better["rmse"] == pytest.approx(plain["rmse"], rel=1e-4)


def test_bad_input(laplace, parts):
    with pytest.raises(ArgumentError, match="`rule` must be"):
        calibrated(laplace, parts.calibration, "temperature")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`fitted` must be"):
        calibrated(3, parts.calibration, Temperature())  # type: ignore[arg-type]
    made = calibrated(laplace, parts.calibration, Temperature())
    with pytest.raises(ArgumentError, match="calibrated already"):
        calibrated(made, parts.calibration, Temperature())
    bad = parts.calibration.x.clone()
    bad[0, 0] = float("nan")
    with pytest.raises(DataError, match="finite"):
        calibrated(laplace, (bad, parts.calibration.y), Temperature())


def test_the_parts_are_disjoint_and_keep_the_shares_of_classes():
    y = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
    data = Data(torch.arange(100.0).unsqueeze(1), y)
    for stratify in (True, False, y.tolist()):
        parts = split_for_calibration(data, 0.2, test=0.3, seed=3, stratify=stratify)
        assert [len(part) for part in parts] == [50, 20, 30]
        joined = torch.cat([part.x.flatten() for part in parts]).sort().values
        assert torch.equal(joined, torch.arange(100.0))
        if stratify is not False:
            assert torch.bincount(parts.calibration.y).tolist() == [14, 4, 2]
            assert torch.bincount(parts.test.y).tolist() == [21, 6, 3]
    again = split_for_calibration(data, 0.2, test=0.3, seed=3, stratify=True)
    assert torch.equal(again.train.x, split_for_calibration(data, 0.2, test=0.3, seed=3, stratify=True).train.x)
    assert not torch.equal(again.train.x, split_for_calibration(data, 0.2, test=0.3, seed=4, stratify=True).train.x)
    for wrong, said in (
        ({"fraction": 0.0}, "`fraction`"),
        ({"fraction": 0.6, "test": 0.5}, "leave rows to train on"),
        ({"stratify": [1, 2]}, "`stratify` must have one label"),
    ):
        with pytest.raises(ArgumentError, match=said):
            split_for_calibration(data, **wrong)
    with pytest.raises(DataError, match="too small"):
        split_for_calibration(data[:2])
    with pytest.raises(ArgumentError, match="real targets"):
        split_for_calibration(Data(torch.zeros(9, 1), torch.randn(9)), stratify=True)
