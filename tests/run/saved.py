"""A run that is saved, and a manifest changed by one who knows how its digest is made."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import torch
from torch import nn

import temperance as tp
from temperance.core import sealed

X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


def network() -> nn.Module:
    return tp.nn.MLP(3, [4], 2)


def target_of(net: nn.Module | None = None) -> tp.Target:
    return tp.Target(net or network(), tp.Categorical(), tp.GaussianPrior(torch.linspace(0.5, 2.0, 26)))


def fitted_run(lr: float = 0.01, epochs: int = 2) -> tp.Fitted:
    return tp.fit(target_of(), tp.MAP(lr=lr), (X, Y), epochs=epochs)


@contextlib.contextmanager
def resealed(path: Path):
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    yield manifest
    (path / "manifest.json").write_bytes(sealed.render(manifest))


def same(path: Path, fitted: tp.Fitted) -> bool:
    return torch.equal(tp.load(path, network()).predict(X).probs, fitted.predict(X).probs)
