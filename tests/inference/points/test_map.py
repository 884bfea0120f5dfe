from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.engine.engine import Engine
from temperance.testing import conjugate_regression


def test_map_step_for_step_equals_a_hand_written_loop():
    """The same optimiser, the same batches, weight decay 1/(N s²): the same numbers."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    x, y = torch.randn(30, 3, dtype=torch.float64), torch.randint(0, 4, (30,))
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(0.5))
    method = tp.MAP(lr=0.1, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9}, clip=0.05)
    fitted = tp.fit(target, method, (x, y), epochs=4, batch_size=8, seed=5)
    data = tp.data.Data(x, y)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(4):
        for batch in data.batches(8, seed=5, epoch=epoch):
            optimizer.zero_grad()
            prior = sum(p.square().sum() for p in network.parameters()) / (2 * 0.5**2)
            (nn.functional.cross_entropy(network(batch.x), batch.y) + prior / 30).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.05)
            optimizer.step()
    by_hand = torch.cat([p.detach().flatten() for p in network.parameters()])
    assert torch.allclose(fitted.posterior.theta, by_hand, atol=1e-6)


def test_golden_ridge_regression():
    problem = conjugate_regression()
    exactly = {"tolerance_grad": 1e-14, "tolerance_change": 1e-16}
    method = tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS, optimizer_args=exactly)
    fitted = tp.fit(problem.target, method, problem.data, steps=40, batch_size=10)
    assert float(fitted.posterior.theta[1]) == pytest.approx(0.770490361, abs=1e-8)
    at = torch.tensor([[1.0, 0.5, 0.25]], dtype=torch.float64)
    assert float(fitted.predict(at).mean()) == pytest.approx(0.3852451805, abs=1e-7)


def test_early_stopping_keeps_the_best_weights():
    torch.manual_seed(0)
    x = torch.randn(60, 10)
    y = (x[:, 0] + 1.5 * torch.randn(60) > 0).long()
    held = (torch.randn(200, 10), torch.randint(0, 2, (200,)))
    held = (held[0], (held[0][:, 0] + 1.5 * torch.randn(200) > 0).long())
    target = tp.Target(tp.nn.MLP(10, [64], 2), tp.Categorical(), tp.GaussianPrior(10.0))
    for method in (tp.MAP(lr=0.01, patience=4), tp.Ensemble(tp.MAP(lr=0.01, patience=4), 3)):
        stopped = tp.fit(target, method, (x, y), epochs=200, batch_size=20, held_out=held)
        assert stopped.info.status.code == "early-stopped"
        assert stopped.info.steps < 600
        base = tp.Ensemble(tp.MAP(lr=0.01), 3) if isinstance(method, tp.Ensemble) else tp.MAP(lr=0.01)
        longer = tp.fit(target, base, (x, y), epochs=200, batch_size=20)
        assert stopped.evaluate(held)["log_loss"] < longer.evaluate(held)["log_loss"] - 0.1
    apart = tp.fit(target, tp.MAP(lr=0.01, patience=2), (x, y), epochs=100)
    assert (apart.info.data["rows"], len(apart.held_out)) == (54, 6)  # a tenth, where nobody names any
    part = tp.fit(target, tp.MAP(lr=0.01, patience=2), (x, y), epochs=100, held_out=0.2)
    assert part.info.data["rows"] == 48


def test_schedulers_and_optimisers():
    target = tp.Target(nn.Linear(2, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    x, y = torch.randn(20, 2), torch.randint(0, 2, (20,))
    schedulers = torch.optim.lr_scheduler
    for scheduler, args in [
        (schedulers.StepLR, {"step_size": 2}),
        (schedulers.CosineAnnealingLR, {"T_max": 5}),
        (schedulers.OneCycleLR, {"max_lr": 0.1, "total_steps": 50}),
    ]:
        method = tp.MAP(lr=0.1, optimizer=torch.optim.SGD, scheduler=scheduler, scheduler_args=args)
        tp.fit(target, method, (x, y), epochs=5)
    names = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop"]
    for name in names:
        flat = tp.fit(target, tp.MAP(lr=0.01, optimizer=getattr(torch.optim, name)), (x, y), epochs=3)
        assert torch.isfinite(flat.posterior.theta).all()


def test_bad_arguments():
    for lr in (0.0, -1e-3, float("nan"), None):
        with pytest.raises(ArgumentError, match="`lr` must be a positive finite number"):
            tp.MAP(lr=lr)
    with pytest.raises(ArgumentError, match="`optimizer` must be a torch"):
        tp.MAP(optimizer="adam")
    with pytest.raises(ArgumentError, match="`clip`"):
        tp.MAP(clip=0.0)
    with pytest.raises(ArgumentError, match="`patience`"):
        tp.MAP(patience=0)
    target = tp.Target(nn.Linear(2, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    data = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ArgumentError, match=r"`optimizer_args` must suit Adam.*beta"):
        tp.fit(target, tp.MAP(optimizer_args={"beta": 1}), data, epochs=1)
    with pytest.raises(ArgumentError, match=r"`scheduler_args` must suit StepLR"):
        tp.fit(target, tp.MAP(scheduler=torch.optim.lr_scheduler.StepLR), data, epochs=1)


def test_adamw_does_not_decay_behind_the_priors_back():
    problem = tp.testing.linear_gaussian()
    method = tp.MAP(lr=0.05, optimizer=torch.optim.AdamW)
    engine = Engine(problem.target, problem.target.prepare(problem.data))
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    assert state.optimizer.param_groups[0]["weight_decay"] == 0.0
    with pytest.warns(TemperanceWarning, match="on top of the prior"):
        tp.MAP(optimizer_args={"weight_decay": 0.1})


STOPS = tp.MAP(lr=0.01, patience=2)


@pytest.mark.parametrize("method", [STOPS, tp.Ensemble(tp.TunedDecay(STOPS), 2)], ids=["bare", "wrapped"])
def test_patience_that_nobody_could_serve_is_told(method):
    """Nineteen rows are not divided, and twenty are; rows that are named serve however few they are."""
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    target = tp.Target(nn.Linear(3, 1), tp.Normal(scale=0.5), tp.GaussianPrior(1.0))
    with pytest.warns(TemperanceWarning, match="`patience` did nothing"):
        few = tp.fit(target, method, (x[:19], x[:19, :1]), epochs=3)
    assert any("`patience`" in words for words in few.info.remarks)
    for rows, options in ((x, {}), (x[:15], {"held_out": (x[15:], x[15:, :1])})):
        assert not tp.fit(target, method, (rows, rows[:, :1]), epochs=3, **options).info.remarks
