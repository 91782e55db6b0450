"""What the methods of several papers share."""
