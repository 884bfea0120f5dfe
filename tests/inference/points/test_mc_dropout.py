"""MC dropout: masks, the law of what they make, draws that are functions, ensembles, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, TemperanceWarning
from temperance.engine.engine import Engine
from temperance.inference.weighing import weight_of_first
from temperance.posteriors import Mixture
from temperance.posteriors.dropout import DropoutPosterior, MaskedDropout, at_rates, masked
from temperance.testing import critical_value

F64 = torch.float64


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def dropped(network, x, outputs=None, **options):
    """A network as it is, with its dropout kept on; nothing is trained."""
    network = network.double()
    with torch.no_grad():
        made = network.eval()(x)
    target = tp.Target(network, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    return tp.fit(target, tp.MCDropout(), (x, torch.zeros_like(made)), **options)


def outputs(fitted, x, draws, seed=0, batched=None):
    """S × B × C."""
    theta, buffers = fitted.posterior.nodes(draws, seed).fetch(0, draws)
    return fitted.engine.outputs(theta, x, buffers, batched=batched).detach()


def identity(size):
    layer = nn.Linear(size, size)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def assert_rate(hits, rate):
    z = (float(hits.double().mean()) - rate) / (rate * (1 - rate) / hits.numel()) ** 0.5
    assert abs(z) < critical_value(1), z


# ---------------------------------------------------------------------- masks


class ThreeMasks(nn.Module):
    """Two modules, the first of them called twice."""

    def __init__(self, p):
        super().__init__()
        self.start, self.one, self.two = identity(40), nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        x = self.start(x)
        return torch.cat([self.one(x), self.two(x), self.one(x)], dim=1)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.83])
def test_masks_drop_at_the_rate_and_are_independent(p):
    fitted = dropped(ThreeMasks(p), torch.ones(4, 40, dtype=F64))
    made = outputs(fitted, torch.ones(4, 40, dtype=F64), 400)
    assert torch.equal(made, made[:, :1].expand_as(made))  # the same for all rows
    values = made[:, 0].view(400, 3, 40)
    off = values == 0
    torch.testing.assert_close(values[~off], torch.full_like(values[~off], 1 / (1 - p)))
    assert_rate(off, p)
    for k in range(3):
        assert_rate(off[:, k], p)
    both = p * p
    for one, two in ((0, 1), (0, 2), (1, 2)):  # modules, and calls of one module
        assert_rate(off[:, one] & off[:, two], both)
    assert_rate(off[1:] & off[:-1], both)  # draws
    assert_rate(off[..., 1:] & off[..., :-1], both)  # units
    assert_rate(off[..., 4:] & off[..., :-4], both)
    assert len({tuple(row) for row in off.flatten(1).int().tolist()}) == 400


def test_draws_follow_the_seed_and_not_the_global_state():
    x = random(5, 40)
    fitted = dropped(ThreeMasks(0.4), x)
    first = outputs(fitted, x, 10)
    torch.randn(3)
    assert torch.equal(first, outputs(fitted, x, 10))
    assert torch.equal(first[:4], outputs(fitted, x, 4))
    assert not torch.equal(first, outputs(fitted, x, 10, seed=1))
    assert torch.equal(fitted.predict(x, draws=9, seed=2).mean(), fitted.predict(x, draws=9, seed=2).mean())


def test_a_draw_is_one_function_however_rows_are_batched():
    x = random(23, 3)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))
    fitted = dropped(net, x)
    whole = outputs(fitted, x, 6)
    parts = torch.cat([outputs(fitted, part, 6) for part in x.split(5)], dim=1)
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)
    at_once, in_chunks = (fitted.predict(x, draws=6, batch_size=size) for size in (1000, 4))
    torch.testing.assert_close(at_once.mean(), in_chunks.mean(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(at_once.variance(), in_chunks.variance(), rtol=1e-12, atol=1e-12)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(outputs(fitted, x[order], 6), whole[:, order], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(at_once.mean(), whole.mean(0))


def test_batched_draws_are_those_one_by_one():
    x = random(6, 3)
    net = nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.AlphaDropout(0.2), nn.Linear(8, 2)
    )
    fitted = dropped(net, x)
    one, many = (outputs(fitted, x, 12, batched=batched) for batched in (False, True))
    torch.testing.assert_close(one, many, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------- the law of a linear layer after dropout

ALPHA = -1.7580993408473766
LAYERS = {
    "Dropout": (nn.Dropout(0.3), (6,)),
    "Dropout on images": (nn.Dropout(0.3), (2, 2, 2)),
    "Dropout1d": (nn.Dropout1d(0.2), (3, 4)),
    "Dropout2d": (nn.Dropout2d(0.6), (3, 2, 2)),
    "Dropout3d": (nn.Dropout3d(0.4), (3, 2, 1, 2)),
    "AlphaDropout": (nn.AlphaDropout(0.25), (6,)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(0.25), (3, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_mean_and_covariance_of_outputs_over_draws(name):
    """y = W d(x) + b. Units (or channels) c are kept independently with probability 1 − p, so over two rows at once
    Cov(y_i, y_j) = v Σ_c (W_i · s)_c (W_j · s)_c: s = x, v = p/(1 − p); for alpha s = x − α', v = a² p (1 − p), and the
    mean is a (1 − p) W x + b with a = ((1 − p)(1 + p α'²))^−½."""
    dropout, shape = LAYERS[name]
    p, size = dropout.p, torch.Size(shape).numel()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), dropout, nn.Flatten(), nn.Linear(size, 2))
    x = random(2, *shape, seed=4)
    fitted = dropped(net, x)
    draws = outputs(fitted, x, 4_000).flatten(1)
    weight, bias = net[3].weight.detach(), net[3].bias.detach()
    alpha = "Alpha" in name
    gain = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5 if alpha else 1 / (1 - p)
    mean = (gain * (1 - p) * x.flatten(1) @ weight.T + bias).flatten()
    away = (x - ALPHA if alpha else x).flatten(1)
    parts = weight.unsqueeze(0) * away.unsqueeze(1)  # row × output × unit
    if name not in ("Dropout", "Dropout on images", "AlphaDropout"):
        parts = parts.view(2, 2, shape[0], -1).sum(-1)  # channels go as one
    parts = parts.flatten(0, 1)
    covariance = gain**2 * p * (1 - p) * parts @ parts.T
    centred = draws - mean
    z = centred.mean(0) / (centred.std(0) / len(draws) ** 0.5)
    products = centred.unsqueeze(1) * centred.unsqueeze(2)
    z2 = (products.mean(0) - covariance) / (products.std(0) / len(draws) ** 0.5)
    assert float(z.abs().max()) < critical_value(14)
    assert float(z2.abs().max()) < critical_value(14)
    assert float(covariance[:2, 2:].abs().max()) > 1e-3  # rows of one draw belong together


