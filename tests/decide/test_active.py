from __future__ import annotations

import functools

import pytest
import torch

import temperance as tp
from temperance.core.errors import ArgumentError, MismatchError
from temperance.decide.acquire import bald, batch_bald, epig, random
from temperance.decide.active import learn_actively


def make() -> tp.Target:
    return tp.Target(tp.nn.MLP(2, [6], 2), tp.Categorical(), tp.GaussianPrior(1.0))


METHOD = tp.Ensemble(tp.MAP(lr=0.05), 3)
learn = functools.partial(learn_actively, make, METHOD, start=4, batch=2, steps=20)


@pytest.fixture(scope="module")
def moons():
    return tp.data.load("two-moons", n=60)


@pytest.fixture(scope="module")
def whole(moons):
    train, test = moons
    return learn(train, rounds=3, test=test, seed=1)


def test_the_curve_and_the_rows(moons, whole):
    train, _ = moons
    assert whole.labels == [4, 6, 8, 10]
    assert len(whole.rows.unique()) == 10
    assert torch.equal(whole.y, train.y[whole.rows])
    labels, accuracy = whole.curve("accuracy")
    assert labels == whole.labels
    assert len(accuracy) == 4
    with pytest.raises(ArgumentError, match="`score`"):
        whole.curve("beauty")


def test_the_first_choice_is_that_of_the_score(moons, whole):
    train, test = moons
    short = learn(train, rounds=0, test=test, seed=1)
    rest = torch.tensor([r for r in range(len(train)) if r not in short.rows.tolist()])
    from temperance.core.seeds import derive_seed

    scores = bald(short.fitted.predict(train.x[rest], seed=derive_seed(1, "round", 0)))
    assert whole.rows[4:6].tolist() == rest[scores.argsort(descending=True)[:2]].tolist()


def test_stopped_and_resumed_is_never_stopped(moons, whole, tmp_path):
    train, test = moons
    learn(train, rounds=1, test=test, seed=1, folder=tmp_path / "run")
    resumed = learn(train, rounds=3, test=test, seed=1, folder=tmp_path / "run")
    assert torch.equal(resumed.rows, whole.rows)
    assert resumed.scores == whole.scores
    assert all(
        torch.equal(a.theta, b.theta)
        for a, b in zip(resumed.fitted.posterior.components, whole.fitted.posterior.components, strict=True)
    )
    with pytest.raises(MismatchError, match="batch"):
        learn(train, rounds=3, test=test, seed=1, folder=tmp_path / "run", batch=3)
    with pytest.raises(MismatchError, match="rounds"):
        learn(train, rounds=1, test=test, seed=1, folder=tmp_path / "run")


def test_a_run_that_died_goes_on_where_it_was(moons, whole, tmp_path):
    """The oracle fails in the middle of the second round; what was written before is all that the next run has."""
    folder = tmp_path / "run"
    train, test = moons
    calls: list[torch.Tensor] = []

    def dies(rows: torch.Tensor) -> torch.Tensor:
        calls.append(rows)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train.y[rows]

    with pytest.raises(KeyboardInterrupt):
        learn(train.x, ask=dies, rounds=3, test=test, seed=1, folder=folder)
    asked: list[torch.Tensor] = []

    def ask(rows: torch.Tensor) -> torch.Tensor:
        asked.append(rows)
        return train.y[rows]

    resumed = learn(train.x, ask=ask, rounds=3, test=test, seed=1, folder=folder)
    assert len(asked) == 2
    assert torch.equal(resumed.rows, whole.rows)
    assert resumed.scores == whole.scores


def test_other_acquisitions_and_candidates(moons):
    train, _ = moons
    kinds = {"batch": batch_bald, "random": random}
    rows = {name: learn(train, rounds=1, acquire=kind).rows for name, kind in kinds.items()}
    assert not torch.equal(rows["batch"], rows["random"])
    aimed = learn(train, rounds=1, acquire=epig, towards=train.x[:5], candidates=10)
    assert len(aimed.rows.unique()) == 6
    given = learn(train, rounds=0, start=[3, 1, 2])
    assert given.rows.tolist() == [3, 1, 2]


def test_a_target_may_be_given_and_regression_works():
    train, test = tp.data.load("sine", n=40)
    target = tp.Target(tp.nn.MLP(1, [6], 1), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    method = tp.Laplace(tp.MAP(lr=0.05), tune=None)
    found = learn_actively(target, method, train, start=4, batch=3, rounds=1, acquire=batch_bald, test=test, steps=30)
    assert found.labels == [4, 7]
    assert "rmse" in found.scores[0]


def test_bad_input(moons):
    train, _ = moons
    for options, message in [
        ({"rounds": 100}, "at most"),
        ({"rounds": -1}, "`rounds`"),
        ({"rounds": 1, "batch": 0}, "`batch`"),
        ({"rounds": 1, "start": [0, 0]}, "once"),
        ({"rounds": 1, "start": 999}, "`start`"),
        ({"rounds": 1, "acquire": epig}, "`towards`"),
        ({"rounds": 1, "ask": lambda rows: torch.zeros(1)}, "`ask`"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            learn(train, **options)
    with pytest.raises(ArgumentError, match="`make_target`"):
        learn_actively(lambda: 3, METHOD, train, start=4, batch=2, rounds=1, steps=2)
