"""Defects that a reviewer found, each kept out by a test."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import (
    ArgumentError,
    DataError,
    MismatchError,
    NetworkError,
    NumericalError,
    StoreError,
    TemperanceWarning,
)
from temperance.engine.engine import Engine
from temperance.posteriors import Draws, Mixture, Point
from temperance.predict import predict

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(20, 1, generator=torch.Generator().manual_seed(2))
ONE = torch.ones(1, 1, dtype=torch.float64)


def real(net: nn.Module | None = None, **options) -> tp.Target:
    return tp.Target(net or nn.Linear(3, 1), tp.Normal(0.5), tp.GaussianPrior(1.0), **options)


def members(likelihood: tp.Likelihood, outputs: list[list[float]]) -> tuple[tp.Target, Draws]:
    """A network without inputs to speak of: its outputs are its weights."""
    values = torch.tensor(outputs, dtype=torch.float64)
    target = tp.Target(nn.Linear(1, values.shape[1], bias=False).double(), likelihood, tp.GaussianPrior(1.0))
    return target, Draws(values)


# ---------------------------------------------------------------------- storage


def test_saving_never_deletes_files_of_others(tmp_path):
    fitted = tp.fit(real(), tp.MAP(), (X, Y), epochs=1)
    for name, content in (("model.safetensors", "precious"), ("manifest.json", '{"name": "web app"}')):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(StoreError, match="holds other files"):
            fitted.save(folder)
        assert (folder / name).read_text() == content
    run = tmp_path / "run"
    fitted.save(run)
    (run / "weights.safetensors").write_text("mine")
    fitted.save(run)
    assert (run / "weights.safetensors").read_text() == "mine"


def test_frozen_batch_norm_can_be_saved(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    fitted = tp.fit(real(net, freeze_batch_norm=True), tp.MAP(), (X, Y), epochs=1)
    fitted.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", net).predict(X).mean(), fitted.predict(X).mean())


class Counter(nn.Module):
    """Counts its training passes in a buffer that changes its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return self.layer(x) + 0.01 * self.count


def test_buffers_of_the_users_own_are_kept_with_the_weights(tmp_path):
    target = real(Counter())
    first = tp.fit(target, tp.MAP(lr=0.1), (X, Y), epochs=3, batch_size=5)
    before = first.predict(X).mean()
    second = tp.fit(target, tp.MAP(lr=0.1), (X, Y), epochs=3, batch_size=5)
    assert torch.equal(first.posterior.theta, second.posterior.theta)
    assert float(first.posterior.buffers["count"]) == 12
    assert torch.equal(first.predict(X).mean(), before)
    first.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", Counter()).predict(X).mean(), before)


def test_numpy_integers_are_integers(tmp_path):
    options = {"seed": np.int64(3), "batch_size": np.int64(4), "epochs": np.int64(2)}
    fitted = tp.fit(real(), tp.MAP(lr=float(np.float32(0.01))), (X, Y), **options)
    fitted.save(tmp_path / "run")
    assert tp.load(tmp_path / "run", nn.Linear(3, 1)).seed == 3
    tp.GaussianPrior(np.float32(1.0))


def test_what_cannot_be_written_down_is_refused_before_the_run():
    import functools

    part = functools.partial(tp.biases)
    with pytest.raises(ArgumentError, match="`target` must be made of"):
        tp.fit(real(subset=part), tp.MAP(), (X, Y), epochs=1)

    class Mine(tp.Normal):
        pass

    class NotADataclass(tp.model.likelihoods.RealLikelihood):
        def __init__(self, s: float = 1.0) -> None:
            self.s = s

        def location(self, outputs):
            return outputs

        def noise_scale(self, outputs, learned):
            return outputs.new_tensor(self.s)

        def hessian(self, outputs, y, learned):
            raise NotImplementedError

        def fisher(self, outputs, learned):
            raise NotImplementedError

    with pytest.raises(ArgumentError, match="frozen dataclass"):
        tp.fit(tp.Target(nn.Linear(3, 1), NotADataclass(5.0), tp.GaussianPrior(1.0)), tp.MAP(), (X, Y), epochs=1)


