from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.decide import acquire
from temperance.decide.acquire import bald, batch_bald, choose, epig, joint_information
from temperance.decide.members import joint_moments, member_probabilities
from temperance.engine.engine import Engine
from temperance.posteriors import Draws, Mixture
from temperance.predict import predict
from temperance.predict.affine import AffinePredictive
from temperance.predict.calibrated import MovedPredictive, from_outputs, map_logits
from temperance.testing import linear_gaussian

from .helpers import classes_from, random_logits, values_from


def entropy(p: torch.Tensor) -> torch.Tensor:
    return -torch.special.xlogy(p, p).sum(-1)


def brute_information(probs: torch.Tensor, weights: torch.Tensor, rows: list[int]) -> float:
    """I(y_rows; θ) by writing down every outcome."""
    joint = []
    for labels in itertools.product(range(probs.shape[-1]), repeat=len(rows)):
        joint.append(torch.stack([probs[:, r, c] for r, c in zip(rows, labels, strict=True)]).prod(0))
    table = torch.stack(joint)  # outcomes × S
    return float(entropy(table @ weights) - (weights * entropy(table.T)).sum())


def test_two_members_that_disagree_have_log_two():
    sure = torch.tensor([50.0, -50.0])
    pred = classes_from(torch.stack([sure, -sure]).unsqueeze(1))
    assert float(bald(pred)) == pytest.approx(math.log(2))
    assert batch_bald(pred, 1).total == pytest.approx(math.log(2))


def test_joint_information_is_that_of_enumeration():
    pred = classes_from(random_logits(4, 6, 3))
    probs, weights = member_probabilities(pred)
    assert torch.allclose((weights.view(-1, 1, 1) * probs).sum(0), pred.probs)
    for rows in ([0], [1, 3], [0, 2, 5], [4, 4]):
        assert joint_information(pred, rows) == pytest.approx(brute_information(probs, weights, rows), abs=1e-10)


def test_weights_of_members_count():
    target = tp.Target(
        torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False)).double(), tp.Categorical(), tp.GaussianPrior(1.0)
    )
    theta = random_logits(3, 1, 6)[:, 0]
    unequal = Mixture([Draws(theta[:1]), Draws(theta[1:])], (0.8, 0.2))
    pred = predict(Engine(target), unequal, torch.eye(3, dtype=torch.float64))
    probs, weights = member_probabilities(pred)
    assert weights.tolist() == pytest.approx([0.8, 0.1, 0.1])
    assert joint_information(pred, [0, 1]) == pytest.approx(brute_information(probs, weights, [0, 1]))


def test_batch_bald_of_one_is_bald_and_the_greedy_batch_is_that_of_brute_force():
    pred = classes_from(random_logits(5, 7, 3, seed=2))
    probs, weights = member_probabilities(pred)
    one = batch_bald(pred, 1)
    assert int(one.rows[0]) == int(bald(pred).argmax())
    assert one.total == pytest.approx(float(bald(pred).max()), rel=1e-6)
    batch = batch_bald(pred, 3)
    chosen: list[int] = []
    for row, gain in zip(batch.rows.tolist(), batch.gains.tolist(), strict=True):
        options = {r: brute_information(probs, weights, [*chosen, r]) for r in range(7) if r not in chosen}
        before = brute_information(probs, weights, chosen) if chosen else 0.0
        assert row == max(options, key=options.__getitem__)
        assert gain == pytest.approx(options[row] - before, abs=1e-9)
        chosen.append(row)


def test_drawn_labels_agree_with_all_labels():
    pred = classes_from(random_logits(6, 8, 3, seed=3))
    rows = [0, 1, 2, 3, 4]
    exact = joint_information(pred, rows)
    drawn = [joint_information(pred, rows, configurations=25, seed=s) for s in range(30)]
    values = torch.tensor(drawn)
    assert float(values.mean()) == pytest.approx(exact, abs=4 * float(values.std()) / math.sqrt(30) + 1e-3)
    assert float(values.std()) > 0
    assert exact < math.log(6)  # no more than which member it is


def test_duplicates_tell_nothing_new():
    sure, faint = torch.tensor([50.0, -50.0]), torch.tensor([1.0, -1.0])
    first, second = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    rows = torch.stack([first.outer(sure), first.outer(sure), second.outer(faint)], dim=1)  # 0 and 1 are the same
    pred = classes_from(rows)
    assert choose(pred, 2, bald).rows.tolist() == [0, 1]
    assert choose(pred, 2, batch_bald).rows.tolist() == [0, 2]
    assert joint_information(pred, [0, 1]) == pytest.approx(joint_information(pred, [0]))
    assert joint_information(pred, [0, 2]) > joint_information(pred, [0]) + 0.05


