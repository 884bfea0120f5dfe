from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NumericalError, TemperanceWarning

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4


def target() -> tp.Target:
    return tp.Target(tp.nn.MLP(3, [8], 4), tp.Categorical(), tp.GaussianPrior(1.0))


def test_all_kinds_of_data_give_the_same_result():
    problem = target()
    kinds = [(X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y), DataLoader(TensorDataset(X, Y)), tp.data.Data(X, Y)]
    thetas = [tp.fit(problem, tp.MAP(lr=0.01), data, epochs=2, batch_size=16).posterior.theta for data in kinds]
    assert all(torch.equal(thetas[0], theta) for theta in thetas[1:])


def test_how_long():
    problem = target()
    assert tp.fit(problem, tp.MAP(), (X, Y), steps=7, batch_size=16).info.steps == 7
    assert tp.fit(problem, tp.MAP(), (X, Y), epochs=2, batch_size=16).info.steps == 6
    for options, message in [
        ({}, "`epochs` or `steps` must say"),
        ({"epochs": 1, "steps": 1}, "not both"),
        ({"epochs": 0}, "`epochs` must be a positive integer"),
        ({"steps": -3}, "`steps`"),
        ({"epochs": 1.5}, "`epochs`"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            tp.fit(problem, tp.MAP(), (X, Y), **options)


def test_seeds_decide_and_the_global_state_does_not():
    problem = target()
    run = lambda seed: tp.fit(problem, tp.Ensemble(tp.MAP(), 2), (X, Y), epochs=1, seed=seed)  # noqa: E731
    one = run(0).predict(X).probs
    torch.randn(100)
    assert torch.equal(one, run(0).predict(X).probs)
    assert not torch.equal(one, run(1).predict(X).probs)
    for seed in (1.0, "0", None, -1, True):
        with pytest.raises(ArgumentError, match="`seed` must be an integer"):
            run(seed)


def test_start():
    problem = target()
    trained = tp.fit(problem, tp.MAP(lr=0.05), (X, Y), epochs=20)
    again = tp.fit(problem, tp.MAP(lr=1e-9), (X, Y), epochs=1, start=trained.network())
    assert torch.allclose(again.posterior.theta, trained.posterior.theta, atol=1e-6)
    vector = tp.fit(problem, tp.MAP(lr=1e-9), (X, Y), epochs=1, start=trained.posterior.theta)
    assert torch.allclose(vector.posterior.theta, trained.posterior.theta, atol=1e-6)


def test_divergence_is_said_and_nothing_is_lost(tmp_path):
    x, y = torch.randn(50, 2) * 100, torch.randn(50, 1)
    problem = tp.Target(nn.Linear(2, 1), tp.Normal(1.0), tp.GaussianPrior(1.0))
    method = tp.MAP(lr=0.1, optimizer=torch.optim.SGD)
    with pytest.raises(
        NumericalError, match=r"MAP stopped after \d+ of 500 steps: .*Lower the learning rate"
    ) as caught:
        tp.fit(problem, method, (x, y), epochs=500, checkpoint=tmp_path / "run")
    assert torch.isfinite(caught.value.fitted.posterior.theta).all()
    kept = tp.fit(problem, method, (x, y), epochs=500, throw=False)
    assert kept.info.status.code in ("diverged", "non-finite-loss")
    assert kept.info.status.remedy
    assert tp.load(tmp_path / "run", nn.Linear(2, 1)).info.status.code == kept.info.status.code


@dataclass(frozen=True, eq=False)
class _PressesCtrlC(tp.MAP):
    at: int = 5

    def step(self, engine, state, batch):
        if batch.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(engine, state, batch)


def test_ctrl_c_leaves_a_usable_saved_state_that_resumes_exactly(tmp_path, capsys):
    problem = target()
    whole = tp.fit(problem, _PressesCtrlC(lr=0.01, at=10_000), (X, Y), steps=20, batch_size=16)
    method = _PressesCtrlC(lr=0.01, at=5)
    stopped = tp.fit(problem, method, (X, Y), steps=20, batch_size=16, checkpoint=tmp_path / "run")
    assert stopped.info.status.code == "interrupted"
    assert stopped.info.steps == 6
    assert "interrupted" in capsys.readouterr().out
    assert stopped.predict(X).probs.shape == (40, 4)
    resumed = tp.fit(problem, method, (X, Y), steps=20, batch_size=16, checkpoint=tmp_path / "run")
    assert resumed.info.steps == 20
    assert torch.equal(resumed.posterior.theta, whole.posterior.theta)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_progress_is_shown_on_request_and_silent_otherwise(capfd):
    problem = target()
    tp.fit(problem, tp.MAP(), (X, Y), epochs=2)
    assert capfd.readouterr() == ("", "")
    tp.fit(problem, tp.MAP(), (X, Y), epochs=2, progress=True)
    shown = capfd.readouterr().err
    assert "MAP" in shown
    assert "loss" in shown
    assert "left" in shown


def test_a_user_can_read_how_it_went():
    fitted = tp.fit(target(), tp.MAP(lr=0.05), (X, Y), epochs=30)
    assert len(fitted.info.losses) == 30
    assert fitted.info.losses[-1] < fitted.info.losses[0]
    assert fitted.info.seconds > 0
    assert set(fitted.evaluate((X, Y))) == {"log_loss", "accuracy", "brier", "ece"}
    with pytest.raises(ArgumentError, match="does not estimate the evidence"):
        fitted.log_evidence()


def test_a_data_loader_brings_its_batch_size():
    loader = DataLoader(TensorDataset(X, Y), batch_size=10)
    assert tp.fit(target(), tp.MAP(), loader, epochs=2).info.steps == 8
    assert tp.fit(target(), tp.MAP(), loader, epochs=2, batch_size=20).info.steps == 4


def test_held_out_scores_are_kept_and_unused_ones_are_said():
    fitted = tp.fit(target(), tp.MAP(lr=0.01, patience=3), (X, Y), epochs=2, held_out=0.25)
    assert len(fitted.info.held_out_scores) == 2
    with pytest.warns(tp.errors.TemperanceWarning, match="held_out"):
        tp.fit(target(), tp.MAP(), (X, Y), epochs=1, held_out=0.25)


def test_a_fitted_model_prints_on_one_line():
    assert len(repr(tp.fit(target(), tp.MAP(), (X, Y), epochs=1))) < 300


def test_raw_targets_in_their_own_units():
    """Learned noise on targets far from standard: standardised, it is calibrated; raw, it is warned about."""
    torch.manual_seed(0)
    x = torch.rand(400, 2) * 10
    y = 1000 + 100 * x[:, 0] + 20 * torch.randn(400)
    train = tp.data.Data(x[:300], y[:300]).standardise()
    test = tp.data.Data(x[300:], y[300:])
    problem = tp.Target(tp.nn.MLP(2, [20], 1), tp.Normal(), tp.GaussianPrior(1.0))
    fitted = tp.fit(problem, tp.MAP(lr=0.01), train, epochs=100)
    pred = fitted.predict(test.standardise(train.info).x)
    info = train.info
    assert (info.in_units(pred.mean()).squeeze() - y[300:]).square().mean().sqrt() < 30
    assert float(info.spread_in_units(pred.std()).mean()) == pytest.approx(20, rel=0.3)
    low, high = (info.in_units(end).squeeze() for end in pred.interval(0.9))
    assert 0.8 < float(((y[300:] > low) & (y[300:] < high)).double().mean()) < 1.0
    with pytest.warns(tp.errors.TemperanceWarning, match="standardise"):
        tp.fit(problem, tp.MAP(), (x, y), epochs=1)


def test_regression_is_evaluated_too():
    train, test = tp.data.load("diabetes")
    problem = tp.Target(tp.nn.MLP(10, [20], 1), tp.Normal(None), tp.GaussianPrior(tp.FanIn()))
    fitted = tp.fit(problem, tp.Ensemble(tp.MAP(lr=0.01), 3), train, epochs=20)
    scores = fitted.evaluate(test)
    assert set(scores) == {"log_loss", "rmse", "coverage_90", "crps"}
    assert 0 < scores["crps"] < scores["rmse"] < 0.9
    assert 0.5 < scores["coverage_90"] < 1.0


def test_wrong_kinds_of_arguments():
    with pytest.raises(ArgumentError, match="`target` must be a temperance Target"):
        tp.fit(nn.Linear(3, 4), tp.MAP(), (X, Y), epochs=1)
    with pytest.raises(ArgumentError, match="`method` must be a temperance method"):
        tp.fit(target(), torch.optim.Adam, (X, Y), epochs=1)
    with pytest.raises(ArgumentError, match="`batch_size`"):
        tp.fit(target(), tp.MAP(), (X, Y), epochs=1, batch_size=0)
    with pytest.raises(ArgumentError, match="`every`"):
        tp.fit(target(), tp.MAP(), (X, Y), epochs=1, every=-1)
    with pytest.raises(ArgumentError, match="`component`"):
        tp.fit(target(), tp.Ensemble(tp.MAP(), 2), (X, Y), epochs=1).network()


# ---------------------------------------------------------------------- a network that comes trained


def trained_regression(likelihood=None):
    torch.manual_seed(0)
    x = torch.randn(300, 3)
    y = 5 * x[:, :1] + 0.4 * torch.randn(300, 1)
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.05), nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network[0].weight[0, 0] = network[2].weight[0, 0] = 5**0.5
    return tp.Target(network, likelihood or tp.Normal(), tp.GaussianPrior(3.0)), network, (x, y)


@pytest.mark.parametrize(
    "method",
    [
        tp.Laplace(tune=None),
        tp.MCDropout(),
        tp.On(tp.last_layer, tp.Laplace(tune=None)),
        tp.Laplace(curvature=tp.KFAC(), tune=None),
    ],
    ids=["Laplace", "MCDropout", "On", "KFAC"],
)
@pytest.mark.parametrize("given", [False, True])
def test_without_training_the_noise_is_that_of_the_residuals(method, given):
    target, network, data = trained_regression()
    with pytest.warns(TemperanceWarning, match=r"learns its noise.*it was set to 0\.3"):
        fitted = tp.fit(target, method, data, start=network if given else None)
    noise = fitted.predict(data[0]).aleatoric_variance().sqrt()
    residuals = (network.eval()(data[0]) - data[1]).square().mean().sqrt()
    assert float(noise.mean()) == pytest.approx(float(residuals), rel=0.02)
    if isinstance(method, tp.Laplace):
        coverage = fitted.evaluate(data)["coverage_90"]
        assert 0.85 < coverage < 0.95


def test_the_noise_is_the_most_probable_one_given_the_residuals():
    """n residuals r and log σ ~ N(0, 1): n − Σ r²/σ² + log σ = 0; of several columns, each for itself."""
    rng = torch.Generator().manual_seed(0)
    outputs = torch.zeros(20, 2)
    y = torch.randn(20, 2, generator=rng) * torch.tensor([0.1, 30.0])
    target = tp.Target(nn.Linear(3, 2), tp.Normal(num_outputs=2), tp.GaussianPrior(1.0))
    for temperature in (1.0, 2.5):
        tempered = tp.Target(
            target.network, target.likelihood, target.prior, likelihood_temperature=temperature
        ).settled(outputs, y)
        (log_scale,) = (value.double() for value in tempered.learned_start.values())
        gradient = (20 - y.double().square().sum(0) / (2 * log_scale).exp()) / temperature + log_scale
        assert torch.allclose(gradient, torch.zeros(2, dtype=torch.float64), atol=1e-3)
    heavy = tp.Target(nn.Linear(3, 1), tp.StudentT(df=4.0), tp.GaussianPrior(1.0))
    far = torch.distributions.StudentT(4.0).sample((4000, 1)) * 0.2
    (found,) = heavy.settled(torch.zeros(4000, 1), far).learned_start.values()
    assert float(found.exp()) == pytest.approx(0.2, rel=0.1)


@pytest.mark.filterwarnings("ignore:.*learns its noise")
@pytest.mark.parametrize("likelihood", [tp.Normal(), tp.StudentT()], ids=repr)
def test_residuals_count_as_often_as_their_rows(likelihood):
    target, network, (x, y) = trained_regression(likelihood)
    often = torch.arange(len(y)) % 4
    y = y + often.unsqueeze(1)  # rows that count more are farther off
    ours = tp.fit(target, tp.Laplace(tune=None), tp.data.Data(x, y, weights=often), start=network)
    rows = torch.repeat_interleave(torch.arange(len(y)), often)
    theirs = tp.fit(target, tp.Laplace(tune=None), tp.data.Data(x[rows], y[rows]), start=network)
    alike = tp.fit(target, tp.Laplace(tune=None), tp.data.Data(x, y), start=network)
    noise, wanted, unweighed = (f.predict(x[:3]).aleatoric_variance() for f in (ours, theirs, alike))
    assert torch.allclose(noise, wanted, rtol=1e-3)
    assert bool((noise > 1.2 * unweighed).all())


def test_a_trained_start_begins_with_its_own_noise_and_a_vector_keeps_what_it_says():
    target, network, data = trained_regression()
    fitted = tp.fit(target, tp.MAP(lr=1e-9), data, start=network, steps=1)
    assert float(fitted.posterior.theta[-1].exp()) == pytest.approx(0.37, rel=0.1)
    theta = fitted.posterior.theta.clone()
    theta[-1] = 1.0
    kept = tp.fit(target, tp.Laplace(tune=None), data, start=theta)
    assert float(kept.posterior.mean[-1]) == 1.0


def test_the_loss_of_an_epoch_counts_rows_not_batches():
    x, y = torch.zeros(11, 1), torch.tensor([0.0] * 10 + [10.0]).unsqueeze(1)
    target = tp.Target(nn.Linear(1, 1, bias=False), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MAP(lr=1e-9), (x, y), epochs=3, batch_size=10)
    exact = 0.5 * 100 / 11 + 0.5 * math.log(2 * math.pi)
    assert fitted.info.losses == pytest.approx([exact] * 3)
    bound = tp.fit(target, tp.Variational(lr=1e-9), (x, y), epochs=3, batch_size=10)
    once = tp.fit(target, tp.Variational(lr=1e-9), (x, y), epochs=3, batch_size=11)
    assert bound.info.elbos == pytest.approx(once.info.elbos, rel=1e-4)
    natural = tp.fit(target, tp.IVON(lr=1e-9), (x, y), epochs=2, batch_size=10)
    whole = tp.fit(target, tp.IVON(lr=1e-9), (x, y), epochs=2, batch_size=11)
    assert natural.info.losses[0] == pytest.approx(whole.info.losses[0], rel=1e-4)
    assert natural.info.elbos[0] == pytest.approx(whole.info.elbos[0], rel=1e-2)


def test_targets_whose_squares_are_infinite_are_refused():
    target, _, (x, y) = trained_regression()
    y = y.clone()
    y[3] = 1e30
    with pytest.raises(DataError, match=r"squares float32 can hold; got 1e\+30.*standardise"):
        tp.fit(target, tp.Laplace(tune=None), (x, y))


def test_an_earlier_fit_is_a_start_with_the_noise_and_statistics_that_it_has():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=rng)
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.3 * torch.randn(60, 1, generator=rng)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    target = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0))
    first = tp.fit(target, tp.MAP(lr=0.01), (x[:50], y[:50]), epochs=40, batch_size=25)
    fitted = tp.fit(target, tp.Laplace(tune=None), (x[:50], y[:50]), start=first)
    assert torch.equal(fitted.posterior.mean, first.posterior.theta)
    torch.testing.assert_close(fitted.predict(x).mean(), first.predict(x).mean(), atol=1e-5, rtol=1e-4)
    again = tp.fit(target, tp.MAP(lr=1e-12), (x[:50], y[:50]), steps=1, batch_size=50, start=first)
    torch.testing.assert_close(again.posterior.theta, first.posterior.theta)
    several = tp.fit(target, tp.Ensemble(tp.MAP(lr=0.01), 2), (x, y), steps=2, batch_size=30)
    with pytest.raises(tp.errors.ArgumentError, match="no one setting"):
        tp.fit(target, tp.Laplace(), (x, y), start=several)
