"""What a composed method's predictions must be: the spread that theory gives, or that of the same said another way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from temperance.inference import (
    SWAG,
    Anchored,
    Collect,
    Curve,
    Ensemble,
    FunctionalLaplace,
    Inference,
    Laplace,
    MCDropout,
    On,
    Subspace,
)
from temperance.inference.base import Wrapper
from temperance.inference.points.around_point import AsItIs
from temperance.posteriors import Mixture
from temperance.run.fitted import Fitted
from temperance.testing.checks import Report
from temperance.testing.composition.runs import Runs, Says, kind_of, parts_of, says

NO_SPREAD = 1e-6
"""An epistemic standard deviation below this times the outputs' scale is none: false certainty."""
LOST = 30.0
"""A wrapper may have so many times less spread than what it wraps, and not more: short runs vary."""
LOST_IN_SUBSPACE = 1000.0
"""In two of 33 directions there is less to vary."""
COMPARABLE = 10.0
"""Members start elsewhere than the method by itself: their spreads agree within this factor."""
ROUNDING = 1e-3
"""The same run said in two ways, in float32, agrees to this (relative to the outputs' scale)."""
STATISTICAL = 2.0
"""Where two ways may use their random numbers differently, their spreads agree within this factor."""

_SPREADING = (Collect, Curve, FunctionalLaplace, Laplace, MCDropout, SWAG)


def check_rules(
    report: Report, runs: Runs, method: Inference[Any], inner: Inference[Any], fitted: Fitted, first: Says
) -> None:
    """All rules that apply to ``method``, which wraps ``inner`` and gave ``fitted``."""
    rules: list[tuple[str, Callable[..., None], tuple[Any, ...]]] = [
        ("spread", _check_spread, (method, inner, first)),
        ("linearised stays linearised", _check_linearised, (method, inner, fitted, first)),
        ("components", _check_components, (method, fitted)),
    ]
    if isinstance(method, Ensemble):
        rules.append(("members are what the base alone is", _check_like_alone, (method, fitted)))
    if isinstance(method, On):
        rules.append(("On is the subset's target", _check_on, (method, first)))
    rules.append(("weights outside the subset stay", _check_outside, (method, fitted)))
    for name, rule, args in rules:
        try:
            rule(report, runs, *args)
        except Exception as error:
            report.add(name, False, f"{type(error).__name__}: {error}")


def below(method: Inference[Any]) -> Inference[Any] | None:
    """What a wrapper wraps; ``None`` for a wrapper of nothing that is trained."""
    inside = method.base if isinstance(method, Wrapper) else None
    return None if isinstance(inside, AsItIs) else inside


def levels(method: Inference[Any]) -> list[Inference[Any]]:
    """A method and all that it wraps, from the outside."""
    inside = below(method)
    return [method] if inside is None else [method, *levels(inside)]


# ---------------------------------------------------------------------- spread


def _check_spread(report: Report, runs: Runs, method: Inference[Any], inner: Inference[Any], first: Says) -> None:
    """Whatever has a spread by itself has one inside a wrapper; and some wrappers are there to give one."""
    scale = runs.problem.scale
    subset = method.subset if isinstance(method, On) else None
    given = _reference(runs, method, inner, subset)
    has = given > NO_SPREAD * scale
    gives = any(isinstance(m, _SPREADING) or (isinstance(m, Ensemble) and m.size > 1) for m in levels(method))
    if not (has or gives):
        return
    why = f"{type(inner).__name__} by itself has {given:.2g}" if has else "theory gives one"
    enough = first.spread > NO_SPREAD * scale
    report.add("there is a spread", enough, f"epistemic std {first.spread:.2g}, where {why}")
    if has and enough:
        factor = LOST_IN_SUBSPACE if any(isinstance(m, Subspace) for m in levels(method)) else LOST
        kept = first.spread > given / factor
        report.add("the spread is not lost", kept, f"{first.spread:.2g}, by itself {given:.2g}")


def _reference(runs: Runs, method: Inference[Any], inner: Inference[Any], subset: Any) -> float:
    """The spread of what is wrapped, on the target that the wrapper's meaning gives it; 0 where it cannot run alone."""
    where = None if isinstance(inner, Laplace | FunctionalLaplace) else subset
    found = runs.alone(inner, where)
    return 0.0 if found is None else says(found, runs.problem.queries).spread


# ---------------------------------------------------------------------- linearised


def _check_linearised(
    report: Report, runs: Runs, method: Inference[Any], inner: Inference[Any], fitted: Fitted, first: Says
) -> None:
    alone = runs.alone(inner)
    own = alone is not None and alone.posterior.predicts == "linearised"
    around = any(isinstance(m, Laplace | FunctionalLaplace) for m in levels(method))
    if not (own or around):
        return
    rule = fitted.posterior.predicts
    report.add("linearised stays linearised", rule == "linearised", f"predicts by {rule}")
    if rule == "linearised":
        differs = first.differs(says(fitted, runs.problem.queries, by="linearised"))
        report.add("predicts as it says", not differs, f"by='linearised' differs in {differs}" if differs else "")


