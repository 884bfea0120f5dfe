"""Rows that count more than once: a weight of 2 is the row twice, whatever is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import DataError
from temperance.data import Data
from temperance.engine import Engine
from temperance.inference.curvature.products import full_hessian, gauss_newton_product
from temperance.inference.curvature.stochastic import BatchCurvature
from temperance.inference.curvature.sweep import Sweep

ROWS = 12
WEIGHTS = torch.tensor([2.0, 1, 0, 3, 1, 2, 1, 1, 4, 0, 1, 2])


def rows(name: str) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=rng, dtype=torch.float64)
    if name == "positions":
        y = torch.randint(2, (ROWS, 2), generator=rng)
        y[1, 0] = y[4, 1] = -100
        return x, y
    return x, torch.randint(4, (ROWS,), generator=rng) if name == "classes" else torch.randn(ROWS, 4, generator=rng)


LIKELIHOODS: dict[str, Any] = {
    "classes": tp.Categorical(),
    "numbers": tp.Normal(0.4),
    "learned noise": tp.Normal(num_outputs=4),
    "positions": tp.PerPosition(tp.Categorical()),
}


def problem(name: str, scale: float = 1.2) -> tuple[tp.Target, Data, Data]:
    """The weighted rows, and the rows as often as they count."""
    x, y = rows(name)
    torch.manual_seed(0)
    last = [nn.Unflatten(1, (2, 2))] if name == "positions" else []
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), *last).double()
    target = tp.Target(network, LIKELIHOODS[name], tp.GaussianPrior(scale))
    many = WEIGHTS.long()
    return target, Data(x, y, weights=WEIGHTS), Data(x.repeat_interleave(many, 0), y.repeat_interleave(many, 0))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_density_and_its_gradients(name: str) -> None:
    target, weighted, repeated = problem(name)
    ours, theirs = target.prepare(weighted), target.prepare(repeated)
    engines = Engine(target, ours), Engine(target, theirs)
    theta = torch.stack([target.fresh_theta(k) for k in range(3)])
    torch.testing.assert_close(*(e.energy(theta, d) for e, d in zip(engines, (weighted, repeated), strict=True)))
    made = []
    for engine, data in zip(engines, (ours, theirs), strict=True):
        (batch,) = data.full_pass()
        one, stacked, exact = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros_like(theta)
        for k in range(3):
            engine.gradient(theta[k], batch, one[k])
        engine.gradients(theta, batch, stacked)
        energies = engine.energies(theta, batch, exact)
        alone = torch.cat([engine.energies(theta[k : k + 1], batch) for k in range(3)])
        made.append((one * len(data), stacked * len(data), exact, energies, alone))
        torch.testing.assert_close(engine.energy(theta, batch), energies)
    for ours_, theirs_ in zip(*made, strict=True):
        torch.testing.assert_close(ours_, theirs_)
    torch.testing.assert_close(made[0][0], made[0][2])
    scores = [e.held_out_score(theta[0], d) for e, d in zip(engines, (ours, theirs), strict=True)]
    assert scores[0] == pytest.approx(scores[1])


def test_batches_are_unbiased() -> None:
    """Estimates of an epoch, weighted by the batches' sizes, are the whole exactly; of streams too."""
    target, weighted, _ = problem("classes")
    data = target.prepare(weighted)
    engine, theta = Engine(target, data), torch.stack([target.fresh_theta(k) for k in range(2)])
    whole = torch.zeros_like(theta)
    engine.gradients(theta, next(iter(data.full_pass())), whole)
    for streams in (None, 2):
        total = torch.zeros_like(theta)
        for batch in data.batches(5, seed=1, streams=streams):
            grad = torch.zeros_like(theta)
            engine.gradients(theta, batch, grad)
            total += grad * batch.size / ROWS
        torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize(
    "curvature",
    [
        tp.Dense(),
        tp.Dense(kind="empirical"),
        tp.Diagonal(),
        tp.BlockDiagonal(),
        tp.KFAC(),
        tp.KFAC(sharing="reduce"),
        tp.EKFAC(),
        tp.Lanczos(12),
    ],
    ids=repr,
)
def test_laplace(name: str, curvature: Any) -> None:
    target, weighted, repeated = problem(name, scale=0.3)
    start = target.fresh_theta(0)
    found = [
        tp.fit(target, tp.Laplace(curvature=curvature, tune=None), data, start=start, progress=False)
        for data in (weighted, repeated)
    ]
    ours, theirs = (f.posterior for f in found)
    loose = {"rtol": 1e-5, "atol": 1e-7} if isinstance(curvature, tp.Lanczos) else {}
    torch.testing.assert_close(ours.operator.dense(), theirs.operator.dense(), **loose)
    assert ours.terms.log_likelihood == pytest.approx(theirs.terms.log_likelihood)
    assert ours.terms.num_targets == theirs.terms.num_targets
    if curvature.kind == "ggn":
        assert ours.log_evidence(float("inf")) == pytest.approx(theirs.log_evidence(float("inf")), rel=1e-5)


