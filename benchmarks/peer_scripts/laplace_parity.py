"""What laplace-torch makes of a given network and data, in numbers that a test or a job of ours can read.

    .venvs/torch-peers/bin/python -m benchmarks.peer_scripts.laplace_parity --weights F --data F --out F
        --structure full|diag|kron --subset all|last_layer --likelihood classification|regression
        --prior-precision 1.0 --sigma-noise 0.3 [--activation tanh|relu] [--backend curvlinops|backpack|asdl] [--check]
    .venvs/torch-peers/bin/python -m benchmarks.peer_scripts.laplace_parity --self-test

**In.** ``--weights`` is the state dict of a multilayer perceptron: ``<name>.weight`` and ``<name>.bias`` for each
layer, in the order of the numbers in the names (``0.weight``, ``0.bias``, ``2.weight``...). ``--data`` has ``x``, ``y``
and, to predict for, ``x_test`` (``x`` if it is missing). Both are ``.safetensors`` or ``.npz``, and never pickled. All
is computed in float64. The network is taken to be at its mode; nothing is trained.

**Out.** ``<out>.json`` has the settings, the versions, the parts of the evidence, and the names and shapes of the
parameters in the order in which everything here is flattened. ``<out>.safetensors`` has

- ``mean``: the weights (of the subset), flattened; ``precision``: the posterior precision as a dense matrix, the prior
  included (not for diag); ``precision_diag``: its diagonal; ``variance``: the marginal variances, the diagonal of its
  inverse;
- ``f_mean`` and ``f_var``: the linearised outputs at ``x_test`` and their covariance, ``(rows, outputs, outputs)``;
- ``probs`` for classification: linearised, probit link. Regression: ``f_mean`` and ``f_var`` are all there is;
- ``kron.<parameter>.0`` and ``.1`` for the structure kron: the factors, before prior, temperature and noise.

With ``--check`` the JSON also says how far each number is from one computed here, by brute force: Jacobians by
autograd, dense matrices. ``--self-test`` does so for made-up problems, every structure, subset, likelihood and backend,
and puts each convention below to the test; its exit code is 1 when one of them does not hold.

**The conventions** of laplace-torch 0.3 (curvlinops 3.0.1), found by experiment; ``--self-test`` repeats it. Below, n
runs over the N rows, J is the Jacobian of the outputs f (logits, or means) by the weights, L the Hessian by f of the
negative log-likelihood, diag(p) - pp', or for regression of half the squared error, the identity.

1. *Sum, not mean.* The curvature is H = sum_n J'LJ, the GGN, summed over the rows; sizes of batches do not matter.
   The posterior precision is P = h H + prior_precision I with h = 1 / (temperature * sigma_noise^2); sigma_noise is 1
   for classification. So the temperature divides the likelihood and not the prior.
2. *Order.* That of ``model.parameters()``: weight (row by row: outputs, then inputs), bias, layer by layer.
3. *full* is H; *diag* is its exact diagonal, no sampling. Last-layer: the block of H of the last layer, exactly.
4. *kron* keeps weight and bias apart: for a linear layer the weight has B (x) A and the bias B itself, which is the
   exact block of the bias. A = sum_n aa' / N with the layer's inputs a, not extended by a 1; B = sum_n g'Lg with g the
   Jacobian of the outputs by the layer's outputs, not divided by N. No covariance of a weight with its bias is left.
   The order is outputs (x) inputs, B first.
5. N in A is ``len(loader.dataset)``, whatever the loader yields: one that drops its last batch, or samples, gives
   A by the wrong N (full, diag and B add up what they see). ``n_data`` is that same number.
6. *Convolutions* in kron are "expanded", as if every one of the T positions were a row, and A is averaged over them:
   A = sum_nt aa' / (N T), B = sum_nt g'Lg. The bias has that B, which is not its exact block any more: covariances
   between positions are lost. With the backend BackPACK the same layer has another matrix: the bias its exact block,
   the weight one that is far larger (its trace 23 times that of the GGN, with T = 16, where the expanded one has 1.02).
7. *The prior* is added exactly, P = h H + prior I, by eigenvalues: there is no damping. ``damping=True`` is accepted
   and changes nothing (the posterior precision has the flag False). The prior precision is a scalar, or one number
   for each parameter tensor (weight and bias apart), or one for each weight, which kron refuses.
8. *The evidence* is log_likelihood - (log_det_ratio + scatter) / 2. The log-likelihood at the mode is summed over the
   rows and divided by the temperature, with all constants (regression: - N C / 2 log(2 pi sigma_noise^2) for C outputs,
   which alone is *not* divided by the temperature). log_det_ratio = log det P - log det P_0, and scatter =
   prior_precision * |theta - prior_mean|^2. Nothing is left out: it is Laplace's log marginal likelihood itself. For
   the last layer P, P_0 and scatter have the weights of that layer only; the prior of the others is missing.
9. *GLM.* f_mean is the network's output, f_var = J P^-1 J'. For regression ``la(x)`` returns just these: **the noise
   is not in the variance**. Probit: softmax(f_mean / sqrt(1 + pi / 8 * diag(f_var))); other covariances are unused.
10. *Monte Carlo Fisher*, ``backend_kwargs={"stochastic": True}``. With curvlinops (the default) full and kron draw the
    same numbers for every batch: two fits agree to the last digit, a batch that comes twice counts exactly twice, and
    the error does not average out over batches (relative error of H at batch 16: about 0.45, with 64 rows and with
    6,400 alike). Its diag has no such fault, nor have BackPACK and asdl (kron: 0.27 and 0.01).
11. *Precision.* curvlinops' full is accurate to float32 only (1e-7) for a float64 network, unless torch's default type
    is float64, as it is made here. diag and kron are accurate to float64 either way.
12. ``fit`` leaves the network in evaluation mode. Regression targets must have the shape of the outputs, (N, C).
13. kron fails, with every backend, for a network with parameters in other than linear and convolutional layers
    (normalisation, or modules of one's own); full and diag take them, with curvlinops.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from laplace import Laplace
    from laplace.curvature import AsdlGGN, BackPackGGN, CurvlinopsGGN

BACKENDS = {"curvlinops": CurvlinopsGGN, "backpack": BackPackGGN, "asdl": AsdlGGN}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
STRUCTURES = ("full", "diag", "kron")
SUBSETS = ("all", "last_layer")
LIKELIHOODS = ("classification", "regression")
DENSE = 5_000  # no dense matrices for more parameters than this
TOLERANCE = 1e-8  # of a self-test, relative


@dataclass(frozen=True)
class Settings:
    """What the command line chooses."""

    structure: str = "full"
    subset: str = "all"
    likelihood: str = "classification"
    prior_precision: float = 1.0
    sigma_noise: float = 1.0
    temperature: float = 1.0
    backend: str = "curvlinops"
    batch_size: int = 64

    @property
    def factor(self) -> float:
        """What the summed curvature is multiplied by."""
        noise = self.sigma_noise if self.likelihood == "regression" else 1.0
        return 1 / (self.temperature * noise**2)


@dataclass
class Answer:
    """Scalars for the JSON and tensors for the safetensors file."""

    scalars: dict[str, float] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def difference(self, other: Answer) -> dict[str, float]:
        """Return for each number that both have how far they are apart, relative to the largest of that kind."""
        ours, theirs = ({**a.tensors, **{k: torch.tensor(v) for k, v in a.scalars.items()}} for a in (self, other))
        return {
            name: ((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-300)).item()
            for name in ours
            if name in theirs
        }


def load(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.safetensors`` or ``.npz`` file."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return load_file(path)


def network_of(state: dict[str, Tensor], activation: str = "tanh") -> tuple[nn.Sequential, list[str]]:
    """Build the perceptron that a state dict describes; return it with the state's names in the order it has them."""

    def numbers(name: str) -> tuple[list[int], str]:
        return [int(part) for part in re.findall(r"\d+", name)], name

    layers: list[nn.Module] = []
    names: list[str] = []
    for name in sorted((name for name in state if name.endswith("weight")), key=numbers):
        weight, bias_name = state[name], name.removesuffix("weight") + "bias"
        if weight.ndim != 2:
            raise ValueError(f"{name} has shape {tuple(weight.shape)}: only linear layers can be rebuilt from a state")
        layers += [ACTIVATIONS[activation]()] if layers else []
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias_name in state, dtype=torch.float64)
        names += [name, bias_name] if bias_name in state else [name]
        with torch.no_grad():
            linear.weight.copy_(weight)
            if bias_name in state:
                linear.bias.copy_(state[bias_name])
        layers.append(linear)
    if set(names) != set(state):
        raise ValueError(f"no layer for {sorted(set(state) - set(names))}")
    return nn.Sequential(*layers), names


