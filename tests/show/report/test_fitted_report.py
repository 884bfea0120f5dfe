"""``fitted.report``: which rows, which stand-in, which units, and the sampler's part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import temperance as tp
import temperance.show.report
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.data.data import DataInfo
from temperance.posteriors import Draws, Point
from temperance.run.fitted import Fitted
from temperance.show.report.run import _strange
from tests.show.report.pages import Page

pytestmark = pytest.mark.usefixtures("undrawn")


def _data(rows: int, seed: int, info: DataInfo | None = None) -> tp.data.Data:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=rng)
    return tp.data.Data(x, (x[:, 0] + 0.5 * torch.randn(rows, generator=rng) > 0).long(), info=info)


@pytest.fixture(scope="module")
def sampled() -> Fitted:
    target = tp.Target(tp.nn.MLP(3, [4], 2), tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.05), burn=0.2, every=5, read_every=5), 2)
    return tp.fit(target, method, _data(80, 0), steps=250, batch_size=40, seed=3, progress=False)


def test_test_rows_and_the_sampler(sampled: Fitted, tmp_path: Path) -> None:
    made = sampled.report(tmp_path / "r", _data(50, 1), title="A model")
    page = Page(made)
    assert "Measured on 50 test rows" in page.said
    assert "too good to be true" not in page.said
    assert "Is the sampling right?" in page.said
    for name in ("temperatures-title", "traces-title", "energy-title"):
        assert any(a.get("aria-labelledby") == name for a in page.all("svg"))
    for words in (
        "R-hat of predictions",
        "kinetic temperature",
        "SGHMC(lr=0.05",
        "seed 3",
        "250 of 250",
        "Chen et al.",
    ):
        assert words in page.said
    assert str(sampled.run["data"])[:16] in page.said


def test_without_test_rows_the_page_warns(sampled: Fitted, tmp_path: Path) -> None:
    assert "too good to be true" in Page(sampled.report(tmp_path / "a")).said
    assert "too good to be true" in Page(sampled.report(tmp_path / "b", sampled.data)).said


def test_nothing_is_concluded_from_training_rows(sampled: Fitted, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    data = tp.data.Data(torch.randn(60, 2, generator=rng), torch.randn(60, generator=rng))
    target = tp.Target(torch.nn.Linear(2, 1), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    values = tp.fit(target, tp.SGLD(lr=1e-4), data, steps=3, progress=False)
    for name, fitted, counted in (("a", sampled, "of 80 answers"), ("b", values, "of 60).")):
        said = Page(fitted.report(tmp_path / name)).said
        assert counted in said
        for words in ("95 % confidence", "95 % interval", "as promised", "than promised", "too sure of itself: ",
                      "too modest: ", "Calibrate", "calibrate", "trusted more", "points at its errors"):  # fmt: skip
            assert words not in said, words


def test_classes_are_shown_by_their_names(tmp_path: Path) -> None:
    target = tp.Target(torch.nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MAP(optimizer=torch.optim.Adam), _data(40, 0), steps=2, progress=False)
    page = Page(fitted.report(tmp_path, _data(40, 1)))
    assert "<class" not in page.said
    assert "Adam" in page.said


def test_held_out_rows_serve_where_there_are_some(tmp_path: Path) -> None:
    target = tp.Target(tp.nn.MLP(3, [4], 2), tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.warns(TemperanceWarning, match="held_out"):
        fitted = tp.fit(target, tp.SGLD(lr=1e-2), _data(80, 0), steps=3, held_out=0.25, progress=False)
    assert fitted.held_out is not None
    assert len(fitted.held_out) == 20
    page = Page(fitted.report(tmp_path))
    assert "Measured on 20 rows held out" in page.said
    assert "zero by construction" in page.said


def test_a_loaded_run_asks_for_rows(sampled: Fitted, tmp_path: Path) -> None:
    sampled.save(tmp_path / "run")
    loaded = tp.load(tmp_path / "run", tp.nn.MLP(3, [4], 2))
    assert loaded.data is None
    with pytest.raises(ArgumentError, match="`test` must be given"):
        loaded.report(tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(ArgumentError, match="holds other things"):
        loaded.report(tmp_path / "run", _data(20, 1))
    assert "Is the sampling right?" in Page(loaded.report(tmp_path / "r", _data(20, 1))).said


def test_a_resumed_run_that_was_finished_has_its_data(tmp_path: Path) -> None:
    target = tp.Target(tp.nn.MLP(3, [4], 2), tp.Categorical(), tp.GaussianPrior(1.0))
    for _ in range(2):
        fitted = tp.fit(target, tp.SGLD(lr=1e-2), _data(80, 0), steps=2, checkpoint=tmp_path / "c", progress=False)
        assert fitted.data is not None
        assert len(fitted.data) == 80


def test_standardised_values_are_shown_in_their_units(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=rng) * 10 + 50
    raw = tp.data.Data(x, 1000 + 100 * torch.randn(60, generator=rng), info=DataInfo(features=("age", "height")))
    data = raw.standardise()
    target = tp.Target(tp.nn.MLP(2, [3], 1), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    posterior = Draws(torch.zeros(2, target.layout.size))  # predicts the mean of the training data, with unit noise
    page = Page(Fitted(target, posterior, tp.run.fitted.RunInfo()).report(tmp_path, data, target_name="rent"))
    spread = float(raw.y.std(correction=0))
    assert f"typically {2 * 1.6449 * spread:.0f} wide" in page.said
    assert f"said {float(raw.y.mean()):,.0f}" in page.said
    assert "age" in page.said
    far = int((raw.y - raw.y.mean()).abs().argmax())
    assert f"was {float(raw.y[far]):,.0f} : outside" in page.said


def test_stand_ins() -> None:
    x = torch.arange(40.0).view(10, 4)
    strange, words = _strange(x, None, DataInfo())
    assert "columns" in words
    assert not torch.equal(strange, x)
    assert all(sorted(strange[:, k].tolist()) == x[:, k].tolist() for k in range(4))
    images = torch.rand(6, 3, 4, 5)
    strange, words = _strange(images, None, DataInfo())
    assert "pixels" in words
    places = [(images[0, :, :, :].reshape(3, -1) == strange[0].reshape(3, -1)[:, k : k + 1]).all(0) for k in range(20)]
    assert all(int(found.sum()) == 1 for found in places)  # a pixel keeps its channels
    moved = torch.stack(places).long().argmax(1)
    assert torch.equal(images[5].reshape(3, -1)[:, moved], strange[5].reshape(3, -1))  # the same for all images
    flat, _ = _strange(images.reshape(6, -1), None, DataInfo(image_shape=(3, 4, 5)))
    assert torch.equal(flat.view_as(images), strange)
    for left_out, word in (
        (torch.zeros(9, 5, dtype=torch.long), "tokens"),
        (torch.rand(9, 1), "one column"),
        (torch.rand(3, 4), "too few"),
        ((torch.rand(9, 2), torch.rand(9, 2)), "several tensors"),
    ):
        made, words = _strange(left_out, None, DataInfo())
        assert made is None
        assert word in words


def test_images_and_names_come_from_the_data(tmp_path: Path) -> None:
    _, test = tp.data.load("digits")
    target = tp.Target(torch.nn.Linear(64, 10), tp.Categorical(), tp.GaussianPrior(1.0))
    rng = torch.Generator().manual_seed(0)
    fitted = Fitted(target, Draws(0.3 * torch.randn(3, 650, generator=rng)), tp.run.fitted.RunInfo())
    page = Page(fitted.report(tmp_path, test[:40]))
    assert len(page.all("img")) == 16
    assert "pixels shuffled" in page.said
    assert "How far to trust this model: digits" in page.said


def test_given_strange_inputs_are_used(tmp_path: Path) -> None:
    target = tp.Target(torch.nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    rng = torch.Generator().manual_seed(0)
    fitted = Fitted(target, Draws(torch.randn(5, 8, generator=rng)), tp.run.fitted.RunInfo())
    test = _data(40, 1)
    page = Page(fitted.report(tmp_path, test, ood=torch.zeros(7, 3)))
    assert "the inputs given as strange" in page.said


def test_runs_that_are_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`fitted`"):
        temperance.show.report.report("model", tmp_path)  # type: ignore[arg-type]


def test_unfinished_runs_say_so(tmp_path: Path) -> None:
    target = tp.Target(torch.nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    info = tp.run.fitted.RunInfo(status=tp.status.INTERRUPTED)
    page = Page(Fitted(target, Point(torch.zeros(8)), info).report(tmp_path, _data(40, 1)))
    assert "did not come to its end" in page.said
