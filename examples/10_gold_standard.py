"""What is the true posterior? Exact samplers, several basins, and what lies between them.

Draws from a density of one's own; runs NUTS on a small network and looks at whether it can be trusted; compares cheap
methods with it; makes hidden units of different chains comparable; and walks from one mode to another.
"""

import torch
from torch import nn

import temperance as tp

torch.manual_seed(0)

# A log density of one's own: a banana. Chains run side by side, and R-hat and effective draws come with them.


def banana(theta):
    return -0.5 * theta[0] ** 2 / 4 - 0.5 * (theta[1] - theta[0] ** 2 / 4) ** 2


found = tp.sample(banana, torch.zeros(2), tp.Warmup(tp.NUTS(), 200, accept=0.95), draws=300, chains=4)
print(f"banana: mean {found.mean().tolist()}, R-hat {found.rhat().max():.3f}, ESS {found.ess().min():.0f}")

# A network. On a CPU, small fully connected networks run in compiled C: some 50 µs a gradient of 1,000 weights.
train, test = tp.data.load("two-moons", n=200)
target = tp.Target(tp.nn.MLP(2, [10, 10], 2, nn.Tanh), tp.Categorical(), tp.GaussianPrior(1.0))
gold = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(max_depth=7), 150), last=100), 4)
truth = tp.fit(target, gold, train)
print(tp.diagnose.sampling(truth, train))
reference = truth.predict(test.x).probs

# How near do cheaper methods come?
cheap = {
    "MAP": tp.MAP(lr=0.01),
    "ensemble": tp.Ensemble(tp.MAP(lr=0.01), 5),
    "repulsive": tp.RepulsiveEnsemble(5, lr=0.01),
    "mean field": tp.Variational(lr=0.01),
    "PCA subspace": tp.Subspace(tp.Collect(tp.Warmup(tp.NUTS(max_depth=6), 150), last=100), tp.PCA(5)),
}
for name, method in cheap.items():
    fitted = tp.fit(target, method, train, steps=600)
    distance = tp.scores.total_variation(fitted.predict(test.x).probs, reference)
    print(f"{name:>13}: log-loss {fitted.evaluate(test)['log_loss']:.3f}, total variation to NUTS {distance:.3f}")

# Hidden units may change places from chain to chain: put them into one order before reading weights.
ordered = tp.symmetry.align(target, truth.posterior, truth.posterior.components[0].theta[-1])
before, after = (tp.diagnose.weights(p, target=target).rhat.median() for p in (truth.posterior, ordered))
print(f"median R-hat of weights: {before:.2f} as drawn, {after:.2f} with hidden units matched")

# Two modes are connected by a valley, along which predictions differ.
curve = tp.fit(target, tp.Curve(tp.MAP(lr=0.01)), train, steps=800)
along = tp.diagnose.loss_along(curve, train)
print(f"barrier between two modes: {along.straight_barrier:.2f} straight, {along.barrier:.2f} along the curve")
