"""Units that answer nothing are counted by hand here, and by training that went wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import DataError
from temperance.judge import diagnose
from temperance.posteriors import Draws, Mixture, Point
from temperance.posteriors.base import Posterior
from temperance.run.fitted import Fitted
from temperance.run.parts import RunInfo


def fitted(network: nn.Module, posterior: Posterior | None = None) -> Fitted:
    target = tp.Target(network, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    return Fitted(target, Point(theta_of(network)) if posterior is None else posterior, RunInfo())


def theta_of(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def line(weights: list[float], biases: list[float], out: float = 1.0) -> nn.Sequential:
    """One input, a ReLU of so many units, their sum times ``out``."""
    made = tp.nn.MLP(1, [len(weights)], 1)
    with torch.no_grad():
        made[0].weight.copy_(torch.tensor(weights).unsqueeze(1))
        made[0].bias.copy_(torch.tensor(biases))
        made[2].weight.fill_(out)
        made[2].bias.fill_(0.3)
    return made


X = torch.linspace(-1, 1, 2001).unsqueeze(1)


def test_units_are_dead_where_no_row_wakes_them() -> None:
    # 0: always on; 1: never; 2: only on the last row, which is in the last block of rows; 3: a constant, which is no 0
    found = diagnose.dead_units(fitted(line([1.0, 1.0, 1.0, 0.0], [2.0, -2.0, -0.9995, 1.0])), X)
    assert found.layers == ("1",)
    assert found.units == (4,)
    assert found.dead.tolist() == [[1]]
    assert found.shares == {"1": 0.25}
    assert not found.constant.any()
    assert found.ok
    assert found.remarks() == []
    assert diagnose.dead_units(fitted(line([1.0] * 3, [2.0, -2.0, -0.9995])), X[:-1]).dead.tolist() == [[2]]


def test_a_network_without_a_living_unit_is_a_constant_and_says_so() -> None:
    found = diagnose.dead_units(fitted(line([1.0] * 20, [-2.0] * 20)), X)
    (said,) = found.remarks()
    assert "at a constant: the answer of the network is the same on all 2,001 rows" in said
    assert "20 of 20 units of ReLU 1 of 1 (`1`)" in said
    assert "smaller learning rate" in said
    # dead units, and an answer that varies: 19 of 20, with one that is on
    found = diagnose.dead_units(fitted(line([1.0] * 20, [-2.0] * 19 + [2.0])), X)
    (said,) = found.remarks()
    assert found.constant_share == 0
    assert "constant" not in said
    # an answer that does not vary though every unit is alive
    found = diagnose.dead_units(fitted(line([1.0] * 20, [2.0] * 20, out=0.0)), X)
    assert (found.worst, found.constant_share) == (0.0, 1.0)
    # one that varies by little, about nothing, is no constant: what is little only the answer's own size can say
    small = line([1.0, 1.0], [2.0, 2.0], out=1e-8)
    with torch.no_grad():
        small[2].bias.zero_()
    assert diagnose.dead_units(fitted(small), X).constant_share == 0


def test_weights_of_a_mixture_count() -> None:
    dead, alive = line([1.0] * 4, [-2.0] * 4), line([1.0] * 4, [2.0] * 4)
    parts = (Point(theta_of(dead)), Point(theta_of(alive)))
    found = diagnose.dead_units(fitted(alive, Mixture(parts, (0.9, 0.1))), X)
    assert found.dead.tolist() == [[4], [0]]
    assert found.shares["1"] == pytest.approx(0.9)
    assert found.constant_share == pytest.approx(0.9)
    # a component keeps its weight though only some of its draws are looked at
    many = Draws(theta_of(alive).repeat(500, 1))
    found = diagnose.dead_units(fitted(alive, Mixture((parts[0], many), (0.5, 0.5))), X, draws=10)
    assert len(found.weights) <= 11
    assert found.constant_share == pytest.approx(0.5)


def test_units_of_convolutions_are_channels_and_of_tokens_features() -> None:
    torch.manual_seed(0)
    image = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 1))
    with torch.no_grad():
        image[0].bias.copy_(torch.tensor([-100.0, 0.0, 100.0]))
    found = diagnose.dead_units(fitted(image), torch.randn(20, 1, 6, 6))
    assert (found.units, found.dead.tolist()) == ((3,), [[1]])
    tokens = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 1))
    with torch.no_grad():
        tokens[0].bias.copy_(torch.tensor([-100.0, -100.0, 0.0, 0.0, 100.0]))
    found = diagnose.dead_units(fitted(tokens), torch.randn(20, 4, 2))
    assert (found.units, found.dead.tolist()) == ((5,), [[2]])


class Shared(nn.Module):
    """One ReLU, reached twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last, self.relu = nn.Linear(1, 3), nn.Linear(3, 4), nn.Linear(4, 1), nn.ReLU()
        with torch.no_grad():
            self.first.bias.fill_(5.0)
            self.second.bias.fill_(-100.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.second(self.relu(self.first(x)))))


def test_a_relu_that_is_reached_twice_has_units_of_both_places() -> None:
    found = diagnose.dead_units(fitted(Shared()), X)
    assert found.layers == ("relu", "relu (2)")
    assert found.units == (3, 4)
    assert found.dead.tolist() == [[0, 4]]


def test_networks_without_a_relu_have_no_dead_units() -> None:
    found = diagnose.dead_units(fitted(tp.nn.MLP(1, [4], 1, activation=nn.Tanh)), X)
    assert (found.layers, found.worst, found.ok) == ((), 0.0, True)


@pytest.mark.parametrize(
    "make",
    [
        lambda lr: tp.MAP(lr=lr),
        lambda lr: tp.Ensemble(tp.MAP(lr=lr), 3),
        lambda lr: tp.Laplace(tp.MAP(lr=lr), tune=None),
        lambda lr: tp.SWAG(tp.MAP(lr=lr)),
    ],
)
def test_training_that_went_wrong_is_told_from_training_that_did_not(make) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(600, 12, generator=rng)
    y = (x[:, 0] + 2 * torch.randn(600, generator=rng) > 1).long()
    torch.manual_seed(0)
    target = tp.Target(tp.nn.MLP(12, [50, 50], 2), tp.Categorical(), tp.GaussianPrior(tp.FanIn(gain=2**0.5)))
    good = tp.fit(target, make(5e-3), (x, y), epochs=40, batch_size=32, seed=0)
    assert diagnose.dead_units(good, x).remarks() == []
    bad = tp.fit(target, make(0.5), (x, y), epochs=40, batch_size=32, seed=0)
    found = diagnose.dead_units(bad, x)
    assert not found.ok, str(found)
    assert "smaller learning rate" in found.remarks()[0]


def test_what_is_looked_at_is_the_user_s_network_and_left_as_it_was() -> None:
    network = line([1.0] * 4, [-2.0] * 4)
    made = fitted(network)
    before = theta_of(made.target.network).clone()
    diagnose.dead_units(made, X)
    assert torch.equal(theta_of(made.target.network), before)
    assert not any(module._forward_hooks for module in made.target.network.modules())


def test_one_row_cannot_vary() -> None:
    with pytest.raises(DataError, match="`x` must have two rows at least"):
        diagnose.dead_units(fitted(line([1.0], [0.0])), X[:1])