# ---------------------------------------------------------------------- methods


def trained_problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 1)).double()
    x = torch.linspace(-1, 1, 20, dtype=F64).unsqueeze(1)
    return net, x, x.sin()


def test_a_trained_network_needs_no_training():
    net, x, y = trained_problem()
    target = tp.Target(nn.Sequential(*trained_problem()[0]), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    with torch.no_grad():
        net[3].weight += 1.0
    fitted = tp.fit(target, tp.MCDropout(), (x, y), start=net)
    assert fitted.info.steps == 0
    assert torch.equal(fitted.posterior.mean, target.layout.flatten(net))
    hidden = torch.tanh(net[0](x)).detach()
    many = fitted.predict(x, draws=3_000)
    error = (0.25 * (hidden * net[3].weight.detach()).square().sum(1, keepdim=True) / 3_000).sqrt()
    assert float(((many.mean() - net.eval()(x).detach()) / error).abs().max()) < critical_value(20)
    with pytest.raises(ArgumentError, match="without a base"):
        tp.fit(target, tp.MCDropout(), (x, y), steps=5)


def test_training_is_that_of_the_base():
    net, x, y = trained_problem()
    target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    kept = tp.fit(target, tp.MCDropout(tp.MAP(lr=0.01)), (x, y), epochs=5, batch_size=8)
    plain = tp.fit(target, tp.MAP(lr=0.01), (x, y), epochs=5, batch_size=8)
    assert torch.equal(kept.posterior.mean, plain.posterior.theta)
    assert torch.equal(kept.network()(x), plain.network()(x))
    assert float(kept.predict(x).epistemic_std().min()) > 0


@pytest.mark.parametrize("batched", [True, False])
def test_ensembles_spread_between_members_and_within(batched):
    net, x, y = trained_problem()
    target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.MCDropout(tp.MAP(lr=0.01)), 3, batched=batched)
    fitted = tp.fit(target, method, (x, y), epochs=5, batch_size=8)
    made = outputs(fitted, x, 30)
    members = made.view(3, 10, 20, 1)
    assert float(members.std(1).min()) > 1e-4  # masks within a member
    assert float(members.mean(1).std(0).max()) > 1e-3  # members
    torch.testing.assert_close(fitted.predict(x, draws=30).mean(), made.mean(0))
    assert torch.equal(outputs(fitted, x, 30, batched=False), outputs(fitted, x, 30, batched=False))


