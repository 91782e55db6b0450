"""The measures of an episode."""
