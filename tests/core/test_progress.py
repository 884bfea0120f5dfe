"""The bar: silent when nobody looks."""

from __future__ import annotations

from temperance.core.progress import ProgressBar


def test_silent_off_a_terminal_or_when_told(capsys):
    for show in (None, False):
        with ProgressBar("MAP", total=3, show=show) as bar:
            bar.advance_to(3, loss=0.5, last=True)
    assert capsys.readouterr() == ("", "")


def test_the_last_step_is_shown_with_its_loss(capsys):
    with ProgressBar("MAP", total=3, show=True) as bar:
        for step in (1, 2, 3):
            bar.advance_to(step, loss=0.12345, last=step == 3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "MAP" in err
    assert "3/3" in err
    assert "0.1235" in err or "0.1234" in err
