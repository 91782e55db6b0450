"""What is between a supporting role and its model: cache, ledger, budget, configuration."""
