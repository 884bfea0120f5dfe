"""From uncertainty to action: costs, deferral with a guarantee, strange inputs, what to label next, and bandits."""

import tempfile

import torch

import temperance as tp
from temperance import decide

torch.manual_seed(0)
data, new = tp.data.load("digits")
train, held = data[:900], data[900:]  # thresholds are set on rows that were not trained on
target = tp.Target(tp.nn.MLP(64, [64], 10), tp.Categorical(), tp.GaussianPrior(1.0))
fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-2), 5), train, epochs=15)
known, pred = fitted.predict(held.x), fitted.predict(new.x)

# Costs: a wrong digit costs 1, one that is wrongly read as 0 costs 20, asking a human 0.1.
cost = 1 - torch.eye(10)
cost[0, 1:] = 20.0
decision = decide.bayes_action(pred, decide.with_abstention(cost, 0.1))
paid = torch.where(decision.action == 10, 0.1, cost[decision.action.clamp(max=9), new.y])
likeliest = cost[pred.predict(), new.y]
print(f"costs: {paid.mean():.3f} a digit by expected cost, {likeliest.mean():.3f} by the likeliest digit")

# Deferral: with 95 % confidence, at most 3 % of the digits that are answered are wrong.
rule = decide.defer_at(known, held.y, risk=0.03)
kept = ~rule(pred)
wrong = (pred.predict() != new.y)[kept].float().mean()
print(f"deferral: {kept.float().mean():.0%} of new digits answered, {wrong:.1%} of these wrong")

# Strange inputs: at most 5 % false alarms.
detector = decide.ood_threshold(known, false_alarms=0.05)
noise = fitted.predict(torch.rand(200, 64))
print(
    f"alarms: {detector.flags(pred).float().mean():.1%} of digits, {detector.flags(noise).float().mean():.0%} of noise"
)


# Which digits to have labelled next? The loop keeps its labels in a folder and goes on from there.
def make():
    return tp.Target(tp.nn.MLP(64, [32], 10), tp.Categorical(), tp.GaussianPrior(1.0))


with tempfile.TemporaryDirectory() as folder:
    for name, acquire in {"random": decide.acquire.random, "BALD": decide.bald}.items():
        run = decide.learn_actively(
            make,
            tp.Ensemble(tp.MAP(lr=1e-2), 5),
            data[:400],
            start=20,
            batch=10,
            rounds=5,
            acquire=acquire,
            test=new,
            steps=60,
            folder=f"{folder}/{name}",
        )
        labels, accuracy = run.curve("accuracy")
        print(f"{name:>9}: " + ", ".join(f"{n} labels {a:.0%}" for n, a in zip(labels, accuracy, strict=True)))

# A bandit: three levers with unknown luck.
levers = decide.BernoulliBandit([0.3, 0.5, 0.7])
for policy in (decide.UniformPolicy(3), decide.BetaBernoulli(3)):
    print(f"{type(policy).__name__}: regret {decide.play(levers, policy, 500).cumulative_regret[-1]:.0f} in 500 pulls")
