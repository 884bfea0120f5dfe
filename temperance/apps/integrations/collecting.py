"""What the callbacks share: collecting a posterior from the weights that somebody else's training loop passes through.

A :class:`Collector` looks at a network after optimiser steps and remembers what a posterior needs: the moments of SWAG,
or thinned copies of the weights. It knows nothing of the loop, so one piece of code serves every framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from temperance.apps.integrations.plans import CollectionPlan, check_samplers, check_temperature
from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError, MismatchError, NumericalError
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.inference.points.swag import SWAG
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import Prior
from temperance.model.target import Target
from temperance.model.theta import Layout, Subset
from temperance.posteriors import Draws, Posterior
from temperance.run.fitted import Fitted, RunInfo

LearnedSource = Callable[[Any], Tensor | Mapping[str, Tensor]]


class Collector:
    """A posterior from the networks that it is shown.

    ``likelihood``, ``prior``, ``temperature``, ``subset`` and ``freeze_batch_norm`` are those of the
    :class:`temperance.Target` that the posterior will belong to; ``learned`` gives, of the ``source`` that ``observe``
    is shown, the values of what the likelihood learns (the log of a noise scale); ``num_data`` is N; ``node_draws`` is,
    for SWAG over batch norm, the number of draws that get statistics of their own; the rest are the arguments of
    :class:`CollectionPlan`.

    >>> from temperance import GaussianPrior, Normal
    >>> network = nn.Linear(1, 1)
    >>> collector = Collector(Normal(scale=1.0), GaussianPrior(scale=1.0), kind="draws")
    >>> for value in (1.0, 2.0):
    ...     _ = nn.init.constant_(network.weight, value), nn.init.zeros_(network.bias)
    ...     collector.observe(network)
    >>> collector.fitted(network).posterior.theta
    tensor([[1., 0.],
            [2., 0.]])
    """

    def __init__(
        self,
        likelihood: Likelihood,
        prior: Prior,
        *,
        temperature: float = 1.0,
        subset: Subset = None,
        freeze_batch_norm: bool = False,
        learned: LearnedSource | None = None,
        num_data: int | None = None,
        node_draws: int = 30,
        **plan: Any,
    ) -> None:
        self.plan = CollectionPlan(**plan)
        self.settings: dict[str, Any] = {
            "likelihood": likelihood,
            "prior": prior,
            "temperature": temperature,
            "subset": subset,
            "freeze_batch_norm": freeze_batch_norm,
        }
        Target(nn.Linear(1, 1), **{**self.settings, "subset": None})  # bad arguments are found out before training
        self._given = None if num_data is None else check_count(num_data, "num_data")
        self.node_draws = check_count(node_draws, "node_draws")
        self.learned = learned
        if learned is None and likelihood.learned_parameters():
            raise ArgumentError(
                f"`learned` must say where training keeps what {likelihood!r} learns, e.g. `lambda module: "
                "module.log_scale`; got None. Or give the likelihood its scale: Normal(scale=0.1)."
            )
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.collected = self.done = 0
        self.num_data = self._given
        self.total: int | None = None
        self.batch_size: int | None = None
        self.steps_per_epoch: int | None = None
        self._optimizers: Sequence[Any] = ()
        self._size: int | None = None
        self._layout: Layout | None = None
        self._moving: tuple[str, ...] = ()
        self._moments: dict[str, Tensor] = {}
        self._theta: list[Tensor] = []
        self._buffers: list[dict[str, Tensor]] = []

    # ------------------------------------------------------------------ looking

    def begin(
        self,
        network: nn.Module,
        optimizers: Sequence[Any],
        *,
        rows: int | None,
        batch_size: int | None = None,
        total: int | None = None,
        steps_per_epoch: int | None = None,
        clipping: float | None = None,
    ) -> None:
        """Before training: find out what does not fit now, not at its end. ``rows`` is the size of the training set,
        ``total`` the number of optimiser steps of the run, where they are known; ``clipping`` that of gradients."""
        if self.num_data is None:
            if rows is None:
                raise ArgumentError("`num_data` must be given where the training set has no length; got None.")
            self.num_data = rows
        elif rows is not None and rows != self.num_data:
            raise ArgumentError(f"`num_data` must be the number of training rows, {rows}; got {self.num_data}.")
        if isinstance(self.plan.start, float) and self.done and self.total != total:
            raise MismatchError(
                f"the run was begun with {self.total} steps, a fraction of which is `start`, and cannot go on to "
                f"{total}: give `start` as a number of {self.plan.unit}."
            )
        self.total, self.batch_size, self.steps_per_epoch = total, batch_size, steps_per_epoch
        self.plan.due(1, total, steps_per_epoch)
        target = self._notice(network)
        if self.plan.kind == "draws":
            check_samplers(target, self.num_data, optimizers, clipping, stacklevel=4)
        self._optimizers = optimizers

    def _notice(self, network: nn.Module) -> Target:
        """Which numbers are random, which buffers move."""
        target = Target(network, **self.settings)
        if self._size not in (None, target.layout.size):
            raise MismatchError(
                f"the network has {target.layout.size} numbers to collect, those collected so far {self._size}: was a "
                "layer frozen or thawed on the way? Name the `subset` that is random."
            )
        self._layout, self._size = target.layout, target.layout.size
        self._moving = tuple(target.moving)
        return target

    def after_step(self, network: nn.Module, done: int, source: Any = None) -> bool:
        """Called after optimiser step number ``done``; whether it was collected."""
        if done <= self.done:  # a batch that only added to the gradient
            return False
        self.done = done
        if not self.plan.due(done, self.total, self.steps_per_epoch):
            return False
        if self.plan.kind == "draws":
            check_temperature(self.settings["temperature"], self._optimizers)
        self.observe(network, source)
        return True

    @torch.no_grad()
    def observe(self, network: nn.Module, source: Any = None) -> None:
        """Take in the weights as they are now; ``source`` is what ``learned`` is a function of."""
        if self._layout is None:
            self._notice(network)
        assert self._layout is not None
        values = {**dict(network.named_parameters()), **self._learned_values(source)}
        wide = torch.promote_types(self._layout.dtype, torch.float32)  # sums in half precision would stand still
        theta = self._layout.flatten(values).to("cpu", wide if self.plan.kind == "swag" else self._layout.dtype)
        if not bool(torch.isfinite(theta).all()):
            raise NumericalError("the weights are no longer finite: what training passes through now is no posterior.")
        if self.plan.kind == "swag":
            self._add_moments(theta)
        else:
            buffers = dict(network.named_buffers())
            self._theta.append(theta)
            self._buffers.append({name: buffers[name].detach().to("cpu", copy=True) for name in self._moving})
            if self.plan.last is not None:
                del self._theta[: -self.plan.last], self._buffers[: -self.plan.last]
        self.collected += 1

    def _learned_values(self, source: Any) -> Mapping[str, Tensor]:
        known = self.settings["likelihood"].learned_parameters()
        if self.learned is None or not known:
            return {}
        found = self.learned(source)
        if isinstance(found, Tensor) and len(known) == 1:
            found = {known[0].name: found.reshape(known[0].shape)}
        if not isinstance(found, Mapping) or set(found) != {p.name for p in known}:
            raise ArgumentError(f"`learned` must give a tensor for each of {[p.name for p in known]}; got {found!r}.")
        return found

    def _add_moments(self, theta: Tensor) -> None:
        """Welford's running mean and sum of squares, and the deviation from the mean: as :class:`temperance.SWAG`."""
        if not self._moments:
            deviations = torch.zeros(self.plan.rank, len(theta), dtype=theta.dtype)
            self._moments = {
                "mean": torch.zeros_like(theta),
                "squares": torch.zeros_like(theta),
                "deviations": deviations,
            }
        mean = self._moments["mean"]
        before = theta - mean
        mean.add_(before, alpha=1.0 / (self.collected + 1))
        after = theta - mean
        self._moments["squares"].addcmul_(before, after)
        if self.plan.rank:
            self._moments["deviations"][self.collected % self.plan.rank] = after

    # ------------------------------------------------------------------ writing down

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain numbers and words, and named tensors: all that it takes to go on."""
        numbers = {
            "plan": asdict(self.plan),
            "collected": self.collected,
            "done": self.done,
            "total": self.total,
            "num_data": self.num_data,
            "batch_size": self.batch_size,
            "size": self._size,
        }
        tensors = {name: value.clone() for name, value in self._moments.items()}
        if self._theta:
            tensors["theta"] = torch.stack(self._theta)
            for name in self._buffers[0]:
                tensors[f"buffers/{name}"] = torch.stack([row[name] for row in self._buffers])
        return numbers, tensors

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state` wrote down."""
        then, now = dict(numbers["plan"]), asdict(self.plan)
        if then != now:
            changed = [f"{name} ({then.get(name)!r}, now {now[name]!r})" for name in now if then.get(name) != now[name]]
            raise MismatchError(f"the checkpoint collected by another plan; these differ: {', '.join(changed)}.")
        self.clear()
        self.collected, self.done, self._size = numbers["collected"], numbers["done"], numbers["size"]
        self.total, self.batch_size = numbers["total"], numbers["batch_size"]
        self.num_data = numbers["num_data"] if self.num_data is None else self.num_data
        self._moments = {name: tensors[name].clone() for name in ("mean", "squares", "deviations") if name in tensors}
        if "theta" in tensors:
            rows = {n.removeprefix("buffers/"): v for n, v in tensors.items() if n.startswith("buffers/")}
            self._theta = [row.clone() for row in tensors["theta"]]
            self._buffers = [{n: v[k].clone() for n, v in rows.items()} for k in range(len(self._theta))]

    # ------------------------------------------------------------------ the posterior

    def posterior(self, target: Target, data: Data | None = None) -> Posterior:
        """A :class:`~temperance.posteriors.Gaussian` (SWAG) or :class:`~temperance.posteriors.Draws`."""
        if self.plan.kind == "swag":
            return self._gaussian(target, data)
        if not self._theta:
            raise NumericalError(f"there are no draws yet: {self._when()}")
        rows = self._buffers
        return Draws(torch.stack(self._theta), {n: torch.stack([row[n] for row in rows]) for n in rows[0]})

    def _gaussian(self, target: Target, data: Data | None) -> Posterior:
        if self.collected < 2:
            raise NumericalError(f"SWAG needs two iterates or more for a spread; got {self.collected}: {self._when()}")
        made = {name: value.to(target.layout.dtype) for name, value in self._moments.items()}
        method = SWAG(rank=self.plan.rank, draws=self.node_draws)
        return method.gaussian(Engine(target), collected=self.collected, data=data, **made)

    def _when(self) -> str:
        return f"training made {self.done} steps of {self.total} and collects by {self.plan!r}."

    def fitted(self, network: nn.Module, data: Any = None) -> Fitted:
        """The posterior as ``fit`` would give it; SWAG over batch norm needs the training ``data``, for the statistics
        of each draw."""
        target = Target(network, **self.settings)
        if target.layout.size != self._size or self._layout not in (None, target.layout):
            raise MismatchError("the network given has other parameters than the one that was trained.")
        known = None if data is None else target.prepare(Data.of(data)).to(target.device)
        posterior = self.posterior(target, known)
        about = {"rows": self.num_data, "batch_size": self.batch_size, "collected": self.collected}
        info = RunInfo(steps=self.done, total_steps=self.total or self.done, data=about)
        return Fitted(target, posterior, info, self.plan, 0, {"num_data": self.num_data})


def known_length(dataset: Any) -> int | None:
    """The number of rows of a data set, where it has one."""
    try:
        return len(dataset)
    except TypeError:
        return None
