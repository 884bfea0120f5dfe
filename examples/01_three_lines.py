"""From a network to honest uncertainty in three lines, saved and loaded again."""

import tempfile

import torch

import temperance as tp

torch.manual_seed(0)
train, test = tp.data.load("digits")
net = tp.nn.MLP(64, [128, 128], 10)  # or any nn.Module

target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-3), 5), train, epochs=20, seed=0)
pred = fitted.predict(test.x)

print("scores on test digits:", {name: round(value, 3) for name, value in fitted.evaluate(test).items()})
noise = fitted.predict(torch.rand(200, 64))
print(f"entropy of digits {pred.entropy().mean():.2f} nats, of noise {noise.entropy().mean():.2f} nats")
assert noise.entropy().mean() > pred.entropy().mean()

with tempfile.TemporaryDirectory() as folder:
    fitted.save(f"{folder}/run")
    again = tp.load(f"{folder}/run", tp.nn.MLP(64, [128, 128], 10))
    assert torch.equal(again.predict(test.x).probs, pred.probs)  # the same numbers, bit for bit
    print("saved, loaded, and bit for bit the same")
