"""A ResNet-20 with batch norm that somebody else has trained: one pass, no retraining."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import temperance as tp
from temperance.nn.resnet import load_cifar_resnet

DATA = Path(os.environ.get("TEMPERANCE_DATA") or Path(__file__).parents[4] / "shared" / "data")
pytestmark = pytest.mark.skipif(
    not (DATA / "cifar10-resnets").is_dir() or not (DATA / "cifar10").is_dir(),
    reason=f"needs cifar10 and cifar10-resnets in {DATA} (set TEMPERANCE_DATA)",
)


@pytest.fixture
def images(monkeypatch):
    monkeypatch.setenv("TEMPERANCE_DATA", str(DATA))
    _, test = tp.data.load("cifar10")
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (test.x[:400] - mean.view(3, 1, 1)) / std.view(3, 1, 1), test.y[:400]


@pytest.mark.parametrize("on", [tp.last_layer, None])
def test_post_hoc_on_a_trained_network_with_batch_norm(images, on):
    x, y = images
    net = load_cifar_resnet(next((DATA / "cifar10-resnets").glob("resnet20-*.th")))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(0.1))
    curvature = tp.Dense() if on is not None else tp.KFAC(kind="monte-carlo", batch_size=100)
    fitted = tp.fit(target, tp.Laplace(curvature=curvature, on=on, tune=None), (x[:200], y[:200]), start=net)
    predictive = fitted.predict(x[200:], by="probit")
    with torch.no_grad():
        plain = net.eval()(x[200:]).softmax(-1)
    assert float((predictive.probs.argmax(-1) == y[200:]).float().mean()) > 0.87  # these weights have 91.5 %
    assert float((predictive.probs.argmax(-1) == plain.argmax(-1)).float().mean()) > 0.97
    assert float(predictive.probs.max(-1).values.mean()) < float(plain.max(-1).values.mean())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    noise = fitted.predict(3 * torch.randn(30, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert float(noise.mutual_information().mean()) > float(fitted.predict(x[200:230]).mutual_information().mean())
