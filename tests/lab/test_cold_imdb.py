"""What ``cold-imdb`` is built on: problems of the arms, chains, claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import temperance as tp
from temperance.lab import Cell, Cells
from temperance.lab.experiment import Finished
from temperance.lab.experiments import cold_imdb as lab

QUICK = lab.PRESETS["quick"].settings


def test_the_network_is_the_papers():
    standard = lab.PRESETS["standard"].settings
    target = lab.make_target(standard, lab.PAPER, 0.1, 0)
    assert (target.layout.size, target.temperature) == (2_638_966, 0.1)


def test_each_arm_has_its_prior_and_its_likelihood():
    theta = torch.full((lab.make_target(QUICK, lab.PAPER, 1.0, 0).layout.size,), 0.5)
    paper, hmc = (lab.make_target(QUICK, arm, 1.0, 0) for arm in (lab.PAPER, lab.HMC))
    at = [float(tp.inference.base.Engine(t).bound_prior.log_prob(theta)) for t in (paper, hmc)]
    exact = [float(torch.distributions.Normal(0, s).log_prob(theta).sum()) for s in (1.0, 40**-0.5)]
    assert at == pytest.approx(exact, rel=1e-4)
    assert isinstance(lab.make_target(QUICK, lab.LEARNED, 1.0, 0).network, tp.NonCentred)
    assert lab.make_target(QUICK, lab.CURATED, 1.0, 0).likelihood.labellers == QUICK.labellers
    x = torch.randint(0, 40, (3, 16))
    same = [lab.make_target(QUICK, arm, 1.0, 0).network(x) for arm in (lab.PAPER, lab.LEARNED)]
    torch.testing.assert_close(*same)  # one start for all


def test_curated_labels_have_smaller_steps_and_every_chain_is_a_cell():
    assert lab.chain_of(QUICK, lab.CURATED).lr == QUICK.curated_lr
    assert lab.chain_of(QUICK, lab.LEARNED) is QUICK.chain
    found = lab.cells(replace(QUICK, seeds=2))
    assert len(found) == len({cell.key for cell in found}) == 2 * (4 + 2 * (2 + 1 + 4))


def test_held_out_rows_are_neither_trained_on_nor_tested():
    train, held_out, test, reference = lab.rows(QUICK)
    assert (len(train), len(held_out), len(test), len(reference)) == (200, 100, 200, 200)


def done(ce, start=lab.OPTIMISED):
    """Cells of three seeds whose cross-entropies are these, by arm (or point) and temperature."""
    finished = []
    for (arm, method, temperature), value in ce.items():
        for seed in range(3):
            params = {"arm": arm, "method": method, "seed": seed}
            if temperature is not None:
                params |= {"temperature": temperature, "start": start}
            heat = {
                "kinetic_slow": 1.0 + 0.001 * seed,
                "configurational": 1.0 + 0.001 * seed,
                "curvature": 2.0 + 0.01 * seed,
            }
            result = {
                "ce": value + 0.001 * seed,
                "accuracy": 0.9 - value / 4 + 1e-4 * seed * len(method),
                **heat,
                "total_variation": value / 4,
                "agreement": 0.9,
                "hmc_log_loss": 0.3,
                "hmc_accuracy": 0.87,
            }
            finished.append(Finished(Cell(params), result, 1.0))
    return finished


def test_claims_follow_the_numbers():
    made = done(
        {
            (lab.PAPER, "sghmc", 1.0): 0.6,
            (lab.PAPER, "sghmc", 0.1): 0.3,
            (lab.PAPER, lab.SGD, None): 0.4,
            (lab.PAPER, lab.EARLY_ENSEMBLE, None): 0.35,
            (lab.LEARNED, "sghmc", 1.0): 0.33,
            (lab.LEARNED, "sghmc", 0.1): 0.34,
            (lab.CURATED, "sghmc", 1.0): 0.5,
            (lab.CURATED, "sghmc", 0.1): 0.4,
            (lab.HMC, "sghmc", 1.0): 0.31,
        }
    )
    others = {(lab.PAPER, "sghmc", 1.0): 0.61, (lab.LEARNED, "sghmc", 1.0): 0.33, (lab.PAPER, "sghmc", 0.1): 0.29}
    cells = Cells(made + done(others, lab.FRESH))
    effect, accuracy, learned, curated, near, same, *sound = lab.claims(QUICK, cells)
    assert [c.holds for c in (effect, accuracy, learned, curated, near, same)] == [True, True, True, False, True, True]
    assert all(claim.holds for claim in sound)
    assert len(sound) == 4
    far = Cells(made + done({(lab.PAPER, "sghmc", 1.0): 0.67}, lab.FRESH))
    assert lab.claims(QUICK, far)[5].holds is False
    assert lab.claims(QUICK, Cells(made))[5].holds is None
    assert lab.claims(QUICK, Cells(done({(lab.PAPER, "sghmc", 1.0): 0.6}, lab.FRESH)))[0].holds is None
