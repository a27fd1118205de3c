"""What would happen to a fleet under a trace, if: `dlbctl simulate fleet`."""
