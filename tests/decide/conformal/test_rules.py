from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.core import encoding as values
from temperance.core.errors import ArgumentError, DataError
from temperance.decide.conformal import APS, CQR, RAPS, Mondrian, NormalisedResidual, Split
from temperance.judge.calibrate import Temperature
from temperance.predict.calibrated import from_outputs

RNG = torch.Generator().manual_seed(0)
LOGITS = torch.randn(60, 4, generator=RNG)
LABELS = torch.randint(4, (60,), generator=RNG)
CLASSES = from_outputs(LOGITS, tp.Categorical())
VALUES = from_outputs(torch.randn(60, 2, generator=RNG), tp.Normal(scale=1.0))
TARGETS = torch.randn(60, 2, generator=RNG)


def again(value):
    tensors: dict[str, Tensor] = {}
    made = values.decode(values.encode(value, tensors), tensors)
    assert made == value
    return made


def test_the_scores_by_hand():
    probs = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    u = torch.tensor([0.4], dtype=torch.float64)
    assert torch.allclose(Split().class_scores(probs, u), torch.tensor([[0.8, 0.5, 0.7]]).double())
    aps = torch.tensor([[0.8 + 0.08, 0.2, 0.5 + 0.12]]).double()
    assert torch.allclose(APS().class_scores(probs, u), aps)
    assert torch.allclose(APS(randomised=False).class_scores(probs, u), torch.tensor([[1.0, 0.5, 0.8]]).double())
    assert torch.allclose(RAPS(0.1, 1).class_scores(probs, u), aps + torch.tensor([[0.2, 0.0, 0.1]]))


def test_ties_are_broken_by_number():
    even = APS(randomised=False).class_scores(torch.full((1, 4), 0.25), torch.zeros(1))
    assert even.tolist() == [[0.25, 0.5, 0.75, 1.0]]


@pytest.mark.parametrize("rule", [Split(), APS(), RAPS(), RAPS(0.1, 2, randomised=False)], ids=repr)
def test_sets_are_saved_with_their_rule(rule):
    made = rule.calibrate(CLASSES, LABELS, 0.8, seed=3)
    sets = made.sets(CLASSES)
    assert sets.shape == (60, 4)
    assert sets.dtype == torch.bool
    assert torch.equal(again(made).sets(CLASSES), sets)
    grouped = Mondrian(rule).calibrate(CLASSES, LABELS, 0.8, groups=["a", "b", "c"] * 20)
    assert torch.equal(again(grouped).sets(CLASSES, ["a"] * 60), grouped.sets(CLASSES, ["a"] * 60))
    again(rule)
    again(Mondrian(rule))


@pytest.mark.parametrize("rule", [Split(), NormalisedResidual(), CQR()], ids=repr)
def test_intervals_are_saved_and_each_output_has_its_own_threshold(rule):
    made = rule.calibrate(VALUES, TARGETS * torch.tensor([1.0, 5.0]), 0.8)
    assert made.thresholds.shape == (1, 2)
    assert made.thresholds[0, 1] > 2 * made.thresholds[0, 0]
    low, high = made.interval(VALUES)
    assert low.dtype == torch.float32
    assert low.shape == (60, 2)
    for a, b in zip(again(made).interval(VALUES), (low, high), strict=True):
        assert torch.equal(a, b)


def test_too_few_rows_give_everything_and_say_so():
    few = from_outputs(LOGITS[:8], tp.Categorical())
    made = Split().calibrate(few, LABELS[:8], 0.9)
    assert made.sets(CLASSES).all()
    assert made.remarks == (
        "8 calibration rows are too few for level 0.9, which needs 9: the set is full, the interval infinite.",
    )
    assert Split().calibrate(from_outputs(LOGITS[:9], tp.Categorical()), LABELS[:9], 0.9).remarks == ()
    one = Split().calibrate(from_outputs(torch.zeros(1, 1), tp.Normal(1.0)), [[0.0]])
    low, high = one.interval(from_outputs(torch.zeros(2, 1), tp.Normal(1.0)))
    assert (low == -math.inf).all()
    assert (high == math.inf).all()
    counts = Split().calibrate(from_outputs(torch.zeros(1, 1), tp.Poisson()), [[0.0]])
    low, high = counts.interval(from_outputs(torch.zeros(2, 1), tp.Poisson()))
    assert (low == 0).all()
    assert (high == math.inf).all()


