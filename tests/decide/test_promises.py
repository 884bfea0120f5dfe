"""What a promise rests on: rows used once, levels divided, equal rows treated alike, units that keep their digits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import temperance as tp
from temperance.decide import defer_at
from temperance.decide.conformal import APS, RAPS, Mondrian, Split
from temperance.decide.conformal.base import row_uniforms, scored
from temperance.decide.defer import choose_threshold
from temperance.decide.doubt import doubt
from temperance.decide.ood import OODDetector
from temperance.predict import AffinePredictive, from_outputs


def _classes(rows: int, seed: int, sharpness: float = 2.0) -> tuple[tp.predict.Predictive, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    f = sharpness * torch.randn(1, rows, 4, generator=rng)
    return from_outputs(f, tp.Categorical()), torch.multinomial(f[0].softmax(-1), 1, generator=rng).flatten()


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


def test_mondrian_keeps_groups_and_rows_together_when_rows_were_spent_on_tuning() -> None:
    predictive, y = _classes(400, 3)
    groups = [int(k) for k in (torch.arange(400) % 3 == 0)]
    made = Mondrian(RAPS()).calibrate(predictive, y, 0.9, groups, seed=5)
    _, scores, used = scored(RAPS(), predictive, y, 0.9, 5)
    assert not bool(used.all())
    kept = torch.tensor(groups)[used]
    assert made.groups is not None
    for k, name in enumerate(made.groups):
        torch.testing.assert_close(made.scores[k].sort().values, scores[kept == name].sort().values)


def test_sets_do_not_depend_on_how_rows_come() -> None:
    held, y = _classes(300, 1)
    new, answers = _classes(2000, 2)
    made = APS().calibrate(held, y, 0.8, seed=3)
    together = made.sets(new)
    outputs = next(iter(new.source.blocks()))[1]
    for row in range(0, 200, 7):
        alone = made.sets(from_outputs(outputs[:, row : row + 1].clone(), tp.Categorical()))
        assert torch.equal(alone[0], together[row])
    covered = together[torch.arange(2000), answers].double().mean()
    # given 300 calibration rows the coverage is Beta(241, 60): sd 0.023, and 2,000 rows add 0.009
    assert abs(float(covered) - 0.8) < 4 * (0.023**2 + 0.009**2) ** 0.5


def test_the_random_numbers_are_uniform_and_follow_the_seed() -> None:
    predictive, _ = _classes(20_000, 4)
    probs = predictive.probs.double()  # type: ignore[attr-defined]
    u = row_uniforms(probs, 0)
    from scipy.stats import kstest

    assert kstest(u.numpy(), "uniform").pvalue > 1e-4
    assert abs(float(np.corrcoef(u, probs[:, 0])[0, 1])) < 4 / 20_000**0.5
    assert not torch.equal(u, row_uniforms(probs, 1))
    assert torch.equal(u[5:6], row_uniforms(probs[5:6], 0))


@pytest.mark.parametrize(("centre", "spread"), [(2e7, 1.0), (1.7e9, 20.0)])
def test_intervals_keep_the_digits_of_the_units(centre: float, spread: float) -> None:
    rng = torch.Generator().manual_seed(0)
    truth = centre + spread * torch.randn(4000, 1, generator=rng, dtype=torch.float64)
    base = from_outputs(torch.zeros(1, 2000, 1), tp.Normal(scale=1.0))
    predictive = AffinePredictive(
        base, torch.tensor(centre, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64)
    )
    low, high = Split().calibrate(predictive, truth[:2000], 0.8).interval(predictive)
    assert float((high - low).mean()) == pytest.approx(2 * 1.2816 * spread, rel=0.1)
    inside = ((truth[2000:] >= low) & (truth[2000:] <= high)).double().mean()
    assert abs(float(inside) - 0.8) < 4 * (2 * 0.8 * 0.2 / 2000) ** 0.5


def test_a_detector_with_too_few_rows_never_flags() -> None:
    assert OODDetector(torch.arange(5.0), "entropy", 0.05).threshold == float("inf")
