"""The formats of `workup export`: one module each."""
