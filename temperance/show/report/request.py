"""What a page is to be about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temperance.predict import Predictive
from temperance.run.fitted import Fitted


@dataclass(frozen=True)
class Request:
    """What to report on; see :func:`temperance.show.report.write_report`."""

    predictive: Predictive
    y: Any
    x: Any
    ood: Predictive | None
    ood_words: str
    examples: Any
    feature_names: Sequence[str] | None
    fitted: Fitted | None
    title: str
    method_words: str
    rows_words: str
    caution: str
    settings: Mapping[str, object]
    class_names: Sequence[str] | None
    target_name: str | Sequence[str]
    extra: Mapping[str, object]
    notes: Sequence[str] = ()
    calibration_words: str = ""
    advise: bool = True
    seen: bool = False
    """Whether the model was trained on these rows: then they are counted, and nothing is concluded from them."""
