"""Product matrices: the distribution that independent weights of several layers give to their product.

A linear network of L layers computes M x with M = W₁ W₂ … W_L (in the order of a product: the network applies its last
factor first). If all entries of all factors are independent, M's are not: from three factors on, entries that
share neither row nor column are correlated too. A network with piecewise-linear activations is linear around an input,
and its *local product matrix* plays the same part.

Reference: Farquhar, Smith and Gal, "Liberty or Depth: Deep Bayesian Neural Nets Do Not Need Complex Weight Posterior
Approximations", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError, NetworkError
from temperance.model.target import Target
from temperance.nn.chain import called

MAX_ENTRIES = 10**8
"""The largest covariance (of any partial product) that is computed, in numbers: 800 MB."""

_BLOCK_BYTES = 2**26  # of draws and their products that are worked on at once


@dataclass(frozen=True, eq=False)
class ProductMoments:
    """Mean and covariance of a random p × q matrix M.

    Attributes:
        mean: E M, p × q.
        covariance: of M's entries row by row, (p·q) × (p·q): that of m_ab and m_cd is at (a·q + b, c·q + d).
    """

    mean: Tensor
    covariance: Tensor

    def correlation(self) -> Tensor:
        """The covariance with every variance scaled to one; an entry that does not vary correlates with none (0)."""
        scale = self.covariance.diagonal().sqrt()
        inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
        found = inverse.unsqueeze(1) * self.covariance * inverse
        found.diagonal().copy_((scale > 0).to(found.dtype))
        return found

    def off_diagonal(self) -> float:
        """Root mean square of the correlations between different entries: 0 for a diagonal covariance."""
        found = self.correlation()
        count = len(found) * (len(found) - 1)
        return float(((found.square().sum() - found.diagonal().square().sum()) / max(1, count)).sqrt())

    def covariance_of(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        """Cov(m_ab, m_cd) for ``first`` = (a, b) and ``second`` = (c, d)."""
        rows, columns = self.mean.shape
        for argument, (row, column) in (("first", first), ("second", second)):
            if not (0 <= row < rows and 0 <= column < columns):
                raise ArgumentError(f"`{argument}` must be a place in a {rows} × {columns} matrix; got {row, column}.")
        return float(self.covariance[first[0] * columns + first[1], second[0] * columns + second[1]])


def product_matrix(means: Sequence[Any], variances: Sequence[Any]) -> ProductMoments:
    """Exact mean and covariance of a product of matrices whose entries are all independent of each other.

    For N = M W, with M of mean μ and covariance Σ and W of mean W̄ and variances σ²,

        E N = μ W̄,
        Cov(n_ab, n_cd) = Σ_ij Σ_{ai,cj} W̄_ib W̄_jd + δ_bd Σ_i σ²_ib (Σ_{ai,ci} + μ_ai μ_ci),

    and so on from the first factor, whose covariance is diagonal. Only second moments enter: the entries need not be
    Gaussian. A product of p × … × q needs (p·q)² numbers, in float64; partial products that would need more than
    ``MAX_ENTRIES`` are refused.

    Args:
        means: the factors' means, in the order of the product: p × K, K × J, …, · × q.
        variances: the variances of their entries, of the same shapes; zero for what is known.

    >>> moments = product_matrix([[[1.0, -0.5]], [[2.0], [4.0]]], [[[0.1, 0.2]], [[0.5], [0.0]]])
    >>> moments.mean, moments.covariance
    (tensor([[0.]], dtype=torch.float64), tensor([[4.1500]], dtype=torch.float64))
    """
    factors = _factors(means, variances)
    rows = len(factors[0][0])
    for number, (mean, _) in enumerate(factors):
        need = (rows * mean.shape[1]) ** 2
        if need > MAX_ENTRIES:
            raise ArgumentError(
                f"`means` must give partial products whose covariance has at most {MAX_ENTRIES:,} entries; the "
                f"{rows} × {mean.shape[1]} product of {number + 1} would need {need:,}."
            )
    mean, variance = factors[0]
    covariance = torch.diag(variance.flatten()).view(*mean.shape, *mean.shape)  # at a, i, c, j
    for weight, spread in factors[1:]:
        second = torch.diagonal(covariance, dim1=1, dim2=3) + torch.einsum("ai,ci->aci", mean, mean)
        covariance = torch.einsum("aicd,ib->abcd", torch.einsum("aicj,jd->aicd", covariance, weight), weight)
        torch.diagonal(covariance, dim1=1, dim2=3).add_(torch.einsum("ib,aci->acb", spread, second))
        mean = mean @ weight
    size = mean.numel()
    covariance = covariance.reshape(size, size)
    return ProductMoments(mean, 0.5 * (covariance + covariance.T))  # symmetric to the last bit


def matrix_normal_as_product(
    mean: Any, row_covariance: Any, column_covariance: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """A matrix-normal distribution as the product of three factors with independent entries.

    MN(M₀, U, V) has covariance U ⊗ V, row by row. With A = chol(U) and C = chol(V)ᵀ known, and B of independent
    entries with means A⁻¹ M₀ C⁻¹ and variances 1,

        A B C ~ MN(M₀, U, V),   for Cov(m_ab, m_cd) = (A Aᵀ)_ac (Cᵀ C)_bd = U_ac V_bd.

    Two hidden layers of independent weights are thus at least as rich as one layer with this structured covariance.

    Returns:
        the factors' means and variances, as :func:`product_matrix` takes them.

    >>> factors = matrix_normal_as_product([[1.0, 2.0]], [[2.0]], [[1.0, 0.5], [0.5, 1.0]])
    >>> moments = product_matrix(*factors)
    >>> moments.covariance.round(decimals=9)
    tensor([[2., 1.],
            [1., 2.]], dtype=torch.float64)
    """
    centre = _matrix(mean, "mean")
    rows, columns = centre.shape
    a = _root(row_covariance, rows, "row_covariance", "rows")
    c = _root(column_covariance, columns, "column_covariance", "columns").T
    middle = torch.linalg.solve_triangular(a, centre, upper=False)
    middle = torch.linalg.solve_triangular(c, middle, upper=True, left=False)
    return [a, middle, c], [torch.zeros_like(a), torch.ones_like(middle), torch.zeros_like(c)]


def local_product(network: nn.Module, x: Any) -> Tensor:
    """The matrix P that a piecewise-linear network is around one input, outputs × (inputs + 1).

    With φ(z) = s(z) z for each activation and D_l = diag(s(z_l)) at this input,

        P = W_L D_{L−1} W_{L−1} … D_1 W_1,      P [x; 1] = f(x),

    where each W carries its bias as a column for a constant input, the last one. P without that column is the Jacobian
    of f at x. At a kink (z = 0 exactly) the slope is that of the negative side, as in torch's gradients.

    Args:
        network: a chain (``nn.Sequential``, ``tp.nn.MLP``) of linear layers, ReLU, LeakyReLU, PReLU, identities, and
            flattening at the beginning; dropout in evaluation mode is an identity.
        x: one input, without a batch dimension.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.tensor([0.5, -1.0])
    >>> P = local_product(network, x)
    >>> P.shape, torch.allclose(P @ torch.tensor([0.5, -1.0, 1.0]), network(x))
    (torch.Size([1, 3]), True)
    """
    steps = _steps(network)
    values = {name: parameter.detach().unsqueeze(0) for name, parameter in network.named_parameters()}
    dtype = next((value.dtype for value in values.values()), torch.get_default_dtype())
    return _through(steps, values, _one_input(steps, x, dtype), 1)[0]


def local_products(target: Target, draws: Tensor, x: Any) -> Tensor:
    """:func:`local_product` of ``target``'s network at every row of ``draws``: draws × outputs × (inputs + 1).

    Their covariance over draws of a posterior shows what depth does to independent weights. Draws are worked on in
    blocks and multiplied from the output on, where matrices are small, so that memory beyond the result stays at some
    100 MB.

    Args:
        target: says where the weights are in θ; what is not in θ stays as it is in the network.
        draws: S × P.
        x: one input, without a batch dimension.

    >>> import temperance as tp
    >>> target = Target(tp.nn.MLP(2, [4, 4], 1), tp.Normal(scale=1.0), tp.GaussianPrior(scale=1.0))
    >>> theta = target.sample_prior(5, torch.Generator().manual_seed(0))
    >>> local_products(target, theta, [0.5, -1.0]).shape
    torch.Size([5, 1, 3])
    """
    if not isinstance(draws, Tensor) or draws.dim() != 2 or draws.shape[1] != target.layout.size or not len(draws):
        got = tuple(draws.shape) if isinstance(draws, Tensor) else type(draws).__name__
        raise ArgumentError(f"`draws` must be a tensor of draws × {target.layout.size} numbers; got {got}.")
    steps = _steps(target.network)
    fixed = {name: parameter.detach() for name, parameter in target.network.named_parameters()}
    signal = _one_input(steps, x, draws.dtype).to(draws.device)
    made: Tensor | None = None
    block = max(1, _BLOCK_BYTES // (draws.element_size() * _numbers_a_draw(steps, draws.shape[1])))
    for start in range(0, len(draws), block):
        theta = draws[start : start + block].detach()
        values = {name: value.to(theta).unsqueeze(0) for name, value in fixed.items()}
        values.update(target.layout.unflatten(theta, "network"))
        part = _through(steps, values, signal, len(theta))
        if made is None:
            made = part.new_empty(len(draws), *part.shape[1:])
        made[start : start + block] = part
    assert made is not None
    return made


# ---------------------------------------------------------------------- a network as a chain of layers


@dataclass(frozen=True)
class _Layer:
    """A linear layer, by the names of its parameters."""

    weight: str
    bias: str | None
    fan_in: int
    fan_out: int


@dataclass(frozen=True)
class _Slope:
    """φ(z) = z above 0 and ``slope`` · z elsewhere; a name is that of a PReLU's parameter."""

    slope: float | str


