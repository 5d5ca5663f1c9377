"""A real Slurm of three nodes on this machine, with lodefs on each of them."""
