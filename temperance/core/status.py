"""How a step or a run went: a code for programs, a sentence and a remedy for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """An outcome. ``ok`` says whether the state may be used to go on."""

    code: str
    message: str = ""
    remedy: str = ""
    ok: bool = True

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.remedy) if part) or self.code

    def about(self, detail: str) -> Status:
        """The same status with a detail in front of its message."""
        return Status(self.code, f"{detail}: {self.message}", self.remedy, self.ok)


OK = Status("ok")
NON_FINITE_LOSS = Status(
    "non-finite-loss",
    "the loss became NaN or infinite.",
    "Lower the learning rate, clip gradients (clip=1.0), check the inputs for huge values, or use float64.",
    ok=False,
)
NON_FINITE_GRADIENT = Status(
    "non-finite-gradient",
    "the gradient became NaN or infinite while the loss was finite.",
    "Look for an operation with an infinite slope (a root or logarithm at zero, a norm of zeros) and shift its input.",
    ok=False,
)
NON_FINITE_THETA = Status(
    "non-finite-theta",
    "the weights became NaN or infinite.",
    "Lower the learning rate, or use a preconditioner (tp.Layerwise()).",
    ok=False,
)
INFINITE_ELBO = Status(
    "infinite-elbo",
    "the ELBO became NaN or infinite.",
    "Lower the learning rate or `initial_scale`; a prior whose density is zero where q has mass has no ELBO.",
    ok=False,
)
DIVERGED = Status(
    "diverged",
    "the loss grew more than 10,000 times beyond where it started.",
    "Lower the learning rate, standardise inputs and targets, or clip gradients (clip=1.0).",
    ok=False,
)
INTERRUPTED = Status(
    "interrupted",
    "the run was interrupted; what was learned so far is kept.",
    "Call fit again with the same checkpoint to go on.",
)
UNFINISHED = Status(
    "unfinished",
    "the run is under way, or was killed; this is what it had learned by its last checkpoint.",
    "Call fit again with the same checkpoint to go on.",
)
EARLY_STOPPED = Status("early-stopped", "the held-out score stopped improving; the best weights are kept.")
