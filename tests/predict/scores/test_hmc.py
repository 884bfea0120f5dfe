"""Predictions beside those of long-run HMC, and the files that hold these."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, MissingDataSetError
from temperance.data import reference
from temperance.data.files import data_folders
from temperance.data.reference import load_hmc_reference
from temperance.predict.scores import hmc
from temperance.predict.scores.hmc import compare_to_hmc, read_predictions

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published files, or no test."""
    if not any((folder / "hmc-reference").is_dir() for folder in data_folders()):
        if not (SHARED / "hmc-reference").is_dir():
            pytest.skip("the published predictions are not here")
        monkeypatch.setenv("TEMPERANCE_DATA", str(SHARED))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A made-up reference of six rows called ``imdb``, shuffled in its file; returns it in order."""
    p = np.linspace(0.05, 0.95, 6, dtype=np.float32)
    probs = np.stack([p, 1 - p], 1)
    order = np.array([4, 0, 5, 2, 1, 3])
    (tmp_path / "hmc-reference").mkdir()
    np.savez(tmp_path / "hmc-reference" / "made.npz", probs=probs[order], order=order)
    digest = hashlib.sha256(probs.tobytes()).hexdigest()
    made = reference._Published("none", 1.0, (6, 2), "made.npz", "order", digest)
    monkeypatch.setitem(reference.HMC_REFERENCES, "imdb", made)
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path))
    return probs.astype(np.float64)


def test_rows_are_put_in_order(small: np.ndarray) -> None:
    assert np.array_equal(load_hmc_reference("imdb").probs.numpy(), small)


def test_the_reference_beside_itself(small: np.ndarray) -> None:
    found = compare_to_hmc(small, "imdb", y=small.argmax(1))
    assert (found.accuracy, found.agreement, found.total_variation) == (1.0, 1.0, 0.0)
    assert found.log_loss == pytest.approx(-np.log(small.max(1)).mean())


def test_numbers_by_hand(small: np.ndarray) -> None:
    found = compare_to_hmc(np.full((6, 2), 0.5), "imdb", y=[0, 0, 0, 1, 1, 1])
    assert found.accuracy == 0.5
    assert found.log_loss == pytest.approx(np.log(2))
    assert found.agreement == (small.argmax(1) == 0).mean()
    assert found.total_variation == pytest.approx(np.abs(small[:, 0] - 0.5).mean())


def test_some_rows(small: np.ndarray) -> None:
    rows = [5, 1]
    assert compare_to_hmc(small[rows], "imdb", rows=rows, y=[0, 1]).total_variation == 0.0
    assert compare_to_hmc(small[rows], "imdb", rows=rows, y=[0, 1]).accuracy == 1.0
    assert compare_to_hmc(small[[1, 5]], "imdb", rows=rows, y=[0, 1]).total_variation > 0.5


@pytest.mark.parametrize("ending", [".npy", ".npz", "named"])
def test_predictions_from_a_file(small: np.ndarray, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine{'.npz' if ending == 'named' else ending}"
    if ending == ".npy":
        np.save(path, small)
    elif ending == ".npz":
        np.savez(path, anything=small)
    else:
        np.savez(path, probs=small, other=np.zeros(3))
    assert compare_to_hmc(path, "imdb", y=small.argmax(1)).agreement == 1.0
    assert compare_to_hmc(str(path), "imdb", y=small.argmax(1)).agreement == 1.0


def test_a_predictive_is_taken_by_its_mean(small: np.ndarray) -> None:
    x, y = torch.linspace(-1, 1, 6).unsqueeze(1), torch.tensor([0, 0, 0, 1, 1, 1])
    target = tp.Target(torch.nn.Linear(1, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    predictive = tp.fit(target, tp.MAP(), (x, y), steps=5, progress=False).predict(x)
    assert compare_to_hmc(predictive, "imdb", y=y) == compare_to_hmc(predictive.mean(), "imdb", y=y)


@pytest.mark.parametrize(
    ("probs", "options", "words"),
    [
        (np.full((5, 2), 0.5), {}, "`probs` must have shape .6, 2."),
        (np.full((6, 3), 1 / 3), {}, "`probs` must have shape .6, 2."),
        (np.full((6, 2), 0.4), {}, "`probs` must have rows that sum to 1"),
        (np.full((2, 2), 0.5), {"rows": [0, 6]}, "`rows` must lie from 0 to 5"),
        (np.full((2, 2), 0.5), {"rows": [0.0, 1.0]}, "`rows` must be whole numbers"),
        (np.full((2, 2), 0.5), {"rows": [0, 1, 2]}, "one row for each of the rows of `rows`"),
    ],
)
def test_bad_predictions_are_refused(small: np.ndarray, probs: np.ndarray, options: dict, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        compare_to_hmc(probs, "imdb", y=[0] * 6, **options)


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("two.npz", "objects.npy", "text.npz", "absent.npy"):
        with pytest.raises(DataError, match=name):
            read_predictions(tmp_path / name)


def test_an_absent_reference_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("TEMPERANCE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingDataSetError, match=r"hmc_cifar10_resnet20frn\.npz") as caught:
        load_hmc_reference("cifar10")
    assert str(tmp_path / "nothing") in str(caught.value)


def test_a_damaged_reference_is_refused(small: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "hmc-reference" / "made.npz", reference.HMC_REFERENCES["imdb"]
    np.savez(path, probs=small.astype(np.float32)[::-1], order=np.arange(6))
    with pytest.raises(DataError, match="sha256"):
        load_hmc_reference("imdb")
    np.savez(path, probs=small, order=np.zeros(6, dtype=int))
    with pytest.raises(DataError, match="each of 6 rows once"):
        load_hmc_reference("imdb")
    np.savez(path, other=small)
    with pytest.raises(DataError, match="must hold an array `probs`"):
        load_hmc_reference("imdb")
    path.write_bytes(b"no archive at all")
    with pytest.raises(DataError, match="must be a NumPy archive"):
        load_hmc_reference("imdb")
    monkeypatch.setitem(reference.HMC_REFERENCES, "imdb", replace(made, shape=(7, 2)))
    np.savez(path, probs=small)
    with pytest.raises(DataError, match=r"shape .7, 2."):
        load_hmc_reference("imdb")


@pytest.mark.parametrize(
    ("name", "accuracy", "log_loss"),
    [("cifar10", 0.9144, 0.2773), pytest.param("imdb", 0.8756, 0.2950, marks=pytest.mark.slow)],
)
def test_the_published_predictions_meet_the_true_labels(
    real: None, name: str, accuracy: float, log_loss: float
) -> None:
    found = load_hmc_reference(name)
    try:
        scored = compare_to_hmc(found.probs, name)
    except MissingDataSetError:
        pytest.skip(f"{name} is not here")
    assert (scored.agreement, scored.total_variation) == (1.0, 0.0)
    assert scored.accuracy == pytest.approx(accuracy, abs=5e-5)
    assert scored.log_loss == pytest.approx(log_loss, abs=5e-5)


def test_labels_are_loaded_where_none_are_given(small: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmc, "_test_labels", lambda name: torch.tensor([1, 1, 1, 0, 0, 0]))
    assert compare_to_hmc(small, "imdb").accuracy == 1.0
    assert compare_to_hmc(small[[0, 5]], "imdb", rows=[0, 5]).accuracy == 1.0
    assert compare_to_hmc(small[[0, 5]], "imdb", rows=torch.tensor([5, 0])).accuracy == 0.0
