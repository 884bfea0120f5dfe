"""What was written, back; what cannot have been written, refused."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.encoding import Value, decode, encode, fingerprint, moved, restore
from temperance.core.errors import CorruptRunError, MismatchError

PLAIN = [None, True, 3, 2.5, "θ", [1, [2]], (1, (2, "a")), {"a": 1, 2: (3,)}, {}, (), [], torch.float64, 1e-320]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_there_and_back(value):
    tensors: dict[str, torch.Tensor] = {}
    made = decode(encode(value, tensors), tensors)
    assert made == value
    assert type(made) is type(value)


def test_tensors_go_by_their_path():
    tensors: dict[str, torch.Tensor] = {}
    form = encode({"a": (torch.ones(2), np.zeros(3))}, tensors, "state")
    assert sorted(tensors) == ["state/a/0", "state/a/1"]
    made = decode(form, tensors)
    assert torch.equal(made["a"][0], torch.ones(2))
    assert torch.equal(made["a"][1], torch.zeros(3, dtype=torch.float64))


FORMS = {
    "unknown": {"$pickle": 1},
    "two": {"$tuple": [], "$dict": []},
    "none": {"a": 1},
    "more": {"$tuple": [], "a": 1},
    "no list": {"$tuple": 3},
    "no pairs": {"$dict": [[1, 2, 3]]},
    "keys": {"$dict": [[[1], 2]]},
    "tensor": {"$tensor": "/elsewhere"},
    "dtype": {"$torch": "torch.load"},
    "fields": {"$type": "priors.GaussianPrior"},
    "more fields": {"$type": "priors.GaussianPrior", "fields": {"colour": 1}},
    "refused": {"$type": "priors.GaussianPrior", "fields": {"scale": -1.0}},
}


@pytest.mark.parametrize("name", FORMS)
def test_what_nobody_wrote(name):
    with pytest.raises(CorruptRunError):
        decode(FORMS[name], {})


class Colour(enum.Enum):
    """Of a user's."""

    RED = 1


@pytest.mark.parametrize("value", [torch.Generator(), nn.Linear(1, 1), Colour.RED, lambda: 3], ids=type)
def test_what_only_the_user_can_build(value):
    tensors: dict[str, torch.Tensor] = {}
    with pytest.raises(MismatchError, match="give"):
        decode(encode(value, tensors), tensors)


def test_an_unknown_class():
    with pytest.raises(MismatchError, match="import the module that defines it first"):
        decode({"$type": "mine:Prior", "fields": {}}, {})


def test_restoring_writes_into_the_memory_that_is_there():
    here = {"theta": torch.zeros(2), "rng": torch.Generator().manual_seed(0)}
    there = {"theta": torch.ones(2), "rng": torch.Generator().manual_seed(5)}
    tensors: dict[str, torch.Tensor] = {}
    form = encode(there, tensors)
    made = restore(here, form, tensors, torch.device("cpu"))
    assert made["theta"] is here["theta"]
    assert here["theta"].tolist() == [1.0, 1.0]
    assert made["rng"] is here["rng"]
    assert torch.equal(torch.rand(3, generator=here["rng"]), torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_moving_changes_floats_and_nothing_else():
    prior = tp.GaussianPrior(torch.tensor([1.0, 2.0]))
    found = moved(prior, dtype=torch.float64)
    assert found.scale.dtype == torch.float64
    assert found != prior
    assert moved(found, dtype=torch.float32) == prior
    assert moved((torch.tensor([1]),), dtype=torch.float64)[0].dtype == torch.int64
    assert moved([0.1] * 100, dtype=torch.float32) == [0.1] * 100  # a history is no tensor


@dataclass(frozen=True)
class Rule(Value):
    """Settings whose meaning has changed once."""

    EDITION: ClassVar[int] = 2
    rate: float = 0.5


def test_settings_that_came_to_mean_something_else_are_refused():
    form = encode(Rule(), {})
    assert decode(form, {}) == Rule()
    assert decode(encode(tp.GaussianPrior(), {}), {}) == tp.GaussianPrior()
    with pytest.raises(MismatchError, match=r"edition 1 of Rule.*has edition 2.*Fit again"):
        decode({key: value for key, value in form.items() if key != "edition"}, {})
    with pytest.raises(MismatchError, match=r"edition 3 of Rule.*of a later version"):
        decode({**form, "edition": 3}, {})
    with pytest.raises(MismatchError, match="edition 2 of GaussianPrior"):
        decode({**encode(tp.GaussianPrior(), {}), "edition": 2}, {})
    with pytest.raises(CorruptRunError, match="no integer"):
        decode({**form, "edition": True}, {})


def test_an_edition_is_part_of_what_settings_are_compared_by(monkeypatch):
    before = fingerprint(Rule())
    monkeypatch.setattr(Rule, "EDITION", 3)
    assert fingerprint(Rule()) != before


def test_an_edition_is_a_whole_number():
    for wrong in ("summer", 0, True, 1.0):
        with pytest.raises(TypeError, match="EDITION of Wrong must be a whole number"):
            type("Wrong", (Value,), {"EDITION": wrong, "__module__": "mine"})
