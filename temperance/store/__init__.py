"""Runs on disk: safetensors and a JSON manifest, written so that a kill at any instant leaves a readable run."""

from temperance.store.run import Run, describe_versions, file_digest, open_run, write_run

__all__ = ["Run", "describe_versions", "file_digest", "open_run", "write_run"]
