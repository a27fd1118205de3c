"""What `hop.py` is made of: traffic, its two ends, the systems between them, and the report."""
