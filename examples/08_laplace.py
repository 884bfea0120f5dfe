"""A network that is trained already: uncertainty by one pass over the data.

Trains an ordinary network with an ordinary loop, then puts a Laplace posterior around it: predictions with error bars,
whole functions drawn from the posterior, and the evidence, by which the strength of the prior, the noise and the
architecture can be chosen without a validation set.
"""

import torch
from torch import nn

import temperance as tp

torch.manual_seed(0)
x = torch.cat([torch.linspace(-2, -0.5, 40), torch.linspace(0.5, 2, 40)]).unsqueeze(1)
y = torch.sin(2 * x) + 0.1 * torch.randn(80, 1)

# Somebody's network and somebody's loop.
net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
for _ in range(1500):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# One pass: the curvature of every layer, and the posterior it implies.
target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
# Its width is the prior's own (tune=None); rows that the network has not seen choose another: held_out=(x_new, y_new).
fitted = tp.fit(target, tp.Laplace(curvature=tp.Dense(), tune=None), (x, y), start=net)
at = torch.tensor([[-1.0], [0.0], [1.0], [4.0]])
pred = fitted.predict(at)
print("   x    mean   what data left open   with noise")
for row in zip(at, pred.mean(), pred.epistemic_std(), pred.std(), strict=True):
    print("{:5.1f}  {:6.2f}  {:19.3f}  {:10.3f}".format(*(float(v) for v in row)))
assert float(pred.epistemic_std()[3]) > 3 * float(pred.epistemic_std()[0])  # far from the data it knows less

# Functions, not points: each draw is smooth in x, as Thompson sampling needs it.
grid = torch.linspace(-3, 3, 7).unsqueeze(1)
print("three functions at", grid.flatten().tolist())
print(fitted.predict(grid).output_functions()[:3, :, 0].round(decimals=2))

# Evidence needs a mode of *this* target: here the trained weights are only a start.
method = tp.Laplace(
    tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS, optimizer_args={"line_search_fn": "strong_wolfe"}),
    curvature=tp.Dense(),
    tune=tp.Tune("layer", noise=True, every=4),
)
evidence = {}
for width in (2, 30):
    torch.manual_seed(0)
    shape = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)).double()
    chosen = tp.fit(
        tp.Target(shape, tp.Normal(scale=0.3), tp.GaussianPrior(scale=1.0)), method, (x.double(), y.double()), epochs=40
    )
    evidence[width] = chosen.log_evidence()
    noise = chosen.target.likelihood.scale
    print(f"{width:3d} hidden units: log evidence {evidence[width]:6.1f}, noise {noise:.3f} (it was 0.1)")
assert evidence[30] > evidence[2] - 20

# A part of the network is enough for a classifier: the last layer, with Kronecker factors, any trained nn.Module.
train, test = tp.data.load("digits")
digits = tp.Target(tp.nn.MLP(64, [64, 64], 10), tp.Categorical(), tp.GaussianPrior(scale=1.0))
last = tp.fit(digits, tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=1e-3))), train, epochs=30)
print({name: round(value, 3) for name, value in last.evaluate(test).items()})
