"""Our environments in other frameworks: one module per framework, and `bench`, which all drive.

Nothing imports this room. A framework is imported where its adapter is.
"""
