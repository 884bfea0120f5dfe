"""Steps of the library `posteriors`, written the way its documentation does: a transform and its ``update``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peer_scripts.networks import problem

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # tensordict's, a screenful at every import
    import posteriors
    import torchopt

EXAMPLES = 50_000  # the N of the made-up data set: only its magnitude matters
STEP = 1e-6  # so small that every round works on the same weights: a memorised batch would leave denormal gradients
LogPosterior = Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]]


def sghmc(log_posterior: LogPosterior) -> Any:
    return posteriors.sgmcmc.sghmc.build(log_posterior, lr=STEP, alpha=0.1, temperature=1 / EXAMPLES, momenta=0.0)


def adam(log_posterior: LogPosterior) -> Any:
    return posteriors.torchopt.build(_negative(log_posterior), torchopt.adam(lr=STEP))


def mean_field(log_posterior: LogPosterior) -> Any:
    return posteriors.vi.diag.build(log_posterior, torchopt.adam(lr=STEP), temperature=1 / EXAMPLES, init_log_sds=-4.0)


METHODS = {"sghmc": sghmc, "adam": adam, "mean_field": mean_field}


def step(network: str = "mlp", method: str = "sghmc", steps: int = 1, inplace: bool = False) -> Callable[[], None]:
    """Return a round of that many steps; ``method`` is one of ``METHODS``; ``inplace`` is as `posteriors` has it."""
    net, x, y = problem(network)

    def log_posterior(params: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.func.functional_call(net, params, (batch[0],))
        log_likelihood = -torch.nn.functional.cross_entropy(logits, batch[1])
        return log_likelihood + posteriors.diag_normal_log_prob(params) / EXAMPLES, logits

    transform = METHODS[method](log_posterior)
    state = transform.init({name: value.detach().clone() for name, value in net.named_parameters()})

    def round_of_steps() -> None:
        nonlocal state
        for _ in range(steps):
            state, _ = transform.update(state, (x, y), inplace=inplace)

    return round_of_steps


def _negative(log_posterior: LogPosterior) -> LogPosterior:
    def loss(params: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value, logits = log_posterior(params, batch)
        return -value, logits

    return loss
