"""Load tests of a whole cluster: nodes in network namespaces of this machine, and an S3 origin that
counts what it sends. ``./run loadtest``; loadtests/scenarios/ says what is done and asked."""
