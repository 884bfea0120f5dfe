"""The claim: a new kind of outcome is one file. Three are defined here, and nothing else of the library is touched.

* ``Durations`` are numbers from 0 on, so whatever serves numbers (scores, intervals, plots, the report) serves them;
* ``Grades`` are classes with an order: one output, a ladder of thresholds. They need no predictive of their own;
* ``Angles`` are nothing that the library knows: they bring predictive and scores, and what they do not bring is refused
  in words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.apps.integrations.export import export_predictive
from temperance.core.outcomes import Classes, Outcome, Quantities
from temperance.model.likelihoods.base import LearnedValues, Likelihood, QuantityLikelihood, check_real_targets
from temperance.predict import PREDICTIVES, SCORES, ClassPredictive, Predictive, ValuePredictive
from temperance.show.plot.calibration import CALIBRATION
from temperance.show.report import report
from temperance.testing import check_likelihood

# ---------------------------------------------------------------------- durations


class Durations(Quantities):
    name = "durations"
    prediction, predictions = "predicted duration", "predicted durations"
    least = 0.0


@dataclass(frozen=True, eq=False)
class Exponential(QuantityLikelihood):
    """y ~ Exp with mean exp f."""

    outcome: ClassVar[Outcome] = Durations()

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return check_real_targets(y, num_outputs, dtype, "Exponential")

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return (-outputs - y * (-outputs).exp()).sum(-1)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return torch.diag_embed(y * (-outputs).exp())

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return torch.diag_embed(torch.ones_like(outputs))

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return outputs.exp()

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return (2 * outputs).exp()

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return -torch.expm1(-y.clamp(min=0) * (-outputs).exp())

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return (1 + outputs).sum(-1)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        uniform = torch.rand(outputs.shape, generator=rng, dtype=outputs.dtype)
        return -torch.log1p(-uniform) * outputs.exp()


class DurationPredictive(ValuePredictive):
    def quantile(self, level: float) -> Tensor:
        def solve(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            high = -math.log1p(-level) * outputs.exp().amax(0)
            low = torch.zeros_like(high)
            for _ in range(60):
                middle = (low + high) / 2
                below = torch.tensordot(self.weights, self.numbers.cdf(outputs, middle, learned), dims=1) < level
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            return high

        return self._over_rows(solve)

    def entropy(self) -> Tensor:
        def nats(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            t = torch.linspace(-12, 5, 4001, dtype=torch.float64).view(-1, 1, 1, 1)
            y = t.exp() * outputs.double().exp().amax(0)
            log_p = self.likelihood.log_prob(outputs.double(), y, learned)
            mixed = (log_p + self.weights.double().log().unsqueeze(-1)).logsumexp(1)
            return torch.trapezoid(-mixed.exp() * mixed * y[:, 0, :, 0], t[:, 0, 0], dim=0).to(outputs.dtype)

        return self._over_rows(nats)


PREDICTIVES.register(Durations, DurationPredictive)


def _waiting(rows: int = 200) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(rows, 1, generator=rng) - 1
    return x, -torch.log1p(-torch.rand(rows, 1, generator=rng)) * (1 + x).exp()


def _target(likelihood: Likelihood, outputs: int = 1) -> tp.Target:
    torch.manual_seed(0)
    return tp.Target(tp.nn.MLP(1, [8], outputs), likelihood, tp.GaussianPrior(1.0))


def test_the_likelihood_of_durations_passes_the_battery() -> None:
    assert check_likelihood(Exponential(), num_outputs=1).passed


def test_durations_from_fit_to_file(tmp_path: Path) -> None:
    x, y = _waiting()
    target = _target(Exponential())
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=2e-2), 3), (x, y), epochs=30, seed=0, progress=False)
    found = fitted.predict(x)
    assert type(found) is DurationPredictive
    assert found.outcome == Durations()
    low, high = found.interval(0.9)
    assert bool((low >= 0).all())
    assert bool((low < high).all())
    torch.testing.assert_close(found.cdf(high), torch.full_like(high, 0.95), atol=1e-4, rtol=0)
    assert bool((found.mutual_information() > -1e-4).all())
    scores = fitted.evaluate((x, y))
    assert list(scores) == ["log_loss", "rmse", "coverage_90", "crps"]
    assert 0.8 < scores["coverage_90"] < 0.98
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", tp.nn.MLP(1, [8], 1))
    assert again.target.likelihood == Exponential()
    assert torch.equal(again.predict(x).mean(), found.mean())
    assert again.evaluate((x, y)) == scores


def test_what_serves_numbers_serves_durations(tmp_path: Path) -> None:
    x, y = _waiting()
    fitted = tp.fit(
        _target(Exponential()), tp.Laplace(tp.MAP(lr=2e-2), tune=None), (x, y), epochs=30, seed=0, progress=False
    )
    found = fitted.predict(x)  # linearised, by points of each row's Gaussian
    assert isinstance(found, DurationPredictive)
    assert found.sample(3).shape == (3, 200, 1)
    conformal = tp.decide.conformal.NormalisedResidual().calibrate(found, y, level=0.9)
    low, high = conformal.interval(found)
    assert float(low.min()) == 0.0  # no duration is shorter
    assert float(((low <= y) & (y <= high)).double().mean()) >= 0.9
    assert CALIBRATION.of(found.outcome)(found, y, None).get_title()
    page = report(fitted, tmp_path / "page", (x, y))
    assert "intervals" in page.read_text(encoding="utf-8")
    with pytest.raises(tp.errors.ArgumentError, match="for class probabilities"):
        fitted.predict(x, by="probit")
    with pytest.raises(tp.errors.ArgumentError, match="real targets"):
        tp.calibrate.VarianceScale().fit(found, y)  # a duration has a zero: its spread is not free


def test_a_sampler_speaks_of_durations() -> None:
    x, y = _waiting(40)
    fitted = tp.fit(
        _target(Exponential()), tp.Collect(tp.SGLD(lr=1e-4), last=20), (x, y), steps=40, seed=0, progress=False
    )
    assert tp.diagnose.predictions(fitted, x).what == "predicted durations"


# ---------------------------------------------------------------------- classes with an order


@dataclass(frozen=True)
class Grades(Classes):
    """Classes in an order."""


@dataclass(frozen=True, eq=False)
class Ladder(Likelihood):
    """P(y ≥ k) = sigmoid(f − step_k): one output, K classes."""

    outcome: ClassVar[Outcome] = Grades()
    steps: tuple[float, ...] = (-1.0, 1.0)

    def _probs(self, outputs: Tensor) -> Tensor:
        above = (outputs - outputs.new_tensor(self.steps)).sigmoid()
        one, none = torch.ones_like(above[..., :1]), torch.zeros_like(above[..., :1])
        return torch.cat([one, above], -1) - torch.cat([above, none], -1)

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return y.reshape(-1).long()

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        probs = self._probs(outputs)
        return probs.gather(-1, y.expand(probs.shape[:-1]).unsqueeze(-1)).squeeze(-1).log()

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return self.fisher(outputs, learned)

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return torch.ones_like(outputs).unsqueeze(-1) / 4

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return self._probs(outputs)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        probs = self._probs(outputs)
        return probs * (1 - probs)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        probs = self._probs(outputs)
        return -torch.special.xlogy(probs, probs).sum(-1)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        probs = self._probs(outputs)
        return torch.multinomial(probs.flatten(0, -2), 1, generator=rng).view(probs.shape[:-1])


def test_grades_are_classes_without_a_line_more(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(200, 1, generator=rng) - 2
    y = torch.bucketize(x[:, 0] * 2, torch.tensor([-1.0, 1.0]))
    fitted = tp.fit(_target(Ladder()), tp.Ensemble(tp.MAP(lr=5e-2), 3), (x, y), epochs=40, seed=0, progress=False)
    found = fitted.predict(x)
    assert type(found) is ClassPredictive
    assert found.probs.shape == (200, 3)
    torch.testing.assert_close(found.entropy(), found.aleatoric() + found.mutual_information())
    scores = fitted.evaluate((x, y))
    assert list(scores) == ["log_loss", "accuracy", "brier", "ece"]
    assert scores["accuracy"] > 0.8
    sets = tp.decide.conformal.Split().calibrate(found, y, level=0.9).sets(found)
    assert float(sets[torch.arange(200), y].double().mean()) >= 0.9
    assert tp.decide.bayes_action(found, torch.eye(3)).action.shape == (200,)
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", tp.nn.MLP(1, [8], 1))
    assert again.evaluate((x, y)) == scores


# ---------------------------------------------------------------------- angles


class Angles(Outcome):
    name = "angles"
    prediction, predictions = "predicted direction", "predicted directions"


@dataclass(frozen=True, eq=False)
class VonMises(Likelihood):
    """A direction (cos f, sin f) with concentration 4; mean and variance are of the two coordinates."""

    outcome: ClassVar[Outcome] = Angles()
    concentration: float = 4.0

    def _norm(self) -> float:
        kappa = torch.tensor(self.concentration, dtype=torch.float64)
        return float(torch.log(2 * math.pi * torch.special.i0(kappa)))

    def _length(self) -> float:
        kappa = torch.tensor(self.concentration, dtype=torch.float64)
        return float(torch.special.i1(kappa) / torch.special.i0(kappa))

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return check_real_targets(y, 1, dtype, "VonMises")

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return (self.concentration * torch.cos(y - outputs)).sum(-1) - self._norm()

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        return torch.diag_embed(self.concentration * torch.cos(y - outputs))

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return torch.diag_embed(self.concentration * self._length() * torch.ones_like(outputs))

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return self._length() * torch.cat([outputs.cos(), outputs.sin()], -1)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return 0.5 * torch.ones_like(self.mean(outputs, learned)) - self.mean(outputs, learned).square() / 2

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        return torch.full_like(outputs[..., 0], self._norm() - self.concentration * self._length())

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        return outputs + torch.randn(outputs.shape, generator=rng) / self.concentration**0.5


class AnglePredictive(Predictive):
    def direction(self) -> Tensor:
        mean = self.mean()
        return torch.atan2(mean[:, 1], mean[:, 0])

    def std(self) -> Tensor:
        return (-2 * self.mean().norm(dim=-1, keepdim=True).log()).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        raise tp.errors.ArgumentError("an angle has no lower and upper end.")

    def entropy(self) -> Tensor:
        around = torch.linspace(-math.pi, math.pi, 721)[:-1]
        log_p = torch.stack([self.log_prob(angle.expand(len(self), 1)) for angle in around])
        return -(log_p.exp() * log_p).sum(0) * (2 * math.pi / len(around))


def _cosine(predictive: AnglePredictive, y: Tensor) -> dict[str, float]:
    return {"mean_cosine": float(torch.cos(predictive.direction() - y.reshape(-1)).mean())}


PREDICTIVES.register(Angles, AnglePredictive)
SCORES.register(Angles, _cosine)


@pytest.fixture(scope="module")
def winds() -> tuple[tp.Fitted, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(150, 1, generator=rng) - 1
    y = 3 * x + 0.3 * torch.randn(150, 1, generator=rng)
    y = torch.atan2(y.sin(), y.cos())
    method: Any = tp.Ensemble(tp.MAP(lr=3e-2), 3)
    return tp.fit(_target(VonMises()), method, (x, y), epochs=40, seed=0, progress=False), x, y


def test_angles_from_fit_to_file(winds: tuple[tp.Fitted, Tensor, Tensor], tmp_path: Path) -> None:
    fitted, x, y = winds
    found = fitted.predict(x)
    assert isinstance(found, AnglePredictive)
    scores = fitted.evaluate((x, y))
    assert list(scores) == ["log_loss", "mean_cosine"]
    assert scores["mean_cosine"] > 0.9
    assert bool((found.mutual_information() > -1e-3).all())
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", tp.nn.MLP(1, [8], 1))
    assert again.evaluate((x, y)) == scores
    assert repr(found) == "AnglePredictive(150 rows, 3 draws)"


def test_what_angles_did_not_bring_is_refused_in_words(winds: tuple[tp.Fitted, Tensor, Tensor], tmp_path: Path) -> None:
    fitted, x, y = winds
    words = r"no chapters of the report for the outcome Angles \(angles\).*CHAPTERS.register\(Angles, "
    with pytest.raises(tp.errors.ArgumentError, match=words):
        report(fitted, tmp_path / "page", (x, y))
    with pytest.raises(tp.errors.ArgumentError, match="`predictive` must be"):
        tp.decide.conformal.Split().calibrate(fitted.predict(x), y)
    with pytest.raises(tp.errors.ArgumentError, match="exported statistics for the outcome Angles"):
        export_predictive(fitted, x[:2])


def test_an_outcome_without_a_predictive_is_refused_in_words() -> None:
    class Rankings(Outcome):
        """Without a name of its own."""

    class Plackett(VonMises):
        outcome: ClassVar[Outcome] = Rankings()

    with pytest.raises(tp.errors.ArgumentError, match=r"no predictives for the outcome Rankings.*PREDICTIVES.register"):
        tp.predict.from_outputs([[0.0]], Plackett())