def test_a_class_of_the_users_does_not_replace_ours_of_the_same_name(tmp_path):
    tp.fit(real(), tp.MAP(), (X, Y), epochs=1).save(tmp_path / "run")

    @dataclass(frozen=True, eq=False)
    class Normal(tp.Normal):
        pass

    loaded = tp.load(tmp_path / "run", nn.Linear(3, 1)).target.likelihood
    assert type(loaded) is tp.Normal


def test_a_result_that_cannot_be_saved_is_not_lost(tmp_path, monkeypatch):
    from temperance.run import store

    real_write = store.write_run
    count = 0

    def fails_later(*args):
        nonlocal count
        count += 1
        if count > 1:
            raise StoreError("No space left on device")
        real_write(*args)

    monkeypatch.setattr(store, "write_run", fails_later)
    with pytest.raises(StoreError) as caught:
        tp.fit(real(), tp.MAP(), (X, Y), epochs=1, checkpoint=tmp_path / "run")
    assert caught.value.fitted.predict(X).mean().shape == (20, 1)


class InfiniteSlope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (self.layer(x) * x[:, 2:]).abs().sqrt()


def test_a_gradient_that_is_not_finite_is_not_used(tmp_path):
    x = X.clone()
    x[7, 2] = 0.0
    with pytest.raises(NumericalError, match="infinite slope") as caught:
        tp.fit(real(InfiniteSlope()), tp.MAP(), (x, Y), epochs=5, batch_size=5, checkpoint=tmp_path / "run", every=1)
    assert torch.isfinite(caught.value.fitted.posterior.theta).all()
    assert torch.isfinite(tp.load(tmp_path / "run", InfiniteSlope()).posterior.theta).all()


@dataclass(frozen=True, eq=False)
class _TornStep(tp.MAP):
    at: int = 7

    def step(self, engine, state, batch):
        state, info = super().step(engine, state, batch)
        if batch.step == self.at:
            raise KeyboardInterrupt
        return state, info


def test_an_interrupt_in_the_middle_of_a_step_leaves_the_last_checkpoint(tmp_path):
    net = nn.Linear(3, 1)
    whole = tp.fit(real(net), _TornStep(at=10**6), (X, Y), epochs=5, batch_size=5)
    torn = tp.fit(real(net), _TornStep(), (X, Y), epochs=5, batch_size=5, checkpoint=tmp_path / "run", every=1)
    assert torn.info.status.code == "interrupted"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["info"]["steps"] == 7
    original = _TornStep.step
    _TornStep.step = tp.MAP.step
    try:
        resumed = tp.fit(real(net), _TornStep(), (X, Y), epochs=5, batch_size=5, checkpoint=tmp_path / "run", every=1)
    finally:
        _TornStep.step = original
    assert torch.equal(resumed.posterior.theta, whole.posterior.theta)


def test_tensors_and_functions_inside_settings_count_when_resuming(tmp_path):
    net = nn.Linear(3, 1)

    def run(scale: float, epochs: int) -> tp.Fitted:
        prior = tp.GaussianPrior(torch.full((4,), scale))
        target = tp.Target(net, tp.Normal(0.5), prior)
        return tp.fit(target, tp.MAP(), (X, Y), epochs=epochs, checkpoint=tmp_path / "run")

    run(1.0, 1)
    run(1.0, 2)
    with pytest.raises(MismatchError, match="the target"):
        run(1e-3, 3)
    schedulers = torch.optim.lr_scheduler.LambdaLR
    one, two = (tp.MAP(scheduler=schedulers, scheduler_args={"lr_lambda": f}) for f in (lambda e: 1.0, lambda e: 1e-6))
    assert one != two


def test_early_stopped_runs_stay_stopped(tmp_path):
    held = (X + 5, Y + 3)
    for method in (tp.Ensemble(tp.MAP(lr=0.5, patience=1), 2, batched=False), tp.MAP(lr=0.5, patience=1)):
        path = tmp_path / type(method).__name__
        net = tp.nn.MLP(3, [4], 1)
        first = tp.fit(real(net), method, (X, Y), epochs=60, held_out=held, checkpoint=path)
        assert first.info.status.code == "early-stopped"
        again = tp.fit(real(net), method, (X, Y), epochs=90, held_out=held, checkpoint=path)
        assert again.info.steps == first.info.steps


