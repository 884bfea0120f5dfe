"""A long run that may be stopped at any time: it goes on from its checkpoint, bit for bit."""

import tempfile

import torch

import temperance as tp

torch.manual_seed(0)
train, test = tp.data.load("breast-cancer")
net = tp.nn.MLP(30, [50], 2)


def run(epochs: int, checkpoint: str | None = None) -> tp.Fitted:
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
    return tp.fit(target, tp.MAP(lr=1e-3), train, epochs=epochs, checkpoint=checkpoint, every=10)


with tempfile.TemporaryDirectory() as folder:
    run(10, f"{folder}/run")  # stopped here, by a time limit or by Ctrl-C or by a power cut
    resumed = run(20, f"{folder}/run")
whole = run(20)
assert torch.equal(resumed.posterior.theta, whole.posterior.theta)
print("stopped and resumed equals never stopped; log-loss", round(resumed.evaluate(test)["log_loss"], 3))
