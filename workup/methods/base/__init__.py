"""What the methods of one encounter share."""