def test_stacked_and_single_members_stop_alike():
    torch.manual_seed(0)
    net = tp.nn.MLP(3, [16], 1).double()
    x, y = torch.randn(40, 3).double(), torch.randn(40, 1).double()
    held = (torch.randn(40, 3).double(), torch.randn(40, 1).double())
    runs = []
    for batched in (True, False):
        method = tp.Ensemble(tp.MAP(lr=0.02, patience=1), 4, batched=batched)
        runs.append(tp.fit(real(net), method, (x, y), epochs=40, batch_size=10, held_out=held, seed=1))
    for a, b in zip(*(run.posterior.components for run in runs), strict=True):
        assert torch.allclose(a.theta, b.theta, atol=1e-7)


def test_augmenting_data_sets_resume_and_leave_the_global_state_alone(tmp_path):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, k: int):
            return X[k] + 0.1 * torch.randn(3), Y[k]

    net = nn.Linear(3, 1)
    state = torch.get_rng_state()
    first = tp.fit(real(net), tp.MAP(), Noisy(), epochs=1, batch_size=5, checkpoint=tmp_path / "run")
    assert torch.equal(state, torch.get_rng_state())
    torch.randn(3)
    longer = tp.fit(real(net), tp.MAP(), Noisy(), epochs=2, batch_size=5, checkpoint=tmp_path / "run")
    whole = tp.fit(real(net), tp.MAP(), Noisy(), epochs=2, batch_size=5)
    assert first.info.steps == 4
    assert torch.equal(longer.posterior.theta, whole.posterior.theta)


def test_start_brings_its_statistics_and_must_share_what_is_frozen():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    trained = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    trained[1].running_mean.fill_(0.7)
    for freeze in (True, False):
        target = real(net, freeze_batch_norm=freeze).adopting(trained)
        engine = Engine(target)
        state = tp.MAP().init(engine, tp.Starts.of(target.theta_of(trained)), [torch.Generator()])
        posterior = tp.MAP().posteriors(engine, state, None)[0]
        assert torch.allclose(predict(Engine(target), posterior, X).mean(), trained(X), atol=1e-6)
    with pytest.raises(ArgumentError, match="frozen parameters"):
        tp.fit(real(net, subset=tp.last_layer), tp.MAP(), (X, Y), epochs=1, start=trained)


def test_a_deep_copy_of_a_target_trains():
    import copy

    target = real()
    method = tp.MAP(lr=0.1)
    data = target.prepare(tp.data.Data(X, Y))
    engine = Engine(target, data)
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    batch = next(iter(data.full_pass()))
    method.step(engine, state, batch)
    other, theirs = copy.deepcopy((target, state.theta[0]))
    grad = torch.zeros_like(theirs)
    first = Engine(other).gradient(theirs, batch, grad)
    theirs -= 0.1 * grad
    assert Engine(other).gradient(theirs, batch, grad) < first


# ---------------------------------------------------------------------- statistics


@pytest.mark.parametrize(
    ("scales", "exact"), [((1.0, 0.1), 0.4333), ((1.0, 0.01), 0.6406), ((1.0, 0.01, 0.01, 0.01), 1.321)]
)
def test_mutual_information_of_members_with_different_noise(scales, exact):
    """Exact by fine numerical integration here, too."""
    target, draws = members(tp.HeteroscedasticNormal(), [[0.0, math.log(s)] for s in scales])
    made = float(predict(Engine(target), draws, ONE).mutual_information())
    grid = torch.cat([torch.linspace(-10, 10, 400_001), torch.linspace(-0.1, 0.1, 200_001)]).unique().double()
    p = torch.stack([torch.distributions.Normal(0.0, s).log_prob(grid).exp() for s in scales])
    mixed = p.mean(0)
    entropy = torch.trapezoid(torch.special.entr(mixed), grid)
    members_entropy = np.mean([0.5 * math.log(2 * math.pi * math.e * s * s) for s in scales])
    assert made == pytest.approx(float(entropy) - members_entropy, abs=1e-4)
    if len(scales) == 2:
        assert made == pytest.approx(exact, abs=1e-3)


