"""Cards: every method has one, and every list of methods is made from them."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

import temperance as tp
from temperance.apps.cli import main
from temperance.apps.demo.run import SHOWN
from temperance.apps.methods import lines, print_methods
from temperance.apps.recipes import RECIPES, method_named
from temperance.inference.card import Card, MethodFamily, Recipe, card_of
from temperance.inference.listing import Listed, listing
from temperance.show.report.references import papers
from temperance.testing import cards, check_inference
from temperance.testing.composition.table import add_missing

ROOT = Path(__file__).resolve().parents[2]
UNCITED = {
    tp.Refit,
    tp.TunedDecay,
    tp.MAP,
    tp.Collect,
    tp.On,
    tp.Dense,
    tp.Diagonal,
    tp.BlockDiagonal,
    tp.Lanczos,
    tp.LargestMagnitude,
}
UNCITED |= {tp.GivenBasis}
"""What is ours, or nobody's."""


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*(_subclasses(below) for below in kind.__subclasses__()))


def _ours(base: type) -> list[type]:
    """The classes of the library that can be made, whether exported or not."""
    found = (kind for kind in _subclasses(base) if kind.__module__.startswith("temperance."))
    return [kind for kind in found if "__dataclass_params__" in vars(kind) and not inspect.isabstract(kind)]


def without_a_card(kinds: list[type]) -> list[str]:
    return sorted(kind.__name__ for kind in kinds if not isinstance(vars(kind).get("card"), Card))


