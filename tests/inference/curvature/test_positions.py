"""Laplace where rows have positions: a map at each position is that map on more rows, in every structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.testing import critical_value

from .twin import assert_same, curvature_of, fit

ROWS, PLACES, IN, CLASSES = 9, 4, 3, 3
STRUCTURES = [tp.Dense(), tp.KFAC(), tp.EKFAC(), tp.Diagonal(), tp.BlockDiagonal(), tp.Lanczos(12)]
PLAIN = {"categorical": tp.Categorical(), "bernoulli": tp.Bernoulli(), "normal": tp.Normal(0.3)}


class Mapped(nn.Module):
    """A small network at each position."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.first = nn.Linear(IN, 5), nn.Linear(5, CLASSES), first

    def forward(self, x: Tensor) -> Tensor:
        made = self.outer(self.inner(x).tanh())
        return made.movedim(-1, 1) if self.first and made.dim() > 2 else made


def problem(name: str) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, PLACES, IN, generator=rng, dtype=torch.float64)
    if name == "categorical":
        return x, torch.randint(CLASSES, (ROWS, PLACES), generator=rng)
    return x, torch.randint(2, (ROWS, PLACES, CLASSES), generator=rng).double()


def posterior(likelihood: Any, network: nn.Module, curvature: Any, x: Tensor, y: Tensor, on: Any = None) -> Any:
    target = tp.Target(network, likelihood, tp.GaussianPrior(1.3))
    return fit(target, curvature, x, y, network, on)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("curvature", STRUCTURES, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("on", [None, tp.last_layer], ids=["all", "last"])
def test_a_map_at_each_position_has_the_curvature_of_more_rows(name: str, curvature: Any, on: Any) -> None:
    x, y = problem(name)
    torch.manual_seed(0)
    network = Mapped(first=name == "normal").double()
    targets = y.movedim(-1, 1) if name == "normal" else y
    law = tp.PerPosition(PLAIN[name], channels="first" if name == "normal" else "last")
    ours = posterior(law, network, curvature, x, targets, on)
    theirs = posterior(PLAIN[name], network, curvature, x.flatten(0, 1), y.flatten(0, 1), on)
    if not isinstance(curvature, tp.Lanczos):
        assert_same(curvature_of(ours), curvature_of(theirs))
    assert_same(ours.operator.dense(), theirs.operator.dense(), 1e-6 if isinstance(curvature, tp.Lanczos) else 1e-8)
    assert ours.terms.log_likelihood == pytest.approx(theirs.terms.log_likelihood, rel=1e-10)
    assert ours.log_evidence(float("inf")) == pytest.approx(theirs.log_evidence(float("inf")), rel=1e-6)


@pytest.mark.parametrize("curvature", STRUCTURES[:5], ids=lambda c: type(c).__name__)
def test_one_position_is_the_plain_posterior_to_the_bit(curvature: Any) -> None:
    x, y = problem("categorical")
    torch.manual_seed(0)
    network = Mapped(first=False).double()
    ours = posterior(tp.PerPosition(tp.Categorical()), network, curvature, x[:, :1], y[:, :1])
    theirs = posterior(tp.Categorical(), nn.Sequential(nn.Flatten(), network), curvature, x[:, :1], y[:, 0])
    assert torch.equal(ours.operator.dense(), theirs.operator.dense())
    assert ours.terms.log_likelihood == theirs.terms.log_likelihood


@pytest.mark.parametrize("kind", ["ggn", "monte-carlo", "empirical"])
@pytest.mark.parametrize("structure", [tp.Dense, tp.KFAC, tp.EKFAC, tp.Diagonal])
def test_positions_that_do_not_count_leave_the_posterior(structure: Any, kind: Any) -> None:
    """What is at them is rubbish; with Monte-Carlo columns the draws differ, so their scores are put aside there."""
    x, y = problem("categorical")
    torch.manual_seed(0)
    network = Mapped(first=False).double()
    rubbish = 5 * torch.randn(ROWS, 2, IN, dtype=torch.float64)
    long = torch.cat([x, rubbish], 1)
    padded = torch.cat([y, torch.full((ROWS, 2), -100)], 1)
    law = tp.PerPosition(tp.Categorical())
    if kind == "monte-carlo":
        made = posterior(law, network, structure(kind=kind, samples=400), long, padded)
        exact = posterior(law, network, structure(), x, y)
        error = (curvature_of(made).diagonal() / curvature_of(exact).diagonal() - 1).abs()
        assert float(error.max()) < critical_value(len(error), 1e-6) * 2 / 400**0.5
        return
    made = posterior(law, network, structure(kind=kind), long, padded)
    assert_same(made.operator.dense(), posterior(law, network, structure(kind=kind), x, y).operator.dense())


def test_monte_carlo_columns_average_to_the_exact_curvature() -> None:
    """One pass has a draw at every position; the products of two positions average to nothing."""
    x, y = problem("categorical")
    y[0, 1] = -100
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(PLACES * IN, PLACES * CLASSES), nn.Unflatten(1, (PLACES, CLASSES)))
    network = network.double()
    law = tp.PerPosition(tp.Categorical())
    exact = curvature_of(posterior(law, network, tp.Dense(), x, y))
    samples = 2000
    made = curvature_of(posterior(law, network, tp.Dense(kind="monte-carlo", samples=samples), x, y))
    scale = (exact.diagonal().unsqueeze(1) * exact.diagonal()).sqrt().clamp(min=1e-12)
    error = ((made - exact) / scale).abs().max()
    assert float(error) < critical_value(exact.numel(), 1e-6) * 1.5 / samples**0.5
    assert float((exact / scale - torch.eye(len(exact))).abs().max()) > 0.1


