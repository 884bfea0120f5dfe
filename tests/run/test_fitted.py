"""What a run leaves: saved, loaded, evaluated."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import temperance as tp
from temperance.core.errors import ArgumentError, StoreError
from tests.small import X, Y, real


def test_saving_never_deletes_files_of_others(tmp_path):
    fitted = tp.fit(real(), tp.MAP(), (X, Y), epochs=1)
    for name, content in (("model.safetensors", "precious"), ("manifest.json", '{"name": "web app"}')):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(StoreError, match="holds other files"):
            fitted.save(folder)
        assert (folder / name).read_text() == content
    run = tmp_path / "run"
    fitted.save(run)
    (run / "weights.safetensors").write_text("mine")
    fitted.save(run)
    assert (run / "weights.safetensors").read_text() == "mine"


def test_frozen_batch_norm_can_be_saved(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    fitted = tp.fit(real(net, freeze_batch_norm=True), tp.MAP(), (X, Y), epochs=1)
    fitted.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", net).predict(X).mean(), fitted.predict(X).mean())


def test_evaluate_of_unusual_targets():
    heavy = tp.Target(nn.Linear(3, 1), tp.StudentT(2.0, 1.0), tp.GaussianPrior(1.0))
    assert tp.fit(heavy, tp.MAP(), (X, Y), epochs=1).evaluate((X, Y))["crps"] > 0
    classes = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    data = (X, torch.arange(20).unsqueeze(1) % 2)
    assert "accuracy" in tp.fit(classes, tp.MAP(), data, epochs=1).evaluate(data)


def test_draws_with_statistics_of_their_own_have_no_average_network():
    network = nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1))
    target = tp.Target(network, tp.Normal(scale=0.3), tp.GaussianPrior(1.0))
    x = torch.randn(20, 3)
    fitted = tp.fit(target, tp.Collect(tp.SGHMC(lr=1e-3)), (x, x[:, :1]), steps=12, progress=False)
    assert fitted.predict(x).mean().shape == (20, 1)
    with pytest.raises(ArgumentError, match="each draw keeps statistics of its own"):
        fitted.network()
