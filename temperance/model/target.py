"""``Target``: the problem as a value, and the only place where N, B and T meet.

    U(θ)      = −Σ_{i=1}^N log p(y_i | x_i, θ) / λ − log p(θ)          the energy
    p_T(θ|D)  ∝ exp(−U(θ) / T)                                           the (tempered) posterior
    G̃(θ)      = −(1/B) Σ_{i∈batch} log p(y_i | x_i, θ) / λ − (1/N) log p(θ)

N·∇G̃ is an unbiased estimate of ∇U for a batch of any size B: the loss that is trained is *per datum*, and everything
else follows. ``temperature`` T divides prior and likelihood alike (T < 1 is a cold posterior);
``likelihood_temperature`` λ divides the likelihood alone and is a different problem with a name of its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_positive
from temperance.core.errors import ArgumentError, NetworkError
from temperance.data.data import Batch, Data
from temperance.data.sources import Inputs, first_tensor, map_tensors, named_tensors
from temperance.engine import outputs as evaluate
from temperance.engine.compiling import Compiled
from temperance.engine.energy import Energies
from temperance.engine.workspace import Workspace
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import BoundPrior, GaussianDensity, Prior
from temperance.model.priors.base import RestrictedPrior
from temperance.model.theta import Layout, Subset, selected


class Target:
    """A network, a likelihood and a prior: the posterior over θ that methods approximate.

    ``subset`` names the part of the network that is random; the rest stays as it is. ``freeze_batch_norm`` keeps batch
    norms in evaluation mode, so that the likelihood of one example does not depend on its neighbours in the batch.

    >>> from temperance.model.likelihoods import Categorical
    >>> from temperance.model.priors import GaussianPrior
    >>> target = Target(nn.Linear(4, 3), Categorical(), GaussianPrior(scale=1.0))
    >>> target.num_parameters
    15
    """

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        prior: Prior,
        temperature: float = 1.0,
        *,
        likelihood_temperature: float = 1.0,
        subset: Subset = None,
        freeze_batch_norm: bool = False,
    ) -> None:
        if not isinstance(likelihood, Likelihood):
            raise ArgumentError(
                f"`likelihood` must be a temperance Likelihood, e.g. Categorical(); got {likelihood!r}."
            )
        if not isinstance(prior, Prior):
            raise ArgumentError(f"`prior` must be a temperance Prior, e.g. GaussianPrior(1.0); got {prior!r}.")
        self.likelihood, self.prior = likelihood, prior
        self.temperature = check_positive(temperature, "temperature")
        self.likelihood_temperature = check_positive(likelihood_temperature, "likelihood_temperature")
        self.subset = subset
        extras = tuple((p.name, p.shape) for p in likelihood.learned_parameters())
        self.workspace = Workspace(network, subset, extras, freeze_batch_norm)
        self.bound_prior = self._bind(prior)
        self._compiled_stack: Compiled | None = None
        self._compiled_network: Compiled | None = None
        self._energies: Energies | None = None

    def _bind(self, prior: Prior) -> BoundPrior:
        bound = prior.bind(self.layout, self.device)
        if bound.size == self.layout.size:  # an earlier posterior, say, which speaks for what is learned too
            return bound
        for parameter in self.likelihood.learned_parameters():
            entry = self.layout[parameter.name]
            hyperprior = GaussianDensity(parameter.prior_mean, parameter.prior_scale)
            bound.pieces.append((slice(entry.start, entry.stop), hyperprior.to(self.device, self.layout.dtype)))
            bound.size = entry.stop
        return bound

    def __repr__(self) -> str:
        parts = [type(self.network).__name__, repr(self.likelihood), repr(self.prior)]
        parts.append(f"temperature={self.temperature}")
        if self.likelihood_temperature != 1.0:
            parts.append(f"likelihood_temperature={self.likelihood_temperature}")
        return f"Target({', '.join(parts)})"

    # ------------------------------------------------------------------ what it is made of

    @property
    def network(self) -> nn.Module:
        """The working copy of the network."""
        return self.workspace.network

    @property
    def layout(self) -> Layout:
        """The names and places of the numbers in θ."""
        return self.workspace.layout

    @property
    def num_parameters(self) -> int:
        """P, the length of θ."""
        return self.layout.size

    @property
    def device(self) -> torch.device:
        """Where θ lives."""
        return self.workspace.device

    def to(self, device: torch.device | str) -> Target:
        """Move the network and the prior, in place."""
        self.workspace.to(torch.device(device))
        self.bound_prior = self._bind(self.prior)
        return self

    def with_prior(self, prior: Prior) -> Target:
        """The same problem under another prior; the network is shared."""
        made = copy.copy(self)
        made.prior = prior
        made.bound_prior = made._bind(prior)
        return made

    def with_likelihood(self, likelihood: Likelihood) -> Target:
        """The same problem with another noise level: ``likelihood`` must learn what the present one learns."""
        if likelihood.learned_parameters() != self.likelihood.learned_parameters():
            raise ArgumentError(
                f"`likelihood` must learn the same parameters as {self.likelihood!r}; got {likelihood!r}."
            )
        made = copy.copy(self)
        made.likelihood = likelihood
        return made.compile() if self.is_compiled else made  # what was compiled has the old likelihood inside

    def with_network(self, network: nn.Module, moving: Sequence[str] = ()) -> Target:
        """The same problem with another module of the same parameters; ``moving`` names buffers of it that belong to a
        setting of the weights."""
        made = copy.copy(self)
        made.workspace = self.workspace.with_network(network, moving)
        made._energies = None
        return made.compile() if self.is_compiled else made

    def with_temperature(self, temperature: float) -> Target:
        """The same problem at another temperature; the network is shared."""
        made = copy.copy(self)
        made.temperature = check_positive(temperature, "temperature")
        return made

    def names(self, subset: Subset, argument: str = "subset") -> list[str]:
        """The parameters that ``subset`` names, among those that are random here."""
        inside = {e.name for e in self.layout.network_entries}
        try:
            found = [name for name, _ in selected(self.network, subset) if name in inside]
        except ArgumentError as error:
            raise ArgumentError(str(error).replace("`subset`", f"`{argument}`")) from None
        if not found:
            raise ArgumentError(
                f"`{argument}` must name parameters that are random in the target; {subset!r} names none of them."
            )
        return found

    def places(self, names: Collection[str]) -> Tensor:
        """Places in θ of the parameters that ``names`` names, and of what the likelihood learns."""
        entries = [e for e in self.layout.entries if e.name in names or e.role == "likelihood"]
        return torch.cat([torch.arange(e.start, e.stop) for e in entries])

    def restrict(self, names: Collection[str], theta: Tensor) -> Target:
        """The problem over the parameters that ``names`` names (and what the likelihood learns); all others are known
        to be as ``theta`` has them. Its θ is that of :meth:`places`, and it starts where ``theta`` is."""
        known = [e.name for e in self.layout.network_entries if e.name in names]
        theta = theta.detach().clone()  # what stays is a view into this
        self.workspace.attach(theta, None)
        made = Target(
            self.network,
            self.likelihood,
            RestrictedPrior.of(self.bound_prior, self.layout, known),
            self.temperature,
            likelihood_temperature=self.likelihood_temperature,
            subset=known,
            freeze_batch_norm=self.workspace.freeze_batch_norm,
        )
        self.workspace.detach()
        made.workspace.example = self.workspace.example
        made.workspace.expect_moving(list(self.workspace.initial_buffers))
        made.workspace.initial_buffers = self.workspace.running_buffers()
        made.workspace.learned_start = {
            e.name: theta[e.start : e.stop].clone() for e in self.layout.entries if e.role == "likelihood"
        }
        return made.compile() if self.is_compiled else made

    def compile(self) -> Target:
        """Compile gradients with ``torch.compile``, in place: worth its minute for long runs of small networks. Without
        a compiler on the machine, a warning says so and everything works as before."""
        self._compiled_stack = Compiled(self._stacked_gradient_of)
        self._compiled_network = Compiled(lambda x: evaluate.call(self.network, x))
        return self

    @property
    def is_compiled(self) -> bool:
        """Whether :meth:`compile` was called."""
        return self._compiled_stack is not None

    def refuse_batch_norm(self, method: str) -> None:
        """Raise :class:`NetworkError` if the network has batch norm, for methods that need a likelihood per example."""
        names = self.workspace.batch_norm_names()
        if names:
            raise NetworkError(
                f"{method} needs a likelihood that factorises over examples, but batch norm ({names[0]} and "
                f"{len(names) - 1} more) mixes the examples of a batch, so its posterior is not defined. Use "
                "temperance.nn.FilterResponseNorm or nn.GroupNorm instead, or pass freeze_batch_norm=True to Target to "
                "keep the stored statistics fixed."
            )

    # ------------------------------------------------------------------ where θ starts

    def initial_theta(self) -> Tensor:
        """θ of the network as it was given, and the initial values of what the likelihood learns."""
        return self._with_extras(self.workspace.initial_theta.clone())

    def fresh_theta(self, seed: int) -> Tensor:
        """θ of a freshly initialised network."""
        return self._with_extras(self.workspace.fresh_theta(seed))

    def theta_of(self, start: nn.Module | Tensor | Any) -> Tensor:
        """θ of a trained module, or a vector (or matrix, a row per member) checked for its length."""
        if isinstance(start, nn.Module):
            found = dict(start.named_parameters())
            missing = [e.name for e in self.layout.network_entries if e.name not in found]
            if missing:
                raise ArgumentError(f"`start` must be a network like the target's; it lacks {missing}.")
            self.workspace.adopt(start)
            return self._with_extras(self.layout.flatten(start).to(self.device))
        try:
            theta = torch.as_tensor(start, dtype=self.layout.dtype, device=self.device).detach().clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"`start` must be a module, or a vector of {self.layout.size} numbers; got {type(start).__name__}."
            ) from error
        if theta.dim() not in (1, 2) or theta.shape[-1] != self.layout.size:
            raise ArgumentError(
                f"`start` must be a module, or a vector of {self.layout.size} numbers; got shape {tuple(theta.shape)}."
            )
        if not bool(torch.isfinite(theta).all()):
            raise ArgumentError("`start` must be finite; got NaN or infinity.")
        return theta

    def _with_extras(self, theta: Tensor) -> Tensor:
        for parameter in self.likelihood.learned_parameters():
            entry = self.layout[parameter.name]
            start = self.workspace.learned_start.get(parameter.name)
            theta[entry.start : entry.stop] = parameter.initial if start is None else start.flatten().to(theta)
        return theta

    def sample_prior(self, n: int, rng: torch.Generator) -> Tensor:
        """n draws of θ from the prior."""
        return self.bound_prior.sample(n, rng)

    # ------------------------------------------------------------------ data at the door

    def prepare(self, data: Data, argument: str = "data") -> Data:
        """Check ``data`` against network and likelihood, and bring it into their dtypes. Done once, before a fit."""
        data.check_finite(argument)
        with torch.random.fork_rng(devices=[]):  # a data set that augments at random must not move the global state
            probe = next(iter(data.full_pass(min(2, len(data)))))
        outputs = self.probe_outputs(self.cast(probe.x))
        self.likelihood.check_outputs(outputs)
        self.likelihood.check_outputs(self.probe_outputs(map_tensors(lambda t: t[:1], self.cast(probe.x))))

        self.workspace.example = map_tensors(lambda t: t.to(self.device), self.cast(probe.x))
        self.workspace.notice_moving_buffers()

        def convert(x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
            return self.cast(x), self.likelihood.prepare(y, outputs.shape[-1], self.layout.dtype)

        return data.convert(convert)

    def begin(self, data: Data) -> None:
        """Before a fit: let the likelihood look at the (prepared) training targets, to start what it learns there."""
        targets = dict(data.probe())["y"]
        self.workspace.learned_start = self.likelihood.begin(targets)

    def cast(self, x: Inputs) -> Inputs:
        """Floating inputs in θ's dtype."""
        dtype = self.layout.dtype
        return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t, x)

    def probe_outputs(self, x: Inputs) -> Tensor:
        """Outputs for a few rows, with an error that names the shapes where the network cannot take them."""
        self.workspace.set_training(False)
        moved = map_tensors(lambda t: t.to(self.device), x)
        try:
            with torch.no_grad():
                made = evaluate.call(self.network, moved)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(x)}
            raise NetworkError(f"the network cannot take inputs of shape {shapes}: {error}") from error
        rows = first_tensor(x).shape[0]
        if made.dim() == 0 or made.shape[0] != rows:
            raise NetworkError(
                f"the network must give one row of outputs per input; got shape {tuple(made.shape)} for {rows} inputs."
            )
        return made.unsqueeze(-1) if made.dim() == 1 else made

    # ------------------------------------------------------------------ the density

    def gradient(
        self,
        theta: Tensor,
        batch: Batch,
        grad: Tensor,
        buffers: dict[str, Tensor] | None = None,
        *,
        prior: bool = True,
    ) -> Tensor:
        """Write ∇G̃(θ) into ``grad``, or that of its data term alone; return the batch's mean negative log-likelihood.
        The hot path: no copies."""
        self.workspace.attach(theta, grad, buffers)
        self.workspace.set_training(True)
        grad.zero_()
        compiled = self._compiled_network
        outputs = evaluate.call(self.network, batch.x) if compiled is None else compiled(batch.x)
        if outputs.dim() == 1:
            outputs = outputs.unsqueeze(-1)
        nll = self.likelihood.negative_log_likelihood(outputs, batch.y, self.workspace.learned) / batch.size
        (nll if self.likelihood_temperature == 1.0 else nll / self.likelihood_temperature).backward()
        if prior:
            self.bound_prior.add_gradient(theta, grad, -1.0 / batch.num_data)
        return nll.detach()

    def gradients(
        self,
        theta: Tensor,
        batch: Batch,
        grad: Tensor,
        buffers: dict[str, Tensor] | None = None,
        *,
        prior: bool = True,
    ) -> Tensor:
        """:meth:`gradient` of E members, the rows of θ and ``grad`` (E × P): E losses. Each has its own stream of the
        batch, or all read the same rows where it has none. ``buffers`` are those of a single member."""
        if len(theta) == 1:
            row, slope = self.workspace.only_rows(theta, grad)
            own = batch if batch.streams is None else batch.stream(0)
            return self.gradient(row, own, slope, buffers, prior=prior).unsqueeze(0)
        self.workspace.set_training(True)
        losses = self._stacked_gradients(theta, batch, grad)
        if prior:
            self.bound_prior.add_gradient(theta, grad, -1.0 / batch.num_data)
        return losses

    def _stacked_gradients(self, theta: Tensor, batch: Batch, grad: Tensor) -> Tensor:
        """Of the data term, for all members as one batched network."""
        if self._compiled_stack is not None and batch.streams is not None:
            gradient, losses = self._compiled_stack(theta, batch.x, batch.y)
            grad.copy_(gradient)
            return losses
        leaves = self.workspace.stacked_leaves(theta)
        losses = self._stacked_losses(leaves, batch.x, batch.y, batch.streams is not None)
        scaled = losses.sum() if self.likelihood_temperature == 1.0 else losses.sum() / self.likelihood_temperature
        gradients = torch.autograd.grad(scaled, list(leaves.values()))
        for entry, value in zip(self.layout.entries, gradients, strict=True):
            grad[:, entry.start : entry.stop] = value.reshape(len(theta), -1)
        return losses.detach()

    def _stacked_gradient_of(self, theta: Tensor, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the data term and losses as one function of θ: what is compiled."""

        def total(rows: Tensor) -> tuple[Tensor, Tensor]:
            losses = self._stacked_losses(self.layout.unflatten(rows), x, y, True)
            return losses.sum() / self.likelihood_temperature, losses

        return torch.func.grad(total, has_aux=True)(theta)

    def _stacked_losses(self, leaves: dict[str, Tensor], x: Inputs, y: Tensor, streams: bool) -> Tensor:
        count = len(self.layout.network_entries)
        values = dict(list(leaves.items())[:count])
        learned = dict(list(leaves.items())[count:])
        outputs = evaluate.at_once(self.network, values, x, stacked_inputs=streams)
        if outputs.dim() == 2:
            outputs = outputs.unsqueeze(-1)
        targets = y if streams else y.expand(len(outputs), *y.shape)
        return self.likelihood.negative_log_likelihood(outputs, targets, learned) / targets.shape[1]

    def can_batch_training(self) -> bool:
        """Whether several members can be trained as one batched network."""
        return self.workspace.can_batch()

    def prefers_batched_training(self) -> bool:
        """Whether that is likely to be faster, by the network's size and kind."""
        return evaluate.small_enough(self.network, self.layout, 128, self.device)

    def loss(self, theta: Tensor, batch: Batch) -> Tensor:
        """G̃(θ), differentiable in θ (P, or S × P for one loss per row), network in evaluation mode."""
        single = theta.dim() == 1
        rows = theta.unsqueeze(0) if single else theta
        log_lik = self.log_likelihood(rows, batch).sum(-1)
        value = -log_lik / (batch.size * self.likelihood_temperature)
        value = value - self.bound_prior.log_prob(rows) / batch.num_data
        return value[0] if single else value

    def log_likelihood(self, theta: Tensor, batch: Batch) -> Tensor:
        """log p(y_i | x_i, θ) per example at each row of θ: S × B."""
        outputs = self.workspace.outputs(theta, batch.x)
        return self.likelihood.log_prob(outputs, batch.y, self.layout.unflatten(theta, "likelihood"))

    def energy(self, theta: Tensor, data: Data | Batch, batch_size: int = 1000) -> Tensor:
        """U(θ) for each row of θ: exact over ``data``, the unbiased estimate N·G̃ for a ``Batch``."""
        if isinstance(data, Batch):
            return data.num_data * self.loss(theta, data)
        single = theta.dim() == 1
        rows = theta.unsqueeze(0) if single else theta
        total = -self.bound_prior.log_prob(rows)
        for batch in self.prepare(data).full_pass(batch_size):
            log_lik = self.log_likelihood(rows, batch.to(self.device)).sum(-1)
            total = total - log_lik / self.likelihood_temperature
        return total[0] if single else total

    def energies(self, theta: Tensor, batch: Batch, grad: Tensor | None = None) -> Tensor:
        """U of each row of θ (C × P) over ``batch``, which must hold all rows: in float64, network in evaluation mode;
        ∇U goes into ``grad`` (C × P). The hot path of samplers that accept or reject."""
        return self.energies_on(batch)(theta, grad)

    def energies_on(self, batch: Batch) -> Energies:
        """What evaluates :meth:`energies` on these rows, made once and kept."""
        found = self._energies
        if found is None or not found.serves(self.workspace, self.likelihood, self.bound_prior, batch):
            if batch.num_data != batch.size or batch.streams is not None:
                raise ArgumentError(
                    f"`batch` must hold all {batch.num_data} rows, for the energy is that of all; got {batch.size}."
                )
            found = self._energies = Energies(
                self.workspace,
                self.likelihood,
                self.bound_prior,
                self.likelihood_temperature,
                batch,
                compiled=self.is_compiled,
            )
        return found

    def log_density(self, theta: Tensor, data: Data | Batch, batch_size: int = 1000) -> Tensor:
        """log p_T(θ | D) up to a constant: −U(θ)/T."""
        return -self.energy(theta, data, batch_size) / self.temperature

    def log_prior(self, theta: Tensor) -> Tensor:
        """log p(θ), what the likelihood learns included."""
        return self.bound_prior.log_prob(theta)

    def held_out_score(self, theta: Tensor, data: Data, buffers: dict[str, Tensor] | None = None) -> float:
        """Mean log-likelihood of held-out data at one θ."""
        stacked = None if not buffers else {name: value.unsqueeze(0) for name, value in buffers.items()}
        total = 0.0
        learned = self.layout.unflatten(theta.unsqueeze(0), "likelihood")
        with torch.no_grad():
            for batch in data.full_pass():
                moved = batch.to(self.device)
                outputs = self.workspace.outputs(theta.unsqueeze(0), moved.x, stacked)
                total += float(self.likelihood.log_prob(outputs, moved.y, learned).sum())
        score = total / len(data)
        return score if not math.isnan(score) else -math.inf
