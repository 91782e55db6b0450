"""The nouns, the protocols and what everything else stands on: no model library, no paper."""
