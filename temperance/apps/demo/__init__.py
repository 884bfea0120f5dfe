"""``temperance demo``: every method on the same job, beside ordinary training."""

from temperance.apps.demo.run import SHOWN, DemoResult, run_demo

__all__ = ["SHOWN", "DemoResult", "run_demo"]
