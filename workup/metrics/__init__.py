"""What an episode is measured by."""
