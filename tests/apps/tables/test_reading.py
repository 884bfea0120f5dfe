"""Files of all kinds become the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from temperance.apps.tables.dialect import detect_dialect
from temperance.apps.tables.reading import open_table, read_rows
from temperance.core.errors import ArgumentError, DataError


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    town = rng.choice(["Zürich", "Genève", "Bern, alt", 'the "Ring"'], 40)
    return pd.DataFrame({"size": rng.normal(size=40).round(3), "town": town, "y": rng.integers(0, 9, 40)})


def whole(path: Path, **options: str) -> pd.DataFrame:
    return read_rows(open_table(path, **options), 1000)[0]


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_recognised(frame: pd.DataFrame, tmp_path: Path, encoding: str) -> None:
    frame.to_csv(tmp_path / "a.csv", index=False, encoding=encoding)
    table = open_table(tmp_path / "a.csv")
    same(read_rows(table, 1000)[0], frame)
    assert bool(table.notices) == (encoding in ("utf-16", "cp1252"))


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), (";", "."), ("\t", "."), ("|", "."), (",", ".")])
def test_separators_and_decimal_marks_are_recognised(
    frame: pd.DataFrame, tmp_path: Path, separator: str, decimal: str
) -> None:
    frame.to_csv(tmp_path / "a.csv", index=False, sep=separator, decimal=decimal)
    same(whole(tmp_path / "a.csv"), frame)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_kinds_of_files(frame: pd.DataFrame, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
    same(whole(path), frame)


def test_quoted_line_breaks_lone_quotes_and_blank_lines(tmp_path: Path) -> None:
    text = 'name,note,y\na,"two\nlines, ""quoted""",1\n\nb,5" pipe,2\nc,"x, y",3\n   \n'
    (tmp_path / "a.csv").write_text(text)
    found = whole(tmp_path / "a.csv")
    assert found["note"].tolist() == ['two\nlines, "quoted"', '5" pipe', "x, y"]
    assert found["y"].tolist() == [1, 2, 3]


def test_a_quoted_line_break_across_a_chunk(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,"x\ny\nz"\n2,w\n3,"u\nv"\n')
    chunks = list(open_table(tmp_path / "a.csv").chunks(2, keep_records=True))
    assert pd.concat([c.frame for c in chunks])["b"].tolist() == ["x\ny\nz", "w", "u\nv"]
    assert [record for c in chunks for record in c.records or []] == ['1,"x\ny\nz"', "2,w", '3,"u\nv"']


def test_a_column_that_is_text_in_one_chunk_is_text_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.apps.tables.reading.TableFile.chunks.__defaults__", (5, (), False, ()))
    codes = [f"{k:03d}" for k in range(12)] + ["x7"]
    (tmp_path / "a.csv").write_text("code,y\n" + "\n".join(f"{c},1" for c in codes))
    assert whole(tmp_path / "a.csv")["code"].tolist() == codes


def test_a_long_table_is_sampled_uniformly(tmp_path: Path) -> None:
    pd.DataFrame({"k": np.arange(20_000)}).to_csv(tmp_path / "a.csv", index=False)
    table = open_table(tmp_path / "a.csv")
    found, notices = read_rows(table, 2000, seed=1)
    k = found["k"].to_numpy()
    assert len(np.unique(k)) == 2000
    assert (np.diff(k) > 0).all()
    assert any("20,000 rows" in words for words in notices)
    error = 20_000 / np.sqrt(12 * 2000)  # of the mean of 2000 uniform numbers
    assert abs(k.mean() - 10_000) < 4 * error
    again, _ = read_rows(table, 2000, seed=1)
    assert (again["k"].to_numpy() == k).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "`a` occurs twice"),
        ("a,b\n1,2\n1,2,3\n", "row 3 of the file got 3"),
        ('a,b\n1,"x\n', "opened in line 2 is never closed"),
        ("a,b\n\0,1\n", "zero bytes"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        whole(tmp_path / "a.csv")


def test_files_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    for name, words in (("a.csv.gz", "not a whole gzip"), ("a.parquet", "cannot be read as parquet")):
        (tmp_path / name).write_text("hello, world")
        with pytest.raises(DataError, match=words):
            whole(tmp_path / name)
    with pytest.raises(DataError, match="there is none"):
        open_table(tmp_path / "absent.csv")
    with pytest.raises(ArgumentError, match="path of a file or a DataFrame"):
        open_table([1, 2])


def test_settings_that_cannot_be() -> None:
    for options, words in (
        ({"separator": "ab"}, "one character"),
        ({"decimal": "x"}, "'.' or ','"),
        ({"separator": ",", "decimal": ","}, "must differ"),
    ):
        with pytest.raises(ArgumentError, match=words):
            detect_dialect(["a,b", "1,2"], "utf-8", **options)  # type: ignore[arg-type]
