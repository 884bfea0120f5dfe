"""The dense twin: curvature by brute force, from definitions, with nothing of ``temperance.inference.curvature``.

Each example goes through the network alone, each of its outputs is differentiated by itself, and what the likelihood
does with the outputs is taken from ``torch.distributions`` and from the definition of the Fisher information,

    F(u) = E_{y ~ p(y|u)} [∂ log p / ∂u · (∂ log p / ∂u)ᵀ],

u the outputs followed by what the likelihood learns. Expectations are sums over all classes or counts, or a fine grid.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, distributions, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import temperance as tp

LogProb = Callable[[Tensor, Tensor], Tensor]
"""log p of each independent target: u is M × (C + L), y is M × D; M × D comes back."""


@dataclass(frozen=True)
class TwinLikelihood:
    """log p, and for each independent target the places and weights of an expectation over it."""

    log_prob: LogProb
    support: Callable[[Tensor], tuple[Tensor, Tensor]]
    """For one u: targets M × D and weights M × D, column by column: Σ_m w_md φ(y_md) = E φ(y_d)."""


def _grid(points: int = 2000) -> tuple[Tensor, Tensor]:
    """z = tan φ at midpoints of (−π/2, π/2), and dz: for smooth functions of z this converges faster than any power."""
    phi = (torch.arange(points, dtype=torch.float64) + 0.5) / points * math.pi - math.pi / 2
    return phi.tan(), phi.cos().pow(-2) * math.pi / points


def _real(make: Callable[[Tensor], distributions.Distribution]) -> TwinLikelihood:
    def support(u: Tensor) -> tuple[Tensor, Tensor]:
        law = make(u.unsqueeze(0))
        z, dz = _grid()
        y = law.loc + law.scale * z.unsqueeze(-1)
        return y, law.log_prob(y).exp() * law.scale * dz.unsqueeze(-1)

    return TwinLikelihood(lambda u, y: make(u).log_prob(y), support)


def normal(scale: float) -> TwinLikelihood:
    return _real(lambda u: distributions.Normal(u, torch.full_like(u, scale), validate_args=False))


def learned_normal(outputs: int, scales: int = 1) -> TwinLikelihood:
    def make(u: Tensor) -> distributions.Distribution:
        spread = u[:, outputs:].exp().expand(-1, outputs if scales == 1 else scales)
        return distributions.Normal(u[:, :outputs], spread, validate_args=False)

    return _real(make)


def heteroscedastic(targets: int) -> TwinLikelihood:
    def make(u: Tensor) -> distributions.Distribution:
        made_of = u[:, targets:]
        scale = torch.where(made_of > 0, 1 + made_of, made_of.clamp(max=0.0).exp())
        return distributions.Normal(u[:, :targets], scale, validate_args=False)

    return _real(make)


def student(df: float, scale: float) -> TwinLikelihood:
    return _real(lambda u: distributions.StudentT(df, u, torch.full_like(u, scale), validate_args=False))


def learned_student(df: float, outputs: int) -> TwinLikelihood:
    def make(u: Tensor) -> distributions.Distribution:
        return distributions.StudentT(df, u[:, :outputs], u[:, outputs:].exp().expand(-1, outputs), validate_args=False)

    return _real(make)


def _counted(make: Callable[[Tensor], distributions.Distribution], top: int) -> TwinLikelihood:
    def support(u: Tensor) -> tuple[Tensor, Tensor]:
        law = make(u.unsqueeze(0))
        y = torch.arange(top + 1, dtype=u.dtype).unsqueeze(-1).expand(-1, law.batch_shape[-1])
        return y, law.log_prob(y).exp()

    return TwinLikelihood(lambda u, y: make(u).log_prob(y), support)


def bernoulli() -> TwinLikelihood:
    return _counted(lambda u: distributions.Bernoulli(logits=u, validate_args=False), 1)


def poisson() -> TwinLikelihood:
    return _counted(lambda u: distributions.Poisson(u.exp(), validate_args=False), 120)


def negative_binomial(dispersion: float) -> TwinLikelihood:
    def make(u: Tensor) -> distributions.Distribution:
        return distributions.NegativeBinomial(1 / dispersion, logits=u + math.log(dispersion), validate_args=False)

    return _counted(make, 400)


def learned_negative_binomial(outputs: int) -> TwinLikelihood:
    def make(u: Tensor) -> distributions.Distribution:
        log_a = u[:, outputs:].expand(-1, outputs)
        return distributions.NegativeBinomial((-log_a).exp(), logits=u[:, :outputs] + log_a, validate_args=False)

    return _counted(make, 400)


def zero_inflated_poisson(targets: int) -> TwinLikelihood:
    def log_prob(u: Tensor, y: Tensor) -> Tensor:
        counted = distributions.Poisson(u[:, :targets].exp(), validate_args=False).log_prob(y).exp()
        share = u[:, targets:].sigmoid()
        return (share * (y == 0) + (1 - share) * counted).log()

    def support(u: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.arange(80, dtype=u.dtype).unsqueeze(-1).expand(-1, targets)
        return y, log_prob(u.expand(len(y), -1), y).exp()

    return TwinLikelihood(log_prob, support)


def contaminated(share: float, factor: float, scale: float) -> TwinLikelihood:
    def log_prob(u: Tensor, y: Tensor) -> Tensor:
        parts = torch.tensor([scale, factor * scale], dtype=u.dtype)
        mixing = distributions.Categorical(torch.tensor([1 - share, share], dtype=u.dtype))
        each = distributions.Normal(u.unsqueeze(-1), parts.expand(*u.shape, 2), validate_args=False)
        return distributions.MixtureSameFamily(mixing, each, validate_args=False).log_prob(y)

    def support(u: Tensor) -> tuple[Tensor, Tensor]:
        z, dz = _grid(8000)
        y = u + scale * z.unsqueeze(-1)
        return y, log_prob(u.expand(len(y), -1), y).exp() * scale * dz.unsqueeze(-1)

    return TwinLikelihood(log_prob, support)


def _classes(probabilities: Callable[[Tensor], Tensor]) -> TwinLikelihood:
    """Of the probabilities of all answers, M × answers."""

    def log_prob(u: Tensor, y: Tensor) -> Tensor:
        return distributions.Categorical(probs=probabilities(u)).log_prob(y.flatten()).unsqueeze(-1)

    def support(u: Tensor) -> tuple[Tensor, Tensor]:
        p = probabilities(u.unsqueeze(0))[0]
        return torch.arange(len(p)).unsqueeze(-1), p.unsqueeze(-1)

    return TwinLikelihood(log_prob, support)


def categorical() -> TwinLikelihood:
    return _classes(lambda u: u.softmax(-1))


def noisy_labels(rate: float) -> TwinLikelihood:
    return _classes(lambda u: (1 - rate) * u.softmax(-1) + rate / u.shape[-1])


def curated_labels(labellers: int) -> TwinLikelihood:
    """The last answer is that they disagreed."""

    def probabilities(u: Tensor) -> Tensor:
        kept = u.softmax(-1).pow(labellers)
        return torch.cat([kept, 1 - kept.sum(-1, keepdim=True)], -1)

    return _classes(probabilities)


def fisher(likelihood: TwinLikelihood, u: Tensor) -> Tensor:
    """F(u) by its definition; independent targets have scores of mean zero, so their information adds up."""
    y, weights = likelihood.support(u)
    total = torch.zeros(len(u), len(u), dtype=u.dtype)
    for d in range(weights.shape[1]):
        leaf = u.expand(len(y), -1).clone().requires_grad_()
        (score,) = torch.autograd.grad(likelihood.log_prob(leaf, y)[:, d].sum(), leaf)
        total += score.mT @ (weights[:, d : d + 1] * score)
    return total


@dataclass(frozen=True)
class Twin:
    """Everything dense. ``jacobian`` is N × (C + L) × P; ``learned`` L numbers that end θ."""

    network: nn.Module
    likelihood: TwinLikelihood
    x: object
    y: Tensor
    outputs: Tensor
    jacobian: Tensor
    likelihood_temperature: float = 1.0

    @property
    def names(self) -> list[str]:
        return [name for name, p in self.network.named_parameters() if p.requires_grad]

    def ggn(self) -> Tensor:
        """Σ_n J_nᵀ F_n J_n."""
        total = torch.zeros(self.jacobian.shape[-1], self.jacobian.shape[-1], dtype=self.jacobian.dtype)
        for u, jac in zip(self.outputs, self.jacobian, strict=True):
            total += jac.mT @ fisher(self.likelihood, u) @ jac
        return total / self.likelihood_temperature

    def scores(self) -> Tensor:
        """∂ log p(y_n | x_n, θ) / ∂θ, N × P."""
        leaf = self.outputs.clone().requires_grad_()
        columns = self.y if self.y.dim() == 2 else self.y.unsqueeze(-1)
        (found,) = torch.autograd.grad(self.likelihood.log_prob(leaf, columns).sum(), leaf)
        return torch.einsum("nc,ncp->np", found, self.jacobian)

    def empirical(self) -> Tensor:
        """Σ_n s_n s_nᵀ."""
        scores = self.scores()
        return scores.mT @ scores / self.likelihood_temperature

    def hessian(self) -> Tensor:
        """−∇² Σ_n log p(y_n | x_n, θ), by ``torch.autograd.functional``."""
        named = [(name, p.detach()) for name, p in self.network.named_parameters() if p.requires_grad]
        learned = self.outputs.shape[1] - len(forward(self.network, rows_of(self.x, 0))[0])
        size = sum(p.numel() for _, p in named)
        theta = torch.cat([*(p.flatten() for _, p in named), self.outputs[0, self.outputs.shape[1] - learned :]])
        columns = self.y if self.y.dim() == 2 else self.y.unsqueeze(-1)

        def energy(vector: Tensor) -> Tensor:
            values, at = {}, 0
            for name, p in named:
                values[name] = vector[at : at + p.numel()].view(p.shape)
                at += p.numel()
            f = functional_call(self.network, values, self.x)
            u = torch.cat([f, vector[size:].expand(len(f), -1)], dim=1)
            return -self.likelihood.log_prob(u, columns).sum()

        with sdpa_kernel(SDPBackend.MATH):  # the fused kernel of attention has no second derivative
            return torch.autograd.functional.hessian(energy, theta) / self.likelihood_temperature

    def modules(self) -> dict[str, Tensor]:
        """For each module with parameters of its own, where in θ they are."""
        found: dict[str, list[Tensor]] = {}
        at = 0
        for name, p in self.network.named_parameters():
            if p.requires_grad:
                found.setdefault(name.rpartition(".")[0], []).append(torch.arange(at, at + p.numel()))
                at += p.numel()
        return {name: torch.cat(parts) for name, parts in found.items()}

    def place(self, *names: str) -> Tensor:
        """Where in θ these parameters are."""
        found, at = {}, 0
        for name, p in self.network.named_parameters():
            if p.requires_grad:
                found[name] = torch.arange(at, at + p.numel())
                at += p.numel()
        return torch.cat([found[name] for name in names])


def rows_of(x, n: int):
    """Example ``n`` alone."""
    if isinstance(x, dict):
        return {key: value[n : n + 1] for key, value in x.items()}
    return x[n : n + 1]


def forward(network: nn.Module, x) -> Tensor:
    made = network(**x) if isinstance(x, dict) else network(x)
    return made.unsqueeze(-1) if made.dim() == 1 else made


def make_twin(
    network: nn.Module,
    likelihood: TwinLikelihood,
    x,
    y: Tensor,
    *,
    learned: Tensor | None = None,
    likelihood_temperature: float = 1.0,
) -> Twin:
    """Jacobians by one call of ``torch.autograd.grad`` for each example and output."""
    network = copy.deepcopy(network).eval()
    parameters = [p for p in network.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    learned = torch.zeros(0, dtype=torch.float64) if learned is None else learned
    extra = len(learned)
    outputs, jacobians = [], []
    for n in range(len(y)):
        f = forward(network, rows_of(x, n))[0]
        jac = torch.zeros(len(f) + extra, size + extra, dtype=f.dtype)
        for c in range(len(f)):
            parts = torch.autograd.grad(f[c], parameters, retain_graph=True, allow_unused=True)
            row = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, parts, strict=True)]
            jac[c, :size] = torch.cat([g.flatten() for g in row])
        jac[len(f) :, size:] = torch.eye(extra, dtype=f.dtype)
        outputs.append(torch.cat([f.detach(), learned]))
        jacobians.append(jac)
    return Twin(network, likelihood, x, y, torch.stack(outputs), torch.stack(jacobians), likelihood_temperature)


def separable_scales(network: nn.Module, seed: int = 0) -> Tensor:
    """Prior scales as uneven as Kronecker factors allow: in each layer a number for each output times one for each
    input, the bias counted as an input; at random for parameters that are no matrix's."""
    rng = torch.Generator().manual_seed(seed)

    def some(count: int) -> Tensor:
        return 0.4 + 1.2 * torch.rand(count, generator=rng, dtype=torch.float64)

    made: dict[str, Tensor] = {}
    for name, p in network.named_parameters():
        if p.dim() >= 2:
            out = some(len(p))
            made[name] = torch.outer(out, some(p[0].numel())).flatten()
            made[name.removesuffix("weight") + "bias"] = out * some(1)
    return torch.cat([made[name] if name in made else some(p.numel()) for name, p in network.named_parameters()])


