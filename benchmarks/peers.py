"""The peers that Temperance is measured against, each installed in an environment of its own kind.

``python -m benchmarks.peers`` (or ``make peers``) creates the environments under ``.venvs/`` and says of each peer
whether it can be imported. It does nothing twice: a stamp in every environment lists what is in it already. A peer
that cannot be installed or imported is reported and never stops the others. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENTS = REPOSITORY / ".venvs"
STAMP = "installed-by-temperance.json"
FALLBACK_TORCH = "torch==2.13.0"
BUILT_FOR_CUDA_ONLY = ("torchvision", "torchaudio")
INSTALL_TIMEOUT = 1800.0
IMPORT_TIMEOUT = 300.0


@dataclass(frozen=True)
class Peer:
    """A library to be measured against: what to install, what to import, and in which environment."""

    distribution: str
    version: str
    module: str
    environment: str
    extras: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.distribution}{self.extras}=={self.version}"


@dataclass(frozen=True)
class Standing:
    """What became of a peer on this machine: its version if it is there, and the error if it is of no use."""

    peer: Peer
    version: str | None
    error: str | None

    def __str__(self) -> str:
        verdict = "imports" if self.error is None else f"NOT usable: {self.error}"
        return f"{self.peer.distribution:18} {self.version or '-':10} {self.peer.environment:18} {verdict}"


PEERS = (
    Peer("laplace-torch", "0.3", "laplace", "torch-peers"),
    Peer("posteriors", "0.1.3", "posteriors", "torch-peers"),
    Peer("ivon-opt", "0.1.3", "ivon", "torch-peers"),
    Peer("pyro-ppl", "1.9.2", "pyro", "torch-peers"),
    Peer("torch-uncertainty", "0.13.0", "torch_uncertainty", "torch-peers", extras="[cpu,distribution]"),
    Peer("jax", "0.10.2", "jax", "jax-peers"),
    Peer("blackjax", "1.7.1", "blackjax", "jax-peers"),
    Peer("numpyro", "0.22.0", "numpyro", "jax-peers"),
    Peer("sklearn-contrib-bde", "1.0.2", "bde", "bde-peers"),
)


def python_of(environment: str) -> Path:
    """Return where the interpreter of an environment is, or would be."""
    return ENVIRONMENTS / environment / "bin" / "python"


def torch_pin() -> str:
    """Return the repository's own pin of torch: a looser request would pull gigabytes of CUDA packages."""
    constraints = REPOSITORY / "constraints.txt"
    lines = constraints.read_text().splitlines() if constraints.exists() else []
    pins = [line.split("#")[0].strip() for line in lines if line.replace(" ", "").startswith("torch==")]
    return pins[0] if pins else FALLBACK_TORCH


def install(environment: str, peers: Iterable[Peer]) -> dict[str, str]:
    """Bring one environment up to date and return an error for each peer that could not be installed."""
    root, pin = ENVIRONMENTS / environment, torch_pin()
    stamp = root / STAMP
    basis = {"python": platform.python_version(), "torch": pin}
    known = json.loads(stamp.read_text()) if stamp.exists() else {}
    done: list[str] = known.get("installed", []) if known.get("basis") == basis else []
    missing = [peer for peer in peers if peer.requirement not in done]
    if not missing:
        return {}
    if not done:
        _say(f"{environment}: creating the environment")
        _run([sys.executable, "-m", "venv", "--clear", str(root)])
    constraints = root / "constraints.txt"
    constraints.write_text(pin + "\n")
    errors = {}
    for peer in missing:
        _say(f"{environment}: installing {peer.requirement}")
        # Elsewhere the pin is only a constraint, which installs nothing.
        basics = [pin, "numpy"] if environment.startswith("torch") else []
        try:
            _pip(environment, constraints, "install", *basics, peer.requirement)
            done.append(peer.requirement)
        except PeerError as error:
            errors[peer.distribution] = f"install failed: {error}"
        stamp.write_text(json.dumps({"basis": basis, "installed": done}, indent=1))
    try:
        _pip(environment, constraints, "uninstall", "--yes", *BUILT_FOR_CUDA_ONLY)
    except PeerError as error:
        _say(f"{environment}: could not remove {', '.join(BUILT_FOR_CUDA_ONLY)}: {error}")
    return errors


def standing(peer: Peer) -> Standing:
    """Import a peer in its environment and return its version and, if there is one, the error."""
    python = python_of(peer.environment)
    if not python.exists():
        return Standing(peer, None, "not installed, run `make peers`")
    version = _ask(python, f"import importlib.metadata as m; print(m.version({peer.distribution!r}))")
    if version is None:
        return Standing(peer, None, "not installed, run `make peers`")
    try:
        _run([str(python), "-c", f"import {peer.module}"], timeout=IMPORT_TIMEOUT)
    except PeerError as error:
        return Standing(peer, version, str(error))
    return Standing(peer, version, None)


class PeerError(RuntimeError):
    """A command for a peer failed; the message is the last line it wrote."""


def _pip(environment: str, constraints: Path, *arguments: str) -> None:
    # As environment variables the pin also reaches the isolated environments in which pip builds source packages.
    pins = {"PIP_CONSTRAINT": str(constraints), "PIP_BUILD_CONSTRAINT": str(constraints)}
    _run([str(python_of(environment)), "-m", "pip", *arguments], timeout=INSTALL_TIMEOUT, extra=pins)


def _ask(python: Path, code: str) -> str | None:
    try:
        return _run([str(python), "-c", code], timeout=IMPORT_TIMEOUT).strip()
    except PeerError:
        return None


def _run(command: Sequence[str], timeout: float = 300.0, extra: dict[str, str] | None = None) -> str:
    variables = {**os.environ, **(extra or {})}
    try:
        done = subprocess.run(command, env=variables, cwd=ENVIRONMENTS, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise PeerError(f"no answer within {timeout:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise PeerError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout


def _say(message: str) -> None:
    print(message, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what is missing, then print how every peer stands. Peers that fail do not change the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="install nothing, only say how every peer stands")
    options = parser.parse_args(arguments)
    ENVIRONMENTS.mkdir(exist_ok=True)
    errors: dict[str, str] = {}
    if not options.check:
        for environment in dict.fromkeys(peer.environment for peer in PEERS):
            try:
                errors |= install(environment, [peer for peer in PEERS if peer.environment == environment])
            except (PeerError, OSError) as error:
                _say(f"{environment}: {error}")
    for peer in PEERS:
        found = standing(peer)
        _say(str(Standing(peer, found.version, errors.get(peer.distribution, found.error))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
