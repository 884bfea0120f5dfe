from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.engine.engine import Engine
from temperance.linalg import DiagonalCovariance
from temperance.posteriors import Draws, DropoutPosterior, Gaussian, Mixture, Nodes, Point, WithStatistics
from temperance.predict import OutputSource, Predictive, predict
from temperance.predict import source as source_module
from temperance.predict.adaptive import precise

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def target(likelihood: tp.Likelihood | None = None, outputs: int = 3) -> tp.Target:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, outputs)).double()
    return tp.Target(net, likelihood or tp.Categorical(), tp.GaussianPrior(1.0))


def gaussian(problem: tp.Target, scale: float = 0.5, seed: int = 0) -> Gaussian:
    mean = problem.fresh_theta(seed).double()
    return Gaussian(mean, DiagonalCovariance(torch.full_like(mean, scale**2)))


def means(found: Predictive) -> Tensor:
    return torch.cat([found.likelihood.mean(outputs, learned) for _, outputs, learned in found.source.blocks()], dim=1)


CASES = {
    "classes": (tp.Categorical(), 3),
    "labels": (tp.Bernoulli(), 2),
    "numbers": (tp.Normal(), 1),
    "counts": (tp.Poisson(), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_precision_asked_for_is_reached(case):
    """By the spread of pairs in a reference of many: the true standard error, and the distance itself."""
    problem = target(*CASES[case])
    posterior, wanted = gaussian(problem, 0.3), 0.02
    found = predict(Engine(problem), posterior, X, precision=wanted)
    assert found.num_draws > 32
    assert float(found.imprecision().max()) <= wanted
    half = predict(Engine(problem), posterior, X, draws=found.num_draws // 2)
    assert float(half.imprecision().max()) > wanted
    reference = predict(Engine(problem), posterior, X, draws=20_000, seed=1)
    unit = torch.ones(()) if case in ("classes", "labels") else reference.std()
    pairs = means(reference).unflatten(0, (-1, 2)).mean(1)
    true = pairs.std(0) / (found.num_draws / 2) ** 0.5 / unit
    assert float((true.amax(-1) <= wanted).double().mean()) >= 0.95
    off = (found.mean() - reference.mean()).abs() / unit
    assert float((off.amax(-1) <= 2 * wanted).double().mean()) >= 0.95


def test_the_result_is_that_of_so_many_draws_and_of_its_seed():
    problem = target(tp.Normal(), 1)  # a learned noise goes along with each draw
    engine, posterior = Engine(problem), gaussian(problem, 0.3)
    found = predict(engine, posterior, X, precision=0.05)
    assert found.num_draws >= 64
    plain = predict(engine, posterior, X, draws=found.num_draws)
    assert torch.equal(found.mean(), plain.mean())
    assert torch.equal(found.variance(), plain.variance())
    assert torch.equal(found.log_prob(X[:, :1]), plain.log_prob(X[:, :1]))
    again = predict(engine, posterior, X, precision=0.05)
    assert torch.equal(found.mean(), again.mean())
    assert not torch.equal(found.mean(), predict(engine, posterior, X, precision=0.05, seed=1).mean())


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many settings of θ went through the network with how many rows, call by call."""
    seen: list[int] = []
    plain = Engine.outputs

    def outputs(self, theta, x, buffers=None):
        seen.append(len(theta) * len(x))
        return plain(self, theta, x, buffers)

    monkeypatch.setattr(Engine, "outputs", outputs)
    return seen


def test_outputs_that_are_there_are_not_computed_again(monkeypatch):
    problem = target()
    seen = counted(monkeypatch)
    found = predict(Engine(problem), gaussian(problem), X, precision=0.02)
    assert found.num_draws >= 128
    assert sum(seen) == found.num_draws * len(X)


def test_a_mixture_grows_in_each_component_and_takes_all_of_what_is_finite(monkeypatch):
    problem = target()
    wide, narrow = gaussian(problem, 0.5), gaussian(problem, 0.2, seed=1)
    drawn = Draws(torch.randn(7, problem.num_parameters, generator=torch.Generator().manual_seed(0)).double() * 1e-3)
    posterior = Mixture((wide, Point(wide.mean), narrow, drawn), (0.6, 0.1, 0.1, 0.2))
    engine = Engine(problem)
    seen = counted(monkeypatch)
    found = predict(engine, posterior, X, precision=0.015)
    counts = [stratum.count for stratum in found.source.strata]
    assert counts[0] == counts[2] >= 32
    assert counts[1] == 1
    assert counts[3] == 7
    assert sum(seen) == found.num_draws * len(X)
    anew = OutputSource(engine, posterior.growing(3 * counts[0], 0), X)
    assert torch.equal(means(found), found.likelihood.mean(next(iter(anew.blocks()))[1], {}))
    assert float(found.weights[: counts[0]].sum()) == pytest.approx(0.6)


def test_nodes_that_change_with_their_number_are_not_mistaken_for_those_before():
    """A posterior of somebody's own whose nodes are others for each n."""
    problem = target()
    engine, posterior = Engine(problem), gaussian(problem)
    few, other = posterior.nodes(32, seed=0), posterior.nodes(64, seed=1)
    known = OutputSource(engine, few, X)
    mixed, plain = OutputSource(engine, other, X, known=known), OutputSource(engine, other, X)
    assert torch.equal(next(iter(mixed.blocks()))[1], next(iter(plain.blocks()))[1])


def test_where_the_limit_comes_first_that_is_said():
    problem = target()
    with pytest.warns(TemperanceWarning, match=r"`precision` 0.001 was not reached by 64 draws.*raise `limit`"):
        found = predict(Engine(problem), gaussian(problem), X, precision=0.001, limit=64)
    assert found.num_draws == 64
    with pytest.warns(TemperanceWarning, match="not reached by 10 draws"):
        assert predict(Engine(problem), gaussian(problem), X, precision=0.001, limit=10).num_draws == 10


def test_batch_statistics_of_few_draws_are_all_there_is():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    problem = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    statistics = {"1.running_mean": torch.zeros(40, 8).double(), "1.running_var": torch.ones(40, 8).double()}
    statistics["1.num_batches_tracked"] = torch.zeros(40, dtype=torch.int64)
    posterior = WithStatistics(gaussian(problem), statistics)
    with pytest.warns(TemperanceWarning, match="not reached by 40 draws.*the posterior has no more"):
        predict(Engine(problem), posterior, X, precision=0.001)


def test_finite_posteriors_have_no_choice():
    problem = target()
    theta = torch.stack([problem.fresh_theta(k).double() for k in range(5)])
    members = Mixture(tuple(Point(row) for row in theta))
    assert predict(Engine(problem), members, X, precision=1e-6).num_draws == 5
    chain = predict(Engine(problem), Draws(theta), X, precision=1e-6)
    assert chain.num_draws == 5
    assert float(chain.monte_carlo_error().max()) > 1e-6


def test_masks_are_drawn_until_they_suffice():
    problem = target()
    posterior = DropoutPosterior(problem.fresh_theta(0).double(), ("2",))
    found = predict(Engine(posterior.retarget(problem)), posterior, X, precision=0.01)
    assert found.num_draws > 32
    assert float(found.imprecision().max()) <= 0.01


def test_the_worst_row_decides_so_batches_may_differ():
    """Each batch is as precise as was asked, by draws that all batches share."""
    problem = target()
    engine, posterior = Engine(problem), gaussian(problem, 0.3)
    whole = predict(engine, posterior, X, precision=0.02)
    parts = [predict(engine, posterior, x, precision=0.02) for x in X.split(10)]
    assert max(part.num_draws for part in parts) == whole.num_draws
    assert all(float(part.imprecision().max()) <= 0.02 for part in parts)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"draws": 30, "precision": 0.01}, "`draws` and `precision` both say how many"),
        ({"precision": 0.0}, "`precision` must be"),
        ({"precision": "fine"}, "`precision` must be"),
        ({"precision": 0.01, "limit": 0}, "`limit` must be a positive integer; got 0"),
        ({"limit": 100}, "`limit` is for `precision`"),
    ],
)
def test_arguments(options, error):
    problem = target()
    with pytest.raises(ArgumentError, match=error):
        predict(Engine(problem), gaussian(problem), X, **options)


