"""Every structure on every kind of network against the dense twin."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings

import pytest
import torch

import temperance as tp
from temperance.inference.curvature import layers

from .twin import Twin, assert_same, assert_same_curvature, categorical, curvature_of, fit, index_of, make_twin, only
from .zoo import ZOO, targets

names = pytest.mark.parametrize("name", ZOO)


@functools.cache
def problem(name: str) -> tuple[Twin, torch.Tensor]:
    """The twin of one network under a Categorical likelihood, and its Gauss–Newton matrix."""
    network, x = ZOO[name].build()
    twin = make_twin(network, categorical(), x, targets())
    return twin, twin.ggn()


def laplace(name: str, curvature, **settings):
    """Around the twin's network, from a target whose own network has other weights."""
    twin, _ = problem(name)
    start, _ = ZOO[name].build()
    for p in start.parameters():
        torch.nn.init.normal_(p)
    target = tp.Target(start, tp.Categorical(), tp.GaussianPrior(scale=0.7), **settings)
    return fit(target, curvature, twin.x, twin.y, twin.network)


@names
def test_dense(name):
    _, ggn = problem(name)
    posterior = laplace(name, tp.Dense(batch_size=3))
    assert len(posterior.operator.blocks) == 1
    assert_same_curvature(curvature_of(posterior), ggn)
    expected = torch.linalg.inv(ggn + torch.eye(len(ggn), dtype=ggn.dtype) / 0.7**2)
    assert_same(posterior.operator.dense(), expected)
    assert_same(posterior.operator.diagonal(), expected.diagonal())


@names
def test_block_diagonal(name):
    twin, ggn = problem(name)
    posterior = laplace(name, tp.BlockDiagonal(batch_size=3))
    found = {tuple(index_of(block.places).sort().values.tolist()) for block in posterior.operator.blocks}
    assert found == {tuple(index.tolist()) for index in twin.modules().values()}
    mask = torch.zeros_like(ggn)
    for index in twin.modules().values():
        mask[index.unsqueeze(1), index] = 1
    assert_same_curvature(curvature_of(posterior), ggn * mask)


@names
def test_diagonal(name):
    _, ggn = problem(name)
    posterior = laplace(name, tp.Diagonal(batch_size=3))
    assert_same_curvature(curvature_of(posterior), torch.diag(ggn.diagonal()))
    assert_same(posterior.operator.diagonal(), 1 / (ggn.diagonal() + 0.7**-2))


@names
def test_diagonal_in_pieces(name, monkeypatch):
    """The same where the gradients of single examples do not fit in memory all at once."""
    monkeypatch.setattr(layers, "_CHUNK", 100)
    assert_same(laplace(name, tp.Diagonal()).operator.diagonal(), 1 / (problem(name)[1].diagonal() + 0.7**-2))


@contextlib.contextmanager
def expect_warning(name: str, method: str):
    """A warning that names each module without a rule, or no warning at all."""
    fallen = ZOO[name].fallen
    if not fallen:
        yield
        return
    listed = "".join(rf"(?=.*[ ,]{re.escape(module)} \()" for module in fallen)
    with pytest.warns(tp.errors.TemperanceWarning, match=rf"(?s)^{method} has no Kronecker rule for{listed}"):
        yield


@names
def test_kronecker_forgets_no_parameter(name):
    """Every module has curvature where the twin has; modules without a Kronecker rule are named and exact."""
    twin, ggn = problem(name)
    with expect_warning(name, "KFAC"):
        posterior = laplace(name, tp.KFAC(batch_size=6))
    found = curvature_of(posterior)
    assert torch.linalg.eigvalsh(found).min() > -1e-9 * found.diagonal().max()
    for module, index in twin.modules().items():
        truth = only(ggn, index)
        if float(truth.abs().max()) == 0.0:
            assert float(only(found, index).abs().max()) == 0.0
            continue
        kind = next(b for b in posterior.operator.blocks if int(index[0]) in index_of(b.places).tolist())
        if type(kind).__name__ == "DenseBlock":
            assert_same_curvature(only(found, index), truth)
        else:
            assert module not in ZOO[name].fallen
            # Rough where a weight is shared between places, but never off by orders of magnitude: zero least of all.
            assert 0.03 < float(only(found, index).trace() / truth.trace()) < 30