def test_epig_is_that_of_enumeration():
    pred = classes_from(random_logits(4, 9, 3, seed=4))
    probs, weights = member_probabilities(pred)
    found = epig(pred, [5, 6, 8])
    for row in range(9):
        total = 0.0
        for other in (5, 6, 8):
            joint = torch.einsum("s,sc,sd->cd", weights, probs[:, row], probs[:, other])
            product = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
            total += float((joint * (joint / product).log()).sum()) / 3
        assert float(found[row]) == pytest.approx(total, abs=1e-10)


def test_epig_ignores_what_does_not_matter():
    sure = torch.tensor([50.0, -50.0])
    first, second = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    pred = classes_from(torch.stack([first.outer(sure), second.outer(sure), second.outer(0.02 * sure)], dim=1))
    assert bald(pred)[0] == pytest.approx(float(bald(pred)[1]))
    found = epig(pred, [2])
    assert float(found[0]) == pytest.approx(0, abs=1e-12)
    assert found[1] > 0.1


def test_targets_from_another_predictive_must_have_the_same_draws():
    target = tp.Target(torch.nn.Sequential(torch.nn.Linear(3, 4)).double(), tp.Categorical(), tp.GaussianPrior(1.0))
    draws = Draws(random_logits(6, 1, target.num_parameters)[:, 0])
    x = torch.randn(7, 3, dtype=torch.float64)
    together = epig(predict(Engine(target), draws, x), [4, 5, 6])[:4]
    apart = epig(predict(Engine(target), draws, x[:4]), predict(Engine(target), draws, x[4:]))
    assert torch.allclose(together, apart)
    other = Draws(draws.theta.flip(0))
    with pytest.raises(ArgumentError, match="same draws"):
        epig(predict(Engine(target), draws, x[:4]), predict(Engine(target), other, x[4:]))


# ---------------------------------------------------------------------- real targets


@pytest.fixture(scope="module")
def linear():
    problem = linear_gaussian(rows=20, noise=0.5)
    method = tp.Laplace(tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS), tp.Dense(), tune=None)
    fitted = tp.fit(problem.target, method, problem.data, steps=4)
    return problem, fitted


def test_linear_gaussian_information_is_half_a_log_determinant(linear):
    problem, fitted = linear
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pred = fitted.predict(x)
    rows = fitted.target.layout
    jacobian = torch.func.jacrev(
        lambda t: torch.func.functional_call(fitted.target.network, dict(rows.unflatten(t)), (x,)).reshape(-1)
    )(torch.zeros(rows.size, dtype=torch.float64))
    covariance = jacobian @ problem.covariance @ jacobian.T
    exact = 0.5 * torch.linalg.slogdet(torch.eye(12) + covariance / 0.25).logabsdet
    assert joint_information(pred) == pytest.approx(float(exact), rel=1e-5)
    own = covariance.view(6, 2, 6, 2).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    each = 0.5 * torch.linalg.slogdet(torch.eye(2) + own / 0.25).logabsdet
    assert torch.allclose(bald(pred), each, rtol=1e-4)
    assert joint_information(pred, [3]) == pytest.approx(float(each[3]), rel=1e-5)
    # EPIG, by determinants of the labels' covariance
    labels = covariance + 0.25 * torch.eye(12)
    log_det = lambda rows: torch.linalg.slogdet(labels[rows][:, rows]).logabsdet  # noqa: E731
    pick = lambda *rows: torch.cat([torch.tensor([2 * r, 2 * r + 1]) for r in rows])  # noqa: E731
    wanted = [
        sum(0.5 * (log_det(pick(r)) + log_det(pick(t)) - log_det(pick(r, t))) for t in (4, 5)) / 2 for r in range(4)
    ]
    assert torch.allclose(epig(pred, [4, 5])[:4], torch.stack(wanted), rtol=1e-5)


def test_greedy_values_by_brute_force():
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(12, 6, 2, generator=rng, dtype=torch.float64)
    pred = values_from(means, noise=0.4)
    centred = (means - means.mean(0)).permute(1, 2, 0).reshape(12, -1) / math.sqrt(12)
    total = torch.eye(12) + centred @ centred.T / 0.16

    def information(rows: list[int]) -> float:
        at = torch.tensor([2 * r + d for r in rows for d in range(2)])
        return 0.5 * float(torch.linalg.slogdet(total[at][:, at]).logabsdet)

    batch = batch_bald(pred, 3)
    chosen: list[int] = []
    for row in batch.rows.tolist():
        options = {r: information([*chosen, r]) for r in range(6) if r not in chosen}
        assert row == max(options, key=options.__getitem__)
        chosen.append(row)
    assert batch.total == pytest.approx(information(chosen))
    assert joint_information(pred, [2, 2]) < 2 * joint_information(pred, [2])