_Step = _Layer | _Slope


def _steps(network: nn.Module) -> list[_Step]:
    if not isinstance(network, nn.Module):
        raise ArgumentError(f"`network` must be a torch module; got {type(network).__name__}.")
    names = {id(parameter): name for name, parameter in network.named_parameters()}  # tied weights go by their first
    found = [_step_of(name, module, names) for name, module in called(network)]
    steps = [step for step in found if step is not None]
    if not any(isinstance(step, _Layer) for step in steps):
        raise NetworkError("`network` must have at least one linear layer; got none.")
    return steps


def _step_of(name: str, module: nn.Module, names: Mapping[int, str]) -> _Step | None:
    """What a module of a chain does to one input; ``None`` for nothing."""
    if type(module) is nn.Linear:
        bias = None if module.bias is None else names[id(module.bias)]
        return _Layer(names[id(module.weight)], bias, module.in_features, module.out_features)
    if isinstance(module, nn.ReLU):
        return _Slope(0.0)
    if isinstance(module, nn.LeakyReLU):
        return _Slope(float(module.negative_slope))
    if isinstance(module, nn.PReLU):
        return _Slope(names[id(module.weight)])
    if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
        return None  # one input is a vector from the beginning
    if isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and not (module.training and module.p > 0)):
        return None
    where = f" at {name!r}" if name else ""
    raise NetworkError(
        "`network` must be a chain of linear layers with piecewise-linear activations (ReLU, LeakyReLU, PReLU, "
        f"Identity, Flatten); got {type(module).__name__}{where}."
    )


