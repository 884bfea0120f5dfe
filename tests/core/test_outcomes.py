"""Outcomes by type, and what rooms have for them."""

from __future__ import annotations

import pytest

import temperance as tp
from temperance.core.encoding import decode, encode
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Classes, Counts, Labels, Outcome, Quantities, Reals


@pytest.mark.parametrize(
    ("likelihood", "outcome"),
    [
        (tp.Categorical(), Classes()),
        (tp.Bernoulli(), Labels()),
        (tp.Normal(), Reals()),
        (tp.HeteroscedasticNormal(), Reals()),
        (tp.StudentT(), Reals()),
        (tp.Poisson(), Counts()),
    ],
)
def test_a_likelihood_names_its_outcome(likelihood: tp.Likelihood, outcome: Outcome) -> None:
    assert likelihood.outcome == outcome


@pytest.mark.parametrize("kind", [Classes, Labels, Reals, Counts])
def test_names_and_files_lead_back(kind: type[Outcome]) -> None:
    assert Outcome.named(kind.name) == kind()
    assert Outcome.named(kind()) == kind()
    assert decode(encode(kind(), {}), {}) == kind()
    assert str(kind()) == kind.name


def test_outcomes_differ() -> None:
    assert Classes() != Labels()
    assert len({Classes(), Labels(), Reals(), Counts(), Classes()}) == 4


@pytest.mark.parametrize("given", ["guess", "", None, 3, Labels()])
def test_an_unknown_name_lists_the_known_ones(given: object) -> None:
    with pytest.raises(ArgumentError, match=r"`kind` must be one of classification, regression; got"):
        Outcome.named(given, "kind", among=(Classes, Reals))  # type: ignore[arg-type]


def test_a_name_cannot_be_taken_twice() -> None:
    with pytest.raises(ArgumentError, match=r"'counts' is that of core\.Counts"):
        type("Tallies", (Quantities,), {"name": "counts"})
    assert Outcome.named("counts") == Counts()


def test_a_variety_without_a_name_does_not_take_that_of_its_kind() -> None:
    type("Grades", (Classes,), {})
    assert type(Outcome.named("classification")) is Classes
