"""``LightningCollect``: the same posterior as the library's own loop, exact on resume, right on a known problem."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import temperance as tp
from temperance.core.errors import ArgumentError, MismatchError, NetworkError, TemperanceWarning
from temperance.judge import diagnose
from temperance.run.optim import BAOAB, SGHMC, weight_decay_of

lightning = pytest.importorskip("lightning")
from temperance.apps.integrations.lightning import LightningCollect  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
PRIOR = tp.GaussianPrior(scale=1.0)


class Module(lightning.LightningModule):
    """A network, the mean of ½ (y − f)² / σ² as its loss, and an optimiser."""

    def __init__(self, net: nn.Module, optimizer, scale: float = 0.5) -> None:
        super().__init__()
        self.net, self.make, self.noise = net, optimizer, scale
        self.visited: list[Tensor] = []

    def training_step(self, batch, index):
        x, y = batch
        return 0.5 * (y - self.net(x)).square().sum(-1).mean() / self.noise**2

    def configure_optimizers(self):
        return self.make(self.net.parameters())

    def on_train_batch_end(self, *args) -> None:
        self.visited.append(nn.utils.parameters_to_vector(self.net.parameters()).detach().clone())


def data(rows: int = 24) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 2, generator=rng)
    return x, x @ torch.tensor([[1.0], [-0.5]]) + 0.5 * torch.randn(rows, 1, generator=rng)


def loader(batch_size: int = 8) -> DataLoader:
    return DataLoader(TensorDataset(*data()), batch_size=batch_size)


def train(module: Module, callback, batches: DataLoader, folder: Path | None = None, resume=None, **trainer):
    callbacks = [] if callback is None else [callback]
    if folder is not None:
        callbacks.append(lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1))
    runner = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=folder is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **trainer,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*num_workers.*|.*does not have many workers.*|.*ckpt.*empty.*")
        runner.fit(module, batches, ckpt_path=resume)
    return module


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def test_swag_has_the_moments_of_the_librarys_own_on_the_same_iterates() -> None:
    callback = LightningCollect(tp.Normal(scale=0.5), PRIOR, kind="swag", start=0.5, every=2, unit="steps", rank=5)
    module = train(Module(network(), sgd), callback, loader(), max_epochs=8)
    iterates = torch.stack(module.visited)[12:][1::2].double()  # 24 steps: 14, 16, … 24
    fitted = callback.fitted()
    mean, variance = iterates.mean(0), iterates.var(0, correction=0)
    assert callback.collector.collected == 6
    torch.testing.assert_close(fitted.posterior.mean.double(), mean, rtol=1e-5, atol=1e-6)
    running = torch.stack([iterates[: k + 1].mean(0) for k in range(6)])
    last = (iterates - running)[1:]
    expected = 0.5 * torch.diag(variance) + 0.5 * last.T @ last / 4
    torch.testing.assert_close(fitted.posterior.covariance().double(), expected, rtol=1e-3, atol=1e-8)


def test_swag_in_lightning_equals_swag_by_fit() -> None:
    """Full batches, so both see the same gradients; weight decay is the prior."""
    x, y = data()
    net = network()
    target = tp.Target(net, tp.Normal(scale=0.5), PRIOR)
    base = tp.MAP(lr=0.02, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    own = tp.fit(target, tp.SWAG(base, rank=4, start=0.5), (x, y), epochs=20, batch_size=24)
    callback = LightningCollect(tp.Normal(scale=0.5), PRIOR, kind="swag", start=0.5, rank=4)

    def decayed(parameters):
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=weight_decay_of(1.0, 24))

    train(Module(net, decayed), callback, loader(24), max_epochs=20)
    found = callback.fitted()
    torch.testing.assert_close(found.posterior.mean, own.posterior.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.posterior.covariance(), own.posterior.covariance(), rtol=1e-2, atol=1e-8)


@pytest.mark.parametrize("kind", ["swag", "draws"])
def test_a_resumed_run_collects_what_an_uninterrupted_one_does(kind: str, tmp_path: Path) -> None:
    def sampler(parameters):
        return SGHMC(parameters, lr=1e-2, num_data=24, weight_decay=weight_decay_of(1.0, 24))

    def callback():
        return LightningCollect(tp.Normal(scale=0.5), PRIOR, kind=kind, start=2, every=2, unit="steps", rank=3)

    whole, cut, resumed = callback(), callback(), callback()
    train(Module(network(), sampler), whole, loader(), max_epochs=6)
    train(Module(network(), sampler), cut, loader(), tmp_path, max_epochs=3)
    saved = tmp_path / "epoch=2.ckpt"
    train(Module(network(), sampler), resumed, loader(), resume=saved, max_epochs=6)
    assert cut.collector.collected == 3
    assert resumed.collector.collected == whole.collector.collected == 8
    one, other = whole.collector.state()[1], resumed.collector.state()[1]
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
    torch.load(saved, weights_only=True)  # no objects of ours in the file


def test_a_plan_that_changed_is_noticed_on_resume() -> None:
    numbers, tensors = LightningCollect(tp.Normal(scale=0.5), PRIOR, rank=2).collector.state()
    with pytest.raises(MismatchError, match=r"rank \(2, now 3\)"):
        LightningCollect(tp.Normal(scale=0.5), PRIOR, rank=3).collector.restore(numbers, tensors)


def linear_gaussian(draws: int, every: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws by BAOAB inside Lightning (full batches, N = 24 rows), and mean and covariance of the posterior."""
    x, y = data()
    net = nn.Linear(2, 1, bias=False)
    everything = [list(range(24))] * (every * (draws + 10))
    batches = DataLoader(TensorDataset(x, y), batch_sampler=everything)

    def sampler(parameters):
        return BAOAB(parameters, lr=0.15, num_data=24, momentum=0.4, weight_decay=weight_decay_of(1.0, 24), seed=5)

    plan = {"kind": "draws", "unit": "steps", "start": 10 * every, "every": every}
    callback = LightningCollect(tp.Normal(scale=0.5), PRIOR, **plan)
    train(Module(net, sampler), callback, batches, max_epochs=1)
    fitted = callback.fitted()
    assert fitted.info.data["rows"] == 24
    precision = (x.T @ x / 0.25 + torch.eye(2)).double()
    mean = torch.linalg.solve(precision, (x.T @ y / 0.25).double())[:, 0]
    return fitted.posterior.theta.double(), mean, torch.linalg.inv(precision)