def fitted(net: nn.Module, x: Tensor, y: Tensor, settings: Settings, **options: Any) -> Any:
    """Return laplace-torch's object, fitted to a copy of the network: backends leave hooks behind."""
    if settings.likelihood == "regression":
        options["sigma_noise"] = settings.sigma_noise
    la = Laplace(
        copy.deepcopy(net),
        settings.likelihood,
        settings.subset,
        settings.structure,
        prior_precision=settings.prior_precision,
        temperature=settings.temperature,
        backend=BACKENDS[settings.backend],
        **options,
    )
    la.fit(DataLoader(TensorDataset(x, y), batch_size=settings.batch_size))
    return la


def ask_laplace(net: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, settings: Settings, names: list[str]) -> Answer:
    """Return everything that laplace-torch says about this network."""
    la = fitted(net, x, y, settings)
    answer = Answer()
    for name in ("log_marginal_likelihood", "log_likelihood", "log_det_ratio", "scatter"):
        value = getattr(la, name)
        answer.scalars[name] = float(value() if callable(value) else value)
    answer.tensors |= {"mean": la.mean.detach(), **_precision(la, settings.structure, names)}
    if settings.likelihood == "classification":
        answer.tensors["probs"] = la(x_test, pred_type="glm", link_approx="probit").detach()
        jacobians, f_mean = _its_jacobians(la, x_test, settings.subset)
        answer.tensors |= {"f_mean": f_mean.detach(), "f_var": la.functional_variance(jacobians).detach()}
    else:
        f_mean, f_var = la(x_test, pred_type="glm")
        answer.tensors |= {"f_mean": f_mean.detach(), "f_var": f_var.detach()}
    return answer


