"""The samplers, and natural-gradient VI, as ``torch.optim.Optimizer``, for people with a training loop of their own.

Replace the optimiser, keep the loop; after a while, keep a copy of the weights now and then: each is a draw from
exp(−U(θ)/T). Average the *probabilities* of the draws. The gradients are those of the mean loss over a batch, as
everyone's cross-entropy gives them; the optimiser has to be told N, the size of the whole training set.

    optimizer = temperance.run.optim.SGHMC(net.parameters(), lr=0.1, num_data=50_000, momentum=0.9)

``IVON`` and ``VOGN`` learn a Gaussian instead: forward and backward pass go into ``with optimizer.perturbed():``, and
predictions are averaged over ``with optimizer.drawn(seed):``.

Batch norm mixes the examples of a batch: use ``temperance.nn.FilterResponseNorm`` or group norm instead.
"""

from temperance.run.optim.baoab import BAOAB
from temperance.run.optim.base import ChainOptimizer, LangevinOptimizer, weight_decay_of
from temperance.run.optim.ggmc import GGMC
from temperance.run.optim.ivon import IVON
from temperance.run.optim.leimkuhler_matthews import LeimkuhlerMatthews
from temperance.run.optim.natural import NaturalOptimizer
from temperance.run.optim.psgld import PSGLD
from temperance.run.optim.sghmc import SGHMC
from temperance.run.optim.sgld import SGLD
from temperance.run.optim.sgnht import SGNHT
from temperance.run.optim.vogn import VOGN

__all__ = [
    "BAOAB",
    "GGMC",
    "IVON",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "VOGN",
    "ChainOptimizer",
    "LangevinOptimizer",
    "LeimkuhlerMatthews",
    "NaturalOptimizer",
    "weight_decay_of",
]
