"""One module (or folder) per released data set. Each defines `open(rest, split) -> Source`."""
