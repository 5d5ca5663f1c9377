"""Settings from the environment, from files, and for one run."""