def check_covariance(draws: int, every: int) -> None:
    theta, mean, covariance = linear_gaussian(draws, every)
    assert len(theta) == draws
    from_mean = theta - mean
    for i in range(2):  # BAOAB with exact gradients has the right variance at any stable step
        assert abs(float(from_mean[:, i].mean())) < 4.5 * float(diagnose.mcse(from_mean[:, i]))
        for j in range(i, 2):
            product = from_mean[:, i] * from_mean[:, j]
            assert abs(float(product.mean() - covariance[i, j])) < 4.5 * float(diagnose.mcse(product)), (i, j)
            if i == j:  # the test can see a factor of two
                assert float(diagnose.mcse(product)) < 0.2 * float(covariance[i, i])


def test_a_sampler_in_lightning_has_the_posteriors_covariance() -> None:
    check_covariance(draws=300, every=3)


@pytest.mark.slow
def test_a_sampler_in_lightning_has_the_posteriors_covariance_closely() -> None:
    check_covariance(draws=4000, every=4)


def test_epochs_accumulated_gradients_and_the_default_network() -> None:
    callback = LightningCollect(tp.Normal(scale=0.5), PRIOR, kind="swag", start=2, every=1, rank=2)
    module = train(Module(network(), sgd), callback, loader(), max_epochs=5, accumulate_grad_batches=2)
    assert callback.collector.collected == 3  # 3 batches an epoch are 2 steps
    ends = torch.stack(module.visited)[[8, 11, 14]]
    torch.testing.assert_close(callback.fitted().posterior.mean, ends.mean(0))
    train(Module(network(), sgd), callback, loader(), max_epochs=4)  # another run begins anew
    assert callback.collector.collected == 2


