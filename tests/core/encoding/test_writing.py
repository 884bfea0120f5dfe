"""Values as JSON and named tensors."""

from __future__ import annotations

from temperance.core.encoding import decode, encode


def test_lists_of_numbers_come_back_as_they_were():
    for value in ([0.1] * 100, [2**62] * 100, [2**70] * 100, [1.0, 2] * 50, [True] * 100, [float("nan")] * 65, [1.0]):
        tensors: dict = {}
        made = decode(encode(value, tensors), tensors)
        assert [type(v) for v in made] == [type(v) for v in value]
        assert repr(made) == repr(value)
    assert tensors == {}
