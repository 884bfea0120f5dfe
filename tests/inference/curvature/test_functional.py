"""FunctionalLaplace under fit: saved, resumed, batched. (tests/predict shows that it is the dense predictive.)"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine import Engine
from temperance.inference.base import NeedsData

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3


def target(prior=None):
    torch.manual_seed(0)
    return tp.Target(tp.nn.MLP(3, [5], 3), tp.Categorical(), prior or tp.GaussianPrior(1.0))


def test_saved_loaded_and_resumed(tmp_path):
    made = target()
    method = tp.FunctionalLaplace(tp.MAP(lr=1e-2), size=12)
    whole = tp.fit(made, method, (X, Y), epochs=6, batch_size=8)
    tp.fit(made, method, (X, Y), epochs=6, batch_size=8, checkpoint=tmp_path / "run")
    loaded = tp.load(tmp_path / "run", made.network)
    assert torch.equal(loaded.predict(X).probs, whole.predict(X).probs)
    assert torch.equal(loaded.predict(X).sample(3, seed=1), whole.predict(X).sample(3, seed=1))
    half = tmp_path / "half"
    with pytest.MonkeyPatch.context() as patch:
        original, count = tp.MAP.step, []

        def dying(*args):
            count.append(1)
            if len(count) > 7:
                raise KeyError("killed")
            return original(*args)

        patch.setattr(tp.MAP, "step", dying)
        with pytest.raises(KeyError):
            tp.fit(made, method, (X, Y), epochs=6, batch_size=8, checkpoint=half, every=2)
    resumed = tp.fit(made, method, (X, Y), epochs=6, batch_size=8, checkpoint=half, every=2)
    assert torch.equal(resumed.predict(X).probs, whole.predict(X).probs)


def test_post_hoc_and_in_an_ensemble():
    made = target()
    trained = tp.fit(made, tp.MAP(lr=1e-2), (X, Y), steps=20)
    post_hoc = tp.fit(made, tp.FunctionalLaplace(), (X, Y), start=trained.network())
    assert torch.equal(post_hoc.posterior.theta, trained.posterior.theta)
    several = tp.Ensemble(tp.FunctionalLaplace(tp.MAP(lr=1e-2)), 3)
    found = tp.fit(made, several, (X, Y), steps=20).predict(X)
    assert found.probs.shape == (24, 3)
    assert torch.allclose(found.probs.sum(-1), torch.ones(24), atol=1e-5)


def test_what_it_refuses():
    with pytest.raises(ArgumentError, match="`size`"):
        tp.FunctionalLaplace(size=0)
    with pytest.raises(ArgumentError, match="Gaussian"):
        tp.fit(target(tp.StudentTPrior(4.0, 1.0)), tp.FunctionalLaplace(), (X, Y))
    made = Engine(target())
    state = tp.FunctionalLaplace().init(made, tp.Starts(), [torch.Generator()])
    with pytest.raises(NeedsData):
        tp.FunctionalLaplace().posteriors(made, state, None)[0]
    wide = tp.Target(nn.Linear(3, 3), tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.raises(ArgumentError, match="draws of weights"):
        tp.fit(wide, tp.FunctionalLaplace(), (X, Y)).posterior.sample(2)