def _its_jacobians(la: Any, x: Tensor, subset: str) -> tuple[Tensor, Tensor]:
    jacobians, outputs = la.backend.last_layer_jacobians(x) if subset == "last_layer" else la.backend.jacobians(x)
    return jacobians, outputs


def _precision(la: Any, structure: str, names: list[str]) -> dict[str, Tensor]:
    if structure == "diag":
        return {"precision_diag": la.posterior_precision.detach(), "variance": la.posterior_variance.detach()}
    if structure == "full":
        dense = la.posterior_precision.detach()
        variance = la.posterior_covariance.detach().diagonal().contiguous()
        return {"precision": dense, "precision_diag": dense.diagonal().contiguous(), "variance": variance}
    posterior = la.posterior_precision
    factors = {
        f"kron.{name}.{index}": factor.detach().contiguous()
        for name, block in zip(names[-len(la.H_facs.kfacs) :], la.H_facs.kfacs, strict=True)
        for index, factor in enumerate(block)
    }
    if la.n_params <= DENSE:
        dense = posterior.to_matrix().detach()
        factors |= {"precision": dense, "precision_diag": dense.diagonal().contiguous()}
    return {"variance": posterior.diag(exponent=-1).detach(), **factors}


def ask_autograd(net: nn.Sequential, x: Tensor, y: Tensor, x_test: Tensor, settings: Settings) -> Answer:
    """Compute by brute force what laplace-torch should say if its conventions are those above."""
    net = copy.deepcopy(net).requires_grad_()
    sizes = [parameter.numel() for parameter in net.parameters()]
    kept = (
        sum(parameter.numel() for parameter in net[-1].parameters()) if settings.subset == "last_layer" else sum(sizes)
    )
    mean = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])[-kept:]
    curvature = _curvature(net, x, settings)[-kept:, -kept:]
    prior = settings.prior_precision * torch.eye(kept, dtype=torch.float64)
    precision = settings.factor * curvature + prior
    if settings.structure == "diag":
        precision = torch.diag(precision.diagonal())
    covariance = torch.linalg.inv(precision)
    scalars = {
        "log_likelihood": _log_likelihood(net(x).detach(), y, settings),
        "log_det_ratio": (torch.logdet(precision) - torch.logdet(prior)).item(),
        "scatter": settings.prior_precision * mean.square().sum().item(),
    }
    penalty = (scalars["log_det_ratio"] + scalars["scatter"]) / 2
    scalars["log_marginal_likelihood"] = scalars["log_likelihood"] - penalty
    jacobians = _jacobians(net, x_test)[..., -kept:]
    f_mean, f_var = net(x_test).detach(), torch.einsum("nka,ab,nlb->nkl", jacobians, covariance, jacobians)
    tensors = {
        "mean": mean,
        "precision": precision,
        "precision_diag": precision.diagonal(),
        "variance": covariance.diagonal(),
        "f_mean": f_mean,
        "f_var": f_var,
    }
    if settings.likelihood == "classification":
        scale = torch.sqrt(1 + math.pi / 8 * f_var.diagonal(dim1=1, dim2=2))
        tensors["probs"] = torch.softmax(f_mean / scale, dim=-1)
    return Answer(scalars, tensors)


