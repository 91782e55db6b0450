"""Commands of the `workup` program that are groups of their own."""
