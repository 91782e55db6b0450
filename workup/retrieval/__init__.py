"""Search over document collections: one file per backend, one port."""
