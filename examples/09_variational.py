"""A distribution in place of each weight: variational inference, at about the price of Adam.

Fits a mean field, a full covariance and SWAG to one problem by changing one expression; looks at the evidence lower
bound; trains with IVON in a loop of one's own; and keeps dropout on at prediction.
"""

import torch
from torch import nn

import temperance as tp

torch.manual_seed(0)
x = torch.cat([torch.linspace(-1.5, -0.5, 30), torch.linspace(0.5, 1.5, 30)]).unsqueeze(1)
y = torch.sin(3 * x) + 0.1 * torch.randn(60, 1)
prior = tp.GaussianPrior(tp.FanIn(gain=2.0))
target = tp.Target(tp.nn.MLP(1, [20], 1, activation=nn.Tanh), tp.Normal(scale=0.1), prior)

# One expression says which q. An ELBO closer to zero is a tighter bound on the evidence: correlations are worth nats.
decay = {"scheduler": torch.optim.lr_scheduler.ExponentialLR, "scheduler_args": {"gamma": 0.998}}
sgd = tp.MAP(lr=1e-3, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
methods = {
    "mean field": tp.Variational(tp.MeanField(), lr=0.02, samples=4, **decay),
    "full covariance": tp.Variational(tp.FullRank(), lr=0.02, samples=4, **decay),
    "SWAG": tp.SWAG(sgd, rank=10),
}
at = torch.tensor([[-1.0], [0.0], [3.0]])
for name, method in methods.items():
    fitted = tp.fit(target, method, (x, y), epochs=1000, batch_size=60)
    bound = "no bound" if name == "SWAG" else f"ELBO {fitted.elbo((x, y), draws=300).value:.1f}"
    spread = [round(float(s), 2) for s in fitted.predict(at, draws=200).epistemic_std()]
    print(f"{name:16s} {bound:12s} spread at -1, 0, 3: {spread}")

# Less noise in the gradient, without touching the network: noise at the outputs of layers, of its own for each row.
train, test = tp.data.load("digits")
digits = tp.Target(tp.nn.MLP(64, [64], 10), tp.Categorical(), tp.GaussianPrior(scale=1.0))
for estimator in ("shared", "flipout", "local"):
    fitted = tp.fit(digits, tp.Variational(lr=5e-3, estimator=estimator), train, epochs=40)
    print(estimator, "ELBO after 40 epochs:", round(fitted.info.elbos[-1]))

# A loop of your own: IVON in place of Adam. The parameters are means; inside the block they are a draw.
net = tp.nn.MLP(64, [64], 10)
optimizer = tp.optim.IVON(net.parameters(), lr=0.1, num_data=len(train), weight_decay=1 / len(train))
for epoch in range(15):
    for batch in train.batches(128, seed=0, epoch=epoch):
        optimizer.zero_grad()
        with optimizer.perturbed():
            nn.functional.cross_entropy(net(batch.x), batch.y).backward()
        optimizer.step()
probs = 0.0
for draw in range(16):
    with torch.no_grad(), optimizer.drawn(seed=draw):
        probs = probs + net(test.x).softmax(-1) / 16
print("IVON, accuracy:", round(tp.scores.accuracy(probs, test.y), 3))

# A network that has dropout already is one line from an ensemble of functions.
dropped = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
with_dropout = tp.Target(dropped, tp.Categorical(), tp.GaussianPrior(scale=1.0))
fitted = tp.fit(with_dropout, tp.MCDropout(tp.MAP(lr=1e-3)), train, epochs=20)
print("MCDropout:", {name: round(value, 3) for name, value in fitted.evaluate(test).items()})
