"""Your own training loop, with a sampler in the optimiser's place: collect draws and average their probabilities."""

import copy

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import temperance as tp
from temperance.run.optim import SGHMC, weight_decay_of

torch.manual_seed(0)
train, test = tp.data.load("digits")
loader = DataLoader(TensorDataset(train.x, train.y), batch_size=64, shuffle=True)
net = tp.nn.MLP(64, [64, 64], 10)

num_data = len(train.y)
optimizer = SGHMC(
    net.parameters(),
    lr=0.02,
    num_data=num_data,
    momentum=0.9,
    temperature=0.0,  # plain SGD, until the chain has found its place
    weight_decay=weight_decay_of(scale=0.3, num_data=num_data),  # the prior: N(0, 0.3²) on each weight
)

WARM, EPOCHS = 10, 50
draws = []
for epoch in range(EPOCHS):
    if epoch == WARM:
        optimizer.param_groups[0]["temperature"] = 1.0
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
    if epoch >= WARM + 10 and epoch % 2 == 0:  # ten epochs to forget the start, then one draw in two epochs
        draws.append(copy.deepcopy(net.state_dict()))


@torch.no_grad()
def probabilities(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    net.load_state_dict(weights)
    return net(x).softmax(-1)


def scores(probs: torch.Tensor) -> str:
    accuracy = (probs.argmax(-1) == test.y).double().mean()
    return f"accuracy {accuracy:.3f}, log loss {-probs[range(len(test.y)), test.y].log().mean():.3f}"


def entropy(probs: torch.Tensor) -> float:
    return float(torch.special.entr(probs).sum(-1).mean())


noise = torch.rand(200, 64)
each = torch.stack([probabilities(weights, test.x) for weights in draws])
each_on_noise = torch.stack([probabilities(weights, noise) for weights in draws])
mixture, mixture_on_noise = each.mean(0), each_on_noise.mean(0)  # average probabilities, never logits

print(f"the last draw alone: {scores(each[-1])}, entropy of noise {entropy(each_on_noise[-1]):.2f} nats")
print(f"mean of {len(draws)} draws:    {scores(mixture)}, entropy of noise {entropy(mixture_on_noise):.2f} nats")
assert entropy(mixture_on_noise) > entropy(each_on_noise)  # the draws disagree where there are no data
assert -mixture[range(len(test.y)), test.y].log().mean() < -each[:, range(len(test.y)), test.y].log().mean()
