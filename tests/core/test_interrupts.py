"""Ctrl-C between steps."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from temperance.core.interrupts import GracefulInterrupt


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_is_a_wish_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with GracefulInterrupt() as interrupt:
        assert not interrupt.wanted
        press()
        assert interrupt.wanted
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is before


def test_after_the_second_ctrl_c_is_what_it_was_even_where_the_block_was_not_entered():
    before = signal.getsignal(signal.SIGINT)
    interrupt = GracefulInterrupt().__enter__()
    press()
    with pytest.raises(KeyboardInterrupt):
        press()
    assert signal.getsignal(signal.SIGINT) is before
    interrupt.__exit__()
    assert signal.getsignal(signal.SIGINT) is before


def test_afterwards_ctrl_c_is_what_it_was():
    before = signal.getsignal(signal.SIGINT)
    with GracefulInterrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press()


def test_whoever_ignores_ctrl_c_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with GracefulInterrupt() as interrupt:
            press()
            assert not interrupt.wanted
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_touched():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with GracefulInterrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