def _one_input(steps: Sequence[_Step], x: Any, dtype: torch.dtype) -> Tensor:
    first = next(step for step in steps if isinstance(step, _Layer))
    signal = torch.as_tensor(x, dtype=dtype).detach().flatten()
    if len(signal) != first.fan_in:
        raise ArgumentError(
            f"`x` must be one input of {first.fan_in} numbers; got shape {tuple(torch.as_tensor(x).shape)}."
        )
    if not bool(torch.isfinite(signal).all()):
        raise ArgumentError("`x` must be finite; got NaN or infinity.")
    return signal


def _numbers_a_draw(steps: Sequence[_Step], parameters: int) -> int:
    """θ, the slopes of all layers, and the largest partial product twice."""
    layers = [step for step in steps if isinstance(step, _Layer)]
    largest = layers[-1].fan_out * (2 + max(layer.fan_in for layer in layers))
    return parameters + 2 * largest + 3 * sum(layer.fan_out for layer in layers)


def _through(steps: Sequence[_Step], values: Mapping[str, Tensor], x: Tensor, count: int) -> Tensor:
    """Two passes: the signal forwards, for the slopes; then the product from the output backwards, whose partial
    products are outputs × width rather than width × inputs. A bias adds what its layer's suffix makes of it."""
    signal = x.expand(count, -1).unsqueeze(-1)
    slopes: dict[int, Tensor] = {}
    for number, step in enumerate(steps):
        if isinstance(step, _Layer):
            signal = values[step.weight] @ signal
            if step.bias is not None:
                signal = signal + values[step.bias].unsqueeze(-1)
        else:
            low = signal.new_tensor(step.slope) if isinstance(step.slope, float) else values[step.slope].unsqueeze(-1)
            slopes[number] = torch.where(signal > 0, signal.new_tensor(1.0), low)
            signal = signal * slopes[number]
    outputs = signal.shape[1]
    product = torch.eye(outputs, dtype=signal.dtype, device=signal.device).expand(count, -1, -1)
    constant = signal.new_zeros(count, outputs, 1)
    for number in reversed(range(len(steps))):
        step = steps[number]
        if isinstance(step, _Layer):
            if step.bias is not None:
                constant = constant + product @ values[step.bias].unsqueeze(-1)
            product = product @ values[step.weight]
        else:
            product = product * slopes[number].mT
    return torch.cat([product, constant], dim=2)


