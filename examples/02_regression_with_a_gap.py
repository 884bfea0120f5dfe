"""One-dimensional regression with a gap in the data: noise (aleatoric) and ignorance (epistemic) told apart."""

from pathlib import Path

import matplotlib
import torch

import temperance as tp

matplotlib.use("Agg")
from matplotlib import pyplot as plt

torch.manual_seed(0)
train, _ = tp.data.load("sine")
target = tp.Target(
    tp.nn.MLP(1, [50, 50], 1, activation=torch.nn.Tanh), tp.Normal(scale=0.1), tp.GaussianPrior(tp.FanIn(2.0))
)
fitted = tp.fit(target, tp.Ensemble(tp.Anchored(tp.MAP(lr=1e-2)), 20), train, epochs=300)

x = torch.linspace(float(train.x.min()) - 1, float(train.x.max()) + 1, 200).unsqueeze(1)
pred = fitted.predict(x)
mean, total, ignorance = (t.squeeze(1) for t in (pred.mean(), pred.std(), pred.epistemic_std()))

inside = fitted.predict(train.x).epistemic_std().mean()
gap = fitted.predict(torch.zeros(1, 1)).epistemic_std().mean()
print(f"epistemic standard deviation: {inside:.3f} at the data, {gap:.3f} in the gap")
assert gap > 2 * inside

out = Path("out/examples")
out.mkdir(parents=True, exist_ok=True)
figure, axis = plt.subplots(figsize=(7, 4))
axis.fill_between(x.squeeze(1), mean - 2 * total, mean + 2 * total, color="#1b6ca8", alpha=0.2, label="all, ± 2 sd")
axis.fill_between(
    x.squeeze(1), mean - 2 * ignorance, mean + 2 * ignorance, color="#d98c21", alpha=0.5, label="epistemic"
)
axis.plot(x.squeeze(1), mean, color="black", linewidth=1)
axis.plot(train.x.squeeze(1), train.y.squeeze(1), ".", color="black", markersize=3, label="data")
axis.legend(frameon=False)
figure.savefig(out / "regression_with_a_gap.png", dpi=120)
print(f"wrote {out / 'regression_with_a_gap.png'}")
