"""Seeds: reproducible, one stream a path, apart from the global state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, derive_seed, generator, spawn


def test_saved_runs_rest_on_these_numbers():
    """Whoever changes them makes every run on disk go on otherwise."""
    assert derive_seed(0) == 7210762507766007076
    assert derive_seed(7, "shuffle", 0, 3) == 849205933282788838


def test_paths_do_not_share_a_stream():
    paths = [(), (0,), ("0",), (0, 0), ("a", "b"), ("ab",), ("a", 1), ("a", 11), ("a", 1, 1), ("b", "a")]
    found = {derive_seed(seed, *path) for seed in (0, 1) for path in paths}
    assert len(found) == 2 * len(paths)
    assert all(0 <= seed < 2**63 for seed in found)


def test_a_generator_is_its_path_and_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    one, two, other = (torch.randn(5, generator=generator(3, *path)) for path in (("a", 1), ("a", 1), ("a", 2)))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_spawn_takes_one_number_and_moves_on():
    one, two = generator(0, "x"), generator(0, "x")
    first, second = spawn(one), spawn(one)
    assert first != second
    assert (spawn(two), spawn(two)) == (first, second)
    assert 0 <= first < 2**62


@pytest.mark.parametrize("seed", [0, 2**63 - 1, np.int64(5), np.uint8(5)])
def test_seeds(seed):
    assert check_seed(seed) == seed
    assert type(check_seed(seed)) is int


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, None, "3"])
def test_no_seeds(seed):
    with pytest.raises(ArgumentError, match=r"`draws_seed` must be an integer from 0 to 2\*\*63 - 1; got "):
        check_seed(seed, "draws_seed")