def test_unseen_and_small_groups_are_flagged_not_a_crash():
    groups = [1] * 50 + [2] * 10
    made = Mondrian(Split()).calibrate(CLASSES, CLASSES.predict(), 0.95, groups=groups)
    assert len(made.remarks) == 1
    assert "of group 2" in made.remarks[0]
    new = from_outputs(LOGITS[:3], tp.Categorical())
    sets = made.sets(new, [1, 2, 7])
    assert sets[1:].all()
    assert not sets[0].all()
    assert made.known([1, 2, 7]).tolist() == [True, True, False]
    by_class = Mondrian(Split(), per_class=True).calibrate(CLASSES, LABELS % 3, 0.5)
    assert by_class.sets(new)[:, 3].all()  # class 3 was never seen, so it is never ruled out
    assert "0 calibration rows of group 3" in by_class.remarks[0]


def test_sets_need_not_be_empty():
    sure = from_outputs(10 * LOGITS, tp.Categorical())
    made = Split().calibrate(sure, sure.predict(), 0.3)
    assert not made.sets(CLASSES).any(1).all()
    full = made.sets(CLASSES, allow_empty=False)
    assert full.any(1).all()
    empty = ~made.sets(CLASSES).any(1)
    assert torch.equal(full[empty].long().argmax(1), CLASSES.predict()[empty])
    assert (full[empty].sum(1) == 1).all()
    assert torch.equal(full[~empty], made.sets(CLASSES)[~empty])


def test_one_yes_no_label_is_two_classes():
    f = torch.randn(50, 1, generator=RNG)
    y = torch.bernoulli(f.sigmoid(), generator=RNG)
    yes_no = Split().calibrate(from_outputs(f, tp.Bernoulli()), y, 0.8)
    twin = from_outputs(torch.cat([torch.zeros_like(f), f], 1), tp.Categorical())
    two = Split().calibrate(twin, y[:, 0].long(), 0.8)
    assert torch.allclose(yes_no.thresholds, two.thresholds, atol=1e-6)
    assert yes_no.sets(from_outputs(f, tp.Bernoulli())).shape == (50, 2)
    by_class = Mondrian(Split(), per_class=True).calibrate(from_outputs(f, tp.Bernoulli()), y, 0.5)
    assert len(by_class.scores) == 2
    with pytest.raises(ArgumentError, match="2 yes/no labels"):
        Split().calibrate(from_outputs(torch.randn(5, 2), tp.Bernoulli()), torch.ones(5, 2))


def test_raps_chooses_small_sets_where_there_are_many_classes():
    rng = torch.Generator().manual_seed(2)
    y = torch.randint(100, (1500,), generator=rng)
    f = torch.randn(1500, 100, generator=rng) + 4 * torch.nn.functional.one_hot(y, 100)  # right, with a long tail
    calibration, new = from_outputs(f[:1000], tp.Categorical()), from_outputs(f[1000:], tp.Categorical())
    aps = APS().calibrate(calibration, y[:1000]).sets(new)
    made = RAPS().calibrate(calibration, y[:1000])
    raps = made.sets(new)
    assert isinstance(made.rule, RAPS)
    assert made.rule.penalty in (0.0, 0.001, 0.01, 0.1, 0.2, 0.5)
    assert len(made.scores[0]) == 800
    assert float(raps.sum(1).float().mean()) < 0.8 * float(aps.sum(1).float().mean())
    for sets in (aps, raps):
        assert float(sets.gather(1, y[1000:].unsqueeze(1)).float().mean()) > 0.85


def test_a_calibrated_predictive_is_conformalised_too():
    mostly = torch.where(torch.arange(60) % 3 > 0, CLASSES.predict(), LABELS)
    warm = Temperature().fit(CLASSES, mostly)(CLASSES)
    assert not torch.equal(Split().calibrate(warm, LABELS).thresholds, Split().calibrate(CLASSES, LABELS).thresholds)


def test_seeds():
    one, two = APS().calibrate(CLASSES, LABELS, seed=0), APS().calibrate(CLASSES, LABELS, seed=1)
    assert float(one.thresholds) != float(two.thresholds)
    assert torch.equal(one.sets(CLASSES), APS().calibrate(CLASSES, LABELS, seed=0).sets(CLASSES))
    fixed = [APS(randomised=False).calibrate(CLASSES, LABELS, seed=s).sets(CLASSES) for s in (0, 1)]
    assert torch.equal(*fixed)


