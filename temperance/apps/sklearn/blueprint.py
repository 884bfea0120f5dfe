"""How an estimator's network is made, so that it can be made again when the estimator is read back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from temperance.apps.recipes import table_target
from temperance.core.checks import check_counts, check_sizes, shown
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Outcome
from temperance.core.seeds import check_seed, derive_seed
from temperance.model.likelihoods import Likelihood
from temperance.model.priors import Prior
from temperance.model.target import Target
from temperance.run.manifest import is_dtype

NetworkFactory = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class Blueprint:
    """The same blueprint gives the same network, first weights included: they come from ``seed``.

    ``outputs`` counts what is predicted: classes, or columns of y. A factory is asked for twice as many outputs where
    the likelihood learns a noise for each of them.
    """

    outcome: Outcome
    inputs: int
    outputs: int
    hidden: tuple[int, ...]
    dtype: str
    seed: int
    factory: NetworkFactory | None = None

    def describe(self) -> dict[str, Any]:
        """For a file: the outcome by its name, the factory left out."""
        plain = {name: getattr(self, name) for name in ("inputs", "outputs", "hidden", "dtype", "seed")}
        return {"task": self.outcome.name, **plain}

    @classmethod
    def described(cls, form: Mapping[str, Any], factory: NetworkFactory | None) -> Blueprint:
        """What :meth:`describe` wrote."""
        plain = {name: value for name, value in form.items() if name not in ("task", "factory")}
        made = cls(Outcome.named(form["task"]), **plain, factory=factory)
        check_counts(inputs=made.inputs, outputs=made.outputs)
        check_sizes(made.hidden, "hidden")
        check_seed(made.seed)
        if not is_dtype(made.dtype):
            raise ArgumentError(f"`dtype` must name a dtype of torch; got {shown(made.dtype)}.")
        return made

    def target(self, likelihood: Likelihood | None, prior: Prior | None) -> Target:
        """The problem to learn, with the usual likelihood and prior of a table where none is given."""
        seed = derive_seed(self.seed, "network")
        usual = table_target(
            self.outcome,
            self.inputs,
            self.outputs,
            hidden=self.hidden if self.factory is None else (),
            prior=prior,
            likelihood=likelihood,
            seed=seed,
        )
        network = copy.deepcopy(usual.network)
        if self.factory is not None:
            wanted = usual.likelihood.outputs_for(self.outputs)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                network = self.factory(self.inputs, wanted)
            if not isinstance(network, nn.Module):
                raise ArgumentError(f"`network` must return a torch module; got {type(network).__name__}.")
        return Target(network.to(getattr(torch, self.dtype)), usual.likelihood, usual.prior)

    def network(self, likelihood: Likelihood) -> nn.Module:
        """The network alone."""
        return copy.deepcopy(self.target(likelihood, None).network)


def check_hidden(hidden: object) -> tuple[int, ...]:
    """Widths of hidden layers, whole numbers of any kind."""
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise ArgumentError(f"`hidden` must be a sequence of widths such as (50, 50); got {hidden!r}.")
    try:
        widths = tuple(_whole(width) for width in hidden)
    except TypeError:
        widths = (0,)
    if any(width < 1 for width in widths):
        raise ArgumentError(f"`hidden` must hold positive whole numbers; got {hidden!r}.")
    return widths


def check_factory(network: Any) -> NetworkFactory | None:
    """A function of (inputs, outputs), or nothing."""
    if isinstance(network, nn.Module) or not (network is None or callable(network)):
        raise ArgumentError(
            "`network` must be a function of (inputs, outputs) that makes a torch module, because every fit needs a "
            f"fresh one; got {type(network).__name__}."
        )
    return network


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value.__index__()) if hasattr(value, "__index__") else 0
