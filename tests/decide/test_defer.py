from __future__ import annotations

import math
import warnings

import pytest
import scipy.stats
import torch

import temperance as tp
from temperance.core.encoding import decode, encode
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.decide.defer import Deferral, choose_threshold, clopper_pearson, defer_at
from temperance.decide.doubt import doubt
from temperance.decide.ood import OODDetector, ood_score, ood_threshold
from temperance.predict import from_outputs
from tests.decide.helpers import labelled as _classes

from .helpers import classes_from, random_logits, values_from

RISK, CONFIDENCE, THRESHOLDS = 0.1, 0.9, 8
LEVEL = (1 - CONFIDENCE) / THRESHOLDS


def simulate(rate, true_risk, runs: int, rows: int = 300) -> tuple[float, float]:
    """How often the risk is exceeded, and the mean coverage, for doubt u ~ U(0, 1) and error probability rate(u)."""
    rng = torch.Generator().manual_seed(0)
    broken, coverage = 0, 0.0
    for _ in range(runs):
        u = torch.rand(rows, generator=rng, dtype=torch.float64)
        wrong = torch.rand(rows, generator=rng, dtype=torch.float64) < rate(u)
        t = choose_threshold(u, wrong, RISK, LEVEL, THRESHOLDS)
        if t is not None:
            broken += true_risk(min(t, 1.0)) > RISK
            coverage += min(t, 1.0)
    return broken / runs, coverage / runs


@pytest.mark.parametrize(
    ("rate", "true_risk", "attainable"),
    [
        (lambda u: u**2, lambda t: t**2 / 3, True),  # risk 0.1 at coverage 0.548
        (lambda u: torch.full_like(u, 0.11), lambda t: 0.11, False),  # just above everywhere: the hardest case
        (lambda u: 0.5 * (u > 0.6).double(), lambda t: max(0.0, 0.5 * (t - 0.6)) / max(t, 1e-9), True),
        (lambda u: torch.full_like(u, 0.02), lambda t: 0.02, True),
    ],
)
def test_the_guarantee_holds_and_is_not_vacuous(rate, true_risk, attainable):
    runs = 800
    broken, coverage = simulate(rate, true_risk, runs)
    allowed = 1 - CONFIDENCE
    assert broken <= allowed + 3 * math.sqrt(allowed * (1 - allowed) / runs)
    if attainable:
        assert coverage > 0.2


def test_the_test_is_the_binomial_one():
    rows, level = 100, 0.05
    value = torch.arange(rows, dtype=torch.float64)
    most = max(k for k in range(rows) if scipy.stats.binom.cdf(k, rows, 0.1) <= level)
    for errors, passes in ((most, True), (most + 1, False)):
        wrong = torch.zeros(rows, dtype=torch.bool)
        wrong[:errors] = True  # all among the surest, so that no other threshold can pass
        assert (choose_threshold(value, wrong, 0.1, level, 1) == math.inf) is passes
    assert clopper_pearson(most, rows) <= 0.1 < clopper_pearson(most + 1, rows)


def test_ties_are_answered_or_deferred_together():
    value = torch.cat([torch.zeros(200), torch.ones(200)]).double()
    wrong = torch.cat([torch.zeros(200), torch.ones(200)]).bool()
    assert choose_threshold(value, wrong, 0.05, 0.01, 16) == pytest.approx(1.0, abs=2e-5)


@pytest.mark.parametrize("unit", [1.0, 1e-8, 1e8])
@pytest.mark.parametrize("ties", [False, True])
def test_the_rows_answered_are_the_rows_tested_in_any_unit(unit, ties):
    """Doubt of numbers is in the user's units; what is saturated in float32 is a few roundings apart."""
    rng = torch.Generator().manual_seed(0)
    spread = torch.rand(400, generator=rng) + (0.1 if ties else 0.0)
    spread = (spread * 10).round() / 10 if ties else spread
    scaled = from_outputs(
        torch.zeros(400, 2).index_copy(1, torch.tensor([1]), (spread * unit).log().unsqueeze(1)),
        tp.HeteroscedasticNormal(),
    )
    wrong = torch.rand(400, generator=rng) < 0.3 * spread**4
    rule = defer_at(scaled, torch.zeros(400, 1), risk=0.1, score="std", error=wrong)
    answered = ~rule(scaled)
    assert rule.answers
    assert int(answered.sum()) == rule.answered == round(400 * rule.coverage)
    assert int(wrong[answered].sum()) == rule.errors