def _jacobians(net: nn.Module, x: Tensor) -> Tensor:
    """Outputs by parameters for every row, ``(rows, outputs, parameters)``."""
    parameters = {name: value.detach() for name, value in net.named_parameters()}

    def outputs(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(net, values, (row[None],))[0]

    by_name = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(parameters, x)
    return torch.cat([by_name[name].flatten(2) for name in parameters], dim=-1)


def _output_hessian(outputs: Tensor, likelihood: str) -> Tensor:
    """Hessian of the negative log-likelihood by the outputs; for regression that of half the squared error."""
    if likelihood == "regression":
        return torch.eye(outputs.shape[1], dtype=outputs.dtype).expand(len(outputs), -1, -1)
    probs = torch.softmax(outputs, dim=-1)
    return torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]


def _curvature(net: nn.Sequential, x: Tensor, settings: Settings) -> Tensor:
    """The curvature of the data, dense, without noise and temperature; the GGN unless the structure is kron."""
    hessian = _output_hessian(net(x).detach(), settings.likelihood)
    if settings.structure != "kron":
        jacobians = _jacobians(net, x)
        return torch.einsum("nka,nkl,nlb->ab", jacobians, hessian, jacobians)
    blocks = []
    for layer, a, g in _inputs_and_gradients(net, x):
        # Positions of a convolution count as rows; a linear layer has one.
        inner = torch.einsum("nit,njt->ij", a, a) / (len(a) * a.shape[-1])
        outer = torch.einsum("nkit,nkl,nljt->ij", g, hessian, g)
        blocks.append(torch.kron(outer.contiguous(), inner.contiguous()))
        blocks += [outer] if layer.bias is not None else []
    return torch.block_diag(*blocks)


