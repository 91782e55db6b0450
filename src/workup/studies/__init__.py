"""Studies: questions about policies that need several evaluations or many probes.

Each has a table and a page; most are ProMed's.
"""
