"""What importing costs: names come when they are used, and what they do not need stays away."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import temperance as tp

HEAVY = ("matplotlib", "pandas", "sklearn", "scipy.stats", "scipy.optimize", "scipy.sparse", "arviz_stats")


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh process has after ``code``."""
    program = f"import sys\n{code}\nprint('\\n'.join(['--', *sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("--\n")[2].split())


def test_importing_and_fitting_needs_no_heavy_library():
    fit = (
        "import torch, temperance as tp\n"
        "target = tp.Target(tp.nn.MLP(2, [3], 2), tp.Categorical(), tp.GaussianPrior(1.0))\n"
        "tp.fit(target, tp.MAP(), (torch.randn(8, 2), torch.arange(8) % 2), epochs=1).predict(torch.zeros(1, 2)).probs"
    )
    everything = "import temperance as tp\n[getattr(tp, name) for name in tp.inference.__all__]"
    for code in ("import temperance", everything, fit):
        assert loaded_after(code).isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["lab", "run", "--help"], ["--version"]])
def test_help_imports_no_torch(arguments):
    code = (
        "from temperance.apps.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as stop:\n    assert stop.code == 0"
    )
    found = loaded_after(code)
    assert "temperance.apps.cli" in found
    assert found.isdisjoint(("torch", "numpy", "rich", *HEAVY))


def test_the_list_for_type_checkers_is_the_list_of_names():
    tree = ast.parse((Path(tp.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    (names,) = (n.value for n in block.body if isinstance(n, ast.Assign))
    assert isinstance(names, ast.List)
    written = {element.value for element in names.elts if isinstance(element, ast.Constant)}
    assert written | set(tp.inference.__all__) == set(tp.__all__)
    assert len(tp.__all__) == len(set(tp.__all__))
    imported = {alias.asname or alias.name for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert imported - {"*"} == written - {"__version__"}


def test_every_public_name_is_there():
    for name in tp.__all__:
        assert getattr(tp, name) is getattr(tp, name)
    assert set(tp.__all__) <= set(dir(tp))
    with pytest.raises(AttributeError, match="no attribute 'Adam'"):
        tp.Adam  # noqa: B018
    with pytest.raises(ImportError):
        from temperance import nothing  # noqa: F401
