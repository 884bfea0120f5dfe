"""What classes and functions are called in a manifest, and which of them it can reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.encoding import Value, decode, encode, type_name
from temperance.core.errors import MismatchError
from temperance.run import store
from tests.run.saved import network
from tests.small import X, Y, real


def test_a_class_of_the_users_does_not_replace_ours_of_the_same_name(tmp_path):
    tp.fit(real(), tp.MAP(), (X, Y), epochs=1).save(tmp_path / "run")

    @dataclass(frozen=True, eq=False)
    class Normal(tp.Normal):
        pass

    loaded = tp.load(tmp_path / "run", nn.Linear(3, 1)).target.likelihood
    assert type(loaded) is tp.Normal


def test_names_of_ours_have_their_room():
    found = {type_name(kind) for kind in (tp.posteriors.Gaussian, tp.MAP, tp.GaussianPrior, tp.Normal)}
    assert found == {"posteriors.Gaussian", "inference.MAP", "priors.GaussianPrior", "likelihoods.Normal"}


def test_two_classes_of_ours_cannot_share_a_name():
    with pytest.raises(TypeError, match=r"'posteriors\.Point' must be that of one class"):
        type("Point", (Value,), {"__module__": "temperance.posteriors.elsewhere", "__qualname__": "Point"})
    assert isinstance(decode(encode(tp.posteriors.Point(torch.zeros(2)), found := {}), found), tp.posteriors.Point)
    type("Point", (Value,), {"__module__": "temperance.decide.elsewhere", "__qualname__": "Point"})  # another room


@dataclass(frozen=True, eq=False)
class Pair(Value):
    """Of a user's."""

    function: object = None


def test_settings_can_be_functions_of_ours_and_classes_of_torch_and_nothing_else():
    for value in (tp.cosine, tp.flat, tp.biases, torch.optim.SGD, torch.optim.lr_scheduler.StepLR, nn.Linear, Pair):
        assert decode(encode(Pair(value), {}), {}).function is value
    for value in (store.remove_run, network, nn.functional.relu, Path):
        with pytest.raises(MismatchError, match="give the object itself"):
            decode(encode(Pair(value), {}), {})
