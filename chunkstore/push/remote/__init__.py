"""Sources of a push that are not directories of this machine: buckets, named by a URL."""