def test_memory_is_that_of_a_range_of_draws(monkeypatch):
    problem = target()
    posterior = gaussian(problem)
    monkeypatch.setattr(source_module, "_THETA_BYTES", 8 * problem.num_parameters * 8)
    longest = 0

    def growing(n, seed=0):
        nodes = posterior.nodes(n, seed)

        def fetch(start, stop):
            nonlocal longest
            longest = max(longest, stop - start)
            return nodes.fetch(start, stop)

        return Nodes(nodes.weights, fetch, nodes.strata)

    sources: list[OutputSource] = []

    def make(count):
        known = sources[-1] if sources else None
        sources.append(OutputSource(Engine(problem), growing(count), X, known=known, keep_bytes=128 * 60 * 3 * 8))
        return tp.predict.ClassPredictive(sources[-1], problem.likelihood)

    found = precise(make, 0.01, 4096)
    assert found.num_draws >= 512
    assert longest <= 8
    assert sources[-1]._kept is None  # too large: made anew, but for those that a smaller source has kept
    assert torch.equal(found.mean(), predict(Engine(problem), posterior, X, draws=found.num_draws).mean())


def test_a_saved_run_predicts_the_same_to_the_bit(tmp_path):
    train, test = tp.data.load("wine")
    network = tp.nn.MLP(13, [8], 3)
    problem = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    for k, method in enumerate((tp.Variational(tp.MeanField(), lr=1e-2), tp.Ensemble(tp.SWAG(tp.MAP(lr=1e-2)), 2))):
        fitted = tp.fit(problem, method, train, epochs=20, seed=0)
        fitted.save(tmp_path / str(k))
        loaded = tp.load(tmp_path / str(k), network)
        one, two = (run.predict(test.x, precision=0.05) for run in (fitted, loaded))
        assert one.num_draws == two.num_draws
        assert torch.equal(one.probs, two.probs)
        assert torch.equal(one.monte_carlo_error(), two.monte_carlo_error())
        assert fitted.evaluate(test, precision=0.05) == loaded.evaluate(test, precision=0.05)
        assert fitted.evaluate(test, precision=0.05) != fitted.evaluate(test, draws=8)


def test_linearised_networks_take_more_points():
    train, test = tp.data.load("iris")
    problem = tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(problem, tp.Laplace(tp.MAP(lr=1e-2)), train, epochs=20, seed=0)
    usual = fitted.predict(test.x)
    easy = fitted.predict(test.x, precision=0.05)
    assert easy.num_draws == usual.num_draws
    assert torch.equal(easy.probs, usual.probs)
    hard = fitted.predict(test.x, precision=float(usual.imprecision().max()) / 3)
    assert hard.num_draws > usual.num_draws
    assert torch.equal(hard.probs, fitted.predict(test.x, draws=hard.num_draws).probs)
    assert fitted.predict(test.x, by="probit", precision=1e-9).num_draws == usual.num_draws
    functions = fitted.predict(test.x, by="functions", precision=0.01)
    assert float(functions.imprecision().max()) <= 0.01
