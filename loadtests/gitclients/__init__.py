"""Git, git-lfs, the conformance tests of its API, and DVC, against lodefs."""
