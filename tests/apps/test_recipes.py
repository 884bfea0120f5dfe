"""Recipes: names and expressions become methods, and nothing else is run."""

from __future__ import annotations

import pytest
import torch

import temperance as tp
from temperance.apps.recipes import DEFAULT_METHOD, RECIPES, default_training, method_named, table_target, training
from temperance.core.outcomes import Classes, Counts, Reals


def test_every_recipe_makes_a_method_and_fits_a_small_table() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, :1] - 0.5 * x[:, 1:2] + 0.1
    for name, recipe in RECIPES.items():
        method = method_named(name)
        assert isinstance(method, tp.Inference)
        assert recipe.words
        if name in {"nuts", "multiswag", "mile"}:  # the same code as others, and slow
            continue
        target = table_target("regression", 3, 1, hidden=(4,))
        fitted = tp.fit(target, method, (x, y), epochs=45, batch_size=60, seed=0, progress=False)
        assert fitted.predict(x).mean().isfinite().all(), name
    assert DEFAULT_METHOD in RECIPES


def test_expressions_are_the_methods_they_spell() -> None:
    assert method_named("Ensemble(MAP(lr=1e-3), 5)") == tp.Ensemble(tp.MAP(lr=1e-3), 5)
    assert method_named("tp.On(last_layer, Laplace(MAP(), KFAC()))") == tp.On(
        tp.last_layer, tp.Laplace(tp.MAP(), tp.KFAC())
    )
    spelled = method_named("MAP(lr=0.1, optimizer=SGD, optimizer_args={'momentum': 0.9})")
    assert spelled == tp.MAP(lr=0.1, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    method = tp.MAP()
    assert method_named(method) is method


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ensmble", "Did you mean 'ensemble'"),
        ("Ensemble(MAP(", "cannot be read"),
        ("Ensemble(MAPP(), 5)", "Did you mean MAP"),
        ("__import__('os').system('true')", "may hold only"),
        ("MAP(lr=(lambda: 1)())", "may hold only"),
        ("MAP(rate=1)", "cannot be made so"),
        ("MAP(lr=-1)", "`lr`"),
        ("KFAC()", "gives a method"),
        ("MAP(**{'lr': 1})", "may hold only"),
        ("SGD([1])", "may hold only"),
    ],
)
def test_bad_expressions(text: str, words: str) -> None:
    with pytest.raises(tp.errors.ArgumentError, match=words.replace("(", r"\(")):
        method_named(text)
    with pytest.raises(tp.errors.ArgumentError, match="`method`"):
        method_named(3)  # type: ignore[arg-type]


def test_targets_and_training() -> None:
    assert table_target("counts", 2, 1).likelihood == tp.Poisson()
    one, two, other = (table_target("regression", 2, 1, seed=seed).initial_theta() for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    wide = table_target("regression", 2, 3, likelihood=tp.HeteroscedasticNormal())
    assert wide.network[-1].out_features == 6  # type: ignore[index,union-attr]
    with pytest.raises(tp.errors.ArgumentError, match="`task`"):
        table_target("ranking", 2, 1)  # type: ignore[arg-type]
    with pytest.raises(tp.errors.ArgumentError, match="`rows`"):
        training(0)
    epochs = [training(rows)[0] for rows in (10, 1000, 100_000, 10_000_000)]
    assert epochs == sorted(epochs, reverse=True)


def test_swag_for_tables_stays_alive_where_noise_is_small() -> None:
    """Small learned noise makes large gradients; SGD at a constant rate leapt until its ReLUs were dead."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=rng)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.01 * torch.randn(500, 1, generator=rng)
    y = (y - y.mean()) / y.std()

    def error(method: str) -> float:
        target = table_target("regression", 4, 1, likelihood=tp.HeteroscedasticNormal())
        fitted = tp.fit(target, method_named(method), (x[:400], y[:400]), epochs=150, batch_size=16, progress=False)
        return fitted.evaluate((x[400:], y[400:]))["rmse"]

    plain = error("map")
    assert error("swag") < 1.3 * plain
    assert error("SWAG(MAP(lr=0.02, optimizer=SGD, optimizer_args={'momentum': 0.9}))") > 2 * plain  # the recipe before


def test_small_tables_of_classes_get_fewer_and_longer_steps_where_nobody_asks() -> None:
    usual, classes = method_named(DEFAULT_METHOD), Classes()
    (short, epochs, batch), (many, size) = default_training(300, classes), training(300, classes)
    assert (short.base.lr, short.size) == (2 * usual.base.lr, usual.size)
    assert (epochs, batch) == (many // 2, size)
    assert default_training(301, classes) == (usual, *training(301, classes))
    for outcome in (Reals(), Counts()):
        assert default_training(100, outcome) == (usual, *training(100, outcome))
