"""The ways to count: each in whole numbers, without a clock, a store or I/O.

`gcra` (with `token_bucket` and `leaky_bucket`, which are the same arithmetic under another burst) lies in
`fleetlimit.gcra`; the window algorithms lie here. Each has its twin in `lua/`.
"""