def test_rows_a_rounding_apart_stay_on_their_sides():
    value = torch.cat([torch.zeros(300), torch.full((100,), 6e-8)]).double()
    wrong = torch.cat([torch.zeros(300), torch.ones(100)]).bool()
    found = choose_threshold(value, wrong, 0.05, 0.01, 16)
    assert found is not None
    assert torch.equal(value < found, ~wrong)
    close = torch.cat([torch.ones(300), torch.ones(100)]).double()
    close[300:] = math.nextafter(1.0, 2.0)
    found = choose_threshold(close, wrong, 0.05, 0.01, 16)
    assert found is not None
    assert torch.equal(close < found, ~wrong)


@pytest.fixture(scope="module")
def held_out():
    rng = torch.Generator().manual_seed(5)
    x = 6 * torch.rand(600, 1, generator=rng, dtype=torch.float64) - 3
    logits = torch.cat([-x, x], dim=1).unsqueeze(0) * torch.tensor([0.8, 1.2]).view(2, 1, 1)
    pred = classes_from(logits)
    y = (torch.rand(600, generator=rng) < pred.probs[:, 1]).long()
    return pred, y


def test_a_rule_of_real_rows(held_out):
    pred, y = held_out
    for score in ("confidence", "entropy", "margin"):
        rule = defer_at(pred, y, risk=0.05, score=score)
        asked = rule(pred)
        assert 0.1 < rule.coverage < 1
        assert rule.answered == int((~asked).sum())
        assert rule.errors == int((pred.predict() != y)[~asked].sum())
        assert rule.errors / rule.answered < 0.05
        assert doubt(pred, score)[asked].min() >= doubt(pred, score)[~asked].max()
    tensors: dict[str, torch.Tensor] = {}
    again = decode(encode(rule, tensors), tensors)
    assert isinstance(again, Deferral)
    assert again == rule
    assert torch.equal(again(pred), asked)


def test_a_coin_cannot_be_trusted(held_out):
    pred, _ = held_out
    coin = torch.randint(0, 2, (600,), generator=torch.Generator().manual_seed(0))
    with pytest.warns(TemperanceWarning, match="every row is deferred"):
        rule = defer_at(pred, coin, risk=0.05)
    assert not rule.answers
    assert rule(pred).all()
    assert rule.coverage == 0


def test_real_targets_need_to_be_told_what_an_error_is():
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(4, 400, 1, generator=rng, dtype=torch.float64) * torch.linspace(0.1, 2, 400).view(1, -1, 1)
    pred = values_from(means, noise=0.1)
    y = pred.sample(1, seed=3)[0]
    with pytest.raises(ArgumentError, match="`error`"):
        defer_at(pred, y)
    rule = defer_at(pred, y, error=(pred.mean() - y).abs() > 1.0)
    assert 0 < rule.coverage < 1
    same = defer_at(pred, y, error=lambda p, t: (p.mean() - t).abs() > 1.0)
    assert rule == same


def test_bad_input(held_out):
    pred, y = held_out
    with pytest.raises(ArgumentError, match="`risk`"):
        defer_at(pred, y, risk=1.5)
    with pytest.raises(ArgumentError, match="`confidence`"):
        defer_at(pred, y, confidence=0)
    with pytest.raises(ArgumentError, match="`score` must be one of"):
        defer_at(pred, y, score="gut feeling")
    with pytest.raises(ArgumentError, match="`y`"):
        defer_at(pred, y[:5])
    with pytest.raises(ArgumentError, match="`error`"):
        defer_at(pred, y, error=torch.rand(600))


# ---------------------------------------------------------------------- out of distribution


def test_scores_are_what_they_are_called(held_out):
    pred, _ = held_out
    assert torch.equal(ood_score(pred), pred.entropy())
    assert torch.equal(ood_score(pred, "mutual_information"), pred.mutual_information())
    assert torch.equal(ood_score(pred, "max_prob"), 1 - pred.probs.max(1).values)
    assert torch.equal(ood_score(pred, lambda p: p.aleatoric()), pred.aleatoric())
    values = values_from(torch.randn(5, 7, 2, dtype=torch.float64), noise=0.3)
    assert torch.allclose(ood_score(values, "epistemic_std"), values.epistemic_variance().mean(-1).sqrt())
    labels = classes_from(random_logits(3, 4, 2), tp.Bernoulli())
    assert torch.allclose(doubt(labels, "confidence"), torch.minimum(labels.probs, 1 - labels.probs).amax(-1))


