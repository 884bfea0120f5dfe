"""IVON and VOGN in a loop of one's own."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, NumericalError
from temperance.engine.engine import Engine
from temperance.testing import conjugate_regression


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)).to(dtype)


def rows(count=24):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 3, 3, generator=rng, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=rng)


def make(kind, net, **options):
    options = {"lr": 0.1, "num_data": 24, "betas": (0.9, 0.95), "weight_decay": 0.01, **options}
    return tp.optim.IVON(net.parameters(), **options) if kind == "ivon" else tp.optim.VOGN(net, **options)


def train(net, optimizer, steps, pieces=1, samples=1):
    x, y = rows()
    for _ in range(steps):
        optimizer.zero_grad()
        for sample in range(samples):
            for part, labels in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
                with optimizer.perturbed(sample):
                    (F.cross_entropy(net(part), labels) / pieces).backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def state(optimizer):
    return [v for s in optimizer.state.values() for v in s.values()]


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
@pytest.mark.parametrize("samples", [1, 3])
def test_micro_batches_add_up_to_one_large_batch(kind, samples):
    found = []
    for pieces in (1, 4):
        net = network()
        optimizer = make(kind, net, samples=samples)
        found.append((train(net, optimizer, 5, pieces, samples), state(optimizer)))
    for one, four in zip(*found, strict=True):
        for a, b in zip(one, four, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
def test_a_state_dict_resumes_exactly(kind):
    net = network()
    optimizer = make(kind, net)
    train(net, optimizer, 3)
    other = copy.deepcopy(network())
    other.load_state_dict(net.state_dict())
    resumed = make(kind, other, seed=5)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for a, b in zip(train(net, optimizer, 3), train(other, resumed, 3), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
def test_the_block_gives_the_means_back_bit_for_bit(kind):
    net = network()
    optimizer = make(kind, net)
    before = [p.detach().clone() for p in net.parameters()]
    with optimizer.perturbed():
        assert not torch.equal(before[0], net[0].weight)
    with optimizer.drawn(3):
        drawn = net[0].weight.detach().clone()
    with optimizer.drawn(3):
        assert torch.equal(drawn, net[0].weight)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_gradient_scaler_changes_nothing(kind, samples):
    plain, scaled = network(torch.float32), network(torch.float32)
    one, two = (make(kind, net, samples=samples) for net in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = rows()
    for _ in range(4):
        for net, optimizer, factor in ((plain, one, None), (scaled, two, scaler)):
            optimizer.zero_grad()
            for sample in range(samples):
                with optimizer.perturbed(sample):
                    loss = F.cross_entropy(net(x.float()), y)
                    (loss if factor is None else factor.scale(loss)).backward()
            if factor is None:
                optimizer.step()
            else:
                factor.step(optimizer)
                factor.update()
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(state(one), state(two), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
def test_autocast_leaves_weights_and_state_in_single_precision(kind):
    net = network(torch.float32)
    optimizer = make(kind, net)
    x, y = rows()
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.perturbed(), torch.autocast("cpu", dtype=torch.bfloat16):
            F.cross_entropy(net(x.float()), y).backward()
        optimizer.step()
    assert all(p.dtype == torch.float32 and bool(torch.isfinite(p).all()) for p in net.parameters())
    assert all(v.dtype == torch.float32 for v in state(optimizer))


def test_ivon_takes_the_same_step_as_under_fit():
    """One draw, the same noise: the rules agree to rounding."""
    problem = conjugate_regression()
    target, data = problem.target, problem.data
    method = tp.IVON(lr=0.05, betas=(0.9, 0.99), initial_hessian=10.0, schedule=tp.flat)
    engine = Engine(target)
    run = method.init(engine, tp.Starts.of(torch.zeros(3, dtype=torch.float64)), [torch.Generator().manual_seed(0)])
    net = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(net.weight)
    optimizer = tp.optim.IVON(
        net.parameters(), lr=0.05, num_data=10, betas=(0.9, 0.99), initial_hessian=10.0, weight_decay=0.1
    )
    optimizer.param_groups[0]["noise_seed"] = run.noise_seed
    for batch in list(data.full_pass(10)) * 5:
        run, _ = method.step(engine, run, batch)
        optimizer.zero_grad()
        with optimizer.perturbed():
            (0.5 * (net(data.x) - data.y).square() / 0.01).mean().backward()
        optimizer.step()
        torch.testing.assert_close(net.weight.flatten().detach(), run.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(optimizer.state[net.weight]["hessian"].flatten(), run.hessian, rtol=1e-6, atol=1e-8)


def test_vogn_sees_the_mean_of_squared_gradients():
    net, twin = network(), network()
    optimizer, same = (make("vogn", n, betas=(0.9, 0.0), lr=1e-9) for n in (twin, net))
    x, y = rows()
    squares = []
    with same.perturbed():
        for k in range(len(x)):
            found = torch.autograd.grad(F.cross_entropy(net(x[k : k + 1]), y[k : k + 1]), list(net.parameters()))
            squares.append(torch.cat([g.flatten() for g in found]).square())
    train(twin, optimizer, 1)
    seen = torch.cat([optimizer.state[p]["hessian"].flatten() for p in twin.parameters()])
    torch.testing.assert_close(seen, torch.stack(squares).mean(0), rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_it_learns_the_conjugate_posterior():
    problem = conjugate_regression()
    net = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    optimizer = tp.optim.IVON(
        net.parameters(), lr=0.02, num_data=10, betas=(0.9, 0.999), initial_hessian=10.0, weight_decay=0.1, samples=8
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000)
    for _ in range(3000):
        optimizer.zero_grad()
        for sample in range(8):
            with optimizer.perturbed(sample):
                (0.5 * (net(problem.data.x) - problem.data.y).square() / 0.01).mean().backward()
        optimizer.step()
        scheduler.step()
    size = problem.covariance.diagonal().sqrt()
    assert float(((net.weight.detach().flatten() - problem.mean) / size).abs().max()) < 0.15
    variance = optimizer.scale_of(net.weight).flatten().square()
    torch.testing.assert_close(variance, 1 / problem.precision.diagonal(), rtol=0.12, atol=0)


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_step_that_was_skipped_leaves_no_trace(kind, samples):
    """A scaler finds an infinite gradient, or the user throws a block away: the next step is as if it had not been."""
    x, y = rows()
    found = []
    for skip in (False, True):
        net = network(torch.float32)
        optimizer = make(kind, net, samples=samples)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for wrong in [False, True, False] if skip else [False, False]:
            optimizer.zero_grad()
            for sample in range(samples):
                with optimizer.perturbed(sample):
                    loss = F.cross_entropy(net(x.float()), y) * (float("inf") if wrong else 1.0)
                    scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(4.0)
        found.append([*(p.detach().clone() for p in net.parameters()), *state(optimizer)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["ivon", "vogn"])
def test_copies_of_network_and_optimiser_go_on_by_themselves(kind):
    net = network()
    optimizer = make(kind, net)
    train(net, optimizer, 2)
    other, twin = copy.deepcopy((net, optimizer))
    for a, b in zip(train(net, optimizer, 2), train(other, twin, 2), strict=True):
        assert torch.equal(a, b)


def test_vogn_leaves_nothing_on_the_network():
    net = network()
    optimizer = make("vogn", net)
    train(net, optimizer, 1)
    with pytest.raises(RuntimeError), optimizer.perturbed():
        net(torch.zeros(1, 2))  # inputs of a wrong shape
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
    assert copy.deepcopy(net)(rows()[0]).shape == (24, 3)


def test_vogn_counts_only_passes_with_gradients():
    found = []
    for looks in (0, 2):
        net = network()
        optimizer = make("vogn", net)
        x, y = rows()
        with optimizer.perturbed():
            for _ in range(looks):
                with torch.no_grad():
                    net(x)
            F.cross_entropy(net(x), y).backward()
        optimizer.step()
        found.append(state(optimizer))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_frozen_stays():
    net = network()
    net[0].weight.requires_grad_(False)
    optimizer = make("ivon", net)
    before = net[0].weight.clone()
    with optimizer.perturbed():
        assert torch.equal(net[0].weight, before)
        F.cross_entropy(net(rows()[0]), rows()[1]).backward()
    optimizer.step()
    assert torch.equal(net[0].weight, before)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, batch):
        return self.layer(batch["x"])


def test_vogn_takes_inputs_in_a_dict():
    net = Named()
    optimizer = tp.optim.VOGN(net, lr=0.1, num_data=5)
    with optimizer.perturbed():
        net({"x": torch.randn(4, 2)}).square().mean().backward()
    optimizer.step()


class TestBadInput:
    def test_a_step_without_a_block(self):
        net = network()
        optimizer = make("ivon", net)
        F.cross_entropy(net(rows()[0]), rows()[1]).backward()
        with pytest.raises(ArgumentError, match="perturbed"):
            optimizer.step()

    def test_blocks_do_not_nest(self):
        optimizer = make("ivon", network())
        with pytest.raises(ArgumentError, match="nest"), optimizer.perturbed(), optimizer.drawn(0):
            pass

    def test_a_gradient_that_is_not_finite_changes_nothing(self):
        net = network()
        optimizer = make("ivon", net)
        before = [p.detach().clone() for p in net.parameters()]
        with optimizer.perturbed():
            (net(rows()[0]).sum() * float("nan")).backward()
        with pytest.raises(NumericalError, match="not finite"):
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"lr": 0.0},
            {"num_data": 0},
            {"betas": (0.9, 1.0)},
            {"weight_decay": -1.0},
            {"temperature": 0.0},
            {"samples": 0},
            {"clip": -1.0},
            {"initial_hessian": 0.0},
        ],
    )
    def test_numbers_that_break_their_rule(self, wrong):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            make("ivon", network(), **wrong)

    def test_vogn_refuses_what_it_cannot_see(self):
        with pytest.raises(NetworkError, match="LSTM"):
            tp.optim.VOGN(nn.LSTM(2, 2), lr=0.1, num_data=5)
        with pytest.raises(NetworkError, match="BatchNorm"):
            tp.optim.VOGN(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), lr=0.1, num_data=5)
        tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        tied[1].weight = tied[0].weight
        with pytest.raises(NetworkError, match="tied"):
            tp.optim.VOGN(tied, lr=0.1, num_data=5)

    def test_all_samples_are_needed(self):
        net = network()
        optimizer = make("ivon", net, samples=3)
        with optimizer.perturbed(0):
            F.cross_entropy(net(rows()[0]), rows()[1]).backward()
        with pytest.raises(ArgumentError, match="samples"):
            optimizer.step()

    def test_vogn_finds_out_a_layer_that_is_never_called(self):
        class Functional(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

            def forward(self, x):
                return F.linear(self.a(x), self.b.weight, self.b.bias)

        net = Functional()
        optimizer = tp.optim.VOGN(net, lr=0.1, num_data=5)
        with optimizer.perturbed():
            net(torch.randn(4, 2)).square().mean().backward()
        with pytest.raises(NetworkError, match="not seen its layer"):
            optimizer.step()

    def test_vogn_finds_out_a_weight_used_elsewhere(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)

            def forward(self, x):
                return F.linear(self.layer(x), self.layer.weight)

        net = Twice()
        optimizer = tp.optim.VOGN(net, lr=0.1, num_data=5)
        with pytest.raises(NetworkError, match="elsewhere"), optimizer.perturbed():
            net(torch.randn(4, 2)).square().mean().backward()