def test_the_result_predicts_is_scored_and_saved(tmp_path: Path) -> None:
    callback = LightningCollect(
        tp.Normal(), PRIOR, kind="swag", rank=2, learned=lambda m: m.log_scale, network=lambda m: m.net
    )

    class Learns(Module):
        def __init__(self) -> None:
            super().__init__(network(), None)
            self.log_scale = nn.Parameter(torch.zeros(1))

        def training_step(self, batch, index):
            error = (batch[1] - self.net(batch[0])).square().sum(-1).mean()
            return 0.5 * error * (-2 * self.log_scale).exp().sum() + self.log_scale.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    train(Learns(), callback, loader(), max_epochs=20)
    fitted = callback.fitted()
    assert fitted.evaluate(data())["rmse"] < 1.0
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", network())
    x = data()[0]
    assert torch.equal(again.predict(x).mean(), fitted.predict(x).mean())
    assert again.method == callback.collector.plan


def test_batch_norm_gets_statistics_for_each_draw() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    callback = LightningCollect(tp.Normal(scale=0.5), PRIOR, kind="swag", rank=2, node_draws=4)
    train(Module(net, sgd), callback, loader(), max_epochs=6)
    with pytest.raises(ArgumentError, match="pass over the data"):
        callback.fitted()
    assert callback.fitted(data=data()).predict(data()[0]).num_draws == 4


class TestErrors:
    def run(self, optimizer=sgd, net=None, callback=None, **more) -> None:
        callback = callback or LightningCollect(tp.Normal(scale=0.5), PRIOR, kind="draws", start=0, unit="steps")
        train(Module(net or network(), optimizer), callback, loader(), **{"max_epochs": 1, **more})

    def test_n_must_be_that_of_the_data(self) -> None:
        with pytest.raises(ArgumentError, match="number of training rows, 24"):
            self.run(lambda p: SGHMC(p, lr=1e-3, num_data=8, weight_decay=weight_decay_of(1.0, 8)))
        callback = LightningCollect(tp.Normal(scale=0.5), PRIOR, num_data=8)
        with pytest.raises(ArgumentError, match=r"`num_data` must be the number of training rows, 24; got 8"):
            self.run(callback=callback)

    def test_temperature_and_prior_must_be_the_targets(self) -> None:
        with pytest.raises(ArgumentError, match=r"`temperature` of the sampler must be the target's, 1.0"):
            self.run(lambda p: SGHMC(p, lr=1e-3, num_data=24, weight_decay=1 / 24, temperature=0.5))
        with pytest.warns(TemperanceWarning, match=r"weight_decay=0.04167 for 24 rows"):
            self.run(lambda p: SGHMC(p, lr=1e-3, num_data=24))

    def test_sgd_gives_no_draws_and_clipping_no_posterior(self) -> None:
        with pytest.warns(TemperanceWarning, match="no sampler"):
            self.run()
        with pytest.warns(TemperanceWarning, match="clipped at 1.0"):
            self.run(lambda p: SGHMC(p, lr=1e-3, num_data=24, weight_decay=1 / 24), gradient_clip_val=1.0)

    def test_batch_norm_under_a_sampler(self) -> None:
        net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        with pytest.raises(NetworkError, match="batch norm"):
            self.run(lambda p: SGHMC(p, lr=1e-3, num_data=24, weight_decay=1 / 24), net=net)

    def test_arguments(self) -> None:
        for bad in ({"kind": "mcmc"}, {"unit": "batches"}, {"start": 1.5}, {"every": 0}, {"rank": 1}, {"last": 0}):
            with pytest.raises(ArgumentError, match=f"`{next(iter(bad))}`"):
                LightningCollect(tp.Normal(scale=0.5), PRIOR, **bad)
        with pytest.raises(ArgumentError, match="`learned`"):
            LightningCollect(tp.Normal(), PRIOR)
        with pytest.raises(ArgumentError, match="`module`"):
            LightningCollect(tp.Normal(scale=0.5), PRIOR).fitted()

        class Two(Module):
            def __init__(self) -> None:
                super().__init__(network(), sgd)
                self.other = nn.Linear(1, 1)

        with pytest.raises(ArgumentError, match=r"exactly one child.*\['net', 'other'\]"):
            train(Two(), LightningCollect(tp.Normal(scale=0.5), PRIOR), loader(), max_epochs=1)

    def test_without_lightning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "temperance.apps.integrations.lightning")
        for name in ("lightning", "lightning.pytorch"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=r"temperance\[lightning\]"):
            importlib.import_module("temperance.apps.integrations.lightning")
