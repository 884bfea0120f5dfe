"""Held-out rows say how heavy the tails of a predictive's noise are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor

import temperance as tp
from temperance.core import encoding as values
from temperance.core.errors import ArgumentError
from temperance.judge.calibrate import VarianceScale
from temperance.judge.calibrate.base import LIMIT
from temperance.judge.calibrate.tails import with_tails
from temperance.posteriors import Mixture
from temperance.predict import predict
from temperance.predict.affine import AffinePredictive
from temperance.predict.calibrated import from_outputs

LAW = tp.ContaminatedNormal(0.2, 4.0, scale=1.0)


def varying(n: int, seed: int, members: int = 3, width: int = 1) -> Tensor:
    """Outputs of ``HeteroscedasticNormal``: members of different means and noise scales."""
    rng = torch.Generator().manual_seed(seed)
    mean = torch.randn(1, n, width, generator=rng) + 0.1 * torch.randn(members, n, width, generator=rng)
    return torch.cat([mean, 0.3 * torch.randn(members, n, width, generator=rng) - 1.0], -1).double()


def drawn(outputs: Tensor, seed: int, share: float, factor: float, scale: float = 1.0) -> Tensor:
    """Targets about the members' mean, some far off."""
    rng = torch.Generator().manual_seed(1000 + seed)
    width = outputs.shape[-1] // 2
    mean, noise = outputs[..., :width].mean(0), outputs[..., width:].exp().mean(0)
    wide = torch.where(torch.rand(len(mean), 1, generator=rng) < share, factor, 1.0)
    return mean + scale * wide * noise * torch.randn(mean.shape, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("width", [1, 2])
def test_densities_are_those_of_the_members_with_other_noise(width: int) -> None:
    """By SciPy, member by member; weights that differ; means and variances stay."""
    outputs = varying(6, 0, width=width)
    weights = torch.tensor([0.6, 0.3, 0.1])
    base = from_outputs(outputs, tp.HeteroscedasticNormal(), weights=weights)
    made = with_tails(base, LAW)
    y = np.linspace(-2, 2, 6)[:, None] * np.ones((1, width))
    variance = 0.8 + 0.2 * 16
    total = np.zeros(6)
    for w, member in zip(weights.tolist(), outputs.numpy(), strict=True):
        mean, scale = member[:, :width], np.exp(member[:, width:]) / math.sqrt(variance)
        density = 0.8 * scipy.stats.norm.pdf(y, mean, scale) + 0.2 * scipy.stats.norm.pdf(y, mean, 4 * scale)
        total += w * density.prod(-1)
    assert made.log_prob(torch.from_numpy(y)).double().numpy() == pytest.approx(np.log(total), abs=1e-5)
    assert torch.allclose(made.mean(), base.mean())
    assert torch.allclose(made.variance(), base.variance(), rtol=1e-5)
    assert torch.allclose(made.epistemic_variance(), base.epistemic_variance(), rtol=1e-5)
    assert with_tails(base, None) is base


@pytest.mark.parametrize("likelihood", [tp.HeteroscedasticNormal(), tp.Normal(scale=0.4)])
@pytest.mark.parametrize("trim", [0.0, 0.02])
def test_a_few_rows_far_off_are_told_from_a_wide_noise(likelihood: tp.Likelihood, trim: float) -> None:
    outputs = varying(1500, 1) if isinstance(likelihood, tp.HeteroscedasticNormal) else varying(1500, 1)[..., :1]
    whole = varying(1500, 1) if outputs.shape[-1] > 1 else torch.cat([outputs, outputs * 0 + math.log(0.4)], -1)
    y, new = (drawn(whole, seed, share=0.05, factor=10.0, scale=1.5) for seed in (1, 2))
    base = from_outputs(outputs, likelihood)
    plain, found = VarianceScale(trim=trim).fit(base, y), VarianceScale(trim=trim, tails=True).fit(base, y)
    assert plain.noise is None
    assert found.noise is not None
    assert found.noise.factor > 3
    assert found.before == pytest.approx(plain.before)
    loss = [-float(rule(base).log_prob(new).double().mean()) for rule in (plain, found)]
    assert loss[1] < loss[0] - 0.3
    assert found.after == pytest.approx(-float(found(base).log_prob(y).double().mean()), abs=1e-5)
    # the level too: what is no outlier has 1.5 times the noise that the members say, up to the tails' own share
    narrow = float(found.scale) * found.noise.standard_variance() ** -0.5
    assert 1.1 < narrow < 1.6
    far = (y - base.mean()).abs() > 6 * base.std()
    assert float(found(base).log_prob(y)[far.any(-1)].min()) > -25


@pytest.mark.parametrize(("rows", "most"), [(2000, 0.003), (100, 0.03)])
def test_of_gaussian_rows_next_to_nothing_changes(rows: int, most: float) -> None:
    excess = []
    for seed in range(6):
        outputs, later = varying(rows, seed), varying(4000, 50 + seed)
        base, new = (from_outputs(part, tp.HeteroscedasticNormal()) for part in (outputs, later))
        y, target = drawn(outputs, seed, 0.0, 1.0), drawn(later, 50 + seed, 0.0, 1.0)
        rules = VarianceScale(trim=0.02).fit(base, y), VarianceScale(trim=0.02, tails=True).fit(base, y)
        plain, heavy = (-float(rule(new).log_prob(target).double().mean()) for rule in rules)
        excess.append(heavy - plain)
    assert np.mean(excess) < most


def test_what_is_not_gaussian_keeps_its_tails() -> None:
    outputs = varying(300, 3)[..., :1]
    base, y = from_outputs(outputs, tp.StudentT(3.0, 0.5)), drawn(varying(300, 3), 3, 0.1, 10.0)
    plain, asked = VarianceScale().fit(base, y), VarianceScale(tails=True).fit(base, y)
    assert asked.noise is None
    assert torch.equal(asked.scale, plain.scale)


def test_the_calibrator_is_a_value_and_arguments_are_checked() -> None:
    outputs = varying(300, 4)
    base = from_outputs(outputs, tp.HeteroscedasticNormal())
    found = VarianceScale(tails=True).fit(base, drawn(outputs, 4, 0.1, 10.0))
    tensors: dict[str, Tensor] = {}
    again = values.decode(values.encode(found, tensors), tensors)
    assert again.noise == found.noise
    y = torch.full((300, 1), 5.0)
    assert torch.equal(again(base).log_prob(y), found(base).log_prob(y))
    with pytest.raises(ArgumentError, match="`tails` are those of all outputs"):
        VarianceScale(per_output=True, tails=True)
    with pytest.raises(ArgumentError, match="`tails`"):
        VarianceScale(tails=1)  # type: ignore[arg-type]


def test_levels_and_intervals_of_calibrated_rows() -> None:
    """Whole distributions follow: quantiles hold their share of new rows at least."""
    outputs, later = varying(2000, 5), varying(8000, 6)
    base, new = (from_outputs(part, tp.HeteroscedasticNormal()) for part in (outputs, later))
    made = VarianceScale(trim=0.02, tails=True).fit(base, drawn(outputs, 5, 0.05, 10.0))(new)
    target = drawn(later, 6, 0.05, 10.0)
    low, high = made.interval(0.9)
    assert 0.88 < float(((target >= low) & (target <= high)).double().mean()) < 0.97  # a fifth is more than there are
    assert made.cdf(made.quantile(0.3)) == pytest.approx(0.3, abs=1e-4)


def test_factor_and_level_are_those_of_the_formula_by_scipy() -> None:
    """Three members of unlike weights, two outputs of unlike tails, more rows than are asked."""
    rng = torch.Generator().manual_seed(3)
    n, weights = 2500, torch.tensor([0.7, 0.25, 0.05], dtype=torch.float64)
    places = torch.randn(1, n, 2, generator=rng) + torch.randn(3, n, 2, generator=rng)
    outputs = torch.cat([places, 0.5 * torch.randn(3, n, 2, generator=rng) - 2.5], -1).clamp(max=20.0).double()
    mean = (weights[:, None, None] * outputs[..., :2]).sum(0)
    far = torch.where(torch.rand(n, 2, generator=rng) < torch.tensor([0.02, 0.2]), 7.0, 1.0)
    y = outputs[0, :, :2] + outputs[0, :, 2:].exp() * far * torch.randn(n, 2, generator=rng).double()
    base = from_outputs(outputs, tp.HeteroscedasticNormal(), weights=weights)
    plain, found = VarianceScale().fit(base, y), VarianceScale(tails=True).fit(base, y)
    at = np.sort(np.random.default_rng(0).permutation(n)[:2000])
    o, t, m = outputs.numpy()[:, at], y.numpy()[at], mean.numpy()[at]
    sizes = tp.HeteroscedasticNormal().noise_scale(outputs, {}).numpy()[:, at]

    def total(shift: float, k: float) -> float:
        inner, scale = m + (t - m) * math.exp(-shift), sizes / math.sqrt(1 + 0.2 * (k * k - 1))
        narrow, wide = (scipy.stats.norm.logpdf(inner, o[..., :2], factor * scale) for factor in (1.0, k))
        both = np.logaddexp(math.log(0.8) + narrow, math.log(0.2) + wide) - shift
        return float(logsumexp(both.sum(-1) + weights.log().numpy()[:, None], axis=0).sum())

    def widening(k: float) -> float:
        return 0.5 * math.log(1 + 0.2 * (k * k - 1))

    begin, kappas = math.log(float(plain.scale)), np.arange(21) * 0.1
    logs = []
    for kappa in kappas:
        around = begin + np.arange(-0.3, 0.35 + widening(math.exp(kappa)), 0.1)
        logs.append(logsumexp([total(shift, math.exp(kappa)) for shift in around]) - kappa)
    k = math.exp(float(softmax(logs) @ kappas))
    level = max(begin + np.arange(-0.3, 0.325 + widening(k), 0.05), key=lambda shift: total(shift, k))
    assert found.noise is not None
    assert found.noise.factor == pytest.approx(k, rel=1e-5)
    assert float(found.scale) == pytest.approx(math.exp(level), rel=1e-6)


def test_the_level_under_tails_ends_at_the_limit_too() -> None:
    """The narrowest noise there may be, with outliers: the best level would lie beyond the limit."""
    rng = torch.Generator().manual_seed(0)
    far = torch.where(torch.rand(400, 1, generator=rng) < 0.2, 6.0, 1.0)
    y = torch.randn(400, 1, generator=rng, dtype=torch.float64) * far
    base = from_outputs(torch.zeros(1, 400, 1, dtype=torch.float64), tp.Normal(scale=1.0))
    for size in (math.exp(2 * LIMIT), math.exp(-2 * LIMIT)):
        found = VarianceScale(trim=0.02, tails=True).fit(base, size * y)
        assert math.exp(-LIMIT) * (1 - 1e-9) <= float(found.scale) <= math.exp(LIMIT) * (1 + 1e-9)


def fitted(likelihood: tp.Likelihood, width: int = 1) -> tp.Fitted:
    """A Laplace posterior of a small network on the middle of the line."""
    torch.manual_seed(0)
    columns = 2 * width if isinstance(likelihood, tp.HeteroscedasticNormal) else width
    net = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, columns))
    target = tp.Target(net, likelihood, tp.GaussianPrior(1.0))
    return tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2), tune=None), waves(60, 1, width), epochs=200, batch_size=20)


