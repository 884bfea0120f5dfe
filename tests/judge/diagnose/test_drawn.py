"""What is said of draws whose chains disagree."""

from __future__ import annotations

import pytest
import torch

from temperance.judge.diagnose.drawn import mixing_remarks


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 1000, 3), (1, 1000, 2), (4, 50, 5), (2, 60, 1), (4, 100, 1500)])
def test_independent_draws_are_left_in_peace(shape):
    assert mixing_remarks(drawn(*shape)) == []


def test_the_worst_coordinate_is_named():
    theta = drawn(4, 500, 20)
    theta[..., 7] += 0.5 * torch.arange(4).view(4, 1)
    theta[..., 11] += 50.0 * torch.arange(4).view(4, 1)
    (said,) = mixing_remarks(theta)
    assert "R-hat of theta[11]" in said
    assert "above 1.05" in said
    assert "draws of theta[11] are worth" in said
    assert "cannot be normalised" in said


def test_a_chain_alone_is_compared_with_itself():
    (said,) = mixing_remarks(drawn(1, 1000, 2).cumsum(1))
    assert "the halves of the chain have drawn different things" in said


def test_slow_chains_that_agree_have_few_effective_draws():
    theta = drawn(4, 1000, 1)
    for t in range(1, 1000):
        theta[:, t] = 0.97 * theta[:, t - 1] + 0.03**0.5 * theta[:, t]
    (said,) = mixing_remarks(theta)
    assert "The 4000 draws of theta[0] are worth" in said


@pytest.mark.parametrize("theta", [torch.zeros(4, 100, 2), torch.full((1, 80, 1), 3.0)])
def test_chains_that_never_moved_are_no_agreement(theta):
    (said,) = mixing_remarks(theta)
    assert "draws are the same" in said


def test_chains_stuck_at_places_of_their_own_are_told():
    (said,) = mixing_remarks(torch.arange(4.0).view(4, 1, 1).expand(4, 100, 1))
    assert "R-hat of theta[0]" in said


def test_a_number_that_never_moves_beside_others_is_passed_over():
    theta = drawn(4, 200, 3)
    theta[..., 1] = 2.0
    assert mixing_remarks(theta) == []


@pytest.mark.parametrize("theta", [torch.zeros(4, 0, 2), torch.zeros(4, 49, 1), torch.full((4, 100, 1), torch.nan)])
def test_too_few_draws_and_none_say_nothing(theta):
    assert mixing_remarks(theta) == []