def test_weights_count_in_the_mutual_information_of_many_members():
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Normal(1e-3), tp.GaussianPrior(1.0))
    for heavy in (1, 2):
        weights = [0.01 / 99] * 100
        weights[heavy] = 0.99
        mixture = Mixture(
            tuple(Point(torch.tensor([float(k)], dtype=torch.float64)) for k in range(100)), tuple(weights)
        )
        made = float(predict(Engine(target), mixture, ONE).mutual_information())
        assert made == pytest.approx(-sum(w * math.log(w) for w in weights), abs=1e-3)


def test_weights_are_exact_enough_for_extreme_scales():
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Normal(1e-6), tp.GaussianPrior(1.0))
    pred = predict(Engine(target), Draws(torch.full((3, 1), 1e6, dtype=torch.float64)), ONE)
    assert float(pred.mean()) == pytest.approx(1e6, abs=1e-8)
    assert float(pred.std()) == pytest.approx(1e-6, rel=1e-3)
    cauchy, draws = members(tp.StudentT(1.0, 1.0), [[0.0]] * 25)
    assert float(predict(Engine(cauchy), draws, ONE).quantile(1 - 1e-9)) == pytest.approx(1e9 / math.pi, rel=1e-3)


def test_quantiles_with_one_enormous_member():
    target, draws = members(tp.HeteroscedasticNormal(), [[0.0, -7.0]] * 9 + [[0.0, 50.0]])
    pred = predict(Engine(target), draws, ONE)
    assert abs(float(pred.quantile(0.5))) < 1e-9
    assert float(pred.cdf(pred.quantile(0.3))) == pytest.approx(0.3, abs=1e-6)


def test_confident_yes_or_no_ensembles_have_finite_entropy():
    target = tp.Target(nn.Linear(1, 1, bias=False), tp.Bernoulli(), tp.GaussianPrior(1.0))
    for count in (52, 60, 76):
        pred = predict(Engine(target), Draws(torch.full((count, 1), 30.0)), torch.ones(1, 1))
        assert float(pred.entropy()) == pytest.approx(0.0, abs=1e-5)

    @dataclass(frozen=True, eq=False)
    class Mine(tp.Bernoulli):
        pass

    ours, draws = members(Mine(), [[0.0]])
    assert float(predict(Engine(ours), draws, ONE).entropy()) == pytest.approx(math.log(2))


def test_counts_of_extreme_rates():
    target, draws = members(tp.Poisson(), [[-110.0], [-100.0]])
    pred = predict(Engine(target), draws, ONE)
    assert float(pred.aleatoric()) == pytest.approx(0.0, abs=1e-30)
    assert float(pred.mutual_information()) == pytest.approx(0.0, abs=1e-30)
    target, draws = members(tp.Poisson(), [[13.0], [13.1]])
    pred = predict(Engine(target), draws, ONE)
    assert float(pred.mutual_information()) == pytest.approx(math.log(2), abs=1e-3)
    target, draws = members(tp.Poisson(), [[60.0], [800.0]])
    pred = predict(Engine(target), draws, ONE)
    assert (pred.sample(5) > 0).all()
    assert torch.isfinite(pred.mutual_information()).all()
    exact, large = (members(tp.Poisson(), [[a], [b]]) for a, b in ((6.1, 6.15), (6.25, 6.3)))
    one, two = (float(predict(Engine(t), draws, ONE).mutual_information()) for t, draws in (exact, large))
    assert 0 < one < two < math.log(2)  # the two ways of computing it meet


def test_masked_classes_have_finite_entropy():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    assert float(tp.Categorical().entropy(logits, {})) == pytest.approx(math.log(2))


def test_evaluate_of_unusual_targets():
    heavy = tp.Target(nn.Linear(3, 1), tp.StudentT(2.0, 1.0), tp.GaussianPrior(1.0))
    assert tp.fit(heavy, tp.MAP(), (X, Y), epochs=1).evaluate((X, Y))["crps"] > 0
    classes = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    data = (X, torch.arange(20).unsqueeze(1) % 2)
    assert "accuracy" in tp.fit(classes, tp.MAP(), data, epochs=1).evaluate(data)


