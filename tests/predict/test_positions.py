"""Predictions where rows have positions, from fit to file, by every kind of method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.predict import CategoryPositionPredictive, ValuePositionPredictive, from_outputs

PLACES, CLASSES = 6, 3


class Tagger(nn.Module):
    """Looks at each place and its neighbours."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.near, self.out = nn.Conv1d(2, 8, 3, padding=1), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.near(x.mT).tanh().mT)


def tags(rows: int = 60, places: int = PLACES, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, places, 2, generator=rng)
    y = (x[..., 0] > 0).long() + (x[..., 1].roll(1, 1) > 0.5).long()
    y[torch.rand(rows, places, generator=rng) < 0.2] = -100
    return x, y


def tagging() -> tp.Target:
    torch.manual_seed(0)
    return tp.Target(Tagger(), tp.PerPosition(tp.Categorical()), tp.GaussianPrior(1.0))


METHODS: dict[str, tuple[Any, dict[str, int]]] = {
    "map": (tp.MAP(lr=2e-2), {"epochs": 40}),
    "ensemble": (tp.Ensemble(tp.MAP(lr=2e-2), 3), {"epochs": 40}),
    "sghmc": (tp.Collect(tp.SGHMC(lr=2e-3), last=8), {"epochs": 60}),
    "variational": (tp.Variational(lr=3e-2), {"epochs": 60}),
    "swag": (tp.SWAG(tp.MAP(lr=2e-2), rank=5), {"epochs": 40}),
    "laplace": (tp.Laplace(tp.MAP(lr=2e-2), tune=None), {"epochs": 40}),
    "laplace-dense": (tp.Laplace(tp.MAP(lr=2e-2), tp.Dense(), tune=None), {"epochs": 40}),
    "laplace-diagonal": (tp.Laplace(tp.MAP(lr=2e-2), tp.Diagonal(kind="monte-carlo"), tune=None), {"epochs": 40}),
    "last-layer": (tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=2e-2), tune=None)), {"epochs": 40}),
    "hmc": (tp.Collect(tp.HMC(step_size=0.02, length=10), last=10), {"steps": 40}),
    "svgd": (tp.SVGD(3, lr=2e-2), {"epochs": 40}),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_method_from_fit_to_file(name: str, tmp_path: Path) -> None:
    method, length = METHODS[name]
    x, y = tags()
    fitted = tp.fit(tagging(), method, (x, y), seed=0, progress=False, **length)
    found = fitted.predict(x[:9])
    assert isinstance(found, CategoryPositionPredictive)
    assert found.probs.shape == (9, PLACES, CLASSES)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(9, PLACES))
    assert found.predict().shape == (9, PLACES)
    torch.testing.assert_close(found.entropy(), found.aleatoric() + found.mutual_information())
    assert bool((found.mutual_information() > -1e-5).all())
    assert found.variance().shape == found.interval()[0].shape == (9, PLACES, CLASSES)
    assert found.sample(4).shape == (4, 9, PLACES)
    assert found.log_prob(y[:9]).shape == (9,)
    scores = fitted.evaluate((x, y))
    assert list(scores) == ["log_loss", "accuracy", "brier", "ece", "row_log_loss"]
    assert scores["log_loss"] < 1.0
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", Tagger())
    assert torch.equal(again.predict(x[:9]).probs, found.probs)
    assert again.evaluate((x, y)) == scores


def test_scores_are_those_of_the_positions_that_count() -> None:
    x, y = tags()
    fitted = tp.fit(tagging(), tp.Ensemble(tp.MAP(lr=2e-2), 3), (x, y), epochs=10, seed=0, progress=False)
    found = fitted.predict(x)
    counts = y != -100
    probs, labels = found.probs[counts], y[counts]
    scores = fitted.evaluate((x, y))
    assert scores["accuracy"] == tp.scores.accuracy(probs, labels)
    assert scores["brier"] == pytest.approx(tp.scores.brier(probs, labels))
    assert scores["ece"] == pytest.approx(tp.scores.ece(probs, labels).value)
    nats = probs.gather(1, labels.unsqueeze(1)).log()
    assert scores["log_loss"] == pytest.approx(-float(nats.mean()), rel=1e-5)
    each = found.position_log_prob(y)
    torch.testing.assert_close(each[counts], nats[:, 0])
    assert not bool(each[~counts].any())
    # Of a row: one θ for all its positions, which is not the sum over positions.
    nodes = fitted.posterior.nodes(None, 0)
    theta, _ = nodes.fetch(0, len(nodes))
    members = [
        from_outputs(fitted.engine.workspace.outputs(row, x), tp.PerPosition(tp.Categorical()))
        for row in theta.split(1)
    ]
    together = torch.stack([member.position_log_prob(y).sum(1) for member in members])
    torch.testing.assert_close(found.log_prob(y), together.logsumexp(0) - torch.tensor(3.0).log())
    assert float((found.log_prob(y) - each.sum(1)).abs().max()) > 1e-3