# ---------------------------------------------------------------------- members


def _promised(runs: Runs, method: Inference[Any]) -> int:
    """How many components a method promises: ensembles multiply."""
    if isinstance(method, Ensemble):
        return method.size * _promised(runs, method.base)
    if isinstance(method, On | Subspace):
        return _promised(runs, method.base)
    found = runs.alone(method)
    return 1 if found is None else len(parts_of(found.posterior))


def _check_components(report: Report, runs: Runs, method: Inference[Any], fitted: Fitted) -> None:
    """As many as promised, and no two alike: with minibatches, and where nothing but the start tells them apart."""
    parts = parts_of(fitted.posterior)
    promised = _promised(runs, method)
    if any(isinstance(m, Ensemble) for m in levels(method)):
        report.add("as many components as promised", len(parts) == promised, f"{len(parts)} of {promised}")
    if isinstance(method, Ensemble) and len(parts) % method.size == 0:
        report.add("members weigh the same", *_equal_weights(method.size, fitted))
    if len(parts) < 2:
        return
    report.add("members are distinct", *_distinct(runs, fitted))
    report.add("the spread is that of the members and between them", *_total_variance(runs, fitted))
    if method.facts().default_steps != 0:
        found = runs.new(method, full=True)
        report.add("members are distinct with full batches", *_distinct(runs, found))


def _equal_weights(members: int, fitted: Fitted) -> tuple[bool, str]:
    """An ensemble believes no member more than another, whatever the parts of a member weigh among themselves."""
    shares = torch.tensor([share for share, _ in fitted.posterior.parts()], dtype=torch.float64)
    each = shares.reshape(members, -1).sum(1)
    return bool((each - 1 / members).abs().max() < 1e-6), f"from {float(each.min()):.3g} to {float(each.max()):.3g}"


def _distinct(runs: Runs, fitted: Fitted) -> tuple[bool, str]:
    means = torch.stack([says(fitted, runs.problem.queries, part).mean for part in parts_of(fitted.posterior)])
    apart = (means.unsqueeze(0) - means.unsqueeze(1)).abs().flatten(2).amax(-1)
    apart.fill_diagonal_(math.inf)
    nearest = float(apart.min())
    return nearest > NO_SPREAD * runs.problem.scale, f"the nearest two predict {nearest:.2g} apart"


def _total_variance(runs: Runs, fitted: Fitted) -> tuple[bool, str]:
    """Var = E[Var | member] + Var[E | member]. Exact where all of a member is averaged over, or where its outputs are
    Gaussian in closed form; where draws are made, a mixture makes fewer of each member, and a factor is allowed."""
    parts = [says(fitted, runs.problem.queries, part) for part in parts_of(fitted.posterior)]
    shares = torch.tensor([share for share, _ in fitted.posterior.parts()], dtype=torch.float64)
    means = torch.stack([part.mean for part in parts]).double()
    within = torch.stack([part.epistemic for part in parts]).double()
    centre = torch.einsum("k,k...->...", shares, means)
    wanted = float(torch.einsum("k,k...->...", shares, within + (means - centre).square()).sqrt().mean())
    found = says(fitted, runs.problem.queries).spread
    exact = fitted.posterior.finite or fitted.posterior.predicts == "linearised"
    factor = 1.02 if exact else STATISTICAL
    return wanted / factor < found < wanted * factor, f"{found:.3g}, of the members {wanted:.3g}"


def _check_like_alone(report: Report, runs: Runs, method: Ensemble, fitted: Fitted) -> None:
    """A member of an ensemble is a run of its base: the same kind of posterior, with a like spread."""
    alone = runs.alone(method.base)
    if alone is None:
        report.add("the base runs by itself", False, "a member works where its method alone does not")
        return
    own, parts = parts_of(alone.posterior), parts_of(fitted.posterior)
    kinds = [kind_of(part) for part in own]
    found = [kind_of(part) for part in parts]
    report.add("members are of the base's kind", found == kinds * method.size, f"{found} of {kinds}")
    if len(parts) != len(own) * method.size:
        return
    wanted = says(alone, runs.problem.queries).spread
    if wanted <= NO_SPREAD * runs.problem.scale:
        return
    for k in range(method.size):
        group = tuple(parts[k * len(own) : (k + 1) * len(own)])
        spread = says(fitted, runs.problem.queries, group[0] if len(group) == 1 else Mixture(group)).spread
        like = wanted / COMPARABLE < spread < wanted * COMPARABLE
        if not like or k + 1 == method.size:
            report.add("each member has the base's spread", like, f"member {k}: {spread:.2g}, alone {wanted:.2g}")
            return


