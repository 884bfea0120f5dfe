"""Your own arrays, in your own units: standardise, learn the noise, and read means and intervals in original units."""

import numpy as np
import torch

import temperance as tp

rng = np.random.default_rng(0)
x = rng.uniform(0, 10, size=(500, 3))
y = 1000 + 80 * x[:, 0] - 15 * x[:, 1] ** 1.5 + rng.normal(0, 20, size=500)  # say, prices

train = tp.data.Data(x[:400], y[:400]).standardise()
test = tp.data.Data(x[400:], y[400:]).standardise(train.info)

torch.manual_seed(0)
target = tp.Target(tp.nn.MLP(3, [50], 1), tp.Normal(), tp.GaussianPrior(scale=1.0))  # Normal() learns the noise
fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-2), 5), train, epochs=100)

pred = fitted.predict(test.x)
mean = train.info.in_units(pred.mean()).squeeze(1)
low, high = (train.info.in_units(end).squeeze(1) for end in pred.interval(0.9))
truth = torch.from_numpy(y[400:])
inside = ((truth > low) & (truth < high)).double().mean()
print(f"first row: {mean[0]:.0f}, 90 % interval {low[0]:.0f} to {high[0]:.0f}, truth {truth[0]:.0f}")
noise = train.info.spread_in_units(pred.aleatoric_variance().sqrt()).mean()
print(f"{inside:.0%} of the truths lie in their interval; learned noise {noise:.1f} (true 20)")
assert 0.75 < inside <= 1.0