def test_the_network_given_back_drops_nothing():
    net, x, _ = trained_problem()
    fitted = dropped(net, x)
    wanted = net.eval()(x)
    for batched in (False, True):
        outputs(fitted, x, 3, batched=batched)
        fitted.predict(x, draws=5)
        torch.testing.assert_close(fitted.network()(x), wanted)
    again = fitted.network().train()  # and trains with dropout, as it did
    assert not torch.equal(again(x), again(x))


def test_saved_and_loaded_draws_are_the_same(tmp_path):
    net, x, y = trained_problem()
    target = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0))
    for k, method in enumerate((tp.MCDropout(tp.MAP(lr=0.01)), tp.Ensemble(tp.MCDropout(tp.MAP(lr=0.01)), 2))):
        fitted = tp.fit(target, method, (x, y), epochs=3, batch_size=8)
        fitted.save(tmp_path / str(k))
        loaded = tp.load(tmp_path / str(k), trained_problem()[0])
        assert torch.equal(loaded.predict(x, draws=8).mean(), fitted.predict(x, draws=8).mean())
        assert torch.equal(loaded.predict(x, draws=8).variance(), fitted.predict(x, draws=8).variance())


class Stopped(Exception):
    """Stands for a process that ends."""


def test_resumed_run_is_the_uninterrupted_one(tmp_path, monkeypatch):
    net, x, y = trained_problem()

    def run(**more):
        target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
        return tp.fit(target, tp.MCDropout(tp.MAP(lr=0.01)), (x, y), steps=10, batch_size=8, **more)

    whole, original, count = run(), tp.MCDropout.step, 0

    def step(self, engine, state, batch):
        nonlocal count
        count += 1
        if count > 6:
            raise Stopped
        return original(self, engine, state, batch)

    with monkeypatch.context() as patched:
        patched.setattr(tp.MCDropout, "step", step)
        with pytest.raises(Stopped):
            run(checkpoint=tmp_path / "run", every=4)
    assert torch.equal(run(checkpoint=tmp_path / "run", every=4).posterior.mean, whole.posterior.mean)


# ---------------------------------------------------------------------- networks


class Encoder(nn.Module):
    def __init__(self, p, first=True):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=first)
        self.head, self.first = nn.Linear(8, 1), first

    def forward(self, x):
        x = x if self.first else x.transpose(0, 1)
        return self.head(self.layer(x).mean(1 if self.first else 0))


def test_a_transformer_drops_at_prediction():
    torch.manual_seed(0)
    x = random(5, 4, 8)
    net = Encoder(0.3, first=True)
    fitted = dropped(net, x)
    made = outputs(fitted, x, 20)
    assert float(made.std(0).min()) > 1e-3
    torch.testing.assert_close(fitted.network()(x), net.eval()(x))
    assert torch.equal(made, outputs(fitted, x, 20))


def test_a_transformer_with_words_first_is_refused():
    """With words × rows × features (torch's default) a mask would run over rows, and a draw would be no function."""
    torch.manual_seed(0)
    with pytest.raises(NetworkError, match="batch_first"):
        dropped(Encoder(0.3, first=False), random(5, 4, 8))


class NeverCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(2, 1), nn.Dropout(0.5)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "net",
    [nn.Linear(2, 1), nn.Sequential(nn.Dropout(0.0), nn.Linear(2, 1)), NeverCalled()],
    ids=["none", "p = 0", "never called"],
)
@pytest.mark.parametrize("method", [tp.MCDropout(), tp.Ensemble(tp.MCDropout(tp.MAP()), 2)], ids=["alone", "ensemble"])
def test_networks_that_drop_nothing_are_refused(net, method):
    target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    steps = {} if isinstance(method, tp.MCDropout) else {"steps": 1}
    with pytest.raises(NetworkError, match="dropout"):
        tp.fit(target, method, (torch.randn(4, 2), torch.randn(4, 1)), **steps)


def test_a_base_that_finds_no_point_is_refused():
    net, x, y = trained_problem()
    target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    with pytest.raises(ArgumentError, match="`base`"):
        tp.fit(target, tp.MCDropout(tp.Variational()), (x, y), steps=2)
    with pytest.raises(ArgumentError, match="`base`"):
        tp.MCDropout(3)


