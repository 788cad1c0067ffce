"""Pictures of batches and of sweeps over policies, as PNG. Needs matplotlib (`pip install conveyor[bench]`)."""