def test_a_convolution_against_the_definition() -> None:
    """Σ_n J_nᵀ F_n J_n, with the Jacobian of every output by brute force, and a segmentation network's shapes."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(4, 2, 3, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (4, 3, 3), generator=rng)
    y[1, 0, 2] = y[3, 2] = -100
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 3, 1)).double()
    law = tp.PerPosition(tp.Categorical(), channels="first")
    target = tp.Target(network, law, tp.GaussianPrior(1.0))
    found = fit(target, tp.Dense(), x, y, network)
    expected = torch.zeros(len(found.mean), len(found.mean), dtype=torch.float64)
    parameters = list(network.parameters())
    for row, labels in zip(x, y, strict=True):
        logits = network(row.unsqueeze(0))[0]
        for i in range(3):
            for j in range(3):
                if labels[i, j] == -100:
                    continue
                grads = [torch.autograd.grad(logits[c, i, j], parameters, retain_graph=True) for c in range(3)]
                jacobian = torch.stack([torch.cat([part.flatten() for part in grad]) for grad in grads])
                p = logits[:, i, j].detach().softmax(0)
                expected += jacobian.mT @ (p.diag() - torch.outer(p, p)) @ jacobian
    assert_same(curvature_of(found), expected)
    assert_same(curvature_of(fit(target, tp.Diagonal(), x, y, network)).diagonal(), expected.diagonal())
    assert len(curvature_of(fit(target, tp.KFAC(), x, y, network))) == len(expected)
    noise = tp.PerPosition(tp.Normal(0.5), ignore=9, channels="first")
    real = torch.randn(4, 3, 3, 3, generator=rng, dtype=torch.float64)
    real[0, :, 1, 1] = 9
    made = fit(tp.Target(network, noise, tp.GaussianPrior(1.0)), tp.Dense(), x, real, network)
    assert made.terms.num_targets == 4 * 27 - 3


def test_tags_of_words_without_a_rule_and_with() -> None:
    """An embedding (counts of the words that count) and a recurrent layer (by automatic differentiation)."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.rnn, self.out = nn.Embedding(6, 3), nn.LSTM(3, 2, batch_first=True), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(self.words(x))[0])

    rng = torch.Generator().manual_seed(0)
    x = torch.randint(6, (8, 4), generator=rng)
    y = torch.randint(2, (8, 4), generator=rng)
    long = torch.cat([x, torch.randint(6, (8, 3), generator=rng)], 1)
    padded = torch.cat([y, torch.full((8, 3), -100)], 1)
    torch.manual_seed(0)
    network = Tagger().double()
    law = tp.PerPosition(tp.Categorical())
    for curvature in (tp.Dense(), tp.Diagonal()):
        short = posterior(law, network, curvature, x, y)
        assert_same(posterior(law, network, curvature, long, padded).operator.dense(), short.operator.dense())
    words = "no Kronecker rule for rnn"
    with pytest.warns(tp.errors.TemperanceWarning, match=words):
        short = posterior(law, network, tp.KFAC(), x, y)
    with pytest.warns(tp.errors.TemperanceWarning, match=words):
        made = posterior(law, network, tp.KFAC(), long, padded)
    assert_same(made.operator.dense(), short.operator.dense())


def test_the_functional_form_equals_the_dense_one() -> None:
    x, y = problem("categorical")
    y[:5, 2] = y[:, 3] = -100
    torch.manual_seed(0)
    network = Mapped(first=False).double()
    target = tp.Target(network, tp.PerPosition(tp.Categorical()), tp.GaussianPrior(1.3))
    found = [
        tp.fit(target, method, (x, y), progress=False).predict(x, seed=0).output_variance()
        for method in (tp.FunctionalLaplace(), tp.Laplace(curvature=tp.Dense(), tune=None))
    ]
    assert_same(*found)


class Scaled(nn.Module):
    """A parameter that no rule speaks for, after a map at each position."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.map, self.scale, self.first = nn.Linear(IN, CLASSES), nn.Parameter(torch.ones(CLASSES)), first

    def forward(self, x: Tensor) -> Tensor:
        made = (self.scale * self.map(x)).tanh()
        return made.movedim(-1, 1) if self.first else made


def test_without_a_rule_the_order_of_channels_is_heeded() -> None:
    x, y = problem("categorical")
    found = []
    for channels in ("last", "first"):
        torch.manual_seed(0)
        network = Scaled(channels == "first").double()
        law = tp.PerPosition(tp.Categorical(), channels=channels)  # type: ignore[arg-type]
        found.append(curvature_of(posterior(law, network, tp.Dense(), x, y)))
    assert_same(*found)
