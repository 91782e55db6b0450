"""Studies: questions about policies that take several evaluations or many probes, each with a table
and a page (ProMed's).
"""