# ---------------------------------------------------------------------- a part of the network


def _trains_everything(method: Inference[Any]) -> bool:
    """``On(s, Laplace(base))`` trains all weights and spreads s: the documented exception."""
    return isinstance(method, Laplace | FunctionalLaplace) and method.trains


def _check_on(report: Report, runs: Runs, method: On, first: Says) -> None:
    """``On(s, M)`` is M on the target of s; On of a Laplace is that Laplace with ``on=s``."""
    inside = method.base
    ways: list[tuple[str, Fitted | None]] = []
    if _trains_everything(inside):
        assert isinstance(inside, Laplace | FunctionalLaplace)
        ways.append(("Laplace(on=s)", runs.alone(inside.on_part(method.subset))))
    else:
        ways.append(("Target(subset=s)", runs.alone(inside, method.subset)))
    if isinstance(inside, Ensemble) and _trains_everything(inside.base):  # either reading of the exception will do
        moved = dataclasses.replace(inside, base=On(method.subset, inside.base))
        ways.append(("Ensemble(On(s, Laplace))", runs.alone(moved)))
    found = [(name, says(fitted, runs.problem.queries)) for name, fitted in ways if fitted is not None]
    if not found:
        report.add("On is the subset's target", False, "On works where its method on Target(subset=...) does not")
        return
    told = {name: _apart(first, other, runs.problem.scale) for name, other in found}
    if any(isinstance(m, Anchored) for m in levels(inside)) and "" not in told.values():
        told["Target(subset=s), over seeds"] = _apart_in_law(runs, method)
    same = "" in told.values()
    report.add("On is the subset's target", same, "" if same else "; ".join(f"{k}: {v}" for k, v in told.items()))


def _apart(one: Says, two: Says, scale: float) -> str:
    """How the same run said in two ways differs beyond rounding."""
    off = float((one.mean - two.mean).abs().max()) / scale
    a, b = one.spread, two.spread
    wrong = []
    if off > ROUNDING:
        wrong.append(f"means {off:.2g} apart")
    if abs(a - b) > ROUNDING * max(a, b, scale * ROUNDING):
        wrong.append(f"spread {a:.3g} against {b:.3g}")
    return ", ".join(wrong)


def _apart_in_law(runs: Runs, method: On) -> str:
    """How runs of several seeds differ. An anchor is a draw of the prior, and priors of a part that were made in two
    ways may take their random numbers in pieces of other lengths: then only the law is the same."""
    one, two = runs.seeds(method, None), runs.seeds(method.base, method.subset)
    wrong = []
    noise = ((one.between + two.between) / one.count).sqrt() + ROUNDING * runs.problem.scale
    off = float(((one.mean - two.mean).abs() / noise).max())
    if off > 5:
        wrong.append(f"means {off:.1f} standard errors apart")
    for name in ("within", "between"):
        a, b = (float(getattr(law, name).sqrt().mean()) for law in (one, two))
        if abs(a - b) > NO_SPREAD * runs.problem.scale and not 1 / STATISTICAL < a / max(b, 1e-12) < STATISTICAL:
            wrong.append(f"spread {name} runs {a:.3g} against {b:.3g}")
    return ", ".join(wrong)


def _check_outside(report: Report, runs: Runs, method: Inference[Any], fitted: Fitted) -> None:
    """Runs of a part keep the given network's weights elsewhere, to the bit."""
    chain = levels(method)
    place = next((k for k, m in enumerate(chain) if isinstance(m, On)), None)
    if place is None or not all(isinstance(m, Ensemble) for m in chain[:place]):
        return
    if any(_trains_everything(m) for m in chain[place + 1 :]):
        return
    on = chain[place]
    assert isinstance(on, On)
    whole = runs.problem.target()
    inside = {e.name for e in runs.problem.target(on.subset).layout.entries}
    given = whole.initial_theta()
    moved = {
        e.name: float((rows[:, e.start : e.stop] - given[e.start : e.stop]).abs().max())
        for rows in [_settings(fitted)]
        for e in whole.layout.entries
        if e.name not in inside
    }
    far = [f"{name} by {value:.2g}" for name, value in moved.items() if value > 0]
    report.add("weights outside the subset stay", not far, ", ".join(far))


def _settings(fitted: Fitted) -> Tensor:
    """All θ that a posterior holds; of a posterior over functions, where it is linearised."""
    rows = []
    for part in parts_of(fitted.posterior):
        if kind_of(part) == "Process":
            rows.append(part.mean.unsqueeze(0))  # type: ignore[attr-defined]
        else:
            nodes = part.nodes()
            rows.append(nodes.fetch(0, len(nodes))[0])
    return torch.cat(rows)
