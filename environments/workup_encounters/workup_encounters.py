"""The environment that `vf-eval workup-encounters` loads."""

from workup.interop.adapters.verifiers import load_environment

__all__ = ["load_environment"]
