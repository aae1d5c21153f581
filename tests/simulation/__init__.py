"""The real broker in a simulated world: disk, clock, threads and clients are decided by a seed."""