def test_masks_are_made_where_the_network_is():
    """The ``meta`` device stands for a GPU: it refuses tensors of the CPU."""
    net = masked(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).to("meta")).eval()
    assert net(torch.zeros(4, 3, device="meta")).shape == (4, 2)


def test_with_a_probability_nothing_is_dropped():
    """The mixture of the network as it is and of the average over masks, in these proportions, with errors of the masks
    alone."""
    net = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Dropout(0.4), nn.Linear(20, 2))
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    plain = tp.fit(target, tp.MCDropout(), (x, torch.zeros(5, dtype=torch.long)))
    probs = {}
    for whole in (0.0, 0.3, 1.0):
        made = tp.Fitted(plain.target, replace(plain.posterior, whole=whole), plain.info)
        probs[whole] = made.predict(x, draws=50, seed=1).probs
    torch.testing.assert_close(probs[0.3], 0.3 * probs[1.0] + 0.7 * probs[0.0])
    torch.testing.assert_close(probs[1.0], net.eval()(x).softmax(-1))
    assert (probs[0.0] - probs[1.0]).abs().max() > 0.01
    nodes = replace(plain.posterior, whole=0.3).nodes(50)
    assert [stratum.drawn for stratum in nodes.strata] == [False, True]
    with pytest.raises(tp.errors.ArgumentError, match="`whole`"):
        replace(plain.posterior, whole=1.5)


@pytest.mark.parametrize("rate", [0.7, 0.05])
def test_held_out_rows_weigh_the_masks(rate, tmp_path):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=rng)
    data = tp.data.Data(x, (x.sum(1, keepdim=True).sin() + 0.05 * torch.randn(400, 1, generator=rng)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Dropout(rate), nn.Linear(30, 1))
    target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MCDropout(tp.MAP(lr=1e-2, patience=5)), data, epochs=30, batch_size=40, seed=0)
    found = fitted.posterior
    rows = fitted.held_out
    each = []
    for whole in (1.0, 0.0):
        one = tp.Fitted(fitted.target, replace(found, whole=whole), fitted.info)
        each.append(one.predict(rows.x).log_prob(rows.y).flatten())
    assert found.whole == pytest.approx(weight_of_first(*each), abs=1e-3)
    assert abs(found.whole - 0.5) > 0.05  # the rows have spoken
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", net)
    assert again.posterior.whole == found.whole
    assert torch.equal(again.predict(x[:9]).mean(), fitted.predict(x[:9]).mean())
    plain = tp.fit(target, tp.MCDropout(tp.MAP(lr=1e-2)), data, epochs=2, batch_size=40)
    assert plain.posterior.whole == 0.0


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout])
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_rates_of_a_posterior_stand_for_those_of_the_network(kind, p):
    x = random(5, 4)

    def target(rate):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), kind(rate), nn.Linear(30, 2)).double()
        return tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))

    theta = target(p).initial_theta()
    own = DropoutPosterior(theta, ("2",))
    told = DropoutPosterior(theta, ("2",), rates=(p,))
    found = []
    for problem, posterior in ((target(p), own), (target(0.6), told), (target(0.0), told)):
        engine = Engine(posterior.retarget(problem))
        drawn, buffers = posterior.nodes(20, 1).fetch(0, 20)
        found.append(engine.outputs(drawn, x, buffers))
    assert torch.allclose(found[0], found[1], atol=1e-7)
    assert torch.allclose(found[0], found[2], atol=1e-7)
    if p == 1.0 and kind is nn.Dropout:
        last = target(p).network[3]
        assert torch.allclose(found[0], last.bias.expand_as(found[0]))


def test_members_that_drop_at_different_rates_each_keep_their_own():
    x = random(5, 4)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Dropout(0.5), nn.Linear(30, 2)).double()
    problem = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    theta = problem.initial_theta()
    parts = tuple(DropoutPosterior(theta, ("2",), rates=(rate,), whole=float(rate == 0.0)) for rate in (0.0, 0.1, 0.8))
    mixture = Mixture(parts)
    made = mixture.nodes(300)
    drawn, buffers = made.fetch(0, len(made))
    together = Engine(mixture.retarget(problem)).outputs(drawn, x, buffers)
    at = 0
    for part in parts:
        nodes = part.nodes(100 if part.whole == 0.0 else 1)
        count = len(nodes)
        alone, own = nodes.fetch(0, count)
        spread = Engine(part.retarget(problem)).outputs(alone, x, own).var(0, correction=0)
        inside = together[at : at + count].var(0, correction=0)
        assert torch.allclose(inside, spread, rtol=0.7, atol=1e-12)
        at += count
    assert at == len(made)


