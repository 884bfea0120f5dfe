"""Every operator against its matrix, by brute force."""

import math

import pytest
import torch
from torch import distributions

from temperance.core.encoding import decode, encode, moved
from temperance.core.seeds import generator
from temperance.linalg import Covariance, Operator
from temperance.linalg.operator import by_columns, standard_normal
from temperance.posteriors import Gaussian
from temperance.testing.tolerance import assert_moments

from .zoo import COVARIANCES, DEFICIENT, F64, OPERATORS, concrete_classes, random

DRAWN = {**COVARIANCES, **DEFICIENT}
operators = pytest.mark.parametrize("name", OPERATORS)
covariances = pytest.mark.parametrize("name", COVARIANCES)
drawn = pytest.mark.parametrize("name", DRAWN)


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_none_is_left_out():
    assert {type(make()[0]) for make in OPERATORS.values()} == concrete_classes()


@operators
def test_products_and_forms(name):
    operator, matrix = OPERATORS[name]()
    assert isinstance(operator, Operator)
    assert operator.size == len(matrix)
    same(operator.dense(), matrix)
    same(operator.diagonal(), matrix.diagonal())
    for v in (random(operator.size), random(3, operator.size), random(2, 3, operator.size)):
        same(operator.product(v), v @ matrix)
        same(operator.quadratic(v), torch.einsum("...i,ij,...j->...", v, matrix, v))


@operators
def test_is_symmetric(name):
    operator, _ = OPERATORS[name]()
    v, w = random(operator.size, seed=3), random(operator.size, seed=4)
    same(w @ operator.product(v), v @ operator.product(w))


@operators
def test_vectors_that_are_not_contiguous(name):
    operator, matrix = OPERATORS[name]()
    v = random(operator.size, 5).mT
    assert not v.is_contiguous()
    same(operator.product(v), v @ matrix)


@covariances
def test_inverse_and_determinant(name):
    operator, matrix = COVARIANCES[name]()
    assert operator.rank == operator.size
    precision = torch.linalg.inv(matrix)
    same(operator.log_det(), torch.logdet(matrix))
    for v in (random(operator.size), random(3, operator.size), random(2, 3, operator.size)):
        same(operator.solve(v), v @ precision)
        same(operator.solve(operator.product(v)), v)
        same(operator.inverse_quadratic(v), torch.einsum("...i,ij,...j->...", v, precision, v))


@covariances
def test_log_density(name):
    operator, matrix = COVARIANCES[name]()
    law = distributions.MultivariateNormal(torch.zeros(len(matrix), dtype=F64), matrix)
    for delta in (random(operator.size), random(2, 3, operator.size)):
        same(operator.log_density(delta), law.log_prob(delta))


@drawn
def test_roots(name):
    """R Rᵀ = Σ, and half(v) is as long as v is in Σ."""
    operator, matrix = DRAWN[name]()
    columns = operator.root(torch.eye(sum(operator.noise_sizes), dtype=F64))
    same(columns.mT @ columns, matrix)
    z = random(2, 3, sum(operator.noise_sizes))
    same(operator.root(z), z @ columns)
    same(operator.root(z[0, 0]), z[0, 0] @ columns)
    v, w = random(2, 3, operator.size, seed=1), random(2, 4, operator.size, seed=2)
    same(operator.half(v) @ operator.half(w).mT, v @ matrix @ w.mT)
    same(operator.half(v[0, 0]), operator.half(v)[0, 0])


@drawn
def test_draws(name):
    operator, matrix = DRAWN[name]()
    rng = generator(0, "operator", name)
    draws = torch.stack([operator.draw(rng) for _ in range(4000)])
    moves = matrix.diagonal() > 0
    assert int(moves.sum()) == operator.rank
    assert not bool(draws[:, ~moves].any())
    assert_moments(draws[:, moves], torch.zeros(int(moves.sum()), dtype=F64), matrix[moves][:, moves])


@drawn
def test_a_draw_is_the_root_of_the_generators_numbers(name):
    operator, _ = DRAWN[name]()
    rng = generator(3, name)
    noise = torch.cat([torch.randn(size, generator=rng, dtype=F64) for size in operator.noise_sizes])
    assert torch.equal(operator.draw(generator(3, name)), operator.root(noise))


@covariances
def test_a_gaussian_holds_it(name):
    """What factorising gives is a covariance like any other."""
    operator, matrix = COVARIANCES[name]()
    assert isinstance(operator, Covariance)
    posterior = Gaussian(random(operator.size, seed=5), operator)
    law = distributions.MultivariateNormal(posterior.mean, matrix)
    theta, _ = posterior.nodes(3).fetch(0, 3)
    same(posterior.covariance(), matrix)
    same(posterior.log_prob(theta), law.log_prob(theta))


@operators
def test_written_down_and_read_again(name):
    """Bit for bit: every tensor, and every answer."""
    operator, _ = OPERATORS[name]()
    operator.dense()  # what is kept for later use is not written
    tensors: dict[str, torch.Tensor] = {}
    form = encode(operator, tensors)
    again = decode(form, {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()})
    assert type(again) is type(operator)
    assert again == operator
    assert torch.equal(again.dense(), operator.dense())
    assert torch.equal(again.diagonal(), operator.diagonal())
    if isinstance(operator, Covariance):
        assert torch.equal(again.log_det(), operator.log_det())
        assert torch.equal(again.draw(generator(1)), operator.draw(generator(1)))
        delta = operator.draw(generator(2))
        assert torch.equal(again.inverse_quadratic(delta), operator.inverse_quadratic(delta))


@operators
def test_moved_to_another_dtype(name):
    operator, matrix = OPERATORS[name]()
    single = moved(operator, dtype=torch.float32)
    assert single.dense().dtype == single.product(torch.ones(operator.size)).dtype == torch.float32
    torch.testing.assert_close(single.dense().double(), matrix, rtol=1e-3, atol=1e-3)
    assert single != operator


@operators
def test_values_differ_by_what_they_hold(name):
    operator, _ = OPERATORS[name]()
    tensors: dict[str, torch.Tensor] = {}
    form = encode(operator, tensors)
    for key, value in tensors.items():
        if value.is_floating_point() and value.numel():
            changed = {k: v.clone() for k, v in tensors.items()}
            changed[key].select(0, 0).add_(2.0**-40)
            assert decode(form, changed) != operator


def test_standard_normal_takes_the_dtype():
    for dtype in (torch.float32, F64):
        found = standard_normal(5, torch.empty(0, dtype=dtype), generator(0))
        assert torch.equal(found, torch.randn(5, generator=generator(0), dtype=dtype))


def test_by_columns_maps_each_vector():
    matrix, v = random(4, 4), random(2, 3, 4)
    same(by_columns(lambda w: matrix @ w, v), torch.einsum("ij,abj->abi", matrix, v))
    same(by_columns(lambda w: matrix @ w, v[0, 0]), matrix @ v[0, 0])


def test_the_constant_counts_random_coordinates():
    operator, matrix = DEFICIENT["PosteriorCovariance of a part"]()
    moves = matrix.diagonal() > 0
    inner = matrix[moves][:, moves]
    assert operator.rank == len(inner) == operator.size - 2
    zero = torch.zeros(operator.size, dtype=F64)
    wanted = -0.5 * (len(inner) * math.log(2 * math.pi) + float(torch.logdet(inner)))
    assert float(operator.log_density(zero)) == pytest.approx(wanted, rel=1e-12)