def test_units_change_no_information():
    pred = values_from(torch.randn(9, 5, 1, dtype=torch.float64), noise=0.4)
    other = AffinePredictive(pred, 3.0, torch.linspace(0.5, 2, 5).double().unsqueeze(1))
    assert joint_information(other) == pytest.approx(joint_information(pred))
    assert torch.allclose(epig(other, [0]), epig(pred, [0]))


def test_draws_of_functions_stand_for_a_linearised_network(linear):
    _, fitted = linear
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = joint_moments(fitted.predict(x)).factor.flatten(0, 1)
    drawn = joint_moments(fitted.predict(x, draws=600), by_draws=True).factor.flatten(0, 1)
    cov = exact @ exact.T
    spread = cov.diagonal().sqrt()
    assert ((drawn @ drawn.T - cov).abs() <= 5 * spread.outer(spread) * math.sqrt(2 / 600)).all()


def test_linearised_classes_have_members_that_go_together():
    x = torch.tensor([[1.0], [1.0], [-1.0]])
    target = tp.Target(torch.nn.Linear(1, 2), tp.Categorical(), tp.GaussianPrior(3.0))
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=0.1), tune=None), (torch.randn(8, 1), torch.arange(8) % 2), steps=50)
    pred = fitted.predict(x)
    probs, _ = member_probabilities(pred)
    assert torch.allclose(probs[:, 0], probs[:, 1])
    assert joint_information(pred, [0, 1]) < 2 * joint_information(pred, [0])
    assert float(probs[:, 0, 0].std()) > 0.05
    for other in (
        map_logits(pred, torch.tensor([0.5]), torch.zeros(1)),
        MovedPredictive(pred, torch.tensor([[0.7, 0.3], [0.7, 0.3], [0.2, 0.8]])),
    ):
        moved, _ = member_probabilities(other)
        assert torch.allclose(moved[:, 0], moved[:, 1], atol=1e-5)
    assert member_probabilities(from_outputs(torch.zeros(2, 4, 3), tp.Categorical()))[0].shape == (2, 4, 3)


# ---------------------------------------------------------------------- scores and choices


def test_plain_scores():
    logits = random_logits(4, 6, 3)
    pred = classes_from(logits)
    members = logits.softmax(-1)
    assert torch.allclose(acquire.entropy(pred), entropy(members.mean(0)))
    assert torch.allclose(acquire.variance(pred), members.var(0, correction=0).sum(-1))
    assert torch.allclose(acquire.mean_std(pred), members.std(0, correction=0).mean(-1))
    assert torch.allclose(acquire.variation_ratio(pred), 1 - members.mean(0).amax(-1))
    assert torch.equal(acquire.random(pred, seed=1), acquire.random(pred, seed=1))
    assert not torch.equal(acquire.random(pred, seed=1), acquire.random(pred, seed=2))
    one = classes_from(logits[..., :1], tp.Bernoulli())
    p = logits[..., 0].sigmoid().mean(0)
    assert torch.allclose(acquire.variation_ratio(one), torch.minimum(p, 1 - p))
    assert joint_information(one, [0]) == pytest.approx(float(bald(one)[0]))


def test_choose_takes_the_best_in_order():
    pred = classes_from(random_logits(4, 6, 3))
    made = choose(pred, 3, acquire.entropy)
    assert made.rows.tolist() == acquire.entropy(pred).argsort(descending=True)[:3].tolist()
    assert choose(pred, 2, lambda p: torch.ones(6)).rows.tolist() == [0, 1]
    assert choose(pred, 2, lambda p, k: [4, 2]).rows.tolist() == [4, 2]
    assert choose(pred, 1, epig, targets=[1, 2]).rows.tolist() == [int(epig(pred, [1, 2]).argmax())]
    aimed = functools.partial(epig, targets=[1, 2])
    assert choose(pred, 1, aimed).rows.tolist() == [int(epig(pred, [1, 2]).argmax())]
    assert int(choose(pred, 1, acquire.entropy, among=2).rows[0]) < 2


def test_bad_input():
    pred = classes_from(random_logits(4, 6, 3))
    for call, message in [
        (lambda: choose(pred, 7), "`k`"),
        (lambda: choose(pred, 0), "`k`"),
        (lambda: choose(pred, 1, "bald"), "`acquire`"),
        (lambda: choose(pred, 1, epig), "`targets`"),
        (lambda: choose(pred, 1, lambda p: torch.ones(2)), "`acquire`"),
        (lambda: choose(pred, 2, lambda p, k: [1, 1]), "different"),
        (lambda: batch_bald(pred, 9), "`k`"),
        (lambda: epig(pred, [9]), "`targets`"),
        (lambda: epig(pred, [0.5]), "`targets`"),
        (lambda: joint_information(pred, []), "`rows`"),
        (lambda: joint_information(classes_from(torch.zeros(2, 3, 2), tp.Bernoulli())), "2 labels"),
        (lambda: acquire.variation_ratio(values_from(torch.zeros(2, 3, 1))), "classes"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
