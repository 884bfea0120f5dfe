"""Predictives whose members are given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.posteriors import Draws
from temperance.predict import Predictive, from_outputs, predict


def classes_from(logits: Tensor, likelihood: tp.Likelihood | None = None) -> Predictive:
    """The predictive of members with these outputs, S × rows × C: a linear network on one-hot inputs."""
    members, rows, outputs = logits.shape
    network = nn.Sequential(nn.Linear(rows, outputs, bias=False)).double()
    target = tp.Target(network, likelihood or tp.Categorical(), tp.GaussianPrior(1.0))
    theta = logits.double().transpose(1, 2).reshape(members, -1)
    return predict(Engine(target), Draws(theta), torch.eye(rows, dtype=torch.float64))


def values_from(means: Tensor, noise: float = 0.5) -> Predictive:
    """The predictive of members with these means, S × rows × D, and Gaussian noise."""
    return classes_from(means, tp.Normal(scale=noise))


def random_logits(members: int, rows: int, classes: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return scale * torch.randn(members, rows, classes, generator=rng, dtype=torch.float64)


def labelled(rows: int, seed: int, sharpness: float = 2.0) -> tuple[Predictive, Tensor]:
    """Classes with the labels that they give, row by row."""
    rng = torch.Generator().manual_seed(seed)
    f = sharpness * torch.randn(1, rows, 4, generator=rng)
    return from_outputs(f, tp.Categorical()), torch.multinomial(f[0].softmax(-1), 1, generator=rng).flatten()
