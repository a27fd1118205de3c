"""How loaded a target is: one file per cost. Each has UNIT, `cost(view)` and `ready(view)`.

FALLBACK is what stands in for it where it is not ready, and NEEDS says for want of what. `per_token(view)` is what each
prompt token beyond the usual adds, of costs that tell requests apart. Those that can be 0 say CAN_BE_ZERO.
"""
