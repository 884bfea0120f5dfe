"""Single rows on the page: the most uncertain, and the most wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.show.report.chapter import Chapter
from temperance.show.report.html import Markup, Section, join, tag
from temperance.show.report.words import cell, number

_SHOWN = 8
_COLUMNS = 6  # of a row that are seen at once; the others are a click away
_LARGEST = 128  # pixels along an edge; larger images are thinned


class Examples:
    """Rows as people know them: mappings, a table, a matrix with names, or images."""

    def __init__(self, given: Any, rows: int, feature_names: Sequence[str] | None = None) -> None:
        self.images: np.ndarray[Any, Any] | None = None
        self.rows: Any = None
        self.columns: list[str] = []
        if given is None:
            return
        if hasattr(given, "iloc") and hasattr(given, "columns"):
            self.columns, self.rows = [str(name) for name in given.columns], given
        elif isinstance(given, Sequence) and given and all(isinstance(row, Mapping) for row in given):
            self.columns, self.rows = [str(name) for name in given[0]], given
        else:
            self._array(given, feature_names)
        size = len(self.images if self.images is not None else self.rows)
        if size != rows:
            raise ArgumentError(f"`examples` must have one entry for each of the {rows} rows; got {size}.")

    def _array(self, given: Any, feature_names: Sequence[str] | None) -> None:
        try:
            array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"`examples` must be rows or images; got {type(given).__name__} ({error}).") from error
        if array.ndim == 2:
            names = feature_names if feature_names is not None else [f"column {k + 1}" for k in range(array.shape[1])]
            if len(names) != array.shape[1]:
                raise ArgumentError(
                    f"`feature_names` must name each of the {array.shape[1]} columns; got {len(names)} names."
                )
            self.columns, self.rows = [str(name) for name in names], array
        elif array.ndim in (3, 4) and array.dtype.kind in "biuf":
            self.images = _as_pictures(array)
        else:
            raise ArgumentError(
                "`examples` must be mappings, a DataFrame, a matrix, or images N × H × W, N × C × H × W or "
                f"N × H × W × C (with 1, 3 or 4 channels); got an array of shape {array.shape} and dtype {array.dtype}."
            )

    def show(self, row: int) -> Markup:
        """One row."""
        if self.images is not None:
            source = "data:image/png;base64," + png(self.images[row])
            return tag("img", src=source, alt=f"the input of row {row + 1}", width=96, height=96)
        if self.rows is None:
            return Markup("")
        shown = [(name, self._cell(row, k, name)) for k, name in enumerate(self.columns)]
        first = tag("dl", *_pairs(shown[:_COLUMNS]))
        if len(shown) <= _COLUMNS:
            return first
        more = tag("summary", f"{len(shown) - _COLUMNS} more columns")
        return join((first, tag("details", more, tag("dl", *_pairs(shown[_COLUMNS:])))))

    def _cell(self, row: int, k: int, name: str) -> str:
        if hasattr(self.rows, "iloc"):
            return cell(self.rows.iloc[row, k])
        if isinstance(self.rows, np.ndarray):
            return cell(self.rows[row, k])
        record = {str(key): value for key, value in self.rows[row].items()}
        return cell(record.get(name, "–"))


def _pairs(cells: Sequence[tuple[str, str]]) -> list[Markup]:
    return [join((tag("dt", name), tag("dd", value))) for name, value in cells]


def section(part: Chapter, examples: Examples) -> Section:
    """The strangest rows, as cards."""
    doubtful, wrong = part.uncertain(_SHOWN), part.wrong(_SHOWN)
    body: list[object] = [
        tag("h3", "Most uncertain"),
        tag("p", f"The rows of most doubt, by {part.doubt_words}.", class_="note"),
        _cards(part, examples, doubtful),
        tag("h3", part.wrong_heading),
    ]
    if wrong:
        body += [tag("p", part.wrong_words, class_="note"), _cards(part, examples, wrong)]
    else:
        body.append(tag("p", "There are none among these rows."))
    return Section("examples", "Rows to look at", tuple(body))


def _cards(part: Chapter, examples: Examples, rows: Sequence[int]) -> Markup:
    cards = []
    for row in rows:
        words = "interval width" if part.unit != "nats" else "doubt in nats"
        told = [(words, number(float(part.doubt[row]), 2))]
        if not part.single:
            told.append(("epistemic part", number(float(part.epistemic[row]), 2)))
        doubt = tag("dl", *_pairs(told))
        cards.append(tag("li", tag("h4", f"Row {row + 1:,}"), examples.show(row), part.answer(row), doubt))
    return tag("ul", *cards, class_="cards")


def _as_pictures(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """N × H × W × C with 1, 3 or 4 channels, of the dtype given."""
    if array.ndim == 3:
        return array[..., None]
    if array.shape[1] in (1, 3, 4) and array.shape[3] not in (1, 3, 4):
        return array.transpose(0, 2, 3, 1)
    if array.shape[3] in (1, 3, 4):
        return array if array.shape[1] not in (1, 3, 4) else array.transpose(0, 2, 3, 1)
    raise ArgumentError(f"`examples` must be images of 1, 3 or 4 channels; got shape {array.shape}.")


def png(picture: np.ndarray[Any, Any]) -> str:
    """A picture H × W × C as base64 PNG at its own resolution; values from 0 to 1 (floats) or 255 (integers) are taken
    as they are, others are stretched to what the picture holds."""
    from PIL import Image

    values = picture.astype(np.float64)
    step = max(1, -(-max(values.shape[:2]) // _LARGEST))
    values = np.nan_to_num(values[::step, ::step])
    top = 255.0 if picture.dtype.kind in "iu" and values.max() > 1 else 1.0
    if values.min() < -1e-6 or values.max() > top + 1e-6:
        low, high = values.min(), values.max()
        values, top = values - low, max(high - low, 1e-12)
    pixels = (255 * values / top).round().clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def as_images(x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Flat rows as images of ``shape`` (channels, height, width), where the sizes agree."""
    if len(shape) == 2:
        shape = (1, *shape)
    return x.reshape(len(x), *shape) if x[0].numel() == int(torch.tensor(shape).prod()) else None
