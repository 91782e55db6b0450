"""Training and evaluation, and who plays the supporting roles in them."""
