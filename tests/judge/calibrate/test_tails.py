"""Held-out rows say how heavy the tails of a predictive's noise are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import temperance as tp
from temperance.core import encoding as values
from temperance.core.errors import ArgumentError
from temperance.judge.calibrate import VarianceScale
from temperance.judge.calibrate.tails import with_tails
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
