"""Where members begin: which rows of a start are whose."""

from __future__ import annotations

import torch

import temperance as tp
from temperance.engine import Engine
from tests.small import real

ROWS = torch.arange(16.0).reshape(4, 4)


def test_rows_that_are_given_go_to_members_in_their_order():
    engine = Engine(real())
    assert torch.equal(tp.Starts.at(ROWS).rows(engine), ROWS)
    assert torch.equal(tp.Starts(2, ROWS).rows(engine, each=2), ROWS)
    assert torch.equal(tp.Starts(2, ROWS[:2]).rows(engine, each=2), ROWS[[0, 0, 1, 1]])
    assert torch.equal(tp.Starts(2, ROWS[:1]).rows(engine, each=2), ROWS[[0, 0, 0, 0]])


def test_a_member_alone_has_the_rows_that_it_has_among_all():
    engine = Engine(real())
    for given in (ROWS, ROWS[:2], ROWS[:1], None):
        starts = tp.Starts(2, given, (3, 5) if given is None else None)
        apart = [starts.member(k).rows(engine, each=2) for k in range(2)]
        assert torch.equal(torch.cat(apart), starts.rows(engine, each=2))
    assert torch.equal(tp.Starts(2, ROWS).member(1).given, ROWS[2:])
