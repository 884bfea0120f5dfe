"""Conformal sets where rows have positions: rows are exchangeable, the positions of a row are not independent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.core.encoding import decode, encode
from temperance.core.errors import ArgumentError
from temperance.decide.conformal import APS, CQR, RAPS, Mondrian, NormalisedResidual, Split, conformal_quantile
from temperance.predict import PositionPredictive, from_outputs

LAW = tp.PerPosition(tp.Categorical())
PLACES, CLASSES = 8, 3


def rows(count: int, seed: int) -> tuple[PositionPredictive, Tensor]:
    """Rows whose positions all go right, or all go wrong, together; hard rows have fewer positions that count."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count, PLACES), generator=rng)
    hard = torch.rand(count, generator=rng) < 0.3
    seen = torch.where(hard.unsqueeze(1), torch.randint(CLASSES, (count, PLACES), generator=rng), y)
    logits = 2 * torch.nn.functional.one_hot(seen, CLASSES) + 0.3 * torch.randn(count, PLACES, CLASSES, generator=rng)
    y[hard, 2:] = -100
    found = from_outputs(logits.unsqueeze(0), LAW)
    assert isinstance(found, PositionPredictive)
    return found, y


def share(sets: Tensor, y: Tensor) -> Tensor:
    """Of each row, the share of its positions that is covered."""
    counts = y != -100
    hit = sets.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1) & counts
    return hit.sum(1) / counts.sum(1)


def test_one_position_is_the_plain_rule() -> None:
    found, y = rows(40, 0)
    logits = torch.cat([outputs for _, outputs, _ in found.source.blocks()], 1)[:, :, :CLASSES]
    plain = from_outputs(logits, tp.Categorical())
    single = from_outputs(logits.unsqueeze(2), LAW)
    ours, theirs = Split().calibrate(single, y[:, :1]), Split().calibrate(plain, y[:, 0])
    assert torch.equal(ours.sets(single)[:, 0], theirs.sets(plain))
    assert float(ours.thresholds) == float(theirs.thresholds)
    assert repr(ours.remarks) == "()"


def test_a_random_position_of_a_new_row_is_covered() -> None:
    """Over many calibrations, at the level and not above it by more than a vote; positions as if they were rows would
    be below it, for hard rows would have fewer votes."""
    level, count, trials = 0.8, 24, 300
    covered, naive = [], []
    for trial in range(trials):
        known, y = rows(count, 2 * trial)
        new, truth = rows(20, 2 * trial + 1)
        conformal = Split().calibrate(known, y, level)
        covered.append(float(share(conformal.sets(new), truth).double().mean()))
        flat, targets, _ = known.known(y)
        threshold = conformal_quantile(1 - flat.probs.gather(1, targets.unsqueeze(1)).squeeze(1), level)
        naive.append(float(share(1 - new.probs <= threshold, truth).double().mean()))
    values = torch.tensor(covered)
    error = float(values.std()) / trials**0.5
    assert level - 4 * error < float(values.mean()) < level + 1 / (count + 1) + 0.03 + 4 * error
    assert float(torch.tensor(naive).mean()) < level - 4 * error


@pytest.mark.parametrize("rule", [Split(), APS(), APS(randomised=False), RAPS(penalty=0.01, rank=1)], ids=repr)
def test_rules_of_classes_keep_the_positions(rule: Split) -> None:
    known, y = rows(60, 0)
    new, truth = rows(300, 1)
    conformal = rule.calibrate(known, y, 0.8)
    sets = conformal.sets(new)
    assert sets.shape == (300, PLACES, CLASSES)
    assert float(share(sets, truth).double().mean()) > 0.7
    tensors: dict[str, Tensor] = {}
    again = decode(encode(conformal, tensors), tensors)
    assert torch.equal(again.sets(new), sets)
    half = from_outputs(torch.cat([o for _, o, _ in new.source.blocks()], 1).unflatten(-1, (PLACES, -1))[:, 150:], LAW)
    assert torch.equal(conformal.sets(half), sets[150:])  # randomised or not, a row is a row wherever it stands


def test_values_keep_the_positions_too() -> None:
    rng = torch.Generator().manual_seed(0)
    law = tp.PerPosition(tp.Normal(0.5))
    outputs = torch.randn(1, 100, 4, 2, generator=rng)
    y = outputs[0] + torch.randn(100, 4, 2, generator=rng)
    found = from_outputs(outputs, law)
    for rule in (Split(), NormalisedResidual(), CQR()):
        low, high = rule.calibrate(found, y, 0.9).interval(found)
        assert low.shape == y.shape
        assert 0.9 <= float(((low <= y) & (y <= high)).double().mean()) < 0.95


def test_what_the_guarantee_does_not_allow_is_refused() -> None:
    known, y = rows(60, 0)
    with pytest.raises(ArgumentError, match=r"RAPS chooses its own settings.*RAPS\(penalty=0.01, rank=2\)"):
        RAPS().calibrate(known, y)
    with pytest.raises(ArgumentError, match="`weights` are for rows of one target"):
        Split().calibrate(known, y, weights=torch.ones(60))
    with pytest.raises(ArgumentError, match="`predictive` has positions"):
        Mondrian(Split()).calibrate(known, y, groups=["a"] * 60)
    conformal = Split().calibrate(known, y)
    plain = from_outputs(torch.zeros(1, 60, CLASSES), tp.Categorical())
    with pytest.raises(ArgumentError, match="calibrated on rows that have"):
        conformal.sets(plain)
    with pytest.raises(ArgumentError, match="calibrated on rows without"):
        Split().calibrate(plain, torch.zeros(60, dtype=torch.long)).sets(known)
    few = Split().calibrate(from_outputs(torch.zeros(1, 3, 50, CLASSES), LAW), torch.zeros(3, 50, dtype=torch.long))
    assert "3 calibration rows are too few" in few.remarks[0]
    assert bool(few.sets(known).all())