def _module(path: Path):
    """A module of somebody else's."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------- the cards


def test_every_method_of_ours_has_a_card_of_its_own():
    kinds = _ours(tp.Inference)
    assert {tp.MAP, tp.NUTS, tp.Ensemble} <= set(kinds)
    assert without_a_card(kinds) == []

    @dataclass(frozen=True, eq=False)
    class Bare(tp.SGLD):
        """A card is not inherited."""

    assert without_a_card([tp.SGLD, Bare]) == ["Bare"]


def test_so_have_the_parts_that_are_exported():
    bases = {kind.__mro__[1] for kind in (tp.Dense, tp.PCA, tp.MeanField, tp.LargestVariance, tp.LinearKernel)}
    assert without_a_card([kind for base in bases for kind in _ours(base)]) == []
    assert {tp.Tune, tp.Layerwise} <= {entry.kind for entry in listing()}


def test_families_are_folders():
    for entry in listing():
        assert entry.kind.__module__.split(".")[2] == entry.card.family.value, entry.kind
    used = {entry.card.family for entry in listing()}
    folders = {path.parent.name for path in (ROOT / "temperance" / "inference").glob("*/__init__.py")}
    assert {family.value for family in used} == folders
    assert set(MethodFamily) - used == {MethodFamily.OWN}


def test_ideas_are_lines():
    for entry in listing():
        idea = entry.card.idea
        assert idea == idea.strip() != ""
        assert len(idea) <= 90, idea
        assert "\n" not in idea
        assert not idea.endswith(".")
    ideas = [entry.card.idea for entry in listing()]
    assert len(set(ideas)) == len(ideas)


def test_papers_are_there_for_all_but_our_own():
    assert {entry.kind for entry in listing() if not entry.card.papers} == UNCITED
    cited = {paper for entry in listing() for paper in entry.card.papers}
    assert all(re.search(r", [^,]*\d{4}$", paper) for paper in cited)
    titles = [re.sub(r"\W", "", paper.split(", ", 1)[1]).lower()[:25] for paper in cited]
    near = {title for title in titles if titles.count(title) > 1}
    assert near == {"steinvariationalgradientd"}, "one paper, written in two ways"  # there are two of that beginning


def test_citations_come_from_every_part():
    found = papers(tp.Ensemble(tp.Subspace(tp.Collect(tp.SGHMC(preconditioner=tp.Layerwise())), tp.CurveBasis()), 2))
    first = [paper.split(",")[0] for paper in found]
    assert first == [
        "Lakshminarayanan et al.",
        "Izmailov et al.",
        "Chen et al.",
        "Wenzel et al.",
        "Garipov et al.",
    ]


def test_a_card_says_what_is_wrong_with_it():
    with pytest.raises(tp.errors.ArgumentError, match="`papers` of a card must be a tuple"):
        Card("an idea", papers="A paper, 2020")


# ---------------------------------------------------------------------- the lists


def test_every_expression_is_the_method_it_stands_for():
    seen = []
    for line in lines():
        method = method_named(line.expression)
        assert line.entry.kind.__name__ in line.expression or line.entry.is_method, line.expression
        inside = [type(value) for value in _parts(method)]
        assert line.entry.kind in inside, line.expression
        assert line.facts == method.facts()
        seen.append(line.expression)
    assert len(set(seen)) == len(seen)
    shown = {line.entry.kind for line in lines() if line.entry.is_method}
    exported = {kind for kind in _ours(tp.Inference) if kind.__name__ in tp.inference.__all__}
    assert shown == exported


def _parts(value):
    if dataclasses.is_dataclass(value):
        yield value
        for part in dataclasses.fields(value):
            yield from _parts(getattr(value, part.name))


def test_names_are_unique_and_lead_to_methods():
    recipes = [recipe for entry in listing() for recipe in entry.card.recipes]
    assert [recipe.name for recipe in recipes] == list(RECIPES)
    assert all(re.fullmatch(r"[a-z-]+", recipe.name) and recipe.words for recipe in recipes)
    demo = [line for entry in listing() for line in entry.card.demo]
    assert [line.name for line in demo] == list(SHOWN)
    assert next(iter(SHOWN)) == "MAP"  # what the others' cost is measured by
    for recipe in (*recipes, *demo):
        assert isinstance(method_named(recipe.expression), tp.Inference)


def test_lists_go_by_family_then_by_year():
    kinds = [entry.kind for entry in listing()]
    assert kinds[0] is tp.MAP
    langevin = [entry.kind for entry in listing() if entry.card.family is MethodFamily.LANGEVIN]
    assert langevin[0] is tp.SGLD
    assert set(langevin[-2:]) == {tp.Layerwise, tp.Thermal}  # parts
    families = [entry.card.family for entry in listing()]
    assert families == sorted(families, key=list(MethodFamily).index)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_methods_can_be_read_on_a_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    written = text.splitlines()
    assert max(map(len, written)) <= width
    assert "…" not in text
    for line in lines():
        (found,) = (row for row in written if row.startswith(f"{line.expression} "))
        assert found.split()[-3 if "by layer" not in found else -4] == line.gradients
    whole = " ".join(text.split())
    for entry in listing():
        if entry.shown:
            assert " ".join(entry.card.idea.replace("`", "").split()) in whole
    for name, recipe in RECIPES.items():
        assert any(row.split() == [name, *recipe.words.split()] for row in written)


# ---------------------------------------------------------------------- methods of others


@dataclass(frozen=True, eq=False)
class Quiet(tp.Wrapper):
    """Does what its base does, e.g. nothing. And says no more."""

    base: tp.Inference = field(default_factory=tp.MAP)


@dataclass(frozen=True, eq=False)
class Needy(tp.SGHMC):
    must: int = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Introduced(tp.MAP):
    """With a card."""

    card: ClassVar[Card] = Card(
        "gives its card",
        papers=("Nobody, Nothing, 1999",),
        recipes=(Recipe("introduced", "MAP()", "a name of its own"),),
        demo=(Recipe("Introduced", "MAP()"),),
    )


def test_a_card_is_made_for_a_method_without_one():
    assert card_of(Quiet) == Card("Does what its base does, e.g. nothing")
    assert card_of(Needy) == Card("Needy", papers=tp.SGHMC.card.papers)
    assert card_of(Introduced).idea == "gives its card"
    assert papers(Quiet(Introduced())) == ["Nobody, Nothing, 1999"]


def test_methods_of_others_are_listed_with_the_rest(monkeypatch):
    module = sys.modules[__name__]
    console = Console(width=100, record=True)
    print_methods(console, module)
    text = console.export_text()
    own = text[text.index("YOUR OWN") : text.index("SHORT NAMES")]
    assert re.search(r"Quiet\(\) +a point at μ +1 +4 batch\n    Does what its base does, e.g. nothing\n", own)
    assert re.search(r"Needy\(\) +– +– +– –\n", own)
    assert re.search(r"^introduced +a name of its own$", text, re.M)
    assert "Quiet" not in [entry.kind.__name__ for entry in listing()]


def test_the_command_lists_a_module_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_methods.py").write_text(
        "import temperance as tp\nfrom dataclasses import dataclass\n"
        "@dataclass(frozen=True, eq=False)\nclass Mine(tp.MAP):\n    '''A way of mine.'''\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["methods", "my_methods"]) == 0
    shown = capsys.readouterr().out
    assert "Mine()" in shown
    assert "A way of mine" in shown
    assert main(["methods", "no_such_module"]) == 1
    assert "`module`" in capsys.readouterr().err


# ---------------------------------------------------------------------- the pages


def test_pages_are_up_to_date():
    for path, text in cards.pages(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m temperance.testing.cards"


def test_a_stale_page_is_found_and_mended(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "demo.json").write_text((ROOT / "docs" / "demo.json").read_text())
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    stale = text.replace(tp.SGLD.card.idea, "something else").replace("| 0.101 |", "| 0.001 |")
    assert stale != text
    (tmp_path / "README.md").write_text(stale, encoding="utf-8")
    cards.main([str(tmp_path)])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text
    assert (tmp_path / "docs" / "methods.md").read_text() == (ROOT / "docs" / "methods.md").read_text()


def test_readme_has_every_family_and_the_demo():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = [name for region in re.findall(r"<!-- methods: (.*) -->", text) for name in region.split()]
    families = [family.value for family in MethodFamily if family is not MethodFamily.OWN]
    assert sorted(named) == sorted(["demo", *families])
    with pytest.raises(tp.errors.ArgumentError, match="families"):
        cards.with_tables("<!-- methods: points nothing -->\n<!-- end -->", {})


def test_a_method_that_was_not_measured_says_so():
    table = cards.demo_table({"MAP": {"log_loss": 0.1, "accuracy": 1, "ece": 0, "corrupted_log_loss": 1, "ood_auroc": 1,
                                      "second_log_loss": 1, "time": 1.0}}).splitlines()  # fmt: skip
    assert "| 0.100 |" in table[2]
    assert all(row.count("| – ") == 7 for row in table[3:])


def test_a_new_method_needs_no_row_in_the_table_of_compositions():
    wrappers, inners = {}, {}
    add_missing([Listed(tp.MAP, card_of(tp.MAP)), Listed(tp.SWAG, card_of(tp.SWAG))], wrappers, inners)
    assert inners == {"MAP": tp.MAP(), "SWAG": tp.SWAG()}
    assert wrappers == {"SWAG": tp.SWAG}
    add_missing([Listed(tp.MAP, card_of(tp.MAP))], wrappers, kept := {"MAP, L-BFGS": tp.MAP(lr=1.0)})
    assert list(kept) == ["MAP, L-BFGS"]


# ---------------------------------------------------------------------- how to add one


def test_the_skeleton_of_contributing_passes_the_battery(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"   ```python\n(.*?)   ```\n", text, re.DOTALL)
    path = tmp_path / "skeleton_of_contributing.py"
    path.write_text(re.sub(r"^   ", "", block, flags=re.M), encoding="utf-8")
    module = _module(path)
    check_inference(module.HeavyBall(lr=0.1), steps=400)
    (found,) = (line for line in lines(module) if line.entry.kind is module.HeavyBall)
    assert found.entry.card.family is MethodFamily.POINTS
    steps = re.findall(r"^(\d)\. \*\*", text[text.index("## Add a method") :], re.M)
    assert steps == ["1", "2", "3", "4"]
