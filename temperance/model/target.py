"""``Target``: the problem as a value. :mod:`temperance.engine` evaluates it; this says only what it is.

    U(θ)      = −Σ_{i=1}^N log p(y_i | x_i, θ) / λ − log p(θ)          the energy
    p_T(θ|D)  ∝ exp(−U(θ) / T)                                           the (tempered) posterior

``temperature`` T divides prior and likelihood alike (T < 1 is a cold posterior); ``likelihood_temperature`` λ divides
the likelihood alone and is a different problem with a name of its own. N comes with the data.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_flag, check_positive, shown
from temperance.core.encoding import tensor_bytes
from temperance.core.errors import ArgumentError, NetworkError
from temperance.data.data import Data
from temperance.data.sources import Inputs, first_tensor, map_tensors, named_tensors
from temperance.engine.outputs import DICT_RULE, call
from temperance.engine.precision import compute_in, computes_coarsely
from temperance.engine.workspace import BATCH_NORMS, fresh_values, moving_buffers, working_copy
from temperance.model.learned import LearnedParameter
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import BoundPrior, GaussianDensity, Prior
from temperance.model.priors.base import RestrictedPrior
from temperance.model.theta import Layout, Subset, check_subset, selected


@dataclass(frozen=True, eq=False, repr=False)
class Target:
    """A network, a likelihood and a prior: the posterior over θ that methods approximate.

    A value: it keeps a copy of the network as it was given (frozen parameters are shared, not copied), and nothing that
    is done with it changes it. ``fit`` makes what evaluates it.

    Args:
        network: any ``nn.Module``.
        likelihood: p(y | outputs), e.g. ``Categorical()``.
        prior: p(θ), e.g. ``GaussianPrior(scale=1.0)``.
        temperature: T, of the posterior.
        likelihood_temperature: λ, of the likelihood alone.
        subset: the part of the network that is random; the rest stays as it is.
        freeze_batch_norm: keep batch norms in evaluation mode, so that the likelihood of one example does not depend on
            its neighbours in the batch.
        compute: ``torch.bfloat16`` has the network compute in half precision (``torch.autocast``), in training and
            prediction. θ stays in float32, as do gradients, noise, moments, what the likelihood sees, and passes that
            measure curvature or linearise the network.

    >>> from temperance.model.likelihoods import Categorical
    >>> from temperance.model.priors import GaussianPrior
    >>> target = Target(nn.Linear(4, 3), Categorical(), GaussianPrior(scale=1.0))
    >>> target.num_parameters
    15
    """

    network: nn.Module
    likelihood: Likelihood
    prior: Prior
    temperature: float = 1.0
    _: KW_ONLY
    likelihood_temperature: float = 1.0
    subset: Subset = None
    freeze_batch_norm: bool = False
    compute: torch.dtype | None = None
    layout: Layout = field(init=False)
    """The names and places of the numbers in θ."""
    moving: Mapping[str, Tensor] = field(init=False)
    """Buffers that training changes (running statistics, counters), as they were given: they belong to a setting of
    the weights, as θ does."""
    learned_start: Mapping[str, Tensor] = field(init=False)
    """Where what the likelihood learns starts, if not at its own initial value."""

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            raise ArgumentError(
                f"`likelihood` must be a temperance Likelihood, e.g. Categorical(); got {shown(self.likelihood)}."
            )
        if not isinstance(self.prior, Prior):
            raise ArgumentError(
                f"`prior` must be a temperance Prior, e.g. GaussianPrior(1.0); got {shown(self.prior)}."
            )
        check_positive(self.temperature, "temperature")
        check_positive(self.likelihood_temperature, "likelihood_temperature")
        check_flag(self.freeze_batch_norm, "freeze_batch_norm")
        check_subset(self.subset, "subset")
        if self.compute not in (None, torch.bfloat16):
            raise ArgumentError(f"`compute` must be torch.bfloat16, or None for float32; got {shown(self.compute)}.")
        if not isinstance(self.network, nn.Module):
            raise NetworkError(f"`network` must be a torch.nn.Module; got {type(self.network).__name__}.")
        parameters = self.network.named_parameters()
        lazy = [name for name, p in parameters if isinstance(p, nn.parameter.UninitializedParameter)]
        if lazy:
            raise NetworkError(
                f"the network must be initialised: call it once on some inputs; {lazy} have no shape yet."
            )
        names = [name for name, _ in selected(self.network, self.subset)]
        self._set(
            network=working_copy(self.network, names).eval(),
            temperature=float(self.temperature),
            likelihood_temperature=float(self.likelihood_temperature),
        )
        layout = self._layout(names, self.prior)
        self._check_precision(layout.dtype)
        self._set(
            layout=layout,
            moving=moving_buffers(self.network, self.freeze_batch_norm),
            learned_start={},
        )
        self.bound_prior  # a prior that does not fit the network is refused here  # noqa: B018
        if self.compute is not None:
            compute_in(self.network, self.compute)

    def _check_precision(self, dtype: torch.dtype) -> None:
        """Small changes of a weight in half precision are rounded away: chains stand still, and nothing says so."""
        if dtype.itemsize < 4:
            raise NetworkError(
                f"the network's random parameters must be float32 or float64; got {dtype}, which rounds small steps "
                "and noise away. Give network.float(), and to compute in half precision Target(..., "
                "compute=torch.bfloat16); frozen parameters may stay as they are (`subset`)."
            )
        if self.compute is not None and dtype != torch.float32:
            raise ArgumentError(f"`compute` {self.compute} needs random parameters in float32; got {dtype}.")

    def _layout(self, names: Sequence[str], prior: Prior) -> Layout:
        """The network's parameters ``names``, then what the prior learns about them, then what the likelihood does."""
        layout = Layout.of(self.network, names)
        learned = prior.learned_parameters(layout.network_entries)
        extras = [(p.name, p.shape, "prior") for p in learned]
        extras += [(p.name, p.shape, "likelihood") for p in self.likelihood.learned_parameters()]
        return Layout.of(self.network, names, extras) if extras else layout

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _with(self, **values: Any) -> Any:
        """A copy with other values; what was derived of them is derived anew."""
        made = copy.copy(self)
        made.__dict__.pop("bound_prior", None)
        made._set(**values)
        return made

    def __repr__(self) -> str:
        parts = [type(self.network).__name__, repr(self.likelihood), repr(self.prior)]
        parts.append(f"temperature={self.temperature}")
        if self.likelihood_temperature != 1.0:
            parts.append(f"likelihood_temperature={self.likelihood_temperature}")
        return f"Target({', '.join(parts)})"

    # ------------------------------------------------------------------ what it is made of

    @cached_property
    def bound_prior(self) -> BoundPrior:
        """The density over θ, what prior and likelihood learn included."""
        bound = self.prior.bind(self.layout, self.device)
        if bound.size == self.layout.size:  # an earlier posterior, say, which speaks for what is learned too
            return bound
        pieces = list(bound.pieces)
        for parameter in self.likelihood.learned_parameters():
            entry = self.layout[parameter.name]
            hyperprior = GaussianDensity(parameter.prior_mean, parameter.prior_scale)
            pieces.append((slice(entry.start, entry.stop), hyperprior.to(self.device, self.layout.dtype)))
        return BoundPrior(pieces)

    @property
    def num_parameters(self) -> int:
        """P, the length of θ."""
        return self.layout.size

    @property
    def device(self) -> torch.device:
        """Where the network, and so θ, lives."""
        return next(self.network.parameters()).device

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
        """Places in θ of the parameters that ``names`` names, and of what prior and likelihood learn."""
        entries = [e for e in self.layout.entries if e.name in names or e.role != "network"]
        return torch.cat([torch.arange(e.start, e.stop) for e in entries])

    def batch_norm_names(self) -> list[str]:
        """Batch norms whose output depends on the other rows of a batch in training."""
        if self.freeze_batch_norm:
            return []
        return [name for name, m in self.network.named_modules() if isinstance(m, BATCH_NORMS)]

    def refuse_batch_norm(self, method: str) -> None:
        """Raise :class:`NetworkError` if the network has batch norm, for methods that need a likelihood per example."""
        names = self.batch_norm_names()
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise NetworkError(
                f"{method} needs a likelihood that factorises over examples, but batch norm ({names[0]}{more}) mixes "
                "the examples of a batch, so its posterior is not defined. Use "
                "temperance.nn.FilterResponseNorm or nn.GroupNorm instead, or pass freeze_batch_norm=True to Target to "
                "keep the stored statistics fixed."
            )

    def refuse_learned_scales(self, method: str, why: str = "") -> None:
        """Raise :class:`ArgumentError` if the prior learns its scales: for methods that look for a mode, or for another
        reason ``why``."""
        if self.layout.entries_of("prior"):
            mode = "it looks for the mode of weights and scales together, which lies where the learned scales vanish"
            raise ArgumentError(
                f"`prior` must have given scales for {method}: {why or mode}; got {shown(self.prior)}. Draw from the "
                "posterior (NUTS, HMC, SGHMC ...) or fit it (Variational), or give a scale in place of Learned()."
            )

    def frozen_fingerprint(self) -> str:
        """A digest of everything that predictions depend on and θ does not hold: frozen parameters, fixed buffers."""
        inside = {e.name for e in self.layout.network_entries}
        digest = hashlib.sha256()
        for name, value in [*self.network.named_parameters(), *self.network.named_buffers()]:
            if name not in inside and name not in self.moving:
                digest.update(name.encode())
                digest.update(tensor_bytes(value))
        return digest.hexdigest()

    # ------------------------------------------------------------------ the same, but for one thing

    def to(self, device: torch.device | str) -> Target:
        """The same problem on another device."""
        where = torch.device(device)
        names = {e.name for e in self.layout.network_entries}
        return self._with(
            network=working_copy(self.network, names).to(where),
            moving={name: value.to(where) for name, value in self.moving.items()},
            learned_start={name: value.to(where) for name, value in self.learned_start.items()},
        )

    def with_prior(self, prior: Prior) -> Target:
        """Under another prior; the network is shared."""
        if not isinstance(prior, Prior):
            raise ArgumentError(f"`prior` must be a temperance Prior, e.g. GaussianPrior(1.0); got {shown(prior)}.")
        names = [e.name for e in self.layout.network_entries]
        layout = self._layout(names, prior)
        made: Target = self._with(prior=prior, layout=self.layout if layout == self.layout else layout)
        made.bound_prior  # noqa: B018
        return made

    def with_likelihood(self, likelihood: Likelihood) -> Target:
        """With another noise level: ``likelihood`` must learn what the present one learns."""
        if likelihood.learned_parameters() != self.likelihood.learned_parameters():
            raise ArgumentError(
                f"`likelihood` must learn the same parameters as {self.likelihood!r}; got {shown(likelihood)}."
            )
        return self._with(likelihood=likelihood)

    def with_temperature(self, temperature: float) -> Target:
        """At another temperature; the network is shared."""
        return self._with(temperature=check_positive(temperature, "temperature"))

    def with_network(self, network: nn.Module, moving: Sequence[str] = ()) -> Target:
        """With another module of the same parameters; ``moving`` names buffers of it that belong to a setting of the
        weights."""
        return self._with(network=network.eval()).expecting(moving)

    def expecting(self, moving: Iterable[str]) -> Target:
        """With more buffers that are known to move, as an earlier run has found them to do."""
        known = dict(self.moving)
        wanted = set(moving)
        for name, buffer in self.network.named_buffers():
            if name in wanted:
                known.setdefault(name, buffer.detach().clone())
        return self._with(moving=known)

    def adopting(self, start: nn.Module) -> Target:
        """With the buffers of a trained network; one whose frozen parameters are not ours is refused."""
        theirs = {**dict(start.named_parameters()), **dict(start.named_buffers())}
        inside = {e.name for e in self.layout.network_entries}
        for name, value in self.network.named_parameters():
            same = name in inside or (name in theirs and torch.equal(theirs[name].to(value.device), value))
            if not same:
                raise ArgumentError(
                    f"`start` must share the frozen parameters of the target's network; {name!r} differs. Make the "
                    "Target from the trained network instead."
                )
        network = working_copy(self.network, inside)
        moving = dict(self.moving)
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                if name in theirs:
                    buffer.copy_(theirs[name])
                    if name in moving:
                        moving[name] = buffer.detach().clone()
        return self._with(network=network, moving=moving)

    def beginning(self, data: Data) -> Target:
        """Starting, in what the likelihood learns, where it finds the targets of the (prepared) training data to be."""
        targets = dict(data.probe())["y"]
        made = self.shaped(lambda: first_rows(data).x)
        if data.weights is None:
            return made.starting(made.likelihood.begin(targets))
        return made.starting(made.likelihood.begin(targets, data.probed_weights().to(targets.device)))

    def shaped(self, rows: Callable[[], Inputs]) -> Target:
        """Whose likelihood knows how the network answers such (prepared) ``rows``, a few; itself where it knew, or need
        not know."""
        likelihood = self.likelihood.shaped(lambda: self._answers(rows()))
        return self if likelihood is self.likelihood else self._with(likelihood=likelihood)

    def settled(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Target:
        """Starting, in what the likelihood learns, at what is most probable where the network gives ``outputs`` (N × C)
        for the (prepared) targets: argmin −Σ w log p(y | outputs, ψ) / λ − log p(ψ), in float64."""
        parameters = self.likelihood.learned_parameters()
        values = {
            p.name: self.learned_start.get(p.name, torch.full(p.shape, p.initial)).detach().double().clone()
            for p in parameters
        }
        wide, targets = outputs.detach().double(), y.double() if y.is_floating_point() else y
        for value in values.values():
            value.requires_grad_()
        search = torch.optim.LBFGS(list(values.values()), max_iter=100, line_search_fn="strong_wolfe")

        def energy() -> Tensor:
            search.zero_grad()
            log_prob = self.likelihood.log_prob(wide, targets, values)
            log_prob = log_prob if weights is None else log_prob * weights.to(log_prob)
            found = -log_prob.sum() / self.likelihood_temperature
            for p in parameters:
                found = found + 0.5 * ((values[p.name] - p.prior_mean) / p.prior_scale).square().sum()
            found.backward()
            return found

        with torch.enable_grad():
            search.step(energy)
        if not all(bool(value.isfinite().all()) for value in values.values()):
            return self  # the network's outputs are not finite; what uses them says so
        found = {name: value.to(self.layout.dtype) for name, value in values.items()}
        return self.starting({**self.learned_start, **found})

    def starting(self, learned: Mapping[str, Tensor]) -> Target:
        """Starting there in what prior and likelihood learn."""
        return self._with(learned_start={name: value.detach().clone() for name, value in learned.items()})

    def restrict(self, names: Collection[str], theta: Tensor) -> Target:
        """The problem over the parameters that ``names`` names (and what the likelihood learns); all others are known
        to be as ``theta`` has them. Its θ is that of :meth:`places`, and it starts where ``theta`` is."""
        known = [e.name for e in self.layout.network_entries if e.name in names]
        theta = theta.detach().clone()  # what stays is a view into this
        network = working_copy(self.network, {e.name for e in self.layout.network_entries})
        self.layout.attach(network, theta)
        made = Target(
            network,
            self.likelihood,
            RestrictedPrior.of(self.bound_prior, self.layout, known, self._learned_by_prior()),
            self.temperature,
            likelihood_temperature=self.likelihood_temperature,
            subset=known,
            freeze_batch_norm=self.freeze_batch_norm,
            compute=self.compute,
        )
        learned = [e for e in self.layout.entries if e.role != "network"]
        started = made.starting({e.name: theta[e.start : e.stop] for e in learned})
        return started._with(moving=self.running_buffers())

    # ------------------------------------------------------------------ where θ starts

    def initial_theta(self) -> Tensor:
        """θ of the network as it was given, and the initial values of what the likelihood learns."""
        return self._with_extras(self.layout.flatten(self.network))

    def fresh_theta(self, seed: int) -> Tensor:
        """θ of a freshly initialised network, from ``seed`` alone."""
        return self._with_extras(self.layout.flatten(fresh_values(self.network, self.layout, seed)))

    def running_buffers(self) -> dict[str, Tensor]:
        """Copies, as they were given, of the buffers that training changes."""
        return {name: value.clone() for name, value in self.moving.items()}

    def theta_of(self, start: nn.Module | Tensor | Any) -> Tensor:
        """θ of a trained module, or a vector (or matrix, a row per member) checked for its length."""
        if isinstance(start, nn.Module):
            found = dict(start.named_parameters())
            missing = [e.name for e in self.layout.network_entries if e.name not in found]
            if missing:
                raise ArgumentError(f"`start` must be a network like the target's; it lacks {missing}.")
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
        for parameter in (*self._learned_by_prior(), *self.likelihood.learned_parameters()):
            entry = self.layout[parameter.name]
            start = self.learned_start.get(parameter.name)
            theta[entry.start : entry.stop] = parameter.initial if start is None else start.flatten().to(theta)
        return theta

    def _learned_by_prior(self) -> tuple[LearnedParameter, ...]:
        return self.prior.learned_parameters(self.layout.network_entries)

    def sample_prior(self, n: int, rng: torch.Generator) -> Tensor:
        """n draws of θ from the prior."""
        return self.bound_prior.sample(n, rng)

    def log_prior(self, theta: Tensor) -> Tensor:
        """log p(θ), what the likelihood learns included."""
        return self.bound_prior.log_prob(theta)

    # ------------------------------------------------------------------ data at the door

    def prepare(self, data: Data, argument: str = "data") -> Data:
        """``data`` in the dtypes of network and likelihood, checked against them. Nothing is changed."""
        data.check_finite(argument)
        probe = self.cast(first_rows(data).x)
        likelihood = self.shaped(lambda: probe).likelihood
        outputs = self.probe_outputs(probe)
        likelihood.check_outputs(outputs)
        likelihood.check_outputs(self.probe_outputs(map_tensors(lambda t: t[:1], probe)))

        def convert(x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
            return self.cast(x), likelihood.prepare(y, outputs.shape[-1], self.layout.dtype)

        return data.convert(convert)

    def cast(self, x: Inputs) -> Inputs:
        """Floating inputs in θ's dtype."""
        dtype = self.layout.dtype
        return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t, x)

    def probe_outputs(self, x: Inputs) -> Tensor:
        """Outputs for a few rows, B × C, with an error that names the shapes where the network cannot take them."""
        return self.likelihood.arrange(self._answers(x))

    def _answers(self, x: Inputs) -> Tensor:
        """What the network gives for a few rows, in a shape of its own."""
        moved = map_tensors(lambda t: t.to(self.device), x)
        try:
            with torch.no_grad():
                made = call(self.network, moved)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(x)}
            rule = f" ({DICT_RULE}.)" if isinstance(x, dict) else ""
            if self.compute is None and computes_coarsely(self.network):
                rule += " (Of a network with frozen parameters in half precision say compute=torch.bfloat16.)"
            raise NetworkError(f"the network cannot take inputs of shape {shapes}: {error}{rule}") from error
        rows = first_tensor(x).shape[0]
        if made.dim() == 0 or made.shape[0] != rows:
            raise NetworkError(
                f"the network must give one row of outputs per input; got shape {tuple(made.shape)} for {rows} inputs."
            )
        return made


def first_rows(data: Data, count: int = 2) -> Any:
    """A batch of the first rows; a data set that augments at random does not move the global state by it."""
    with torch.random.fork_rng(devices=[]):
        return next(iter(data.full_pass(min(count, len(data)))))
