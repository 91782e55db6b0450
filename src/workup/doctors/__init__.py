"""Everyone who can play the doctor: anchors, endpoints, hybrids, prompting strategies."""
