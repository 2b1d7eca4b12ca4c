"""The ways to count: each in whole numbers, without a clock, a store or I/O.

Each algorithm is one module here, and its twin in `lua/`, which has the same name. `registry` finds them. What they
share is in `base`, `window` and `whole`.
"""
