"""Coordinates out of a vector and back."""

import pytest
import torch

from temperance.linalg.places import places_size, put, take

PLACES = {
    "one range": (((2, 5),), [2, 3, 4]),
    "two ranges": (((4, 6), (0, 1)), [4, 5, 0]),
    "indices": (torch.tensor([5, 0, 3]), [5, 0, 3]),
}


@pytest.mark.parametrize("name", PLACES)
def test_take_and_put(name):
    places, index = PLACES[name]
    vector = torch.arange(14.0).view(2, 7)
    assert places_size(places) == 3
    assert torch.equal(take(vector, places), vector[:, index])
    assert torch.equal(take(vector[0], places), vector[0, index])
    made = torch.full((2, 7), -1.0)
    put(made, places, take(vector, places))
    wanted = torch.full((2, 7), -1.0)
    wanted[:, index] = vector[:, index]
    assert torch.equal(made, wanted)


def test_a_range_is_a_view_and_nothing_is_copied():
    vector = torch.zeros(6)
    take(vector, ((1, 3),)).fill_(1.0)
    assert vector.tolist() == [0, 1, 1, 0, 0, 0]
