from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, TemperanceWarning
from temperance.testing import assert_moments, linear_gaussian
from tests.small import real

DATA = (torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 4)


def target_of(network: nn.Module) -> tp.Target:
    return tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))


@pytest.mark.parametrize(
    "network",
    [
        tp.nn.MLP(3, [16, 16], 4),
        nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)),
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.Flatten(), nn.Linear(8, 4)),
    ],
    ids=["mlp", "norm", "conv"],
)
def test_batched_and_sequential_members_are_the_same(network):
    target = target_of(network.double())
    methods = [tp.Ensemble(tp.MAP(lr=0.01, clip=1.0), 4, batched=batched) for batched in (True, False)]
    one, two = (tp.fit(target, m, (DATA[0].double(), DATA[1]), epochs=4, batch_size=16) for m in methods)
    for a, b in zip(one.posterior.components, two.posterior.components, strict=True):
        assert torch.allclose(a.theta, b.theta, atol=1e-8)


def test_members_have_their_own_start_and_order():
    target = target_of(tp.nn.MLP(3, [16], 4))
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-9), 3), DATA, epochs=1)
    a, b, c = (component.theta for component in fitted.posterior.components)
    assert (a - b).abs().max() > 0.1
    assert (b - c).abs().max() > 0.1
    start = target.initial_theta()
    same = tp.fit(target, tp.Ensemble(tp.MAP(lr=0.1), 2), DATA, epochs=1, batch_size=10, start=start)
    a, b = (component.theta for component in same.posterior.components)
    assert not torch.equal(a, b)  # apart by their orders of the data alone
    rows = torch.stack([start, start + 1])
    apart = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-9), 2), DATA, epochs=1, start=rows)
    assert torch.allclose(apart.posterior.components[1].theta, start + 1, atol=1e-4)
    with pytest.raises(ArgumentError, match="a row for each of the 3 members"):
        tp.fit(target, tp.Ensemble(tp.MAP(), 3), DATA, epochs=1, start=rows)


@pytest.mark.parametrize("inner", [True, False])
def test_an_ensemble_of_ensembles_has_an_order_of_the_data_for_each_member(inner):
    """The same members as in one ensemble of all, from one start, apart by their orders alone."""
    target = target_of(nn.Linear(3, 4).double())
    base = tp.MAP(lr=0.1, optimizer=torch.optim.SGD)
    nested = tp.Ensemble(tp.Ensemble(base, 2, batched=inner), 2, batched=False)
    options = {"steps": 3, "batch_size": 10, "start": target.initial_theta(), "progress": False}
    found, flat = (tp.fit(target, method, DATA, **options).posterior for method in (nested, tp.Ensemble(base, 4)))
    one, two = (torch.stack([part.theta for _, part in posterior.parts()]) for posterior in (found, flat))
    assert torch.allclose(one, two, atol=1e-12)
    assert torch.pdist(one).min() > 1e-3


def test_members_that_train_nothing_must_be_given_apart():
    target = target_of(nn.Linear(3, 4))
    rows = torch.stack([target.fresh_theta(seed) for seed in range(3)])
    for start in (None, rows[0], rows[:1]):
        with pytest.raises(ArgumentError, match="nothing is trained"):
            tp.fit(target, tp.Ensemble(tp.Laplace(tune=None), 3), DATA, start=start, progress=False)
    fitted = tp.fit(target, tp.Ensemble(tp.Laplace(tune=None), 3), DATA, start=rows, progress=False)
    assert torch.equal(torch.stack([part.mean for part in fitted.posterior.components]), rows)


def test_a_network_that_cannot_be_batched_is_trained_one_after_another():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            return out if out.detach().sum().item() > 0 else 2 * out

    target = target_of(Branching())
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=0.01), 3), DATA, epochs=2)
    assert len(fitted.posterior.components) == 3
    with pytest.raises(ArgumentError, match="`batched=True` needs"):
        tp.fit(target, tp.Ensemble(tp.MAP(), 2, batched=True), DATA, epochs=1)


