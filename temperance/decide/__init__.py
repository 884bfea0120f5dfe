"""Decisions: what to do with a predictive distribution.

Everything here takes a :class:`~temperance.predict.Predictive` (what ``fitted.predict(x)`` gives) and asks nothing of
the method that made it. Where decisions concern several rows at once (batches to label, arms to compare) one draw of θ
speaks for all rows.

**Act.** ``bayes_action(pred, cost)`` takes the action of least expected cost. Of classes ``cost`` is a matrix, actions
× classes, to which ``with_abstention`` adds "ask a human" at a price; of real targets it is ``SquaredLoss()`` (mean),
``AbsoluteLoss()`` (median), ``PinballLoss(level)`` (quantile), ``LinexLoss()``, or any function loss(action, y).

**Defer.** ``defer_at(pred, y, risk=0.05, confidence=0.95)`` finds on held-out rows how much doubt to bear so that, with
that confidence, at most that fraction of the answers is wrong: an exact guarantee in finite samples. ``rule(pred)`` is
true where a human should be asked. With a price of asking in place of a guarantee, use ``bayes_action``.

**Detect.** ``ood_threshold(pred, false_alarms=0.05)`` on ordinary held-out rows gives an ``OODDetector``: ``flags``
and ``p_values`` of new rows, false alarms bounded in finite samples. ``ood_score`` and ``doubt`` are the numbers below.

**Cover.** ``temperance.decide.conformal``: sets and intervals with guaranteed coverage.

**Ask.** ``acquire`` scores rows by what their labels would tell: ``bald``, ``epig`` (about predictions that matter),
``batch_bald`` (of a batch together), ``entropy``, ``variance``, ``mean_std``, ``variation_ratio``, ``random``.
``choose`` picks k; ``joint_information`` is what labels tell together; ``learn_actively`` is the whole loop, and
resumes.

**Explore.** ``play(environment, policy, steps)`` with ``ThompsonSampling``, ``EpsilonGreedy`` over any posterior,
``NeuralLinear``, ``BetaBernoulli``; ``MushroomBandit``, ``BernoulliBandit``, or an ``Environment`` of your own.

**Optimise.** ``temperance.apps.integrations.botorch`` finds the minimum of a costly function.
"""

from temperance.decide import acquire, conformal
from temperance.decide.acquire import bald, batch_bald, choose, epig, joint_information
from temperance.decide.actions import (
    AbsoluteLoss,
    Decision,
    LinexLoss,
    Loss,
    PinballLoss,
    SquaredLoss,
    bayes_action,
    with_abstention,
)
from temperance.decide.active import ActiveLearning, learn_actively
from temperance.decide.bandit import (
    BernoulliBandit,
    BetaBernoulli,
    Environment,
    MushroomBandit,
    Play,
    Policy,
    UniformPolicy,
    play,
)
from temperance.decide.defer import Deferral, clopper_pearson, defer_at
from temperance.decide.doubt import doubt
from temperance.decide.information import Selection
from temperance.decide.members import member_probabilities
from temperance.decide.neural_linear import NeuralLinear, NormalInverseGamma
from temperance.decide.ood import OODDetector, ood_score, ood_threshold
from temperance.decide.policies import ArmNetwork, EpsilonGreedy, ThompsonSampling, thompson

__all__ = [
    "AbsoluteLoss",
    "ActiveLearning",
    "ArmNetwork",
    "BernoulliBandit",
    "BetaBernoulli",
    "Decision",
    "Deferral",
    "Environment",
    "EpsilonGreedy",
    "LinexLoss",
    "Loss",
    "MushroomBandit",
    "NeuralLinear",
    "NormalInverseGamma",
    "OODDetector",
    "PinballLoss",
    "Play",
    "Policy",
    "Selection",
    "SquaredLoss",
    "ThompsonSampling",
    "UniformPolicy",
    "acquire",
    "bald",
    "batch_bald",
    "bayes_action",
    "choose",
    "clopper_pearson",
    "conformal",
    "defer_at",
    "doubt",
    "epig",
    "joint_information",
    "learn_actively",
    "member_probabilities",
    "ood_score",
    "ood_threshold",
    "play",
    "thompson",
    "with_abstention",
]