# ---------------------------------------------------------------------- arguments


def _matrix(value: Any, argument: str) -> Tensor:
    made = torch.as_tensor(value, dtype=torch.float64).detach()
    if made.dim() != 2 or not made.numel():
        raise ArgumentError(f"`{argument}` must be a matrix; got shape {tuple(made.shape)}.")
    if not bool(torch.isfinite(made).all()):
        raise ArgumentError(f"`{argument}` must be finite; got NaN or infinity.")
    return made


def _factors(means: Sequence[Any], variances: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    if len(means) == 0:
        raise ArgumentError("`means` must hold at least one matrix; got none.")
    if len(means) != len(variances):
        raise ArgumentError(f"`variances` must hold a matrix for each of the {len(means)} means; got {len(variances)}.")
    made: list[tuple[Tensor, Tensor]] = []
    for k, (mean, variance) in enumerate(zip(means, variances, strict=True)):
        m, v = _matrix(mean, f"means[{k}]"), _matrix(variance, f"variances[{k}]")
        if m.shape != v.shape:
            raise ArgumentError(
                f"`variances[{k}]` must have the shape {tuple(m.shape)} of its mean; got {tuple(v.shape)}."
            )
        if bool((v < 0).any()):
            raise ArgumentError(f"`variances[{k}]` must not be negative; got {float(v.min()):g}.")
        if made and made[-1][0].shape[1] != len(m):
            raise ArgumentError(
                f"`means[{k}]` must have {made[-1][0].shape[1]} rows to follow means[{k - 1}]; got {len(m)}."
            )
        made.append((m, v))
    return made


def _root(covariance: Any, size: int, argument: str, what: str) -> Tensor:
    made = _matrix(covariance, argument)
    if made.shape != (size, size):
        raise ArgumentError(f"`{argument}` must be {size} × {size}, for the mean's {what}; got {tuple(made.shape)}.")
    if not torch.allclose(made, made.T):
        raise ArgumentError(f"`{argument}` must be symmetric; got entries that differ from those across the diagonal.")
    factor, info = torch.linalg.cholesky_ex(made)
    if int(info) != 0:
        raise ArgumentError(f"`{argument}` must be positive definite; its leading minor of order {int(info)} is not.")
    return factor
