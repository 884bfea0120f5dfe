"""A batch whose gradient is taken in pieces is the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, MismatchError

RNG = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=RNG, dtype=torch.float64)
Y = (X[:, :1] + 0.3 * torch.randn(40, 1, generator=RNG, dtype=torch.float64)).double()
WEIGHTS = torch.rand(40, generator=RNG, dtype=torch.float64) + 0.1


class Watched(nn.Module):
    """Remembers how many rows it was given in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 1)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(len(x))
        return self.second(self.first(x).tanh())


def network(kind: type[nn.Module] = Watched) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return (kind() if kind is Watched else tp.nn.MLP(3, [6], 1)).double()


def run(method: Any, net: nn.Module | None = None, **options: Any) -> tp.Fitted:
    target = tp.Target(net or network(), tp.Normal(), tp.GaussianPrior(1.0), likelihood_temperature=0.7)
    data = tp.data.Data(X, Y, weights=WEIGHTS)
    options = {"steps": 7, "batch_size": 16, "progress": False, **options}
    return tp.fit(target, method, data, **options)


METHODS = [
    tp.MAP(lr=0.01),
    tp.SGHMC(lr=0.01),
    tp.Variational(tp.MeanField(), lr=0.01),
    tp.IVON(lr=0.1),
    tp.Ensemble(tp.MAP(lr=0.01), 3),
    tp.Ensemble(tp.SGHMC(lr=0.01), 3),
    tp.RepulsiveEnsemble(3, space="weights", lr=0.01),
]


@pytest.mark.parametrize("kind", [Watched, tp.nn.MLP], ids=lambda k: k.__name__)
@pytest.mark.parametrize("method", METHODS, ids=["map", "sghmc", "vi", "ivon", "maps", "chains", "particles"])
def test_pieces_are_the_batch_to_rounding(method, kind):
    """Ragged ones too: batches of 16, 16 and 8 rows in pieces of 6, 6, 4 and 3, 3, 2; rows that weigh differently."""
    whole, pieces = run(method, network(kind)), run(method, network(kind), accumulate=3)
    for one, other in zip(whole.posterior.parts(), pieces.posterior.parts(), strict=True):
        a, b = (part.nodes(4).fetch(0, 1)[0] for part in (one[1], other[1]))
        assert float((a - b).abs().max()) < 1e-9
    assert whole.info.losses == pytest.approx(pieces.info.losses, rel=1e-9)


def test_no_more_rows_than_a_piece_are_in_the_network_at_once():
    fitted = run(tp.MAP(), accumulate=3)
    seen = fitted.engine.network.seen
    assert [n for n in seen if n > 2][:6] == [6, 6, 4, 6, 6, 4]
    assert max(seen) == 6
    assert max(run(tp.MAP(), accumulate=100).engine.network.seen[-20:]) <= 2  # a row each, and two to look at


def test_a_run_in_pieces_goes_on_in_pieces(tmp_path):
    net = network()
    whole = run(tp.SGHMC(lr=0.01), net, accumulate=3)
    run(tp.SGHMC(lr=0.01), net, accumulate=3, steps=4, checkpoint=tmp_path / "run")
    for other in (1, 2):
        with pytest.raises(MismatchError, match=r"accumulate \(3, now (None|2)\)"):
            run(tp.SGHMC(lr=0.01), net, accumulate=other, checkpoint=tmp_path / "run")
    resumed = run(tp.SGHMC(lr=0.01), net, accumulate=3, checkpoint=tmp_path / "run")
    assert torch.equal(resumed.posterior.theta, whole.posterior.theta)


def test_methods_that_look_at_a_whole_batch_say_so():
    for method in (tp.VOGN(), tp.RepulsiveEnsemble(3, space="functions")):
        with pytest.raises(ArgumentError, match=r"`accumulate` must be 1 for \w+"):
            run(method, accumulate=2)
    with pytest.raises(ArgumentError, match="`accumulate` must be"):
        run(tp.MAP(), accumulate=0)