# ---------------------------------------------------------------------- the library's side


def fit(target: tp.Target, curvature, x, y: Tensor, network: nn.Module, on=None) -> tp.posteriors.LaplacePosterior:
    """The public way in: one pass over the data around ``network``."""
    method = tp.Laplace(curvature=curvature, on=on, tune=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*learns its noise")  # it is that of the residuals, wherever they come from
        return tp.fit(target, method, (x, y), start=network, progress=False).posterior


def index_of(places) -> Tensor:
    """A block's coordinates as numbers."""
    return places if isinstance(places, Tensor) else torch.cat([torch.arange(a, b) for a, b in places])


def curvature_of(posterior) -> Tensor:
    """H as one matrix, put together from the blocks; each coordinate belongs to one block at most."""
    size = len(posterior.mean)
    made = torch.zeros(size, size, dtype=posterior.mean.dtype)
    seen = torch.zeros(size, dtype=torch.long)
    for block in posterior.operator.blocks:
        at = index_of(block.places)
        seen[at] += 1
        made[at.unsqueeze(1), at] = block.dense()
    assert int(seen.max()) == 1
    return made


def only(matrix: Tensor, index: Tensor) -> Tensor:
    """A block of a matrix."""
    return matrix[index.unsqueeze(1), index]


def assert_same(found: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    """Equal to ``tolerance`` of the largest number."""
    assert found.shape == expected.shape
    worst = float((found - expected).abs().max())
    size = float(expected.abs().max())
    assert size > 0, "an expectation of zero proves nothing"
    assert worst <= tolerance * size, f"off by {worst:.3g} where the largest number is {size:.3g}"


def assert_same_curvature(found: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    """Equal, each number measured by the two diagonal ones that belong to it, so that layers of little curvature are
    held to it too (parameters whose curvature is nothing but rounding are not)."""
    assert found.shape == expected.shape
    roots = expected.diagonal().clamp(min=0).sqrt()
    assert float(roots.max()) > 0, "an expectation of zero proves nothing"
    roots = roots.clamp(min=1e-6 * float(roots.max()))
    worst = float(((found - expected) / torch.outer(roots, roots)).abs().max())
    assert worst <= tolerance, f"off by {worst:.3g} in units of the diagonal"


def restricted_covariance(curvature: Tensor, precision: Tensor, index: Tensor, temperature: float = 1.0) -> Tensor:
    """T (H + diag τ)⁻¹ over some coordinates, zero elsewhere."""
    inside = torch.linalg.inv(only(curvature, index) + torch.diag(precision[index]))
    made = torch.zeros_like(curvature)
    made[index.unsqueeze(1), index] = temperature * inside
    return made
