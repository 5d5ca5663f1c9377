"""A base commit plus changes gives one commit; what did not change is not read."""
