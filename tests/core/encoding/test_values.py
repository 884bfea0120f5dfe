"""Values: printed, compared, told apart by their tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH, Value


@dataclass(frozen=True, eq=False, repr=False)
class Settings(Value):
    """Of a user's."""

    weights: Tensor
    names: tuple[str, ...] = ()
    work: list[int] = field(default_factory=list, metadata=SCRATCH)


@dataclass(frozen=True, eq=False, repr=False)
class OtherSettings(Settings):
    """With the same fields."""


def test_equal_where_all_that_is_saved_is_equal():
    one = Settings(torch.ones(2), ("a",), [1])
    assert one == Settings(torch.ones(2), ("a",), [2])  # workspace does not count
    assert hash(one) == hash(Settings(torch.ones(2), ("a",)))
    assert one != Settings(torch.ones(2), ("b",))
    assert one != Settings(torch.tensor([1.0, 1.0 + 2**-23]), ("a",))
    assert one != Settings(torch.ones(2, dtype=torch.float64), ("a",))
    assert one != Settings(torch.ones(2, 1), ("a",))
    assert one != OtherSettings(torch.ones(2), ("a",))
    assert one != "one"


def test_signs_of_zero_are_told_apart():
    assert Settings(torch.tensor([0.0])) != Settings(torch.tensor([-0.0]))


def test_large_tensors_are_printed_by_shape_and_workspace_not_at_all():
    assert repr(Settings(torch.zeros(3, 4), ("a",), [1])) == "Settings(weights=3×4 tensor, names=('a'))"
    assert repr(Settings(torch.zeros(2))) == "Settings(weights=tensor([0., 0.]), names=())"
    long = Settings(torch.zeros(2), tuple("abcdefgh"))
    assert "'f', …" in repr(long)
