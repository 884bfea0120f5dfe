"""The page: what it says, that it is whole, and that nothing of a user's gets out of its place."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import temperance.show.report.folder as folder_of
from temperance import MAP, Categorical, Ensemble, Normal
from temperance.core import files
from temperance.core.errors import ArgumentError, StoreError
from temperance.predict import scores
from temperance.predict.calibrated import from_outputs
from temperance.show.report import write_report
from temperance.show.report.examples import png
from temperance.show.report.references import AUTHORS, TITLE, papers
from tests.show.report.pages import Page, random

pytestmark = pytest.mark.usefixtures("undrawn")
KINDS = ("classes", "yes", "labels", "normal", "outputs", "heteroscedastic", "student", "counts")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_prediction_has_a_whole_page(kind: str, tmp_path: Path) -> None:
    predictive, y = random(kind, 60)
    away, _ = random(kind, 40, seed=1)
    made = write_report(tmp_path / "r", predictive=predictive, y=y, ood=away, ood_words="other rows")
    assert made == tmp_path / "r" / "index.html"
    page = Page(made)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= before + 1 for before, later in itertools.pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    figures = len(page.all("figure"))
    assert figures >= 3
    assert len(page.all("svg")) == figures
    assert page.said.count("The numbers in a table") == figures
    assert page.all("html")[0]["lang"] == "en"
    for name in ("header", "nav", "main", "footer"):
        assert len(page.all(name)) == 1
    targets = {attributes["href"] for attributes in page.all("a")}
    assert all(str(target).startswith("#") and str(target)[1:] in ids for target in targets)
    assert "AUROC" in page.said
    assert "nan" not in page.said.lower().replace("finance", "")


@pytest.mark.parametrize("kind", ["classes", "labels", "normal", "counts"])
@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_make_a_page_that_says_so(kind: str, rows: int, tmp_path: Path) -> None:
    predictive, y = random(kind, rows)
    page = Page(write_report(tmp_path, predictive=predictive, y=y))
    assert "far too few" in page.said


def test_the_numbers_are_those_of_the_scores(tmp_path: Path) -> None:
    predictive, y = random("classes", 200)
    page = Page(write_report(tmp_path, predictive=predictive, y=y, class_names=["red", "green", "blue"]))
    probs = predictive.probs.double()  # type: ignore[attr-defined]
    right = int((probs.argmax(1) == y).sum())
    assert f"right in {right} of 200 answers" in page.said
    assert f"log-loss {scores.log_loss(probs, y):.3f}".rstrip("0") in page.said
    curve = scores.reliability_curve(probs, y, 10)
    for count, accuracy in zip(curve.count, curve.accuracy, strict=True):
        assert f"{100 * accuracy:.1f}".rstrip("0").rstrip(".") + " %" in page.said
        assert str(count) in page.said
    confident = probs.amax(1)
    worst = int(torch.where(probs.argmax(1) != y, confident, -1.0).argmax())
    wrong = page.said[page.said.index("Most confidently wrong") :]
    assert wrong.index(f"Row {worst + 1} ") < 150
    doubtful = int(predictive.entropy().argmax())
    assert f"Row {doubtful + 1} " in page.said[page.said.index("Most uncertain") :][:150]


def test_intervals_are_judged_fairly(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    location = torch.randn(400, 1, generator=rng)
    y = location + torch.randn(400, 1, generator=rng)
    for scale, words in ((1.0, "as promised"), (0.3, "fewer than promised"), (3.0, "more than promised")):
        predictive = from_outputs(location[None], Normal(scale=scale))
        page = Page(write_report(tmp_path / str(scale), predictive=predictive, y=y, target_name="weight in kg"))
        held = int(scores.interval_coverage(*predictive.interval(0.9), y).coverage * 400 + 0.5)
        assert f"({held} of 400): {words}" in page.said
        assert "weight in kg" in page.said


def test_overconfidence_is_called_so(tmp_path: Path) -> None:
    predictive, y = random("classes", 400, members=1)
    for scale, words in ((1.0, "confidence is honest"), (5.0, "too sure of itself"), (0.2, "too modest")):
        outputs = scale * predictive.probs.log()  # type: ignore[attr-defined]
        page = Page(write_report(tmp_path / str(scale), predictive=from_outputs(outputs, Categorical()), y=y))
        assert words in page.said


def test_what_is_calibrated_already_is_not_told_to_calibrate(tmp_path: Path) -> None:
    probs, y = random("classes", 400, members=1)
    location, truth = random("normal", 400, members=1)
    sure = from_outputs(5 * probs.probs.log(), Categorical())  # type: ignore[attr-defined]
    narrow = from_outputs(location.mean()[None], Normal(scale=0.3))
    for kind, predictive, found in (("classes", sure, y), ("values", narrow, truth)):
        for advise in (True, False):
            made = write_report(
                tmp_path / f"{kind}{advise}",
                predictive=predictive,
                y=found,
                notes=["Read me first."],
                calibration_words="Its own, not the conformal ones.",
                advise=advise,
            )
            said = Page(made).said
            assert "too sure of itself" in said
            assert ("before use" in said) == advise
            assert said.count("Its own, not the conformal ones.") == 2
            assert said.index("Read me first.") < said.index("Its own, not the conformal ones.") < said.index("error")


def test_missing_values_and_years_are_shown_as_they_are(tmp_path: Path) -> None:
    predictive, y = random("classes", 30)
    rows = pd.DataFrame({"year": [1907.0] * 30, "size": [np.nan] * 30, "hue": [None] * 30, "text": ["1,5"] * 30})
    page = Page(write_report(tmp_path, predictive=predictive, y=y, examples=rows))
    assert "year 1907 size missing hue missing text 1,5" in page.said
    assert "nan" not in page.said


def test_a_single_setting_of_the_weights_says_that_it_cannot_say(tmp_path: Path) -> None:
    for kind in ("classes", "normal"):
        predictive, y = random(kind, 50, members=1)
        page = Page(write_report(tmp_path / kind, predictive=predictive, y=y))
        assert "zero by construction" in page.said
        assert not any(a.get("aria-labelledby") == "epistemic-title" for a in page.all("svg"))


def test_noise_without_a_variance_is_left_out(tmp_path: Path) -> None:
    predictive, y = random("student", 50)
    assert "no finite variance" in Page(write_report(tmp_path, predictive=predictive, y=y)).said


def test_several_outputs_say_what_is_shown(tmp_path: Path) -> None:
    predictive, y = random("outputs", 50)
    page = Page(write_report(tmp_path, predictive=predictive, y=y, target_name=["length", "width", "height"]))
    assert "of the first, length" in page.said
    for name in ("width", "height"):
        assert name in page.said


# ---------------------------------------------------------------------- what users bring


def test_all_text_is_escaped(tmp_path: Path) -> None:
    bad = "<script>alert('x')</script>\"&$"
    predictive, y = random("classes", 40)
    made = write_report(
        tmp_path,
        predictive=predictive,
        y=y,
        examples=[{bad: bad, "price $": k} for k in range(40)],
        title=bad,
        method_words=bad,
        rows_words=bad,
        caution=bad,
        ood=predictive,
        ood_words=bad,
        class_names=[bad, "b", "c"],
        settings={bad: bad},
        extra={bad: {bad: bad}, "more": [bad], "text": bad},
    )
    page = Page(made)
    assert not page.all("script")
    assert "alert('x')</script>" not in page.text
    assert page.said.count("<script>alert('x')</script>") > 10
    values, truth = random("normal", 40)
    made = write_report(tmp_path / "v", predictive=values, y=truth, target_name=bad)
    assert not Page(made).all("script")


def test_rows_are_shown_in_every_form(tmp_path: Path) -> None:
    predictive, y = random("classes", 30)
    rows = [{"size": 1000 + k, "colour": f"hue {k}"} for k in range(30)]
    worst = int(predictive.entropy().argmax())
    forms: dict[str, object] = {
        "records": rows,
        "frame": pd.DataFrame(rows),
        "matrix": np.array([[row["size"], -1] for row in rows]),
    }
    for name, examples in forms.items():
        names = ["size", "other"] if name == "matrix" else None
        page = Page(write_report(tmp_path / name, predictive=predictive, y=y, examples=examples, feature_names=names))
        assert f"Row {worst + 1} size {1000 + worst} " in page.said
    for shape in ((30, 8, 8), (30, 1, 8, 8), (30, 3, 8, 8), (30, 8, 8, 3)):
        page = Page(write_report(tmp_path / str(shape), predictive=predictive, y=y, examples=torch.rand(shape)))
        images = page.all("img")
        assert len(images) >= 8
        assert all(str(image["src"]).startswith("data:image/png;base64,") and image["alt"] for image in images)


def test_pictures_keep_their_values() -> None:
    import base64
    import io

    from PIL import Image

    def seen(values: object) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(png(np.asarray(values)[..., None])))))

    assert seen([[0.0, 0.5], [0.25, 1.0]]).tolist() == [[0, 128], [64, 255]]
    assert seen([[0, 200], [100, 255]]).tolist() == [[0, 200], [100, 255]]
    assert seen([[-1.0, 1.0], [0.0, 3.0]]).tolist() == [[0, 128], [64, 255]]  # stretched
    assert seen([[2.0, 2.0], [2.0, 2.0]]).shape == (2, 2)
    assert max(seen(np.zeros((1000, 300))).shape) <= 128


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"y": torch.zeros(5)}, "`y`"),
        ({"y": torch.full((30,), 7)}, "label|class"),
        ({"class_names": ["a"]}, "`class_names`"),
        ({"examples": [{"a": 1}]}, "`examples`"),
        ({"examples": torch.zeros(30, 2), "feature_names": ["a"]}, "`feature_names`"),
        ({"examples": torch.zeros(30)}, "`examples`"),
        ({"examples": torch.zeros(30, 7, 8, 9)}, "`examples`"),
        ({"predictive": "model"}, "`predictive`"),
        ({"ood": random("normal", 5)[0]}, "`ood`"),
        ({"extra": {"a": 3}}, "`extra`"),
        ({"path": ""}, "`path`"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(changes: dict[str, object], word: str, tmp_path: Path) -> None:
    predictive, y = random("classes", 30)
    given: dict[str, object] = {"path": tmp_path / "r", "predictive": predictive, "y": y, **changes}
    with pytest.raises(ArgumentError, match=word):
        write_report(**given)  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()


def test_many_rows_stay_small(tmp_path: Path) -> None:
    predictive, y = random("normal", 20_000, members=2)
    made = write_report(tmp_path, predictive=predictive, y=y)
    assert made.stat().st_size < 400_000


# ---------------------------------------------------------------------- the folder


def test_a_report_is_replaced_and_other_things_are_not(tmp_path: Path) -> None:
    predictive, y = random("classes", 30)
    first = write_report(tmp_path / "r", predictive=predictive, y=y, title="first")
    assert write_report(tmp_path / "r", predictive=predictive, y=y, title="second") == first
    assert "second" in first.read_text()
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["index.html"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.html").write_text("<h1>my own page</h1>")
    with pytest.raises(ArgumentError, match="overwrite=True"):
        write_report(other, predictive=predictive, y=y)
    assert (other / "index.html").read_text() == "<h1>my own page</h1>"
    (other / "notes.txt").write_text("keep me")
    write_report(other, predictive=predictive, y=y, overwrite=True)
    assert (other / "notes.txt").read_text() == "keep me"
    file = tmp_path / "file"
    file.write_text("a file")
    for overwrite in (False, True):
        with pytest.raises(ArgumentError, match="is a file"):
            write_report(file, predictive=predictive, y=y, overwrite=overwrite)


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = folder_of.write_page(tmp_path, "old")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(StoreError, match="no space left"):
        folder_of.write_page(tmp_path, "new")
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


# ---------------------------------------------------------------------- citations


def test_the_citation_is_that_of_the_repository() -> None:
    known = (Path(__file__).parents[3] / "CITATION.cff").read_text()
    assert f'title: "{TITLE}"' in known
    assert f"name: {AUTHORS}" in known


def test_papers_are_those_of_the_cards() -> None:
    assert papers(Ensemble(MAP(), 2))[0].startswith("Lakshminarayanan")
    assert papers(None) == papers(MAP()) == []
