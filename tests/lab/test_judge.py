"""The rules by which claims are judged, and what a run's files keep."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from temperance.core.errors import ArgumentError
from temperance.lab import Cell, Cells
from temperance.lab.experiment import Finished
from temperance.lab.folder import from_json, settings_from, to_json
from temperance.lab.judge import above, all_of, below, difference, estimate, near
from tests.lab.fake import FakeSettings, Inner


def test_a_rule_decides_only_where_the_interval_does():
    clear, unclear, few = estimate([1.0, 1.1, 0.9, 1.0]), estimate([1.0, -0.9, 0.3]), estimate([5.0, 5.1])
    assert (above(clear), below(clear), near(clear, 1.0, 0.5)) == (True, False, True)
    assert (above(unclear), below(unclear), near(unclear, 0.0, 0.5)) == (None, None, None)
    assert (above(few), below(few), near(few, 5.0, 10.0)) == (None, None, None)
    assert near(clear, 3.0, 0.5) is False
    # 1 ± 0.2 over three seeds: two standard errors are 0.4, but Student's t with two degrees of freedom says 0.86
    three = estimate([0.6, 1.2, 1.2])
    assert three.mean == pytest.approx(1.0)
    assert three.half_width == pytest.approx(4.3027 * 0.2, rel=1e-4)


def test_the_error_of_a_difference_is_that_of_pairs():
    a, b = {0: 10.0, 1: 20.0, 2: 30.0, 9: 1.0}, {0: 9.0, 1: 19.1, 2: 28.9}
    gap = difference(a, b)
    assert (gap.count, round(gap.mean, 6)) == (3, 1.0)
    assert gap.error < 0.1
    assert above(gap) is True
    assert above(estimate(list(a.values()))) is None


def test_verdicts_are_joined():
    assert all_of() is None
    assert all_of(True, None) is None
    assert all_of(False, None) is False


def test_estimates_in_words():
    assert str(estimate([])) == "–"
    assert str(estimate([math.nan])) == "–"
    assert "one seed" in str(estimate([1.0]))
    assert str(estimate([100.0, 300.0])) == "200 ± 100"


def test_settings_come_back_from_json():
    settings = FakeSettings(arms=("x",), inner=Inner((3.0, 4.0)), scale=2)
    assert settings_from(FakeSettings, json.loads(json.dumps(dataclasses.asdict(settings)))) == settings
    with pytest.raises(ArgumentError, match="it has no"):
        settings_from(FakeSettings, {"sacle": 1.0})


def test_numbers_that_are_not_finite_survive_json():
    there = json.dumps(to_json({"a": math.nan, "b": [1.0, math.inf], "c": "text"}), allow_nan=False)
    back = from_json(json.loads(there))
    assert math.isnan(back["a"])
    assert math.isnan(back["b"][1])
    assert back["c"] == "text"
    with pytest.raises(TypeError, match="must give numbers"):
        to_json({"a": object()})


def test_cells_are_asked_by_their_parameters():
    done = Cells(
        [
            Finished(Cell.of(arm="a", seed=1), {"ce": 2.0}, 0.0),
            Finished(Cell.of(arm="a", seed=0), {"ce": 1.0}, 0.0),
            Finished(Cell.of(arm="a", seed=2), {"ce": math.nan}, 0.0),
            Finished(Cell.of(arm="b", seed=0), {}, 0.0, "failed"),
        ]
    )
    assert done.by_seed("ce", arm="a") == {0: 1.0, 1: 2.0}
    assert done.options("arm") == ["a"]
    assert done.first(arm="b") is None
    assert Cell.of(name="a/b c", seed=0).key == "name=a_b_c,seed=0"
