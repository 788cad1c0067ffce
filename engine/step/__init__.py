"""One step on its way through the device: laid out as arrays, moved, recorded, awaited. `engine/runner.py` leads it."""
