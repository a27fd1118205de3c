"""How to choose among costs: one file per mechanism, each with a class `Mechanism`."""
