"""The evaluation loop."""
