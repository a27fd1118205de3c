"""A whole fleet on one machine: engines, leaves, roots and the delays between regions, as processes."""
