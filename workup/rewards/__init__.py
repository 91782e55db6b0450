"""The mathematics of the rewards, one module per idea."""
