"""Bayesian optimisation: a fitted posterior as a BoTorch model, and a small loop that finds a function's minimum.

``PosteriorModel(fitted)`` gives BoTorch joint draws of functions: member s is the network (or its linearisation) at one
θ_s, evaluated at all q points together, with gradients in the points. Every acquisition function that works by samples
or by mean and variance takes it. Needs ``pip install "temperance[botorch]"``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vmap

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.progress import ProgressBar
from temperance.core.seeds import check_seed, derive_seed, generator
from temperance.data.data import Data
from temperance.decide.active import make_fresh
from temperance.engine.outputs import functional
from temperance.model.likelihoods import RealLikelihood
from temperance.model.target import Target
from temperance.posteriors import WeightPosterior, centre_of
from temperance.predict.reals import representatives
from temperance.run.fit import fit
from temperance.run.fitted import Fitted

try:
    from botorch.acquisition import AcquisitionFunction, qLogExpectedImprovement, qUpperConfidenceBound
    from botorch.models.ensemble import EnsembleModel
    from botorch.optim import optimize_acqf
    from botorch.posteriors import GPyTorchPosterior
    from botorch.posteriors.ensemble import EnsemblePosterior
    from botorch.sampling.index_sampler import IndexSampler
    from botorch.utils.transforms import t_batch_mode_transform
    from gpytorch.distributions import MultivariateNormal
except ImportError as error:  # pragma: no cover
    raise ImportError('BoTorch is needed here: pip install "temperance[botorch]".') from error

_SAMPLES = 256
_LINEAR_DRAWS = 64


class PosteriorModel(EnsembleModel):
    """A fitted posterior as a BoTorch model: ``posterior(X)`` for X of shape b × q × d is an ``EnsemblePosterior`` of
    joint draws at the q points. It speaks of the function, without the noise, in the units of the training targets.

    ``draws`` and ``seed`` choose the draws of θ; a Laplace posterior gives draws of its linearised network
    (64 unless told), others those that predictions average over.
    """

    def __init__(self, fitted: Fitted, *, draws: int | None = None, seed: int = 0) -> None:
        if not isinstance(fitted, Fitted):
            raise ArgumentError(f"`fitted` must be what `fit` returns; got {type(fitted).__name__}.")
        target, posterior = fitted.target, fitted.posterior
        if not isinstance(target.likelihood, RealLikelihood):
            raise ArgumentError(f"`fitted` must be a regression on real targets; got {target.likelihood!r}.")
        shares, parts = zip(*posterior.parts(), strict=True)
        if not all(isinstance(part.inside(target)[1], WeightPosterior) for part in parts):
            raise ArgumentError("`fitted` must have draws of θ; a FunctionalLaplace posterior has none. Use Laplace.")
        linear = posterior.predicts == "linearised"
        if draws is not None:
            check_count(draws, "draws")
        if linear:  # as many draws of each component, each with the mode that it belongs to
            each = -(-(draws or _LINEAR_DRAWS) // len(parts))
            nodes = [part.nodes(each, derive_seed(check_seed(seed), k)) for k, part in enumerate(parts)]
            weights = torch.cat([share * n.weights.double() for share, n in zip(shares, nodes, strict=True)])
        else:
            nodes = [posterior.nodes(draws, check_seed(seed))]
            weights = nodes[0].weights.double()
        fetched = [n.fetch(0, len(n)) for n in nodes]
        super().__init__(weights=(weights / weights.sum()).to(target.device))
        self.fitted = fitted
        self._theta = torch.cat([theta for theta, _ in fetched]).to(target.device)
        self._statistics = {
            name: torch.cat([held[name] for _, held in fetched]).to(target.device) for name in fetched[0][1]
        }
        self._centres: Tensor | None = None
        if linear:
            centres = [centre_of(part).mean.expand(len(n), -1) for part, n in zip(parts, nodes, strict=True)]
            self._centres = torch.cat(centres).to(self._theta)
        self._num_outputs = 1
        example = fitted.engine.example
        if isinstance(example, Tensor):  # a loaded run has none: what is true is known after the first prediction
            self._num_outputs = target.likelihood.location(target.probe_outputs(example)).shape[-1]

    @property
    def members(self) -> int:
        """S, how many functions there are."""
        return len(self._theta)

    @property
    def member_weights(self) -> Tensor:
        """The weight of each function."""
        assert self.ensemble_weights is not None
        return self.ensemble_weights

    def forward(self, X: Tensor) -> Tensor:
        """Values b × S × q × m at X of shape b × q × d."""
        target = self.fitted.target
        rows = X.reshape(-1, X.shape[-1]).to(device=target.device, dtype=target.layout.dtype)
        outputs = self._network(rows) if self._centres is None else self._linear(rows)
        likelihood = target.likelihood
        assert isinstance(likelihood, RealLikelihood)
        values = likelihood.location(outputs).to(X)
        self._num_outputs = values.shape[-1]
        return values.view(self.members, *X.shape[:-1], -1).movedim(0, -3)

    def _network(self, x: Tensor) -> Tensor:
        return self.fitted.engine.outputs(self._theta, x, self._statistics)

    def _linear(self, x: Tensor) -> Tensor:
        """f(x) + J(x) δ_s."""
        target = self.fitted.target
        fixed = {name: value[0] for name, value in self._statistics.items()}

        def one(centre: Tensor, delta: Tensor) -> Tensor:
            def network(theta: Tensor) -> Tensor:
                values = {**target.layout.unflatten(theta, "network"), **fixed}
                made = functional(target.network, values, x)
                return made.unsqueeze(-1) if made.dim() == 1 else made

            value, slope = jvp(network, (centre,), (delta,))  # type: ignore[misc]
            return value + slope

        assert self._centres is not None
        return vmap(one)(self._centres, self._theta - self._centres)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> PosteriorModel:
        """The same members, each weighted by how well it explains the new rows: w_s ∝ w_s Π_i p(y_i | x_i, θ_s). Exact
        for what the members can tell; after more than a few rows fit again."""
        target = self.fitted.target
        if X.dim() != 2 or Y.dim() != 2 or len(X) != len(Y):
            raise ArgumentError(
                f"`X` and `Y` must be matrices of equal length; got {tuple(X.shape)}, {tuple(Y.shape)}."
            )
        rows = X.to(device=target.device, dtype=target.layout.dtype)
        with torch.no_grad():
            outputs = self._network(rows) if self._centres is None else self._linear(rows)
            learned = target.layout.unflatten(self._theta, "likelihood")
            log_prob = target.likelihood.log_prob(outputs, Y.to(outputs), learned).double().sum(-1)
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.ensemble_weights = (self.member_weights.log() + log_prob).softmax(0)
        return made


class GaussianPosteriorModel(PosteriorModel):
    """The same as one Gaussian process: mean and covariance of the draws at the q points. It reaches beyond the best
    member, which a few members by themselves cannot."""

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> GPyTorchPosterior:  # type: ignore[override]
        """A multivariate normal over the q points."""
        transform = kwargs.pop("posterior_transform", None)
        values = super().posterior(X, *args, **kwargs).values
        if values.shape[-1] != 1:
            raise ArgumentError(f"GaussianPosteriorModel is for one output; got {values.shape[-1]}.")
        mean, covariance = _moments(values[..., 0], self.member_weights.to(values))
        jitter = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-6)
        eye = torch.eye(covariance.shape[-1]).to(covariance)
        made = GPyTorchPosterior(MultivariateNormal(mean, covariance + jitter[..., None, None] * eye))
        return made if transform is None else transform(made)


def _moments(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean b × q and covariance b × q × q of draws b × S × q."""
    mean = torch.einsum("s,...sq->...q", weights, values)
    centred = values - mean.unsqueeze(-2)
    return mean, torch.einsum("s,...sq,...sr->...qr", weights, centred, centred)