def _inputs_and_gradients(net: nn.Sequential, x: Tensor) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """For every layer: its inputs ``(rows, in, positions)``, and outputs of the network by outputs of the layer."""
    seen: list[tuple[Any, Tensor, Tensor]] = []
    hidden = x
    for module in net:
        before, hidden = hidden, module(hidden)
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            seen.append((module, before.detach(), hidden))
    for layer, before, after in seen:
        rows = [torch.autograd.grad(output.sum(), after, retain_graph=True)[0] for output in hidden.unbind(1)]
        gradients = torch.stack(rows, dim=1)
        if isinstance(layer, nn.Conv2d):
            patches = nn.functional.unfold(before, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            yield layer, patches, gradients.flatten(3)
        else:
            yield layer, before[..., None], gradients[..., None]


def _log_likelihood(outputs: Tensor, y: Tensor, settings: Settings) -> float:
    if settings.likelihood == "classification":
        return -nn.functional.cross_entropy(outputs, y, reduction="sum").item() / settings.temperature
    misfit = (outputs - y).square().sum().item() / 2
    return -misfit * settings.factor - y.numel() / 2 * math.log(2 * math.pi * settings.sigma_noise**2)


def run(
    state: dict[str, Tensor], data: dict[str, Tensor], settings: Settings, activation: str = "tanh", check: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON and the tensors for one network and one data set."""
    net, names = network_of(state, activation)
    x, y = data["x"].double(), data["y"]
    x_test = data.get("x_test", x).double()
    y = y.long() if settings.likelihood == "classification" else y.double().reshape(len(y), -1)
    answer = ask_laplace(net, x, y, x_test, settings, names)
    in_subset = names[-len(list(net[-1].parameters())) :] if settings.subset == "last_layer" else names
    report = {
        "settings": {**asdict(settings), "activation": activation},
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        "rows": len(x),
        "parameters": [[name, list(state[name].shape)] for name in in_subset],
        **answer.scalars,
    }
    if check:
        report["difference_to_brute_force"] = answer.difference(ask_autograd(net, x, y, x_test, settings))
    return report, answer.tensors


_VERSIONS = ("torch", "laplace-torch", "curvlinops-for-pytorch", "backpack-for-pytorch", "asdfghjkl")


# The self-test.

Claim = tuple[str, float, bool]  # what is claimed, the number that decides it, whether it holds


def self_test() -> list[Claim]:
    """Put every convention of the docstring to the test, on made-up problems."""
    torch.manual_seed(0)
    return [*_numbers_agree(), *_convolutions(), *_priors(), *_row_counts(), *_monte_carlo(), *_types(), *_refusals()]


def _toy(likelihood: str, rows: int = 60, outputs: int = 3) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    x, x_test = torch.randn(rows, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    if likelihood == "classification":
        return net, x, torch.randint(outputs, (rows,)), x_test
    return net, x, torch.randn(rows, outputs, dtype=torch.float64), x_test


def _numbers_agree() -> Iterator[Claim]:
    """Conventions 1 to 4, 8 and 9: precision, variances, evidence and predictive, to the last digit."""
    for likelihood in LIKELIHOODS:
        net, x, y, x_test = _toy(likelihood)
        for backend in BACKENDS:
            for structure in STRUCTURES:
                for subset in SUBSETS:
                    for options in ({"batch_size": 60}, {"batch_size": 16}, {"temperature": 0.5}):
                        settings = Settings(structure, subset, likelihood, 0.7, 0.3, backend=backend)
                        settings = Settings(**{**asdict(settings), **options})
                        names = ["0.weight", "0.bias", "2.weight", "2.bias"]
                        title = f"{backend} {structure} {subset} {likelihood} {options}"
                        try:
                            answer = ask_laplace(net, x, y, x_test, settings, names)
                        except Exception as error:
                            yield f"{title}: runs ({type(error).__name__}: {str(error)[:90]})", math.nan, False
                            continue
                        apart = answer.difference(ask_autograd(net, x, y, x_test, settings))
                        worst = max(apart, key=apart.__getitem__)
                        yield f"{title}: as by brute force (worst: {worst})", apart[worst], apart[worst] < TOLERANCE


def _convolutions() -> Iterator[Claim]:
    """Convention 6."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    net, x, y = net.double(), torch.randn(30, 2, 4, 4, dtype=torch.float64), torch.randint(3, (30,))
    expanded = _curvature(net, x, Settings("kron"))
    for backend in BACKENDS:
        found = fitted(net, x, y, Settings("kron", backend=backend, batch_size=7)).H.to_matrix()
        apart = _apart(found, expanded)
        if backend == "backpack":
            yield "backpack kron of a convolution: another matrix than the expanded one", apart, apart > 0.5
            exact = _curvature(net, x, Settings("full"))[54:57, 54:57]
            yield "backpack kron of a convolution: exact block of the bias", *_small(found[54:57, 54:57], exact)
        else:
            yield f"{backend} kron of a convolution: expanded", apart, apart < TOLERANCE


def _priors() -> Iterator[Claim]:
    """Convention 7."""
    net, x, y, _ = _toy("classification")
    plain, damped = (fitted(net, x, y, Settings("kron"), damping=damping) for damping in (False, True))
    dense, dense_damped = (la.posterior_precision.to_matrix() for la in (plain, damped))
    yield "kron: damping=True changes nothing", *_small(dense_damped, dense)
    deltas = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    each = deltas.repeat_interleave(torch.tensor([32, 8, 24, 3]))
    plain.prior_precision = deltas
    found, expected = plain.posterior_precision.to_matrix(), plain.H.to_matrix() + torch.diag(each)
    yield "kron: a prior for each parameter tensor, biases apart", *_small(found, expected)
    full = fitted(net, x, y, Settings("full"))
    for title, prior in (("parameter tensor", deltas), ("weight", each)):
        full.prior_precision = prior
        yield f"full: a prior for each {title}", *_small(full.posterior_precision, full.H + torch.diag(each))
    try:
        plain.prior_precision = each
        plain.log_marginal_likelihood()
        refused = False
    except Exception:
        refused = True
    yield "kron: refuses a prior for each weight", math.nan, refused


def _row_counts() -> Iterator[Claim]:
    """Convention 5."""
    net, x, y, _ = _toy("classification")
    for structure in ("full", "kron"):
        la = Laplace(copy.deepcopy(net), "classification", "all", structure)
        la.fit(DataLoader(TensorDataset(x, y), batch_size=16, drop_last=True))  # 48 of the 60 rows
        expected = _curvature(net, x[:48], Settings(structure))
        if structure == "full":
            yield "full: of the rows that the loader yields", *_small(la.H, expected)
        else:
            expected[:32, :32] *= 48 / 60
            expected[40:64, 40:64] *= 48 / 60
            yield "kron: A divided by len(loader.dataset), not by the rows seen", *_small(la.H.to_matrix(), expected)
        yield f"{structure}: n_data is len(loader.dataset)", la.n_data, la.n_data == 60


def _monte_carlo() -> Iterator[Claim]:
    """Convention 10."""
    for backend, structure in (*((name, "kron") for name in BACKENDS), ("curvlinops", "full"), ("curvlinops", "diag")):
        stuck = backend == "curvlinops" and structure != "diag"
        settings = Settings(structure, backend=backend, batch_size=16)
        errors = []
        for rows in (64, 6_400):
            torch.manual_seed(1)
            net, x, y, _ = _toy("classification", rows)
            pair = [fitted(net, x, y, settings, backend_kwargs={"stochastic": True}).H for _ in range(2)]
            one, two = (found.to_matrix() if structure == "kron" else found for found in pair)
            exact = _curvature(net, x, settings)
            errors.append(_apart(one, exact.diagonal() if structure == "diag" else exact))
        title = f"{backend} {structure} by Monte Carlo"
        repeated = fitted(net, x[:16].repeat(2, 1), y[:16].repeat(2), settings, backend_kwargs={"stochastic": True}).H
        single = fitted(net, x[:16], y[:16], settings, backend_kwargs={"stochastic": True}).H
        twice, once = (found.to_matrix() if structure == "kron" else found for found in (repeated, single))
        apart = _apart(twice, 2 * once)
        yield f"{title}: every batch has {'the same' if stuck else 'other'} noise", apart, (apart < TOLERANCE) == stuck
        yield f"{title}: two fits {'agree' if stuck else 'differ'}", _apart(one, two), torch.equal(one, two) == stuck
        yield f"{title}: error with 64 rows", errors[0], True
        verdict = "does not average out" if stuck else "averages out"
        yield f"{title}: error with 6,400 rows, {verdict}", errors[1], (errors[1] > errors[0] / 3) == stuck


def _types() -> Iterator[Claim]:
    """Convention 11."""
    net, x, y, _ = _toy("classification")
    exact = _curvature(net, x, Settings("full"))
    default = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            apart = _apart(fitted(net, x, y, Settings("full")).H, exact)
        finally:
            torch.set_default_dtype(default)
        holds = (1e-10 < apart < 1e-6) if dtype == torch.float32 else apart < 1e-13
        yield f"curvlinops full of a float64 network, torch's default type {dtype}", apart, holds


def _refusals() -> Iterator[Claim]:
    """Conventions 12 and 13."""
    net, x, y, _ = _toy("classification")
    net.train()
    la = fitted(net, x, y, Settings("full"))
    yield "fit leaves the network in evaluation mode", float(la.model.training), not la.model.training
    normed = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    for backend in BACKENDS:
        yield f"{backend} kron: refuses LayerNorm", math.nan, _fails(normed, x, y, Settings("kron", backend=backend))
    apart = _apart(fitted(normed, x, y, Settings("diag")).H, _curvature(normed, x, Settings("full")).diagonal())
    yield "curvlinops diag: takes LayerNorm", apart, apart < TOLERANCE
    net, x, y, _ = _toy("regression", outputs=1)
    refused = _fails(net, x, y[:, 0], Settings(likelihood="regression"))
    yield "curvlinops, regression: refuses targets of shape (N,)", math.nan, refused


def _fails(net: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> bool:
    try:
        fitted(net, x, y, settings)
    except Exception:
        return True
    return False


def _apart(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def _small(found: Tensor, expected: Tensor) -> tuple[float, bool]:
    apart = _apart(found, expected)
    return apart, apart < TOLERANCE


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the numbers for one network and data set, or put the conventions to the test."""
    parser = argparse.ArgumentParser(description="Numbers of laplace-torch for a given network and data.")
    parser.add_argument("--weights", type=Path, help=".safetensors or .npz")
    parser.add_argument("--data", type=Path, help=".safetensors or .npz with x, y and perhaps x_test")
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.safetensors")
    parser.add_argument("--structure", choices=STRUCTURES, default="full")
    parser.add_argument("--subset", choices=SUBSETS, default="all")
    parser.add_argument("--likelihood", choices=LIKELIHOODS, default="classification")
    parser.add_argument("--prior-precision", type=float, default=1.0)
    parser.add_argument("--sigma-noise", type=float, default=1.0, help="regression only")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="tanh")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="curvlinops")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--check", action="store_true", help="compare with brute force, for small networks")
    parser.add_argument("--self-test", action="store_true", help="test the conventions; needs no files")
    options = parser.parse_args(arguments)
    torch.set_default_dtype(torch.float64)  # convention 11
    torch.manual_seed(0)
    if options.self_test:
        claims = self_test()
        for text, number, holds in claims:
            print(f"{'holds ' if holds else 'FAILS '} {number:10.2e}  {text}")
        failed = sum(not holds for *_, holds in claims)
        print(f"{len(claims)} claims, {failed} do not hold")
        return 1 if failed else 0
    if not (options.weights and options.data and options.out):
        parser.error("--weights, --data and --out are needed, or --self-test")
    settings = Settings(
        options.structure,
        options.subset,
        options.likelihood,
        options.prior_precision,
        options.sigma_noise,
        options.temperature,
        options.backend,
        options.batch_size,
    )
    report, tensors = run(load(options.weights), load(options.data), settings, options.activation, options.check)
    stem = options.out.with_suffix("") if options.out.suffix in (".json", ".safetensors") else options.out
    stem.with_name(stem.name + ".json").write_text(json.dumps(report, indent=1) + "\n")
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, stem.with_name(stem.name + ".safetensors"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