@pytest.mark.parametrize("rates", [(), (0.1, 0.2), (-0.1,), (1.5,), (float("nan"),)])
def test_rates_that_cannot_be(rates):
    with pytest.raises(ArgumentError, match="`rates` must be a probability for each"):
        DropoutPosterior(random(3), ("2",), rates=rates)


# ---------------------------------------------------------------------- rates


def dropping(*rates):
    torch.manual_seed(0)
    first, second = ((nn.Tanh(), nn.Dropout(rate)) for rate in rates)
    net = nn.Sequential(nn.Linear(3, 20), *first, nn.Linear(20, 20), *second, nn.Linear(20, 1))
    return tp.Target(net, tp.Normal(scale=0.3), tp.GaussianPrior(1.0))


def line(n, seed):
    x = random(n, 3, seed=seed).float()
    return x, x[:, :1] + 0.1 * random(n, 1, seed=seed + 100).float()


def test_where_nothing_is_dropped_nothing_is_drawn():
    found = DropoutPosterior(dropping(0.5, 0.5).initial_theta(), ("2", "5"), whole=1.0).nodes()
    assert len(found) == 1
    assert not found.strata[0].drawn


@pytest.mark.parametrize("training", [True, False])
def test_other_rates_leave_the_mode_and_the_given_network(training):
    net = dropping(0.5, 0.5).network.train(training)
    made = at_rates(net, {"2": 0.1})
    assert made.training is made[2].training is training
    assert (made[2].p, made[5].p, net[2].p) == (0.1, 0.5, 0.5)


def test_a_dropout_of_rate_zero_beside_one_that_drops():
    fitted = tp.fit(dropping(0.0, 0.5), tp.MCDropout(tp.MAP(lr=1e-2)), line(30, 0), epochs=2, batch_size=10)
    assert fitted.posterior.whole == 0.0
    assert fitted.posterior.rates == (0.0, 0.5)
    assert float(fitted.predict(line(9, 1)[0]).epistemic_std().min()) > 1e-3


PILOT = tp.TunedDecay(tp.MAP(lr=0.02, patience=15), (1.0,), dropout=(0.0,))


def test_refit_tells_of_the_dropout_that_its_pilot_chose():
    method = tp.Refit(tp.MAP(lr=0.02), PILOT)
    with pytest.warns(TemperanceWarning, match="with none of its dropout"):
        tp.fit(dropping(0.6, 0.6), method, line(200, 0), epochs=60, batch_size=20)


@pytest.mark.parametrize("base", [PILOT, tp.Refit(tp.MAP(), PILOT)])
def test_masks_are_not_put_around_a_point_that_was_trained_with_others(base):
    """Before, the network's own rate was taken, which held-out rows had thought too much."""
    with pytest.raises(ArgumentError, match=r"chooses how often to drop units.*Refit\(MCDropout"):
        tp.MCDropout(base)
    assert tp.MCDropout(tp.TunedDecay(PILOT.base)).base.facts().own_dropout is False
    assert tp.Refit(tp.MCDropout(tp.MAP()), PILOT).facts().own_dropout


def test_posteriors_with_and_without_rates_of_their_own_do_not_mix():
    target = dropping(0.5, 0.5)
    theta = target.initial_theta()
    one, other = DropoutPosterior(theta, ("2", "5")), DropoutPosterior(theta, ("2", "5"), rates=(0.0, 0.0))
    for both in ((one, other), (other, one)):
        nodes = Mixture(both).nodes(4)
        with pytest.raises(ArgumentError, match="`components` must have the same buffers"):
            nodes.fetch(0, len(nodes))


def test_a_rate_of_one_drops_every_unit():
    """No number of the mask is rounded up to one: this draw had one such unit of two million."""
    module = MaskedDropout(nn.Dropout(1.0), 0).eval()
    module.draw.fill_(110867)
    assert not module(torch.ones(1, 2_000_000)).any()


def test_what_is_kept_is_scaled_as_exactly_as_it_can_be_written():
    x = torch.ones(1, 4000, dtype=torch.bfloat16)
    module = MaskedDropout(nn.Dropout(0.3), 0).eval()
    module.draw.fill_(7)
    made = module(x)
    assert made.dtype == torch.bfloat16
    assert set(made.flatten().tolist()) == {0.0, float(torch.tensor(1 / 0.7).bfloat16())}