class MemberSampler(IndexSampler):
    """Every member once (of unequal weights: a systematic sample), so that averages over members are exact."""

    def __init__(self, model: PosteriorModel) -> None:
        weights = model.member_weights.cpu()
        equal = bool((weights - weights[0]).abs().max() < 1e-12)
        self._members = torch.arange(len(weights)) if equal else representatives(weights, _SAMPLES)
        super().__init__(sample_shape=torch.Size([len(self._members)]), seed=0)

    def _construct_base_samples(self, posterior: EnsemblePosterior) -> None:
        shape = (len(self._members), *([1] * len(posterior.batch_shape)))
        made = self._members.to(posterior.device).view(shape).expand(-1, *posterior.batch_shape)
        self.register_buffer("base_samples", made.contiguous())


Acquire = Callable[[PosteriorModel, float, int], Any]


def expected_improvement(model: PosteriorModel, best: float, seed: int) -> Any:
    """log E[(max f − best)⁺], smoothed, over the members."""
    sampler = None if isinstance(model, GaussianPosteriorModel) else MemberSampler(model)
    return qLogExpectedImprovement(model, best, sampler=sampler)


def upper_confidence_bound(model: PosteriorModel, best: float, seed: int, beta: float = 4.0) -> Any:
    """Mean and √β standard deviations, for q points together."""
    sampler = None if isinstance(model, GaussianPosteriorModel) else MemberSampler(model)
    return qUpperConfidenceBound(model, beta, sampler=sampler)


class ThompsonDraw(AcquisitionFunction):
    """Σ_j f_{s_j}(x_j): each of q points maximises a member of its own, drawn by weight."""

    def __init__(self, model: PosteriorModel, seed: int) -> None:
        super().__init__(model)
        self.functions, self.seed = model, check_seed(seed)

    @t_batch_mode_transform()  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """One number for each of b batches."""
        rng = generator(self.seed, "thompson")
        pick = torch.multinomial(self.functions.member_weights.cpu(), X.shape[-2], replacement=True, generator=rng)
        values = self.functions.forward(X)[..., 0]  # b × S × q
        return torch.stack([values[..., s, j] for j, s in enumerate(pick.tolist())]).sum(0)


