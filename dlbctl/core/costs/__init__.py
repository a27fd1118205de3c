"""How loaded a target is: one file per cost. Each has UNIT, FALLBACK, `cost(view)` and `ready(view)`."""
