"""Put laplace-torch's answers (a folder made by ``laplace_parity_problems --ask``) into one file for the tests.

python -m benchmarks.peer_scripts.laplace_parity_record FOLDER tests/inference/curvature/laplace_torch.safetensors
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from safetensors.torch import load_file, save_file

KEPT = ("variance", "f_var", "probs")  # and the factors of kron


def record(folder: Path, out: Path) -> None:
    """Gather weights, data, answers and evidence; versions go into the file's metadata."""
    tensors, metadata = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        case = path.stem
        given = case.endswith(("-weights", "-data"))
        for name, value in load_file(path).items():
            if given or name in KEPT or name.startswith("kron."):
                tensors[f"{case}/{name}"] = value
        said = path.with_suffix(".json")
        if said.exists():
            answer = json.loads(said.read_text())
            metadata[f"{case}/log_marginal_likelihood"] = repr(answer["log_marginal_likelihood"])
            metadata["versions"] = json.dumps(answer["versions"])
    save_file(tensors, out, metadata)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args()
    record(chosen.folder, chosen.out)