def test_a_row_of_given_members_by_hand() -> None:
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 2, 3, 2, 5, generator=rng, dtype=torch.float64)  # members, rows, 3 × 2 places, classes
    y = torch.randint(5, (2, 3, 2), generator=rng)
    y[0, 1, 1] = 255
    found = from_outputs(outputs, tp.PerPosition(tp.Categorical(), ignore=255))
    log_p = outputs.log_softmax(-1).gather(-1, y.clamp(max=4).expand(4, 2, 3, 2).unsqueeze(-1))[..., 0] * (y != 255)
    torch.testing.assert_close(found.log_prob(y), log_p.sum((-1, -2)).logsumexp(0) - torch.tensor(4.0).log())
    torch.testing.assert_close(found.joint_log_prob(y), log_p.sum((1, 2, 3)).logsumexp(0) - torch.tensor(4.0).log())
    torch.testing.assert_close(found.probs, outputs.softmax(-1).mean(0))
    first = outputs.movedim(-1, 2)
    again = from_outputs(first, tp.PerPosition(tp.Categorical(), ignore=255, channels="first"))
    assert torch.equal(again.probs, found.probs)
    assert torch.equal(again.log_prob(y), found.log_prob(y))


def test_other_lengths_than_those_of_training() -> None:
    """A convolution takes any length; the predictive has those of its own rows."""
    x, y = tags()
    for method in (tp.MAP(lr=2e-2), tp.Laplace(tp.MAP(lr=2e-2), tune=None)):
        fitted = tp.fit(tagging(), method, (x, y), epochs=20, seed=0, progress=False)
        longer, tagged = tags(5, 11, seed=1)
        assert fitted.predict(longer).probs.shape == (5, 11, CLASSES)
        assert fitted.evaluate((longer, tagged))["accuracy"] > 0.3
        assert fitted.predict(x[:2]).probs.shape == (2, PLACES, CLASSES)


def test_numbers_at_each_position_by_the_linearised_network() -> None:
    """Means exact, variances Jᵀ Σ J + σ² at each position."""
    x, _ = tags()
    rng = torch.Generator().manual_seed(2)
    y = x[..., :1] + 0.3 * torch.randn(60, PLACES, 1, generator=rng)
    torch.manual_seed(0)
    target = tp.Target(Tagger(1).double(), tp.PerPosition(tp.Normal(0.3)), tp.GaussianPrior(1.0))
    fitted = tp.fit(
        target, tp.Laplace(tp.MAP(lr=2e-2), tp.Dense(), tune=None), (x, y), epochs=40, seed=0, progress=False
    )
    found = fitted.predict(x[:4])
    assert isinstance(found, ValuePositionPredictive)
    network = fitted.network()
    torch.testing.assert_close(found.mean(), network(x[:4].double()).detach())
    covariance = fitted.posterior.operator.dense()
    out = network(x[:4].double())
    expected = torch.empty(4, PLACES, 1, dtype=torch.float64)
    for row in range(4):
        for place in range(PLACES):
            grads = torch.autograd.grad(out[row, place, 0], list(network.parameters()), retain_graph=True)
            j = torch.cat([g.flatten() for g in grads])
            expected[row, place, 0] = j @ covariance @ j
    torch.testing.assert_close(found.epistemic_variance(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.aleatoric_variance(), torch.full_like(expected, 0.09))
    assert list(fitted.evaluate((x, y))) == ["log_loss", "rmse", "coverage_90", "crps", "row_log_loss"]
    assert found.quantile(0.5).shape == (4, PLACES, 1)


def test_what_rooms_above_have_not_for_positions_is_refused_in_words(tmp_path: Path) -> None:
    x, y = tags()
    fitted = tp.fit(tagging(), tp.MAP(lr=2e-2), (x, y), epochs=2, seed=0, progress=False)
    found = fitted.predict(x)
    with pytest.raises(ArgumentError, match="no chapters of the report for the outcome CategoriesByPosition"):
        fitted.report(tmp_path / "page", (x, y))
    with pytest.raises(ArgumentError, match='must be "linearised", "functions" or "network"'):
        tp.fit(tagging(), tp.Laplace(tune=None), (x, y), progress=False).predict(x, by="probit")
    with pytest.raises(ArgumentError, match=r"decide on `predictive.flat`"):
        tp.decide.bayes_action(found, torch.eye(CLASSES))
    action = found.place(tp.decide.bayes_action(found.flat, 1 - torch.eye(CLASSES)).action)
    assert torch.equal(action, found.predict())
    with pytest.raises(ArgumentError, match="calibrate those that count as rows"):
        tp.calibrate.Temperature().fit(found, y)
    flat, targets, _ = found.known(y)
    calibrated = tp.calibrate.Temperature().fit(flat, targets)(found.flat)
    assert found.place(calibrated.probs).shape == found.probs.shape


def test_a_newcomer_segments_images() -> None:
    """A disc on a noisy ground: a small convolutional network says which pixels are in it, and where it is not sure."""
    rng = torch.Generator().manual_seed(0)
    grid = torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"))
    centre = 3 + 6 * torch.rand(80, 2, 1, 1, generator=rng)
    y = ((grid - centre).square().sum(1) < 9).long()
    x = y.unsqueeze(1) + 0.6 * torch.randn(80, 1, 12, 12, generator=rng)
    y[:, 0] = 255  # a row of pixels that nobody has labelled
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
    law = tp.PerPosition(tp.Categorical(), ignore=255, channels="first")
    target = tp.Target(network, law, tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=2e-2), 3), (x[:60], y[:60]), epochs=30, seed=0, progress=False)
    assert fitted.evaluate((x[60:], y[60:]))["accuracy"] > 0.9
    found = fitted.predict(x[60:])
    assert found.probs.shape == (20, 12, 12, 2)
    assert found.mutual_information().shape == (20, 12, 12)
    method = tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=2e-2), tp.KFAC(kind="monte-carlo"), tune=None))
    laplace = tp.fit(target, method, (x[:60], y[:60]), epochs=30, seed=0, progress=False)
    assert laplace.evaluate((x[60:], y[60:]))["accuracy"] > 0.9
