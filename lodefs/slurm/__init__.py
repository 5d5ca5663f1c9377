"""Slurm: datasets of a job, from its submission to its last node's epilog."""
