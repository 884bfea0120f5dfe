"""What ``fit`` takes and what it refuses, before anything is trained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, TemperanceWarning
from tests.small import X, Y, real


def test_numpy_integers_are_integers(tmp_path):
    options = {"seed": np.int64(3), "batch_size": np.int64(4), "epochs": np.int64(2)}
    fitted = tp.fit(real(), tp.MAP(lr=float(np.float32(0.01))), (X, Y), **options)
    fitted.save(tmp_path / "run")
    assert tp.load(tmp_path / "run", nn.Linear(3, 1)).seed == 3
    tp.GaussianPrior(np.float32(1.0))


def test_what_cannot_be_written_down_is_refused_before_the_run():
    import functools

    part = functools.partial(tp.biases)
    with pytest.raises(ArgumentError, match="`target` must be made of"):
        tp.fit(real(subset=part), tp.MAP(), (X, Y), epochs=1)

    class Mine(tp.Normal):
        pass

    class NotADataclass(tp.model.likelihoods.RealLikelihood):
        def __init__(self, s: float = 1.0) -> None:
            self.s = s

        def location(self, outputs):
            return outputs

        def noise_scale(self, outputs, learned):
            return outputs.new_tensor(self.s)

        def hessian(self, outputs, y, learned):
            raise NotImplementedError

        def fisher(self, outputs, learned):
            raise NotImplementedError

    with pytest.raises(ArgumentError, match="frozen dataclass"):
        tp.fit(tp.Target(nn.Linear(3, 1), NotADataclass(5.0), tp.GaussianPrior(1.0)), tp.MAP(), (X, Y), epochs=1)


def test_errors_come_early_and_name_their_argument():
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau"):
        tp.MAP(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(ArgumentError, match="`scheduler`"):
        tp.MAP(scheduler=3)
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(ArgumentError, match=r"`batch_size` 19.*one row"):
        tp.fit(real(norm), tp.MAP(), (X, Y), epochs=1, batch_size=19)

    class Squeezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).squeeze()

    with pytest.raises(NetworkError, match="one row of outputs per input"):
        tp.fit(real(Squeezing()), tp.MAP(), (X, Y), epochs=1)
    for start in ("abc", {"weight": 1}):
        with pytest.raises(ArgumentError, match="`start`"):
            tp.fit(real(), tp.MAP(), (X, Y), epochs=1, start=start)
    with pytest.raises(ArgumentError, match="`priors`"):
        tp.PerLayer({"*": 1.0})
    with pytest.raises(ArgumentError, match="`priors`"):
        tp.PerLayer([tp.GaussianPrior()])
    with pytest.raises(ArgumentError, match="`components`"):
        tp.MixturePrior((1.0, 2.0))
    for mean in ("a", math.nan, None):
        with pytest.raises(ArgumentError, match="`mean`"):
            tp.GaussianPrior(mean=mean)
    misspelt = tp.GaussianPrior({"wieght": 0.1, "*": 1.0})
    with pytest.raises(ArgumentError, match=r"nothing matches \['wieght'\]"):
        tp.Target(nn.Linear(3, 1), tp.Normal(0.5), misspelt)
    with pytest.raises(NetworkError, match="must be initialised"):
        real(nn.LazyLinear(1))
    with pytest.raises(ArgumentError, match="`every`"):
        tp.fit(real(), tp.MAP(), (X, Y), epochs=1, every=0)
    fitted = tp.fit(real(), tp.Ensemble(tp.MAP(), 2), (X, Y), epochs=1)
    with pytest.raises(ArgumentError, match="`component` must be from 0 to 1"):
        fitted.network(5)
    with pytest.raises(ArgumentError, match="`path`"):
        fitted.save(None)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(X, Y),
        sampler=torch.utils.data.WeightedRandomSampler([1.0] * 20, 20),
    )
    with pytest.warns(TemperanceWarning, match="sampler"):
        tp.fit(real(), tp.MAP(), loader, epochs=1)
