"""``BdeRegressor`` of sklearn-contrib-bde on one table, with the settings of its documentation.

::

    .venvs/bde-peers/bin/python -m benchmarks.peer_scripts.bde_table rows.npz

``rows.npz`` has standardised ``x``, ``y``, ``test_x``, ``test_y``. Prints one line of JSON: the log-loss of test rows
under the mixture of all draws, its RMSE, and CPU seconds of ``fit``, compiling included.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np


def main(path: str) -> None:
    import jax
    from bde import BdeRegressor
    from bde.loss import GaussianNLL
    from scipy.special import logsumexp

    rows = np.load(path)
    began = time.process_time()
    model = BdeRegressor(
        hidden_layers=[16, 16], n_members=8, seed=int(rows["seed"]), loss=GaussianNLL(), epochs=200,
        validation_split=0.15, lr=1e-3, weight_decay=1e-4, warmup_steps=5000, n_samples=2000, n_thinning=2, patience=10,
    )  # fmt: skip
    model.fit(x=rows["x"], y=rows["y"])
    seconds = time.process_time() - began
    raw = np.asarray(model.predict(rows["test_x"], raw=True), dtype=np.float64)
    raw = raw.reshape(-1, *raw.shape[2:])  # draws × rows × (μ, what softplus makes σ of)
    mean, scale = raw[..., 0], np.asarray(jax.nn.softplus(raw[..., 1])) + 1e-6
    y = rows["test_y"].reshape(1, -1)
    log_p = -0.5 * ((y - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    log_loss = -float((logsumexp(log_p, axis=0) - np.log(len(log_p))).mean())
    rmse = float(np.sqrt(((mean.mean(0) - y[0]) ** 2).mean()))
    print(json.dumps({"log_loss": log_loss, "rmse": rmse, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
