"""Running statistics (of batch norms) that belong to a draw of θ: one pass over the data for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from temperance.core.progress import ProgressBar
from temperance.data.data import Data
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.inference.base import NeedsData
from temperance.posteriors import Posterior, WithStatistics

_ROWS = 256


@torch.no_grad()
def batch_statistics(engine: Engine, theta: Tensor, data: Data, batch_size: int = _ROWS) -> dict[str, Tensor]:
    """What the network's batch norms measure on ``data`` with the weights θ: plain averages over batches of equal size.
    Dropout is off; everything else that keeps moving buffers sees the data in training mode too."""
    workspace = engine.workspace
    buffers = engine.target.running_buffers()
    workspace.attach(theta.to(engine.device), None, buffers)
    workspace.set_training(False)
    owners = {name.rpartition(".")[0] for name in buffers}
    modules = [module for name, module in engine.network.named_modules() if name in owners]
    norms = [m for m in modules if isinstance(m, nn.modules.batchnorm._NormBase)]
    momenta = [norm.momentum for norm in norms]
    parts = -(-len(data) // batch_size)
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        for module in modules:
            module.training = True  # itself, not what is inside it
        for batch in data.full_pass(-(-len(data) // parts)):
            forward.call(engine.network, batch.to(engine.device).x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module in modules:
            module.training = False
        workspace.detach()
    return buffers


def with_statistics(engine: Engine, posterior: Posterior, data: Data | None, draws: int) -> Posterior:
    """``posterior`` with batch statistics for the ``draws`` that prediction will use; itself where the network keeps
    none."""
    if not engine.target.moving:
        return posterior
    if data is None:
        raise NeedsData("the network keeps batch statistics, which need a pass over the data for each draw.")
    nodes = posterior.nodes(draws, seed=0)
    rows = []
    with ProgressBar("batch statistics", len(nodes)) as bar:
        for k in range(len(nodes)):
            rows.append(batch_statistics(engine, nodes.fetch(k, k + 1)[0][0], data))
            bar.advance_to(k + 1, float("nan"), last=k + 1 == len(nodes))
    return WithStatistics(posterior, {name: torch.stack([row[name] for row in rows]) for name in rows[0]})