def thompson_sampling(model: PosteriorModel, best: float, seed: int) -> Any:
    """Maximise one draw of the function for each point."""
    return ThompsonDraw(model, seed)


def _standardised(y: Tensor) -> Tensor:
    return (y - y.mean()) / (float(y.std(correction=0)) or 1.0)


def _straightened(y: Tensor) -> Tensor:
    from sklearn.preprocessing import PowerTransformer

    made = PowerTransformer().fit_transform(_standardised(y).unsqueeze(1).numpy())[:, 0]
    return torch.from_numpy(made) if bool(torch.isfinite(torch.from_numpy(made)).all()) else y


@dataclass(frozen=True)
class Optimum:
    """The best point found, its value, and everything that was tried in order."""

    best_x: Tensor
    best_value: float
    x: Tensor
    y: Tensor


def optimise(
    objective: Callable[[Tensor], Any],
    bounds: Any,
    make_target: Callable[[], Target] | Target,
    method: Any,
    *,
    evaluations: int = 30,
    start: int = 8,
    batch: int = 1,
    acquire: Acquire = expected_improvement,
    model: type[PosteriorModel] = PosteriorModel,
    maximise: bool = False,
    warp: bool = True,
    epochs: int | None = None,
    steps: int | None = None,
    draws: int | None = None,
    restarts: int = 4,
    seed: int = 0,
    progress: bool | None = None,
) -> Optimum:
    """Find the minimum (or maximum) of a costly function: ``start`` quasi-random points, then fit, pick the next
    ``batch`` points by ``acquire``, evaluate, and fit again, until ``evaluations`` are spent.

    Args:
        objective: takes points n × d in their own units, gives n numbers.
        bounds: 2 × d, lower and upper ends.
        make_target: makes a regression with d inputs and one output; inputs come scaled to [−1, 1], targets
            standardised and turned so that more is better.
        method, epochs, steps: how each fit is done.
        acquire: ``expected_improvement``, ``upper_confidence_bound``, ``thompson_sampling``, or a function
            (model, best value so far, seed) that makes a BoTorch acquisition function to maximise.
        model: ``PosteriorModel`` or ``GaussianPosteriorModel``.
        maximise: look for the maximum.
        warp: take the skew out of the values by a power (Yeo and Johnson 2000, fitted each time), so that a few very
            bad ones do not drown the differences among the good.
        draws: of θ, see :class:`PosteriorModel`.
        restarts: of the search for the acquisition function's maximum.
        seed: decides everything random.
    """
    ends = torch.as_tensor(bounds, dtype=torch.float64)
    if ends.dim() != 2 or len(ends) != 2 or not bool((ends[0] < ends[1]).all()):
        raise ArgumentError(f"`bounds` must be 2 × d, lower ends below upper ends; got {bounds!r}.")
    check_seed(seed)
    for name, value in (("evaluations", evaluations), ("start", start), ("batch", batch), ("restarts", restarts)):
        check_count(value, name)
    if start > evaluations or start < 2:
        raise ArgumentError(f"`start` must be from 2 to `evaluations` ({evaluations}); got {start}.")
    sign = 1.0 if maximise else -1.0
    cube = torch.stack([-torch.ones(ends.shape[1]), torch.ones(ends.shape[1])]).double()

    def ask(points: Tensor) -> Tensor:
        found = torch.as_tensor(objective(ends[0] + (points + 1) / 2 * (ends[1] - ends[0]))).double().reshape(-1)
        if len(found) != len(points) or not bool(torch.isfinite(found).all()):
            raise ArgumentError(f"`objective` must give a finite number for each of {len(points)} points; got {found}.")
        return found

    sobol = torch.quasirandom.SobolEngine(ends.shape[1], scramble=True, seed=derive_seed(seed, "start") % 2**31)
    x = sobol.draw(start, dtype=torch.float64) * 2 - 1
    y = ask(x)
    with ProgressBar("optimise", evaluations, progress) as bar:
        while len(x) < evaluations:
            own = derive_seed(seed, "round", len(x))
            scaled = _standardised(_straightened(sign * y) if warp else sign * y)
            target = make_fresh(make_target, own)
            data = Data(x.to(target.layout.dtype), scaled.to(target.layout.dtype).unsqueeze(1))
            fitted = fit(target, method, data, epochs=epochs, steps=steps, seed=own, progress=False)
            surrogate = model(fitted, draws=draws, seed=own)
            acquisition = acquire(surrogate, float(scaled.max()), own)
            count = min(batch, evaluations - len(x))
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(own)
                points, _ = optimize_acqf(
                    acquisition, cube, q=count, num_restarts=restarts, raw_samples=64, options={"maxiter": 50}
                )
            x = torch.cat([x, points.detach().double().clamp(-1, 1)])
            y = torch.cat([y, ask(x[-count:])])
            bar.advance_to(len(x), float((sign * y).max() * sign), last=len(x) >= evaluations)
    best = int((sign * y).argmax())
    units = ends[0] + (x + 1) / 2 * (ends[1] - ends[0])
    return Optimum(units[best], float(y[best]), units, y)
