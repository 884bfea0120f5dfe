"""Predictives of the linearised network: Gaussian in the outputs, then through the likelihood.

* Regression with Gaussian noise is closed: y ~ N(f, V + σ²).
* Otherwise the Gaussian of each row is represented by quasi-random points whose mean and covariance are exactly its
  own, so that every statistic of :class:`~temperance.predict.Predictive` is had with little sampling noise.
* ``"probit"`` and ``"bridge"`` are closed forms for class probabilities.
* Draws of all rows together (``sample``, ``joint_log_prob``) are draws of functions, f(x) + J(x) δ, one δ for all x.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from temperance.data.sources import Inputs, first_tensor
from temperance.errors import ArgumentError
from temperance.likelihoods import Bernoulli, Likelihood, Normal
from temperance.likelihoods.base import Learned
from temperance.posteriors import LaplacePosterior, Mixture, Posterior, Process
from temperance.predict.kernel import KernelLaw
from temperance.predict.linear import LinearLaw
from temperance.predict.predictive import ClassPredictive, Predictive
from temperance.predict.source import Block
from temperance.predict.values import RealPredictive
from temperance.seeds import derive_seed
from temperance.target import Target

MARGINAL_POINTS = 128
FUNCTION_DRAWS = 64
_MANY_OUTPUTS = 64  # beyond this no C × C covariance of a row is built: draws of functions stand for it
_BLOCK_BYTES = 2**25
_KEEP_BYTES = 2**28
_JOINT = 8192  # rows times outputs of a joint covariance


class Law(Protocol):
    """A Gaussian law of the outputs."""

    num_outputs: int

    def moments(self, x: Inputs, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and covariance of each row."""

    def halves(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """Outputs, and a root of their joint covariance."""

    def functions(self, x: Inputs, deltas: Any, batch_size: int) -> Iterator[tuple[slice, Tensor]]:
        """Displaced outputs."""

    def learned_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and covariance of what the likelihood learns."""


def standard_points(count: int, dimensions: int, like: Tensor) -> Tensor:
    """``count`` quasi-random normal points whose mean is zero and covariance the identity, exactly."""
    if dimensions == 0:
        return like.new_zeros(count, 0)
    uniform = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=0).draw(count, dtype=torch.float64)
    points = torch.special.ndtri(uniform.clamp(1e-7, 1 - 1e-7))
    if count > 2 * dimensions:
        points = points - points.mean(0)
        root = torch.linalg.cholesky(points.mT @ points / count)
        points = torch.linalg.solve_triangular(root, points.mT, upper=False).mT
    return points.to(like)


def root_of(covariance: Tensor) -> Tensor:
    """A square root R with R Rᵀ = covariance (... × C × C), which may be singular."""
    lower, info = torch.linalg.cholesky_ex(covariance)
    bad = info != 0
    if bool(bad.any()):
        values, vectors = torch.linalg.eigh(covariance[bad])
        lower[bad] = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return lower


class Linearised:
    """A posterior's network linearised, for inputs x: a law for each component of a mixture."""

    def __init__(self, target: Target, posterior: Posterior, x: Inputs, batch_size: int) -> None:
        self.target, self.x, self.batch_size = target, x, batch_size
        self.parts = posterior.components if isinstance(posterior, Mixture) else (posterior,)
        self.shares = posterior.shares() if isinstance(posterior, Mixture) else (1.0,)
        self.laws = [_law(target, part, x) for part in self.parts]


class LinearisedSource(ABC):
    """Shared by the sources here: rows, outputs, weights, and a law for each component of a mixture."""

    def __init__(self, linear: Linearised, draws: int, seed: int) -> None:
        self.target, self.x, self.batch_size, self.seed = linear.target, linear.x, linear.batch_size, seed
        self.parts, self.shares, self.laws = linear.parts, linear.shares, linear.laws
        target, shares = self.target, self.shares
        self.each = max(1, -(-draws // len(self.parts)))
        self.rows = first_tensor(self.x).shape[0]
        self.num_outputs = self.laws[0].num_outputs
        weights = torch.cat([torch.full((self.each,), share / self.each, dtype=torch.float64) for share in shares])
        self.weights = (weights / weights.sum()).to(device=target.device, dtype=target.layout.dtype)

    def __len__(self) -> int:
        return len(self.weights)

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """See :class:`~temperance.predict.source.Source`."""

    def _unflatten(self, learned: Tensor) -> dict[str, Tensor]:
        """What the likelihood learns, S × L, by name."""
        network = learned.new_zeros(len(learned), self.target.layout.network_size)
        return self.target.layout.unflatten(torch.cat([network, learned], dim=1), "likelihood")


def _law(target: Target, posterior: Posterior, x: Inputs) -> Law:
    if isinstance(posterior, LaplacePosterior):
        return LinearLaw(target, posterior, x)
    if isinstance(posterior, Process):
        return KernelLaw(target, posterior, x)
    raise ArgumentError(
        f'`by`: linearised predictions need a Laplace posterior; this is a {type(posterior).__name__}. Use by="network"'
        "."
    )


class MarginalSource(LinearisedSource):
    """Points of each row's own Gaussian; the moments are kept where they are small, and made anew where not."""

    def __init__(self, linear: Linearised, draws: int, seed: int) -> None:
        super().__init__(linear, draws, seed)
        each = self.num_outputs * (self.num_outputs + 1) * self.target.layout.dtype.itemsize
        size = len(self.laws) * self.rows * each
        self._kept: list[tuple[list[Tensor], list[Tensor]]] | None = None
        if size <= _KEEP_BYTES:
            self._kept = list(self._moments())

    def _moments(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Means and covariances for chunks of rows, one each for every component."""
        walks = [law.moments(self.x, self.batch_size) for law in self.laws]
        if len(walks) == 1:
            for mean, covariance in walks[0]:
                yield [mean], [covariance]
            return
        whole = [tuple(torch.cat(parts) for parts in zip(*walk, strict=True)) for walk in walks]
        yield [mean for mean, _ in whole], [covariance for _, covariance in whole]

    def moments(self) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        """Rows, then mean b × C and covariance b × C × C of each component."""
        at = 0
        for means, covariances in self._moments() if self._kept is None else self._kept:
            for part in torch.arange(len(means[0])).split(self._step()):
                low, high = int(part[0]), int(part[-1]) + 1
                yield slice(at + low, at + high), [m[low:high] for m in means], [c[low:high] for c in covariances]
            at += len(means[0])

    def _step(self) -> int:
        size = self.target.layout.dtype.itemsize * len(self) * self.num_outputs
        return max(1, _BLOCK_BYTES // size)

    def blocks(self) -> Iterator[Block]:
        """See :class:`~temperance.predict.source.Source`."""
        learned: dict[str, Tensor] | None = None
        points: Tensor | None = None
        for rows, means, covariances in self.moments():
            if points is None:
                size = self.target.layout.size - self.target.layout.network_size
                points = standard_points(self.each, self.num_outputs + size, means[0])
                drawn = []
                for law in self.laws:
                    centre, spread = law.learned_moments()
                    drawn.append(centre + points[:, self.num_outputs :] @ root_of(spread).mT)
                learned = self._unflatten(torch.cat(drawn))
            z = points[:, : self.num_outputs]
            made = [
                mean + torch.einsum("bij,sj->sbi", root_of(covariance), z)
                for mean, covariance in zip(means, covariances, strict=True)
            ]
            assert learned is not None
            yield rows, torch.cat(made), learned


class FunctionSource(LinearisedSource):
    """Draws of functions: f(x) + J(x) δ_s, one δ_s for all rows."""

    @cached_property
    def _deltas(self) -> list[Sequence[Tensor]]:
        """For each component, displacements of θ."""
        made: list[Sequence[Tensor]] = []
        for k, (part, law) in enumerate(zip(self.parts, self.laws, strict=True)):
            seed = derive_seed(self.seed, "component", k)
            if isinstance(part, LaplacePosterior):
                made.append(_Displacements(part, self.each, seed))
            else:
                assert isinstance(law, KernelLaw)
                made.append(law.function_draws(self.each, seed))
        return made

    @cached_property
    def _learned(self) -> dict[str, Tensor]:
        size = self.target.layout.network_size
        if size == self.target.layout.size:
            return {}
        rows: list[Tensor] = []
        for part, deltas in zip(self.parts, self._deltas, strict=True):
            mean: Tensor = part.mean  # type: ignore[attr-defined]
            rows.extend(mean[size:] + delta[size:] for delta in deltas)
        return self._unflatten(torch.stack(rows))

    def blocks(self) -> Iterator[Block]:
        """See :class:`~temperance.predict.source.Source`. Outputs are kept where they are small."""
        if self._kept is not None:
            yield from self._kept
            return
        size = self.target.layout.dtype.itemsize * len(self) * self.num_outputs
        step = max(1, min(self.batch_size, _BLOCK_BYTES // size))
        walks = [law.functions(self.x, deltas, step) for law, deltas in zip(self.laws, self._deltas, strict=True)]
        made: list[Block] | None = [] if size * self.rows <= _KEEP_BYTES else None
        for pieces in zip(*walks, strict=True):
            block = pieces[0][0], torch.cat([outputs for _, outputs in pieces]), self._learned
            if made is not None:
                made.append(block)
            yield block
        self._kept = made

    _kept: list[Block] | None = None


class _Displacements(Sequence[Tensor]):
    """θ_s − θ* for draws θ_s: kept together where they are small, and made one by one, anew each time, where not."""

    def __init__(self, posterior: LaplacePosterior, draws: int, seed: int) -> None:
        self.posterior, self.nodes = posterior, posterior.nodes(draws, seed)
        self._kept: dict[int, Tensor] | None = None
        if draws * posterior.size * posterior.mean.element_size() <= _KEEP_BYTES:
            self._kept = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < len(self):
            raise IndexError(k)
        if self._kept is not None and k in self._kept:
            return self._kept[k]
        made = self.nodes.fetch(k, k + 1)[0][0] - self.posterior.mean
        if self._kept is not None:
            self._kept[k] = made
        return made


# ---------------------------------------------------------------------- class probabilities in closed form


def probit_probabilities(mean: Tensor, variance: Tensor, binary: bool) -> Tensor:
    """E softmax(f) ≈ softmax(mean / √(1 + π/8 · variance)) (MacKay 1992); a sigmoid for yes/no labels.

    >>> probit_probabilities(torch.ones(1, 1), torch.ones(1, 1), binary=True)
    tensor([[0.7000]])
    """
    scaled = mean / torch.sqrt(1 + math.pi / 8 * variance)
    return scaled.sigmoid() if binary else scaled.softmax(-1)


def bridge_concentration(mean: Tensor, variance: Tensor) -> Tensor:
    """The Dirichlet whose Laplace approximation in the softmax basis is N(mean, diag variance) (Hobbhahn et al. 2022):
    α_k = (1 − 2/K + e^{μ_k} K⁻² Σ_l e^{−μ_l}) / Σ_kk.

    >>> bridge_concentration(torch.tensor([[1.0, 0.0, -1.0]]), torch.ones(1, 3))
    tensor([[1.5675, 0.7874, 0.5004]])
    """
    classes = mean.shape[-1]
    total = torch.exp(mean + torch.logsumexp(-mean, -1, keepdim=True)) / classes**2
    return (1 - 2 / classes + total) / variance


def bridge_probabilities(mean: Tensor, covariance: Tensor) -> Tensor:
    """The mean of the bridge's Dirichlet, after the Gaussian is conditioned on outputs that sum to zero (a softmax does
    not see their sum)."""
    ones = covariance.sum(-1)
    total = ones.sum(-1, keepdim=True)
    centred = mean - ones * mean.sum(-1, keepdim=True) / total
    variance = covariance.diagonal(dim1=-2, dim2=-1) - ones.square() / total
    alpha = bridge_concentration(centred, variance)
    return alpha / alpha.sum(-1, keepdim=True)


class LinearisedMixin(Predictive):
    """What linearised predictives share: the law's own moments, and draws of functions for what concerns all rows."""

    source: LinearisedSource
    functions: Callable[[], FunctionSource]

    @cached_property
    def _functions(self) -> FunctionSource:
        return self.functions()

    def _joint(self) -> Predictive:
        """The same predictive over draws of functions."""
        kind = next(k for k in type(self).__mro__ if k.__module__ != __name__)
        made: Predictive = kind(self._functions, self._joint_likelihood())
        return made

    def _joint_likelihood(self) -> Likelihood:
        return self.likelihood

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together; each has one function for all its rows."""
        return self._joint().sample(n, seed)

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p(y_1, …, y_N | D), over draws of functions."""
        return self._joint().joint_log_prob(y)

    def output_functions(self) -> Tensor:
        """Draws of the outputs, S × rows × C: smooth in x, for each draw is one function (Thompson sampling)."""
        return torch.cat([outputs for _, outputs, _ in self._functions.blocks()], dim=1)

    def output_mean(self) -> Tensor:
        """The outputs' mean, rows × C (of a mixture: averaged)."""
        return torch.cat([self._mixed(means) for _, means, _ in self._marginals()])

    def output_variance(self) -> Tensor:
        """The outputs' variance, rows × C (of a mixture: averaged, and that of the means added)."""
        parts = []
        for _, means, covariances in self._marginals():
            centre = self._mixed(means)
            within = self._mixed([c.diagonal(dim1=-2, dim2=-1) for c in covariances])
            parts.append(within + self._mixed([(m - centre).square() for m in means]))
        return torch.cat(parts)

    def output_covariance(self) -> Tensor:
        """The joint covariance of all outputs at all rows, (rows·C) × (rows·C), of a posterior with one component."""
        source = self.source
        if len(source.laws) > 1:
            raise ArgumentError("the joint covariance is that of one Gaussian; this posterior is a mixture of several.")
        if source.rows * source.num_outputs > _JOINT:
            raise ArgumentError(
                f"the joint covariance of {source.rows} rows with {source.num_outputs} outputs has "
                f"{source.rows * source.num_outputs}² numbers; ask for at most {_JOINT} rows times outputs."
            )
        _, half = source.laws[0].halves(source.x, source.batch_size)
        return half @ half.mT

    def _marginals(self) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        if not isinstance(self.source, MarginalSource):
            raise ArgumentError(
                f"with {self.source.num_outputs} outputs the covariance of a row is not built; use output_functions()."
            )
        return self.source.moments()

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        total = parts[0] * self.source.shares[0]
        for part, share in zip(parts[1:], self.source.shares[1:], strict=True):
            total = total + share * part
        return total


class LinearisedClassPredictive(LinearisedMixin, ClassPredictive):
    """Classes and yes/no labels. ``link`` says how probabilities come of the Gaussian over the outputs."""

    link: str = "points"

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities, rows × classes."""
        if self.link == "points":
            return self.mean().clamp(0.0, 1.0)
        parts = []
        for _, means, covariances in self._marginals():
            found = []
            for mean, covariance in zip(means, covariances, strict=True):
                if self.link == "probit":
                    variance = covariance.diagonal(dim1=-2, dim2=-1)
                    found.append(probit_probabilities(mean, variance, self._is_binary()))
                else:
                    found.append(bridge_probabilities(mean, covariance))
            parts.append(self._mixed(found))
        return torch.cat(parts)

    def log_prob(self, y: Any) -> Tensor:
        """log p(y | x, D) per row, by the link."""
        if self.link == "points":
            return super().log_prob(y)
        target = self._targets(y)
        p = self.probs.clamp(min=torch.finfo(self.probs.dtype).tiny)
        if isinstance(self.likelihood, Bernoulli):
            return (torch.special.xlogy(target, p) + torch.special.xlogy(1 - target, (1 - self.probs))).sum(-1)
        return p.gather(-1, target.unsqueeze(-1)).squeeze(-1).log()

    def mutual_information(self) -> Tensor:
        """Entropy − aleatoric; a closed form of the probabilities may put it below zero, which counts as zero."""
        found = super().mutual_information()
        return found if self.link == "points" else found.clamp(min=0.0)


class _SpreadNormal(Normal):
    """Gaussian noise and a Gaussian location together: the variance of both."""

    def noise_scale(self, outputs: Tensor, learned: Learned) -> Tensor:
        """√(σ² + v)."""
        return (super().noise_scale(outputs, learned).square() + learned["epistemic"]).sqrt()


class _GaussianSource(LinearisedSource):
    """For Gaussian noise: the mean of each row with its epistemic variance, for some values of a learned noise."""

    def __init__(self, inner: MarginalSource) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner = inner
        _, spread = inner.laws[0].learned_moments()
        self.each = _NOISE_POINTS if spread.numel() and bool((spread > 0).any()) else 1
        weights = torch.cat([torch.full((self.each,), share / self.each) for share in inner.shares])
        self.weights = (weights / weights.sum()).to(inner.weights)

    def blocks(self) -> Iterator[Block]:
        """Outputs are the means; ``learned`` also has the variance and, for several outputs, the covariance."""
        for rows, means, covariances in self.inner.moments():
            outputs, variances, matrices, drawn = [], [], [], []
            for law, mean, covariance in zip(self.laws, means, covariances, strict=True):
                centre, spread = law.learned_moments()
                points = standard_points(self.each, len(centre), centre)
                drawn.append(centre + points @ root_of(spread).mT if len(centre) else centre.expand(self.each, 0))
                outputs.append(mean.expand(self.each, *mean.shape))
                variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
                variances.append(variance.expand(self.each, *variance.shape))
                matrices.append(covariance.expand(self.each, *covariance.shape))
            learned = self._unflatten(torch.cat(drawn))
            learned["epistemic"] = torch.cat(variances)
            if self.num_outputs > 1:
                learned["covariance"] = torch.cat(matrices)
            yield rows, torch.cat(outputs), learned


_NOISE_POINTS = 16


class LinearisedNormalPredictive(LinearisedMixin, RealPredictive):
    """Regression with Gaussian noise: y ~ N(f, V + σ²), in closed form (averaged over a learned σ)."""

    def __init__(self, source: MarginalSource, likelihood: Normal) -> None:
        spread = _SpreadNormal(scale=likelihood.scale, num_outputs=likelihood.num_outputs)
        super().__init__(_GaussianSource(source), spread)
        self.noise = likelihood

    def _joint_likelihood(self) -> Likelihood:
        return self.noise

    def _marginals(self) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        inner: MarginalSource = self.source.inner  # type: ignore[attr-defined]
        return inner.moments()

    def aleatoric_variance(self) -> Tensor:
        """E σ²."""
        return self._over_rows(lambda out, learned: self._average(self.noise.variance, out, learned))

    def epistemic_variance(self) -> Tensor:
        """V, and for a mixture the variance of the means."""

        def spread(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            within = self._average(lambda _, k: k["epistemic"], outputs, learned)
            centre = self._average(self.noise.mean, outputs, learned)
            return within + self._average(lambda o, k: (o - centre).square(), outputs, learned)

        return self._over_rows(spread)

    def aleatoric(self) -> Tensor:
        """E_σ of the noise's entropy."""
        return self._over_rows(lambda out, learned: self._average(self.noise.entropy, out, learned))

    def entropy(self) -> Tensor:
        """Of the whole predictive: a Gaussian, or a mixture of a few."""
        member = self._over_rows(lambda out, learned: self._average(self._member_entropy, out, learned))
        return member + RealPredictive.mutual_information(self)

    def _member_entropy(self, outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
        if "covariance" not in learned:
            return self.likelihood.entropy(outputs, learned)
        log_det = torch.linalg.slogdet(self._total(outputs, learned))[1]
        return 0.5 * (log_det + outputs.shape[-1] * math.log(2 * math.pi * math.e))

    def _total(self, outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
        """V + σ² I, S × b × C × C."""
        noise = self.noise.variance(outputs, learned)
        return learned["covariance"] + torch.diag_embed(noise)

    def mutual_information(self) -> Tensor:
        """Entropy − aleatoric."""
        return self.entropy() - self.aleatoric()

    def _member_log_prob(self, y: Tensor, block: Block) -> Tensor:
        rows, outputs, learned = block
        if "covariance" not in learned:
            return super()._member_log_prob(y, block)
        lower = torch.linalg.cholesky(self._total(outputs, learned))
        delta = (y[rows] - outputs).unsqueeze(-1)
        white = torch.linalg.solve_triangular(lower, delta, upper=False).squeeze(-1)
        log_det = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white.square().sum(-1) + log_det + outputs.shape[-1] * math.log(2 * math.pi))

    def joint_log_prob(self, y: Any) -> Tensor:
        """log N of all rows together, in closed form where the noise is known and the rows are few; over draws of
        functions otherwise."""
        source = self.source
        if len(source) > 1 or source.rows * source.num_outputs > _JOINT:
            return super().joint_log_prob(y)
        target = self._targets(y)
        outputs, half = source.laws[0].halves(source.x, source.batch_size)
        _, _, learned = next(iter(source.blocks()))
        noise = self.noise.variance(outputs.unsqueeze(0), learned)[0].flatten().double()
        joint = (half @ half.mT).double() + torch.diag(noise)
        lower = torch.linalg.cholesky(joint)
        delta = (target - outputs).flatten().double()
        white = torch.linalg.solve_triangular(lower, delta.unsqueeze(1), upper=False)
        return -0.5 * white.square().sum() - lower.diagonal().log().sum() - 0.5 * len(delta) * math.log(2 * math.pi)


LINKS = ("linearised", "probit", "bridge", "functions")


def predict_linearised(
    target: Target,
    posterior: Posterior,
    x: Inputs,
    kind: type[Predictive],
    by: str,
    draws: int | None,
    seed: int,
    batch_size: int,
) -> Predictive:
    """The predictive of the linearised network; see the module."""

    linear = Linearised(target, posterior, x, batch_size)

    def functions() -> FunctionSource:
        return FunctionSource(linear, FUNCTION_DRAWS if draws is None else draws, seed)

    likelihood = target.likelihood
    outputs = linear.laws[0].num_outputs
    classes = issubclass(kind, ClassPredictive)
    if by in ("probit", "bridge") and not classes:
        raise ArgumentError(f"`by` {by!r} is for class probabilities; the likelihood is {likelihood!r}.")
    if by == "bridge" and isinstance(likelihood, Bernoulli):
        raise ArgumentError("`by` 'bridge' is for Categorical; for yes/no labels use 'probit'.")
    if by == "functions" or (outputs > _MANY_OUTPUTS and by == "linearised"):
        made = _kind(kind)(functions(), likelihood)
        made.functions = functions
        return made
    source = MarginalSource(linear, MARGINAL_POINTS if draws is None else draws, seed)
    if type(likelihood) is Normal:
        made = LinearisedNormalPredictive(source, likelihood)
    else:
        made = _kind(kind)(source, likelihood)
        if isinstance(made, LinearisedClassPredictive) and by != "linearised":
            made.link = by
    made.functions = functions
    return made


_made: dict[type[Predictive], type[LinearisedMixin]] = {ClassPredictive: LinearisedClassPredictive}


def _kind(kind: type[Predictive]) -> type[LinearisedMixin]:
    """``kind`` with what linearised predictives share."""
    if kind not in _made:
        _made[kind] = type(f"Linearised{kind.__name__}", (LinearisedMixin, kind), {"__module__": __name__})
    return _made[kind]
