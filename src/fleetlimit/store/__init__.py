"""Where the state of limits lives. `base.py` is the contract; `memory.py` and `redis.py` keep it."""
