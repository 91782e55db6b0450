"""One module (or folder) per released data set, with the `open` that every source has.

See `workup.cases`.
"""