def test_words_that_count_more_than_once() -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(6, (ROWS, 4), generator=rng), torch.randint(2, (ROWS, 4), generator=rng)
    y[:, 2:][torch.rand(ROWS, 2, generator=rng) < 0.5] = -100
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    target = tp.Target(network, tp.PerPosition(tp.Categorical()), tp.GaussianPrior(1.0))
    many = WEIGHTS.long()
    data = Data(x, y, weights=WEIGHTS), Data(x.repeat_interleave(many, 0), y.repeat_interleave(many, 0))
    for curvature in (tp.KFAC(), tp.KFAC(sharing="reduce"), tp.EKFAC()):
        found = [tp.fit(target, tp.Laplace(curvature=curvature, tune=None), d, progress=False).posterior for d in data]
        torch.testing.assert_close(*(p.operator.dense() for p in found))


def test_products_the_hessian_and_stochastic_curvature() -> None:
    target, weighted, repeated = problem("learned noise")
    theta = target.fresh_theta(0)
    products, squares, hessians = [], [], []
    for data in (target.prepare(weighted), target.prepare(repeated)):
        engine = Engine(target, data)
        v = torch.linspace(-1, 1, engine.layout.network_size, dtype=torch.float64)
        products.append(gauss_newton_product(Sweep(engine, theta, {}, data), v))
        ((block,), _) = full_hessian(Sweep(engine, theta, {}, data), None)
        hessians.append(block.dense())
        work = BatchCurvature(engine, theta, {}, data, "ggn")
        (batch,) = data.full_pass()
        loss, gradient, found = work.at(theta, batch, torch.Generator())
        squares.append((torch.tensor(loss) * len(data), gradient * len(data), found * len(data)))
    torch.testing.assert_close(*products)
    torch.testing.assert_close(*hessians)
    for ours, theirs in zip(*squares, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_bound_of_a_variational_posterior() -> None:
    target, weighted, repeated = problem("classes")
    fitted = tp.fit(target, tp.Variational(lr=1e-2), weighted, steps=20, seed=0, progress=False)
    assert fitted.elbo(weighted).value == pytest.approx(fitted.elbo(repeated).value, rel=1e-9)


METHODS: list[Any] = [
    tp.MAP(lr=1e-2),
    tp.Collect(tp.SGHMC(lr=1e-3), last=4),
    tp.Variational(lr=1e-2),
    tp.Collect(tp.HMC(step_size=0.02, length=5), last=4),
    tp.SVGD(3, lr=1e-2),
    tp.Ensemble(tp.MAP(lr=1e-2), 2),
    tp.FunctionalLaplace(tp.MAP(lr=1e-2)),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_weights_of_one_change_nothing_and_others_do(method: Any) -> None:
    target, weighted, _ = problem("classes")
    made = []
    for weights in (None, torch.ones(ROWS), WEIGHTS):
        fitted = tp.fit(target, method, weighted.weighing(weights), steps=10, batch_size=5, seed=0, progress=False)
        made.append(fitted.predict(weighted.x).probs)
    torch.testing.assert_close(made[0], made[1], rtol=1e-6, atol=1e-8)
    assert float((made[0] - made[2]).abs().max()) > 1e-4


def test_a_linear_map_with_weights_in_closed_form() -> None:
    """Λ = Xᵀ W X / σ² + 1/s², mean Λ⁻¹ Xᵀ W y / σ², and the evidence of rows whose noise is σ²/w."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(30, 1, generator=rng, dtype=torch.float64)
    w = 3 * torch.rand(30, generator=rng, dtype=torch.float64)
    network = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    target = tp.Target(network, tp.Normal(0.5), tp.GaussianPrior(2.0))
    method = tp.Laplace(tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS), tp.Dense(), tune=None)
    fitted = tp.fit(target, method, Data(x, y, weights=w), steps=8, progress=False)
    precision = x.mT @ (w.unsqueeze(1) * x) / 0.25 + torch.eye(4) / 4
    torch.testing.assert_close(fitted.posterior.operator.dense(), precision.inverse())
    torch.testing.assert_close(
        fitted.posterior.mean, (precision.inverse() @ x.mT @ (w * y[:, 0])) / 0.25, rtol=1e-4, atol=1e-5
    )
    noise = torch.distributions.MultivariateNormal(torch.zeros(30).double(), 4 * x @ x.mT + torch.diag(0.25 / w))
    constant = torch.distributions.Normal(0.0, 0.5).log_prob(torch.tensor(0.0)).double() * w
    theirs = torch.distributions.Normal(0.0, 0.5 / w.sqrt()).log_prob(torch.zeros(30).double())
    assert fitted.log_evidence() == pytest.approx(float(noise.log_prob(y[:, 0]) + (constant - theirs).sum()), rel=1e-8)
    anchored = tp.Ensemble(tp.Anchored(tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS)), 400)
    members = tp.fit(target, anchored, Data(x, y, weights=w), steps=8, batch_size=30, progress=False).posterior
    nodes = members.nodes(None, 0)
    theta = nodes.fetch(0, len(nodes))[0]
    z = torch.linalg.cholesky(precision).mT @ (theta - fitted.posterior.mean).mT
    assert float((z @ z.mT / 400 - torch.eye(4)).abs().max()) < 0.35  # five standard errors


def test_data_carry_their_weights(tmp_path: Path) -> None:
    x, y = rows("classes")
    data = Data(x, y, weights=WEIGHTS.tolist())
    assert repr(data).endswith("weighted)")
    assert data[2:5].weights.tolist() == [0.0, 3.0, 1.0]
    rest, held = data.hold_out(0.25, seed=1)
    assert sorted([*rest.weights.tolist(), *held.weights.tolist()]) == sorted(WEIGHTS.tolist())
    assert torch.equal(data.to("cpu").weights, WEIGHTS.double())
    assert data.fingerprint() != Data(x, y).fingerprint() != data.weighing(WEIGHTS + 1).fingerprint()
    many = WEIGHTS.long()
    repeated = Data(x.repeat_interleave(many, 0), y.repeat_interleave(many, 0)).standardise()
    torch.testing.assert_close(data.standardise().info.x_scale, repeated.info.x_scale)
    torch.testing.assert_close(data.standardise().info.x_mean, repeated.info.x_mean)
    assert data.standardise().weights is not None
    for batch in data.batches(5, seed=3):
        assert batch.index is not None
        assert torch.equal(batch.weights, WEIGHTS.double()[batch.index])  # type: ignore[arg-type]
    lazy = Data.of(_Pairs(x, y)).weighing(WEIGHTS)
    for batch in lazy.batches(5, seed=3, streams=2):
        assert torch.equal(batch.weights, WEIGHTS.double()[batch.index])  # type: ignore[arg-type, index]
    target = problem("classes")[0]
    checkpoint = tmp_path / "run"
    tp.fit(target, tp.MAP(), data, steps=2, checkpoint=checkpoint, progress=False)
    with pytest.raises(tp.errors.TemperanceError, match="data"):
        tp.fit(target, tp.MAP(), data.weighing(WEIGHTS + 1), steps=4, checkpoint=checkpoint, progress=False)


class _Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return self.x[k], self.y[k]


def test_weights_that_are_none_are_refused() -> None:
    x, y = rows("classes")
    with pytest.raises(DataError, match=r"one number for each of the 12 rows; got shape \(3,\)"):
        Data(x, y, weights=[1, 2, 3])
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match="finite numbers from 0 on"):
            Data(x, y, weights=[bad] + [1.0] * 11)
    with pytest.raises(DataError, match="not all zero"):
        Data(x, y, weights=torch.zeros(12))
