"""The demo's page: one HTML file with its plots inside."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import temperance as tp
from temperance.core import files

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #8885; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; border-radius: 6px; }
figure { margin: 1.5rem 0; } figcaption, .small { color: #777; }
"""


def write_page(folder: Path, results: Sequence[Any], figures: Mapping[str, str], settings: Mapping[str, Any]) -> Path:
    """Write ``index.html``: it needs no other file and makes no request."""
    from temperance.apps.demo.run import COLUMNS

    head = "".join(f"<th scope='col'>{html.escape(heading)}</th>" for heading, _ in COLUMNS.values())
    rows = []
    for result in results:
        values = asdict(result)
        cells = "".join(f"<td>{form.format(values[key])}</td>" for key, (_, form) in COLUMNS.items())
        rows.append(f"<tr><td>{html.escape(result.method)}</td>{cells}</tr>")
    plots = []
    for name, words in figures.items():
        image = base64.b64encode((folder / name).read_bytes()).decode()
        text = html.escape(words)
        plots.append(
            f"<figure><img alt='{text}' src='data:image/png;base64,{image}'><figcaption>{text}</figcaption></figure>"
        )
    best = min(results, key=lambda r: r.log_loss)
    surest = max(results, key=lambda r: r.ood_auroc)
    summary = (
        f"On test digits the lowest log-loss is that of {best.method} ({best.log_loss:.3f}, at {best.time:.1f} times "
        f"the time of MAP). Images with shuffled pixels are told from digits best by {surest.method} "
        f"(AUROC {surest.ood_auroc:.3f})."
    )
    chosen = ", ".join(f"{key} {value}" for key, value in settings.items())
    text = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Temperance demo</title><style>{_STYLE}</style></head><body><h1>Temperance demo</h1>"
        f"<p>{html.escape(summary)}</p><div class='wide'><table><thead><tr><th scope='col'>method</th>{head}</tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
        "<p class='small'>Log-loss in nats per example on test digits, on noisy ones, and on the regression set "
        "diabetes; ECE with 15 bins; OOD: AUROC of the entropy for pixel-shuffled images; gradients and time relative "
        "to MAP. "
        f"Settings: {html.escape(chosen)}; temperance {tp.__version__}.</p>"
        f"{''.join(plots)}</body></html>"
    )
    path = folder / "index.html"
    files.write_text(path, text)
    return path