def test_false_alarms_are_bounded_in_finite_samples():
    alpha, rows, runs, fresh = 0.1, 25, 150, 40
    rng = torch.Generator().manual_seed(0)
    rates = []
    for _ in range(runs):
        # the doubt of new rows depends on x alone; ties are frequent
        logits = torch.randint(-6, 7, (1, rows + fresh, 1), generator=rng).double() / 2
        pred = classes_from(logits[:, :rows], tp.Bernoulli())
        detector = ood_threshold(pred, alpha)
        rates.append(float(detector.flags(classes_from(logits[:, rows:], tp.Bernoulli())).double().mean()))
    rate = torch.tensor(rates)
    assert rate.mean() <= alpha + 3 * rate.std() / math.sqrt(runs)


def test_p_values_of_a_continuous_score_are_uniform():
    detector = OODDetector(torch.arange(19.0).double(), lambda p: p.mean()[:, 0], 0.05)
    pred = values_from(torch.tensor([[[-1.0], [8.5], [18.5]]]))
    assert detector.p_values(pred).tolist() == pytest.approx([1.0, 11 / 20, 1 / 20])
    assert detector.flags(pred).tolist() == [False, False, True]


def test_a_detector_can_be_saved_and_finds_what_is_strange(held_out):
    pred, _ = held_out
    detector = ood_threshold(pred, 0.05, "entropy")
    tensors: dict[str, torch.Tensor] = {}
    again = decode(encode(detector, tensors), tensors)
    odd = classes_from(torch.zeros(1, 3, 2))
    assert again.flags(odd).all()
    assert torch.equal(again.p_values(pred), detector.p_values(pred))
    assert torch.equal(detector.flags(pred), pred.entropy() > detector.threshold)
    with pytest.raises(ArgumentError, match="at least 999 rows"):
        ood_threshold(pred, 0.001)


def test_the_level_is_divided_among_the_candidates() -> None:
    """Seven wrong of 300 pass at the whole level, and not at an eighth of it."""
    predictive, _ = _classes(300, 0)
    value = doubt(predictive, "confidence").double()
    for errors in range(9):
        wrong = torch.zeros(300, dtype=torch.bool)
        wrong[torch.randperm(300, generator=torch.Generator().manual_seed(1))[:errors]] = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing passes
            rule = defer_at(predictive, torch.zeros(300, dtype=torch.long), risk=0.05, error=wrong, thresholds=8)
        expected = choose_threshold(value, wrong, 0.05, 0.05 / 8, 8)
        loose = choose_threshold(value, wrong, 0.05, 0.05, 8)
        assert rule.threshold == (-float("inf") if expected is None else expected)
        if errors == 7:  # P(at most 7 errors of 300 at 5 %) is 0.014: below 0.05, above 0.05 / 8
            assert loose == float("inf")
            assert expected != loose


def test_equal_rows_of_other_batches_are_treated_alike() -> None:
    """Two kinds of rows, one of which is wrong half the time: a rounding must not let it through."""
    let_through = 0
    for seed in range(40):
        torch.manual_seed(seed)
        target = tp.Target(tp.nn.MLP(3, [20, 20], 3), tp.Categorical(), tp.GaussianPrior())
        theta = torch.stack([target.fresh_theta(7 * seed + k) for k in range(5)])
        fitted = tp.Fitted(target, tp.posteriors.Draws(theta), tp.run.fitted.RunInfo())
        kinds = torch.randn(2, 3)
        sure = fitted.predict(kinds).probs.amax(1).argmax()  # type: ignore[attr-defined]
        held = kinds[torch.arange(400) % 2]
        wrong = ((torch.arange(400) % 2) != int(sure)) & (torch.arange(400) % 4 < 2)
        rule = defer_at(fitted.predict(held), torch.zeros(400, dtype=torch.long), risk=0.05, error=wrong)
        other = fitted.predict(kinds[1 - int(sure)].unsqueeze(0))
        let_through += int(not bool(rule(other)[0]))
    assert let_through == 0


def test_a_row_at_the_threshold_is_left_to_a_human() -> None:
    even = from_outputs(torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64), tp.Categorical())
    assert float(doubt(even)[0]) == 0.5
    assert Deferral(0.5, "confidence", 0.05, 0.95, 0.5, 0, 10, 20)(even).tolist() == [True, False]
