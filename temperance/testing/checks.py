"""A list of named checks, each passed or failed, and an error that shows them all."""

from __future__ import annotations

from dataclasses import dataclass, field


class CheckFailure(AssertionError):
    """Some checks failed; the message lists them."""


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    passed: bool
    detail: str = ""


@dataclass
class Report:
    """What was checked of one subject."""

    subject: str
    checks: list[Check] = field(default_factory=list)

    def add(self, name: str, passed: bool, detail: str = "") -> None:
        """Note the outcome of a check."""
        self.checks.append(Check(name, bool(passed), detail))

    @property
    def passed(self) -> bool:
        """Whether everything did."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        lines = [f"{'ok  ' if c.passed else 'FAIL'} {c.name}{': ' + c.detail if c.detail else ''}" for c in self.checks]
        return "\n".join([self.subject, *lines])

    def raise_if_failed(self) -> Report:
        """Raise :class:`CheckFailure` unless everything passed."""
        if not self.passed:
            raise CheckFailure(str(self))
        return self
