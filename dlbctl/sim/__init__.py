"""The simulator: the routers' own core in virtual time, and the optimum it is held against."""
