"""What the methods of one environment share."""
