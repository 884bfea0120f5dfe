"""What ``hmc-agreement`` is built on."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import temperance as tp
from temperance.core.errors import MissingDataSetError
from temperance.data.reference import HMCReference
from temperance.lab import Cell, Cells, run_experiment
from temperance.lab.experiment import Finished
from temperance.lab.experiments import hmc_agreement as lab

QUICK = lab.PRESETS["quick"].settings
STANDARD = lab.PRESETS["standard"].settings


def test_probabilities_of_made_up_reviews_are_those_by_which_they_were_made():
    data, truth = lab.made_up(20000, 40, 16, 3)
    assert torch.allclose(truth.sum(1), torch.ones(20000, dtype=torch.float64))
    p, y = truth[:, 1], data.y.double()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (p >= low) & (p <= low + 0.2)
        error = (p * (1 - p))[inside].sum().sqrt() / inside.sum()
        assert abs(float((y - p)[inside].mean())) < 4 * float(error)
    assert tp.scores.accuracy(truth, data.y) > 0.8


def test_made_up_words_decide_by_the_rule_of_bayes():
    data, truth = lab.made_up(5, 40, 16, 3)
    words = torch.randn(40, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    normaliser = torch.logsumexp(0.3 * words, 0) - torch.logsumexp(-0.3 * words, 0)
    odds = (0.6 * words[data.x] - normaliser).sum(1)
    assert torch.allclose(truth[:, 1].logit(), odds)


@pytest.mark.parametrize("settings", [QUICK, STANDARD])
def test_the_chain_costs_no_more_than_the_ensemble(settings):
    rows = settings.train
    point, ensemble, chain = (lab.steps(settings, arm, rows) for arm in (lab.POINT, lab.ENSEMBLE, lab.SAMPLER))
    assert point == ensemble == settings.epochs * -(-rows // settings.batch_size)
    spare = settings.members * ensemble - (point + chain)
    assert 0 <= spare < settings.draws + lab.MASSES
    assert lab.cycle_steps(settings, rows) > lab.MASSES


def test_every_method_is_a_cell_for_each_seed():
    found = lab.cells(replace(QUICK, seeds=2, predictions=("a.npy",)))
    assert len(found) == 7
    assert found[-1].params == {"arm": "file 0", "seed": 0}
    assert {(cell["arm"], cell["seed"]) for cell in found[:-1]} == {(arm, s) for arm in lab.ARMS for s in (0, 1)}


def test_the_chain_starts_from_the_point(monkeypatch):
    calls = []

    def fit(target, method, data, **options):
        calls.append((type(method).__name__, options["steps"], options.get("start")))
        fitted = tp.fit(target, method, data, progress=False, **options)
        calls[-1] += (fitted,)
        return fitted

    monkeypatch.setattr(lab, "fit", fit)
    train, _ = lab.made_up(100, 40, 16, 0)
    settings = replace(QUICK, epochs=16, draws=2)
    chain = lab.learn(settings, lab.SAMPLER, train, 0)
    assert [call[0] for call in calls] == ["MAP", "Collect"]
    assert torch.equal(calls[1][2], calls[0][3].posterior.theta)
    assert len(chain.posterior.theta) == 2


def test_one_point_beside_the_reference_and_many():
    probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.6, 0.4]]], dtype=torch.float64)
    found = lab.compared(probs.mean(0), torch.tensor([0, 1]), probs[0])
    assert found["agreement"] == 1.0
    assert found["total_variation"] == pytest.approx((0.2 + 0.2) / 2)
    assert found["accuracy"] == 1.0


def test_a_file_of_predictions_is_compared(tmp_path):
    _, test, reference = lab.reviews(QUICK.data, QUICK.train, QUICK.test, QUICK.vocabulary, QUICK.length)
    np.save(tmp_path / "mine.npy", np.concatenate([reference.numpy(), reference.numpy()]))
    settings = replace(QUICK, predictions=(str(tmp_path / "mine.npy"),))
    found = lab.run(settings, Cell.of(arm="file 0", seed=0))
    assert (found["agreement"], found["total_variation"]) == (1.0, 0.0)
    assert found["accuracy"] == found["hmc_accuracy"] == tp.scores.accuracy(reference, test.y)


def test_real_reviews_are_the_first_rows(monkeypatch):
    made, probs = lab.made_up(30, 40, 16, 0)
    monkeypatch.setattr(lab.tp.data, "load", lambda name, **options: (made, made))
    monkeypatch.setattr(lab, "load_hmc_reference", lambda name: HMCReference(name, "made", 1.0, probs))
    lab.reviews.cache_clear()
    train, test, reference = lab.reviews("imdb", 20, 7, 40, 16)
    lab.reviews.cache_clear()
    assert torch.equal(train.x, made.x[:20])
    assert torch.equal(test.y, made.y[:7])
    assert torch.equal(reference, probs[:7])


def test_without_the_files_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path))
    monkeypatch.setenv("TEMPERANCE_CACHE", str(tmp_path))
    lab.reviews.cache_clear()
    with pytest.raises(MissingDataSetError, match="imdb"):
        lab.run(STANDARD, Cell.of(arm=lab.POINT, seed=0))


def judged(nearer: float) -> list[bool | None]:
    """Verdicts where the ensemble is ``nearer`` than the point, and the chain twice that."""
    finished = []
    for k, arm in enumerate(lab.ARMS):
        for seed in range(3):
            noise = 0.001 * seed * (k + 1)
            entries = {
                "agreement": 0.9 + k * nearer + noise,
                "total_variation": 0.2 - k * nearer - noise,
                "accuracy": 0.8,
                "log_loss": 0.4 - k * nearer + noise,
                "hmc_accuracy": 0.88,
                "hmc_log_loss": 0.3,
            }
            entries |= {"kinetic": 1.0 + noise, "configurational": 0.4 + noise} if arm == lab.SAMPLER else {}
            finished.append(Finished(Cell.of(arm=arm, seed=seed), entries, 0.1))
    return [claim.holds for claim in lab.claims(STANDARD, Cells(finished))]


def test_claims_follow_the_numbers():
    assert judged(0.05) == [True, True, True, True, False]
    assert judged(-0.05) == [False, False, False, False, False]
    assert judged(0.0)[2:4] == [None, None]


def test_quick_runs_and_is_drawn(tmp_path):
    outcome = run_experiment(lab.EXPERIMENT, "quick", tmp_path / "out", workers=1, console=Console(quiet=True))
    assert outcome.ok, [f.error for f in outcome.failed]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["problems"] == []
    assert {path.stem for path in (tmp_path / "out" / "figures").glob("*.png")} == {"scores", "count"}
    cells = [json.loads(path.read_text())["result"] for path in (tmp_path / "out" / "cells").glob("*sghmc*.json")]
    assert all(len(cell["agreement_by_count"]) == QUICK.draws for cell in cells)
    assert all(cell["agreement_by_count"][-1] == cell["agreement"] for cell in cells)