def test_adamw_does_not_decay_behind_the_priors_back():
    problem = tp.testing.linear_gaussian()
    method = tp.MAP(lr=0.05, optimizer=torch.optim.AdamW)
    engine = Engine(problem.target, problem.target.prepare(problem.data))
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    assert state.optimizer.param_groups[0]["weight_decay"] == 0.0
    with pytest.warns(TemperanceWarning, match="on top of the prior"):
        tp.MAP(optimizer_args={"weight_decay": 0.1})


def test_norms_are_no_weights_for_fan_in():
    layout = tp.Layout.of(nn.Sequential(nn.LayerNorm((4, 5)), nn.Linear(5, 2)))
    assert [e.fan_in for e in layout.entries] == [0, 0, 5, 0]


def test_last_layer_finds_tied_weights():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5)
            self.head.weight = self.emb.weight

    assert tp.last_layer.names(Tied()) == ["emb.weight", "head.bias"]


def test_a_prediction_does_not_change_with_its_input():
    fitted = tp.fit(real(), tp.MAP(), (X, Y), epochs=1)
    x = X.clone()
    pred = fitted.predict(x)
    expected = fitted.predict(X).mean()
    x.fill_(100.0)
    assert torch.equal(pred.mean(), expected)


# ---------------------------------------------------------------------- errors


def test_errors_come_early_and_name_their_argument():
    with pytest.raises(DataError, match="`patience`"):
        tp.fit(real(), tp.MAP(patience=1), (X, Y), epochs=1)
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau"):
        tp.MAP(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(ArgumentError, match="`scheduler`"):
        tp.MAP(scheduler=3)
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(ArgumentError, match=r"`batch_size` 19.*one row"):
        tp.fit(real(norm), tp.MAP(), (X, Y), epochs=1, batch_size=19)

    class Squeezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).squeeze()

    with pytest.raises(NetworkError, match="one row of outputs per input"):
        tp.fit(real(Squeezing()), tp.MAP(), (X, Y), epochs=1)
    for start in ("abc", {"weight": 1}):
        with pytest.raises(ArgumentError, match="`start`"):
            tp.fit(real(), tp.MAP(), (X, Y), epochs=1, start=start)
    with pytest.raises(ArgumentError, match="`priors`"):
        tp.PerLayer({"*": 1.0})
    with pytest.raises(ArgumentError, match="`priors`"):
        tp.PerLayer([tp.GaussianPrior()])
    with pytest.raises(ArgumentError, match="`components`"):
        tp.MixturePrior((1.0, 2.0))
    for mean in ("a", math.nan, None):
        with pytest.raises(ArgumentError, match="`mean`"):
            tp.GaussianPrior(mean=mean)
    misspelt = tp.GaussianPrior({"wieght": 0.1, "*": 1.0})
    with pytest.raises(ArgumentError, match=r"nothing matches \['wieght'\]"):
        tp.Target(nn.Linear(3, 1), tp.Normal(0.5), misspelt)
    with pytest.raises(NetworkError, match="must be initialised"):
        real(nn.LazyLinear(1))
    with pytest.raises(ArgumentError, match="`every`"):
        tp.fit(real(), tp.MAP(), (X, Y), epochs=1, every=0)
    fitted = tp.fit(real(), tp.Ensemble(tp.MAP(), 2), (X, Y), epochs=1)
    with pytest.raises(ArgumentError, match="`component` must be from 0 to 1"):
        fitted.network(5)
    with pytest.raises(ArgumentError, match="`path`"):
        fitted.save(None)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(X, Y),
        sampler=torch.utils.data.WeightedRandomSampler([1.0] * 20, 20),
    )
    with pytest.warns(TemperanceWarning, match="sampler"):
        tp.fit(real(), tp.MAP(), loader, epochs=1)


def test_anchored_classes_allocate_no_noise():
    target = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    data = target.prepare(tp.data.Data(X, torch.arange(20) % 2))
    engine = Engine(target, data)
    state = tp.Anchored().init(engine, tp.Starts(), [torch.Generator()])
    tp.Anchored().step(engine, state, next(iter(data.full_pass())))
    assert state.noise.numel() == 0
