"""Sample a network's posterior, ask whether the sampling is right, and see why weights are the wrong place to look.

Four chains of SGHMC on a small MLP. Hidden units can be permuted without changing the function, so chains sit in
different copies of the same solution: R-hat of the weights is large however long one samples; that of the predictions
is what counts.
"""

import torch

import temperance as tp

torch.set_num_threads(1)
rng = torch.Generator().manual_seed(0)
x = torch.rand(100, 1, generator=rng) * 4 - 2
y = torch.sin(2 * x) + 0.3 * torch.randn(100, 1, generator=rng)

target = tp.Target(tp.nn.MLP(1, [8], 1, activation=torch.nn.Tanh), tp.Normal(scale=0.3), tp.GaussianPrior(scale=1.0))
chain = tp.Collect(tp.SGHMC(lr=5e-3, momentum=0.98), burn=4000, every=100)
fitted = tp.fit(target, tp.Ensemble(chain, 4), (x, y), steps=16_000, batch_size=100, seed=0, progress=False)

print(tp.diagnose.sampling(fitted, (x, y)))
grid = torch.linspace(-2, 2, 30).unsqueeze(1)
in_weights, in_function = tp.diagnose.weights(fitted), tp.diagnose.predictions(fitted, grid)
print(f"median R-hat of the weights {in_weights.median_rhat:.2f}, of the predictions {in_function.median_rhat:.3f}")

mean, std = fitted.predict(grid).mean(), fitted.predict(grid).std()
print(f"at x = 0: {mean[15].item():.2f} ± {std[15].item():.2f}")