def test_dropout_networks_are_batched_with_noise_of_their_own():
    target = target_of(nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, 4)))
    start = target.initial_theta()
    method = tp.Ensemble(tp.MAP(lr=0.1, optimizer=torch.optim.SGD), 2, batched=True)
    fitted = tp.fit(target, method, DATA, steps=1, batch_size=50, start=start)
    a, b = (c.theta for c in fitted.posterior.components)
    assert not torch.allclose(a, b, atol=1e-4)


def test_parameters_that_cannot_be_reset_are_named():
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(4))
            self.layer = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.shift

    with pytest.warns(TemperanceWarning, match="shift"):
        tp.fit(target_of(Raw()), tp.Ensemble(tp.MAP(), 2), DATA, epochs=1)

    class OnlyRaw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    with pytest.raises(NetworkError, match="start apart"):
        tp.fit(target_of(OnlyRaw()), tp.Ensemble(tp.MAP(), 2), DATA, epochs=1)


def test_an_ensemble_beats_its_average_member_and_knows_what_it_does_not_know():
    train, test = tp.data.load("digits")
    target = target_of(tp.nn.MLP(64, [64], 10))
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-2), 5), train.subset(torch.arange(200)), epochs=60)
    together = fitted.evaluate(test)["log_loss"]
    apart = [tp.Fitted(target, c, fitted.info).evaluate(test)["log_loss"] for c in fitted.posterior.components]
    assert together < sum(apart) / 5 - 1e-3
    inside = fitted.predict(test.x).mutual_information().mean()
    outside = fitted.predict(torch.rand(300, 64)).mutual_information().mean()
    assert outside > 3 * inside


@pytest.mark.slow
def test_anchored_members_are_posterior_draws_also_one_after_another():
    problem = linear_gaussian()
    base = tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS)
    fitted = tp.fit(problem.target, tp.Ensemble(tp.Anchored(base), 250), problem.data, steps=3, batch_size=40)
    theta = torch.stack([c.theta for c in fitted.posterior.components])
    assert_moments(theta, problem.mean, problem.covariance)


def test_anchored_needs_what_it_needs():
    data = (torch.randn(10, 3), torch.randn(10, 2))
    laplace = tp.Target(nn.Linear(3, 2), tp.Normal(0.5), tp.LaplacePrior(1.0))
    with pytest.raises(ArgumentError, match="`prior` must be Gaussian"):
        tp.fit(laplace, tp.Anchored(), data, epochs=1)
    learned = tp.Target(nn.Linear(3, 2), tp.Normal(None), tp.GaussianPrior(1.0))
    with pytest.raises(ArgumentError, match="`target_noise` needs additive noise"):
        tp.fit(learned, tp.Anchored(target_noise=True), data, epochs=1)
    tp.fit(learned, tp.Anchored(), data, epochs=1)
    tp.fit(target_of(tp.nn.MLP(3, [8], 4)), tp.Ensemble(tp.Anchored(), 2), DATA, epochs=1)
    with pytest.raises(ArgumentError, match="`base`: Anchored cannot wrap"):
        tp.Anchored(tp.Ensemble(tp.MAP(), 2))
    for size in (0, -1, 2.5, "3"):
        with pytest.raises(ArgumentError, match="`size` must be a positive integer"):
            tp.Ensemble(tp.MAP(), size)
    with pytest.raises(ArgumentError, match="`base` must be a method"):
        tp.Ensemble(tp.nn.MLP(3, [8], 4), 2)


def test_stacked_and_single_members_stop_alike():
    torch.manual_seed(0)
    net = tp.nn.MLP(3, [16], 1).double()
    x, y = torch.randn(40, 3).double(), torch.randn(40, 1).double()
    held = (torch.randn(40, 3).double(), torch.randn(40, 1).double())
    runs = []
    for batched in (True, False):
        method = tp.Ensemble(tp.MAP(lr=0.02, patience=1), 4, batched=batched)
        runs.append(tp.fit(real(net), method, (x, y), epochs=40, batch_size=10, held_out=held, seed=1))
    for a, b in zip(*(run.posterior.components for run in runs), strict=True):
        assert torch.allclose(a.theta, b.theta, atol=1e-7)
