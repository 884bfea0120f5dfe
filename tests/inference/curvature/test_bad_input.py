"""What cannot be approximated is refused, with a message that says why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NetworkError, NumericalError

from .twin import assert_same, curvature_of, fit, make_twin, normal

ROWS = 8


def make(network: nn.Module, likelihood=None) -> tp.Target:
    return tp.Target(network.double(), likelihood or tp.Normal(scale=0.5), tp.GaussianPrior(1.0))


def regression() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(ROWS, 3, dtype=torch.float64), torch.randn(ROWS, 1, dtype=torch.float64)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def laplace(target: tp.Target, data, curvature=None, **settings):
    return tp.fit(target, tp.Laplace(curvature=curvature or tp.KFAC(), tune=None), data, progress=False, **settings)


@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Dense(), tp.Diagonal(), tp.Lanczos(3)])
def test_dropout_that_does_not_heed_eval(curvature):
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.dropout(self.inner(x), 0.5))

    with pytest.raises(NetworkError, match=r"deterministic in evaluation mode.*dropout"):
        laplace(make(Noisy()), regression(), curvature)


def test_dropout_that_heeds_eval_has_no_part():
    network = mlp()
    x, y = regression()
    dropped = nn.Sequential(network[0], nn.Dropout(0.5), *network[1:]).double().train()
    ours = curvature_of(fit(make(dropped), tp.Dense(), x, y, dropped))
    assert_same(ours, make_twin(network, normal(0.5), x, y).ggn())
    assert dropped.training  # the user's own network is as it was


def test_data_that_change_from_pass_to_pass():
    class Augmented(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
            return torch.full((3,), float(k)) + torch.rand(3), torch.tensor([float(k)])

    with pytest.raises(DataError, match=r"same rows every time.*random augmentation"):
        laplace(make(mlp()), Augmented())


def test_a_data_set_that_stays_the_same():
    x, y = regression()

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
            return x[k], y[k]

    network = mlp()
    posterior = laplace(make(network), Rows(), tp.Dense(batch_size=3), start=network).posterior
    assert_same(curvature_of(posterior), make_twin(network, normal(0.5), x, y).ggn())


@pytest.mark.parametrize("which", ["x", "y"])
@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Dense()])
def test_nan_in_the_data(which, curvature):
    x, y = regression()
    (x if which == "x" else y)[ROWS - 1, 0] = float("nan")
    with pytest.raises(DataError, match=f"must be finite.*in {which}"):
        laplace(make(mlp()), (x, y), curvature)


@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Dense(), tp.Lanczos(3)])
def test_a_batch_norm_of_the_batch_itself(curvature):
    """Without running statistics it mixes the rows of a batch also in evaluation mode."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    network = nn.Sequential(nn.Conv1d(2, 3, 2), norm, nn.Tanh(), nn.Flatten(), nn.Linear(9, 1))
    x, y = torch.randn(ROWS, 2, 4, dtype=torch.float64), torch.randn(ROWS, 1, dtype=torch.float64)
    with pytest.raises(NetworkError, match="must not depend on the other rows"):
        laplace(make(network), (x, y), curvature)


class Root(nn.Module):
    """NaN where the sum of the inputs is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + x.sum(1, keepdim=True).sqrt()


@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.EKFAC(), tp.Dense(), tp.Diagonal(), tp.Lanczos(2)])
@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_nan_that_the_network_makes(curvature, row):
    """Be it in the first rows, which the rules are tried on, or later."""
    x, y = regression()
    x = x.abs()
    x[row] *= -1
    with pytest.raises(NumericalError, match="not finite"):
        laplace(make(Root()), (x, y), curvature)


def test_indefinite_hessian():
    x, y = regression()
    network = mlp()
    with torch.no_grad():
        network[2].weight.mul_(30)
    with pytest.raises(NumericalError, match=r"positive definite; the leading minor.*Gauss–Newton"):
        laplace(make(network), (x, y), tp.Dense(kind="hessian"), start=network)


@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Dense(), tp.Diagonal(), tp.Lanczos(3)])
def test_evidence_of_an_untrained_network(curvature):
    x, y = regression()
    network = mlp()
    fitted = laplace(make(network, tp.Normal(scale=0.05)), (x, y), curvature, start=network)
    with pytest.raises(NumericalError, match=r"the evidence needs a mode.*nats"):
        fitted.log_evidence()


def test_dense_above_its_limit_names_the_memory():
    network = nn.Sequential(nn.Linear(60, 90), nn.Tanh(), nn.Linear(90, 60), nn.Tanh(), nn.Linear(60, 1)).double()
    x, y = torch.randn(ROWS, 60, dtype=torch.float64), torch.randn(ROWS, 1, dtype=torch.float64)
    size = sum(p.numel() for p in network.parameters())
    assert size == 11_011
    memory = f"{size * size * 8 / 2**30:.1f} GiB"  # 0.9
    with pytest.raises(ArgumentError, match=rf"`limit`: the network has 11,011 .* {memory}.*limit is 11,010"):
        laplace(make(network), (x, y), tp.Dense(limit=11_010))
    with pytest.raises(ArgumentError, match=r"`limit`: layer '0' has 5,490 parameters.*0\.2 GiB"):
        laplace(make(network), (x, y), tp.BlockDiagonal(limit=5_489))
    small = tp.fit(
        make(network), tp.Laplace(curvature=tp.Dense(limit=61), on=tp.last_layer, tune=None), (x, y), progress=False
    )
    assert small.posterior.operator.rank == 61


@pytest.mark.parametrize("settings", [{"epochs": 3}, {"steps": 1}])
def test_training_without_a_base(settings):
    with pytest.raises(ArgumentError, match=r"Laplace\(\) without a base trains nothing"):
        laplace(make(mlp()), regression(), **settings)


def test_arguments_of_structures():
    for wrong, message in (
        (lambda: tp.KFAC(kind="hessian"), 'kind` "hessian" is for Dense'),
        (lambda: tp.Dense(kind="exact"), "`kind` must be one of"),
        (lambda: tp.KFAC(sharing="both"), "`sharing` must be"),
        (lambda: tp.Lanczos(0), "`rank`"),
        (lambda: tp.Diagonal(samples=0), "`samples`"),
        (lambda: tp.Dense(batch_size=0), "`batch_size`"),
        (lambda: tp.Laplace(curvature="kfac", tune=None), "`curvature` must be a structure"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()
    x, y = regression()
    with pytest.raises(ArgumentError, match="`rank` must be below the number of parameters, 21"):
        laplace(make(mlp()), (x, y), tp.Lanczos(21))


def test_many_outputs_are_announced():
    torch.manual_seed(0)
    network = nn.Linear(2, 300).double()
    x, y = torch.randn(4, 2, dtype=torch.float64), torch.randint(300, (4,))
    with pytest.warns(tp.errors.TemperanceWarning, match=r"each of the 300 outputs.*monte-carlo"):
        laplace(make(network, tp.Categorical()), (x, y), tp.KFAC(), start=network)
