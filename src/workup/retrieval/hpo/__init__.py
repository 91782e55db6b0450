"""Rare diseases as the Human Phenotype Ontology (HPO) annotates them: terms, annotations, texts."""