def test_bad_input():
    for level in (0.0, 1.0, math.nan, "0.9"):
        with pytest.raises(ArgumentError, match="`level`"):
            Split().calibrate(CLASSES, LABELS, level)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`y` must have one entry"):
        Split().calibrate(CLASSES, LABELS[:-1])
    with pytest.raises(DataError, match="classes from 0 to 3"):
        Split().calibrate(CLASSES, LABELS + 1)
    with pytest.raises(DataError, match="finite"):
        Split().calibrate(VALUES, TARGETS * math.nan)
    with pytest.raises(ArgumentError, match="APS is for classes"):
        APS().calibrate(VALUES, TARGETS)
    with pytest.raises(ArgumentError, match="CQR is for real targets"):
        CQR().calibrate(CLASSES, LABELS)
    with pytest.raises(ArgumentError, match="must be a temperance Predictive"):
        Split().calibrate(LOGITS, LABELS)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="Mondrian"):
        Split().calibrate(CLASSES, LABELS, groups=[0] * 60)
    with pytest.raises(ArgumentError, match="`groups` must be given"):
        Mondrian(Split()).calibrate(CLASSES, LABELS)
    with pytest.raises(DataError, match="one label for each of 60"):
        Mondrian(Split()).calibrate(CLASSES, LABELS, groups=[0])
    with pytest.raises(ArgumentError, match="whole numbers or strings"):
        Mondrian(Split()).calibrate(CLASSES, LABELS, groups=[0.5] * 60)
    with pytest.raises(ArgumentError, match="per_class"):
        Mondrian(Split(), per_class=True).calibrate(VALUES, TARGETS)
    with pytest.raises(ArgumentError, match="`rule`"):
        Mondrian("split")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`penalty`"):
        RAPS(penalty=-1.0)
    with pytest.raises(ArgumentError, match="`rank`"):
        RAPS(rank=-1)
    with pytest.raises(DataError, match="more than 20 rows"):
        RAPS().calibrate(from_outputs(LOGITS[:15], tp.Categorical()), LABELS[:15])
    made = Split().calibrate(CLASSES, LABELS)
    with pytest.raises(ArgumentError, match="See sets"):
        made.interval(CLASSES)
    with pytest.raises(ArgumentError, match="See interval"):
        made.sets(VALUES)
    with pytest.raises(ArgumentError, match="`weights` of new rows"):
        made.sets(CLASSES, weights=torch.ones(60))
    with pytest.raises(ArgumentError, match="`groups` are for"):
        made.sets(CLASSES, groups=[0] * 60)
    weighted = Split().calibrate(CLASSES, LABELS, weights=torch.ones(60))
    with pytest.raises(ArgumentError, match="`weights` must be given"):
        weighted.sets(CLASSES)
    with pytest.raises(DataError, match="`weights` must be finite"):
        Split().calibrate(CLASSES, LABELS, weights=-torch.ones(60))


def test_a_predictive_that_is_not_finite_gets_the_whole_line() -> None:
    """An infinite standard deviation, and outputs beyond all numbers: no NaN comes out. (Noise that a network gives is
    bounded, see HeteroscedasticNormal; Student's of two degrees of freedom has no variance.)"""
    held = from_outputs(torch.zeros(99, 2), tp.HeteroscedasticNormal())
    made = NormalisedResidual().calibrate(held, torch.randn(99, 1, generator=torch.Generator().manual_seed(0)), 0.9)
    low, high = made.interval(from_outputs(torch.tensor([[0.0, 0.0], [0.0, 1e30]]), tp.HeteroscedasticNormal()))
    assert float(high[0] - low[0]) < 10
    assert bool(torch.isfinite(low).all())
    assert float(high[1]) > 1e15
    low, high = made.interval(from_outputs(torch.tensor([[0.0], [3e38]]), tp.StudentT(df=2.0, scale=1.0)))
    assert low.flatten().tolist() == [-torch.inf] * 2
    assert high.flatten().tolist() == [torch.inf] * 2


def test_the_threshold_itself_is_kept() -> None:
    """19 rows at level 0.9: the 18th smallest score is the threshold, and the row that has it is covered."""
    p = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    known = from_outputs(torch.stack([p, 1 - p], dim=1).log(), tp.Categorical())
    sets = Split().calibrate(known, torch.zeros(19, dtype=torch.long), 0.9).sets(known)
    assert sets[:, 0].tolist() == [False] + [True] * 18
