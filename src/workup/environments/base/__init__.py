"""What several environments are made from; no module here is an environment."""
