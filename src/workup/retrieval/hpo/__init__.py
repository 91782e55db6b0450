"""Rare diseases as the Human Phenotype Ontology (HPO) annotates them: terms, annotations, texts."""

CHANCE, SIMILAR = "chance", "phenotype similarity"
WORDS, RATIO = "BM25 on the findings", "likelihood ratio"
"""What tables call the rankers."""