@pytest.mark.parametrize(("name", "layer"), [("instance norm", "0"), ("self-attention", "key")])
def test_places_whose_gradients_cancel_are_announced(name, layer):
    """Before a norm or a softmax over places, the reduced form sees nothing at all."""
    twin, ggn = problem(name)
    with pytest.warns(tp.errors.TemperanceWarning, match=f"layer '{layer}': its gradients .* cancel"):
        posterior = laplace(name, tp.KFAC(sharing="reduce"))
    index = twin.modules()[layer]
    assert only(ggn, index).trace() > 1e-3
    assert only(curvature_of(posterior), index).trace() < 1e-12


@names
def test_ekfac_has_the_trace_of_the_twin(name):
    """The diagonal in any orthonormal basis has the true trace: forgotten places or double counts change it."""
    twin, ggn = problem(name)
    with expect_warning(name, "EKFAC"):
        posterior = laplace(name, tp.EKFAC(batch_size=6))
    found = curvature_of(posterior)
    for index in twin.modules().values():
        if float(only(ggn, index).abs().max()) > 0:
            assert_same(only(found, index).trace(), only(ggn, index).trace())


def test_the_zoo_is_not_trivial():
    """Each parameter that matters has curvature in the twin, and layers do see one another."""
    for name in ZOO:
        twin, ggn = problem(name)
        silent = {module for module, index in twin.modules().items() if not only(ggn, index).trace() > 1e-3}
        assert silent == ({"idle", "thrown"} if name == "unused layers" else set()), name
        first, *_, last = (i for module, i in twin.modules().items() if module not in silent)
        assert float(ggn[first][:, last].abs().max()) > 1e-3, name


@pytest.mark.parametrize("setting", ["sparse", "scale_grad_by_freq"])
def test_embeddings_whose_gradients_are_not_plain(setting):
    """Sparse gradients, and such as are divided by the number of times a word occurs in a batch, are for optimisers."""
    twin, ggn = problem("embedding")
    network, _ = ZOO["embedding"].build()
    setattr(network.words, setting, True)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale=0.7))
    for curvature in (tp.Dense(), tp.Lanczos(len(ggn) - 1, tolerance=1e-12)):
        assert_same(curvature_of(fit(target, curvature, twin.x, twin.y, twin.network)), ggn, 1e-7)
    assert getattr(target.network.words, setting)


def test_batches_do_not_matter():
    _, ggn = problem("conv2d grouped")
    for batch_size in (1, 2, 256):
        assert_same(curvature_of(laplace("conv2d grouped", tp.Dense(batch_size=batch_size))), ggn)


def test_frozen_batch_norm_has_the_same_curvature():
    _, ggn = problem("batch norm 2d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = laplace("batch norm 2d", tp.Dense(), freeze_batch_norm=True)
    assert_same(curvature_of(posterior), ggn)


@names
def test_low_rank(name):
    """The four largest directions, by products that need gradients of gradients."""
    _, ggn = problem(name)
    values, vectors = torch.linalg.eigh(ggn)
    assert values[-5] < 0.999 * values[-4]
    posterior = laplace(name, tp.Lanczos(4, tolerance=1e-12, batch_size=4))
    assert_same(curvature_of(posterior), (vectors[:, -4:] * values[-4:]) @ vectors[:, -4:].mT)


SMOOTH = ("mlp", "conv2d grouped", "layer norm", "self-attention", "transformer encoder layer", "lstm", "unused layers")


@pytest.mark.parametrize("name", SMOOTH)
def test_hessian(name):
    twin, _ = problem(name)
    start, _ = ZOO[name].build()
    target = tp.Target(start, tp.Categorical(), tp.GaussianPrior(scale=0.1))
    posterior = fit(target, tp.Dense(kind="hessian", batch_size=4), twin.x, twin.y, twin.network)
    assert_same(curvature_of(posterior), twin.hessian())