def waves(n: int, seed: int, width: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=rng) * 2 - 1
    far = torch.where(torch.rand(n, width, generator=rng) < 0.1, 6.0, 1.0)
    return x, torch.sin(3 * x) + 0.1 * far * torch.randn(n, width, generator=rng)


AHEAD = torch.tensor([[0.0], [1.5], [3.0], [3.01]])


@pytest.mark.parametrize(
    ("likelihood", "width"), [(tp.Normal(scale=0.1), 1), (tp.Normal(scale=0.1), 2), (tp.HeteroscedasticNormal(), 1)]
)
def test_what_theta_leaves_open_is_no_noise(likelihood: tp.Likelihood, width: int) -> None:
    """Of a linearised network: the tails are those of the noise, far from the rows too, and draws stay functions."""
    fit = fitted(likelihood, width)
    known, (x, y) = fit.predict(AHEAD), waves(300, 2, width)
    calibrator = VarianceScale(tails=True).fit(fit.predict(x), y)
    assert calibrator.noise is not None
    plain, heavy = replace(calibrator, noise=None)(known), calibrator(known)
    torch.testing.assert_close(heavy.epistemic_std(), plain.epistemic_std(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(heavy.std(), plain.std(), rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(heavy.joint_moments(by_draws=True), plain.joint_moments(by_draws=True), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-3)
    means = [
        torch.cat([made.likelihood.mean(o, learned) for _, o, learned in made.source.blocks()], 1)
        for made in (heavy.as_functions(), plain.as_functions())
    ]
    torch.testing.assert_close(means[0], means[1], rtol=1e-4, atol=1e-4)
    if not isinstance(likelihood, tp.HeteroscedasticNormal):
        drawn = heavy.sample(3000)[:, 2:, 0].T
        assert float(torch.corrcoef(drawn)[0, 1]) > 0.9


def test_of_one_output_the_density_is_a_mixture_of_normals() -> None:
    """N(f, V + σ²) under what is no outlier and what is, however much smaller σ is than √V; by SciPy, and by itself."""
    base = fitted(tp.Normal(scale=0.01)).predict(AHEAD)
    made = with_tails(base, LAW)
    narrow = 0.01 / math.sqrt(0.8 + 0.2 * 16)
    means, variances = base.mean().double().numpy(), base.epistemic_variance().double().numpy()
    assert variances.max() > 1000 * narrow**2
    y = means + np.array([[0.01], [1.0], [-2.0], [0.0]])
    parts = [
        math.log(share) + scipy.stats.norm.logpdf(y, means, np.sqrt(variances + (factor * narrow) ** 2))
        for share, factor in ((0.8, 1.0), (0.2, 4.0))
    ]
    assert made.log_prob(torch.from_numpy(y).float()).double().numpy() == pytest.approx(
        logsumexp(parts, axis=0).ravel(), abs=2e-4
    )
    assert made.cdf(made.quantile(0.9)) == pytest.approx(0.9, abs=1e-3)
    torch.testing.assert_close(made.variance(), base.variance(), rtol=1e-4, atol=0.0)
    drawn = made.sample(4000)
    entropy = -torch.stack([made.log_prob(row) for row in drawn]).mean(0)
    torch.testing.assert_close(made.entropy(), entropy, rtol=0.0, atol=0.06)
    assert made.aleatoric() == pytest.approx(LAW.standard_entropy() + math.log(narrow), abs=1e-4)
    assert not made.monte_carlo_error().any()


def test_in_other_units_tails_are_the_same() -> None:
    y = drawn(varying(2000, 7), 7, 0.05, 10.0)
    base = from_outputs(varying(2000, 7), tp.HeteroscedasticNormal())
    moved = AffinePredictive(base, 5.0, 10.0)
    here, there = (VarianceScale(trim=0.02, tails=True).fit(p, t) for p, t in ((base, y), (moved, 5 + 10 * y)))
    assert here.noise is not None
    assert there.noise.factor == pytest.approx(here.noise.factor, rel=1e-4)
    inner, outer = here(base).log_prob(y).double(), here(moved).log_prob(5 + 10 * y).double()
    torch.testing.assert_close(outer, inner - math.log(10), rtol=0.0, atol=2e-5)


def test_a_calibrator_with_tails_is_for_gaussian_noise() -> None:
    base = from_outputs(varying(300, 4), tp.HeteroscedasticNormal())
    found = VarianceScale(tails=True).fit(base, drawn(varying(300, 4), 4, 0.1, 10.0))
    with pytest.raises(ArgumentError, match="`predictive` must have Gaussian noise"):
        found(from_outputs(torch.zeros(5, 1), tp.StudentT(3.0, 0.5)))


def test_a_learned_noise_is_averaged_over_and_components_keep_their_weights() -> None:
    """Members are components × noise levels × normals: by quadrature of the level, and with weights that differ."""
    first = fitted(tp.Normal())
    again = tp.Laplace(tp.MAP(lr=1e-2), tune=None)
    fits = [first, tp.fit(first.target, again, waves(40, 9), epochs=100, batch_size=20)]
    y, levels = np.array([[0.1], [1.0], [-2.0], [0.5]]), np.linspace(-8.0, 8.0, 4001)
    wanted = []
    for fit in fits:
        base = fit.predict(AHEAD)
        centre, spread = (float(each.reshape(-1)[0]) for each in base.source.laws[0].learned_moments())
        assert spread > 1e-4
        share = scipy.stats.norm.pdf(levels) * (levels[1] - levels[0])
        noise = np.exp(centre + levels * math.sqrt(spread)) / math.sqrt(0.8 + 0.2 * 16)
        mean = base.output_mean().double().numpy()
        variance = base.output_variance().double().numpy()
        density = sum(
            part * scipy.stats.norm.pdf(y, mean, np.sqrt(variance + (factor * noise) ** 2))
            for part, factor in ((0.8, 1.0), (0.2, 4.0))
        )
        wanted.append((density * share).sum(1))
        found = with_tails(base, LAW).log_prob(torch.from_numpy(y).float()).double().numpy()
        assert found == pytest.approx(np.log(wanted[-1]), abs=2e-3)
    both = predict(fits[0].engine, Mixture(tuple(fit.posterior for fit in fits), (0.9, 0.1)), AHEAD)
    found = with_tails(both, LAW).log_prob(torch.from_numpy(y).float()).double().numpy()
    assert found == pytest.approx(np.log(0.9 * wanted[0] + 0.1 * wanted[1]), abs=2e-3)
