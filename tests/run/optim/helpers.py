"""Quadratics with known answers, and the optimisers as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.run import optim
from temperance.testing import critical_value

COORDINATES = 20_000
LANGEVIN = {
    "SGLD": optim.SGLD,
    "SGHMC": optim.SGHMC,
    "PSGLD": optim.PSGLD,
    "SGNHT": optim.SGNHT,
    "BAOAB": optim.BAOAB,
    "LeimkuhlerMatthews": optim.LeimkuhlerMatthews,
}
ALL = {**LANGEVIN, "GGMC": optim.GGMC}
CENTRE = 0.7  # of every quadratic: a symmetric target would not see a sign error


@dataclass
class Moment:
    """A time average over each of many independent coordinates: their mean, and its standard error."""

    mean: float
    error: float

    def is_(self, expected: float, comparisons: int = 60) -> bool:
        """Within Monte-Carlo error."""
        return abs(self.mean - expected) < critical_value(comparisons) * self.error


def moment(total: Tensor, steps: int) -> Moment:
    each = total.double() / steps
    return Moment(float(each.mean()), float(each.std()) / math.sqrt(len(each)))


def run_quadratics(optimizer, curvatures, *, burn, steps):
    """Run U = ½ k (θ − 0.7)² for each group's one parameter; by group, the moments of θ − 0.7 and of v."""
    params = [group["params"][0] for group in optimizer.param_groups]
    sums = [{name: torch.zeros(p.numel()) for name in ("mean", "theta", "velocity", "both")} for p in params]
    for step in range(burn + steps):
        for p, k, group in zip(params, curvatures, optimizer.param_groups, strict=True):
            p.grad = (p.detach() - CENTRE).mul_(k / group["num_data"])
        optimizer.step()
        if step < burn:
            continue
        for p, total in zip(params, sums, strict=True):
            theta = p.detach() - CENTRE
            total["mean"] += theta
            total["theta"].addcmul_(theta, theta)
            if "velocity" in optimizer.state[p]:
                velocity = optimizer.state[p]["velocity"]
                total["velocity"].addcmul_(velocity, velocity)
                total["both"].addcmul_(theta, velocity)
    return [{name: moment(value, steps) for name, value in total.items()} for total in sums]


def parameters(count=1, dtype=torch.float32, size=COORDINATES):
    return [torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for _ in range(count)]


def symplectic_euler(lr, beta, n, k, temperature, mass=1.0, pace=1.0):
    """Var θ and Var v of the closed form (protocol A.2), with mass and pace."""
    beta, h2 = 1 - pace * (1 - beta), pace**2 * lr / n
    below = (1 + beta) / 2 - h2 * k / (4 * mass)
    return temperature / k * (1 + beta) / 2 / below, temperature / mass / below


class Net(torch.nn.Module):
    """Parameters of every shape that trips people."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.scalar = torch.nn.Parameter(torch.tensor(0.3, dtype=dtype))
        self.kernel = torch.nn.Conv2d(1, 2, 3, dtype=dtype)
        self.head = torch.nn.Linear(8, 3, dtype=dtype)
        self.spare = torch.nn.Parameter(torch.ones(4, dtype=dtype))  # used by nobody: it never has a gradient

    def forward(self, x):
        return self.head(torch.tanh(self.kernel(x)).flatten(1)) * self.scalar


def make_net(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return Net(dtype)


def batches(count, dtype=torch.float32):
    rng = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(6, 1, 4, 4, generator=rng, dtype=torch.float64).to(dtype)
        yield x, torch.randint(0, 3, (6,), generator=rng)


def train(net, optimizer, data, scheduler=None):
    for x, y in data:

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        if scheduler is not None:
            scheduler.step()


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])
