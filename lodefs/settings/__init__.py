"""Settings: of the environment, of files, of one run."""
