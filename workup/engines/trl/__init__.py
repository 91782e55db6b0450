"""The engine on TRL."""
