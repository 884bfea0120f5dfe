"""README's code, block after block in one fresh process, as a reader would paste it; with shorter runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What is shortened: how long things run, how many draws are kept, how large the network is. Nothing else.
SHORTER = (
    (r"epochs=300", "epochs=14"),
    (r"epochs=(20|50)", "epochs=2"),
    (r"\[128, 128\]", "[4]"),
    (r"cycle=300, start=600", "cycle=9, start=9"),
    (r"tp\.NUTS\(\), 500\), last=1000\), 4\)", "tp.NUTS(max_depth=2), 20, mass='none'), last=12), 2)"),
    (r"draws=1000", "draws=20, warmup=150"),
    (r"rank=20\), train, epochs=2", "rank=4, every=2), train, epochs=2"),
)


def blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def shortened() -> str:
    code = "\n".join(blocks())
    for pattern, instead in SHORTER:
        code, count = re.subn(pattern, instead, code)
        assert count, f"README has no {pattern} any more"
    return code


def test_the_code_runs_in_order(tmp_path):
    program = "import warnings\nwarnings.simplefilter('ignore')\n" + shortened()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "out" / "report" / "index.html").is_file()
